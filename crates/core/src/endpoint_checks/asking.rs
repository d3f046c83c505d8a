//! Who is asked when, and what follows from the answers.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::{AllFail, AskedPort, Check, Standing};
use crate::model::{Family, ObjectName, Slice, SlicePort};

/// Questions under way at the same time. 1000 dead endpoints, each silent for a second of every four, are that many.
pub const MOST_AT_ONCE: usize = 256;
/// By which part of the interval a question may come earlier.
const JITTER: f64 = 0.1;

/// An endpoint by the service that it belongs to and the address at which it is asked.
type Place = (ObjectName, SocketAddr);

/// A question to be asked now.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Asked {
    /// By which the answer is told.
    pub id: u64,
    /// Whom.
    pub endpoint: SocketAddr,
    /// What, and for how long to wait.
    pub check: Arc<Check>,
}

/// An endpoint that has turned: it fails, or it works now.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Turn {
    /// Of this service.
    pub service: ObjectName,
    /// Where it was asked.
    pub endpoint: SocketAddr,
    /// Whether it works.
    pub passes: bool,
    /// Nothing was known of it before.
    pub first: bool,
    /// Endpoints of the service and the family that work now.
    pub passing: usize,
    /// What becomes of the service if none does.
    pub all_fail: AllFail,
    /// All slices of the service as they are to be planned now.
    pub slices: Vec<Slice>,
}

/// How many endpoints and services stand how.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Endpoints that are asked.
    pub checked: usize,
    /// Those of them that fail.
    pub failing: usize,
    /// Services, each family counted, of which no endpoint works.
    pub all_failing: usize,
}

/// How the endpoints of a service stand in one family.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    checked: usize,
    passing: usize,
    failing: usize,
}

impl Tally {
    fn add(&mut self, standing: Standing) {
        self.checked += 1;
        self.passing += usize::from(standing.passes());
        self.failing += usize::from(standing.fails());
    }

    fn remove(&mut self, standing: Standing) {
        self.checked -= 1;
        self.passing -= usize::from(standing.passes());
        self.failing -= usize::from(standing.fails());
    }
}

/// An endpoint that is asked.
#[derive(Clone, Debug)]
struct Target {
    place: Place,
    check: Arc<Check>,
    standing: Standing,
    /// When it was last asked.
    asked: Duration,
}

/// All endpoints of services with a check. Time is counted from any moment on, and only forwards.
#[derive(Debug)]
pub struct EndpointChecks {
    checks: BTreeMap<ObjectName, Arc<Check>>,
    /// By service, as they are without a check.
    slices: BTreeMap<ObjectName, Vec<Slice>>,
    tallies: BTreeMap<(ObjectName, Family), Tally>,
    targets: BTreeMap<u64, Target>,
    ids: HashMap<Place, u64>,
    /// When each target is asked next, but those that are being asked.
    agenda: BTreeSet<(Duration, u64)>,
    /// Some may be no targets any more.
    asking: HashSet<u64>,
    last_id: u64,
    random: fastrand::Rng,
}

impl EndpointChecks {
    /// Nothing to check yet. `seed` decides by how much questions come earlier: not the same on two nodes.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            checks: BTreeMap::new(),
            slices: BTreeMap::new(),
            tallies: BTreeMap::new(),
            targets: BTreeMap::new(),
            ids: HashMap::new(),
            agenda: BTreeSet::new(),
            asking: HashSet::new(),
            last_id: 0,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// These are the services with a check now, and these all slices. Endpoints that stay stand where they stood. New
    /// ones, and those of a service whose check has changed, are asked at once. What is not ready anyway is not asked.
    pub fn replace(&mut self, checks: Vec<(ObjectName, Check)>, slices: Vec<Slice>, now: Duration) {
        let before = std::mem::take(&mut self.checks);
        let keep = |(name, check): (ObjectName, Check)| {
            let same = before.get(&name).filter(|known| ***known == check).cloned();
            (name, same.unwrap_or_else(|| Arc::new(check)))
        };
        self.checks = checks.into_iter().map(keep).collect();
        self.slices.clear();
        for slice in slices {
            self.slices.entry(slice.service.clone()).or_default().push(slice);
        }
        self.tallies.clear();
        let mut left = std::mem::take(&mut self.targets);
        let known = std::mem::take(&mut self.ids);
        let due: HashMap<u64, Duration> =
            std::mem::take(&mut self.agenda).into_iter().map(|(at, id)| (id, at)).collect();
        for (place, check) in self.wanted() {
            let id = known.get(&place).copied().unwrap_or_else(|| {
                self.last_id += 1;
                self.last_id
            });
            let before = left.remove(&id);
            let same = before.as_ref().is_some_and(|target| Arc::ptr_eq(&target.check, &check));
            let (standing, asked) = before.map_or((Standing::default(), now), |target| (target.standing, target.asked));
            if !self.asking.contains(&id) {
                let at = due.get(&id).copied().filter(|_| same).unwrap_or(now);
                self.agenda.insert((at, id));
            }
            let family = Family::of(place.1.ip());
            self.tallies.entry((place.0.clone(), family)).or_default().add(standing);
            self.ids.insert(place.clone(), id);
            self.targets.insert(id, Target { place, check, standing, asked });
        }
    }

    /// The endpoints that are to be asked, each place once.
    fn wanted(&self) -> BTreeMap<Place, Arc<Check>> {
        let mut wanted = BTreeMap::new();
        for slice in self.slices.values().flatten() {
            let Some(check) = self.checks.get(&slice.service) else { continue };
            let Some(port) = asked_port(check, &slice.ports) else { continue };
            let ready = slice.endpoints.iter().filter(|endpoint| endpoint.ready);
            let places = ready.map(|endpoint| (slice.service.clone(), SocketAddr::new(endpoint.address, port)));
            wanted.extend(places.map(|place| (place, Arc::clone(check))));
        }
        wanted
    }

    /// What is to be asked now. Each question must be [answered](Self::answered), by its timeout at the latest.
    pub fn due(&mut self, now: Duration) -> Vec<Asked> {
        let mut due = Vec::new();
        while self.asking.len() < MOST_AT_ONCE
            && let Some((_, id)) = self.agenda.first().copied().filter(|(at, _)| *at <= now)
        {
            self.agenda.pop_first();
            let Some(target) = self.targets.get_mut(&id) else { continue };
            target.asked = now;
            self.asking.insert(id);
            due.push(Asked { id, endpoint: target.place.1, check: Arc::clone(&target.check) });
        }
        due
    }

    /// When something is due next; None if nothing is before an answer comes.
    #[must_use]
    pub fn next(&self) -> Option<Duration> {
        let (at, _) = self.agenda.first().filter(|_| self.asking.len() < MOST_AT_ONCE)?;
        Some(*at)
    }

    /// Takes in what became of a question, and says whether the endpoint has turned by it.
    pub fn answered(&mut self, id: u64, passed: bool) -> Option<Turn> {
        self.asking.remove(&id);
        let target = self.targets.get_mut(&id)?;
        let Check { interval, rise, fall, all_fail, .. } = *target.check;
        let before = target.standing;
        target.standing = before.after(passed, rise, fall);
        // After the first answers, which come together, each endpoint gets a time of its own.
        let drawn = self.random.f64();
        let first = before == Standing::Untried;
        let part = if first { drawn } else { 1.0 - JITTER * drawn };
        self.agenda.insert((target.asked + interval.mul_f64(part), id));
        let (standing, (service, endpoint)) = (target.standing, target.place.clone());
        let passes = standing.passes();
        if !first && before.passes() == passes {
            return None;
        }
        let tally = self.tallies.entry((service.clone(), Family::of(endpoint.ip()))).or_default();
        tally.add(standing);
        tally.remove(before);
        let passing = tally.passing;
        let slices = self.slices.get(&service).into_iter().flatten().map(|slice| self.judged(slice)).collect();
        Some(Turn { service, endpoint, passes, first, passing, all_fail, slices })
    }

    /// All slices as they are to be planned: endpoints that do not work are not ready.
    #[must_use]
    pub fn slices(&self) -> Vec<Slice> {
        self.slices.values().flatten().map(|slice| self.judged(slice)).collect()
    }

    /// Whether every endpoint was asked to the end.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.tallies.values().all(|tally| tally.passing + tally.failing == tally.checked)
    }

    /// How many stand how.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let tallies = self.tallies.values();
        tallies.fold(Counts::default(), |counts, Tally { checked, failing, passing: _ }| Counts {
            checked: counts.checked + checked,
            failing: counts.failing + failing,
            all_failing: counts.all_failing + usize::from(failing == checked),
        })
    }

    fn judged(&self, slice: &Slice) -> Slice {
        let mut slice = slice.clone();
        let Some(check) = self.checks.get(&slice.service) else { return slice };
        let tally = self.tallies.get(&(slice.service.clone(), slice.family)).copied().unwrap_or_default();
        if check.all_fail == AllFail::UseAll && tally.passing == 0 {
            return slice;
        }
        let Slice { service, ports, endpoints, .. } = &mut slice;
        let port = asked_port(check, ports);
        for endpoint in endpoints.iter_mut().filter(|endpoint| endpoint.ready) {
            let place = port.map(|port| (service.clone(), SocketAddr::new(endpoint.address, port)));
            if !place.and_then(|place| self.standing(&place)).is_some_and(Standing::passes) {
                // Datagrams of open flows select anew, too; connections go on for as long as they can.
                (endpoint.ready, endpoint.serving) = (false, false);
            }
        }
        slice
    }

    fn standing(&self, place: &Place) -> Option<Standing> {
        Some(self.targets.get(self.ids.get(place)?)?.standing)
    }
}

/// Where the endpoints of a slice are asked.
fn asked_port(check: &Check, ports: &[SlicePort]) -> Option<u16> {
    match &check.port {
        AskedPort::Number(port) => Some(*port),
        AskedPort::Named(name) => ports.iter().find(|port| port.name == *name).map(|port| port.port),
    }
}
