//! What of the steering is worth telling people: services that begin and cease to spill, endpoints that are ejected, nodes
//! that fell silent. Here is decided when; how it is told is others' part.
//!
//! A share that moves back and forth is one spill, a service that spills every minute is told of once in ten, and of a
//! node that is short of everything the first few services tell enough.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::model::ObjectName;

/// Part of a service's new flows that must leave for it to begin to spill, and for how long.
const BEGIN: (f64, Duration) = (0.05, Duration::from_secs(5));
/// Part below which it must stay to cease, and for how long: a load about the target comes and goes in seconds.
const CEASE: (f64, Duration) = (0.01, Duration::from_secs(30));
/// Time constant of the flows that those parts are of: of a few flows per second each one is a large part of a moment's.
const SMOOTHING: Duration = Duration::from_secs(5);
/// About how often it is looked.
const LOOK: Duration = Duration::from_secs(1);
/// New flows per second below which nothing spills: nobody uses it.
const USED: f64 = 0.5;
/// Between two times that the same is told.
const REPEAT: Duration = Duration::from_secs(600);
/// Most that is told of different services in [`SPAN`].
const RATION: u32 = 10;
/// See [`RATION`].
const SPAN: Duration = Duration::from_secs(60);

/// New flows of a service port with endpoints here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spill<'a> {
    /// Whose.
    pub service: &'a ObjectName,
    /// New flows per second of clients of this node.
    pub offered: f64,
    /// Those of them that left.
    pub spilled: f64,
}

/// An endpoint that is ejected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ejected<'a> {
    /// Whose.
    pub service: &'a ObjectName,
    /// Its address and port.
    pub address: SocketAddr,
    /// Where it runs; empty if nobody knows.
    pub node: &'a Arc<str>,
    /// Whether that node does not answer any more.
    pub silent: bool,
}

/// What is to be told.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// New flows of a service leave this node for want of room.
    SpillBegan {
        /// Which service.
        service: ObjectName,
        /// Part of them that leaves.
        share: f64,
    },
    /// They stay again.
    SpillCeased {
        /// Which service.
        service: ObjectName,
        /// Since they began to leave.
        lasted: Duration,
        /// The largest part that left.
        most: f64,
    },
    /// An endpoint failed, and gets nothing for a while.
    Ejected {
        /// Which service.
        service: ObjectName,
        /// Its address and port.
        address: SocketAddr,
        /// Where it runs; empty if nobody knows.
        node: Arc<str>,
    },
    /// A node does not answer any more, and its endpoints get nothing.
    Silent {
        /// Which node.
        node: Arc<str>,
    },
}

/// Watches the steering. See the module's description.
#[derive(Debug, Default)]
pub struct Reporter {
    spills: BTreeMap<ObjectName, SpillState>,
    began: u64,
    out: BTreeSet<(ObjectName, SocketAddr)>,
    ejections: Told<(ObjectName, SocketAddr)>,
    silences: Told<Arc<str>>,
    ration: Ration,
}

#[derive(Debug, Default)]
struct SpillState {
    /// New flows per second, all and those that left, smoothed; and when they were last looked at.
    flows: (f64, f64),
    looked: Option<Instant>,
    /// Since when it is as it must be to change, without a break.
    since: Option<Instant>,
    spilling: Option<Spilling>,
    /// When its beginning was told last.
    told: Option<Instant>,
}

#[derive(Debug)]
struct Spilling {
    began: Instant,
    most: f64,
    told: bool,
}

impl Reporter {
    /// What is to be told of how things stand now. To be asked every second or so, with everything each time.
    pub fn look<'a>(
        &mut self,
        now: Instant,
        spills: impl Iterator<Item = Spill<'a>>,
        ejected: impl Iterator<Item = Ejected<'a>>,
    ) -> Vec<News> {
        let mut news = self.look_at_spills(now, spills);
        news.extend(self.look_at_ejected(now, ejected));
        news
    }

    /// How many services spill.
    #[must_use]
    pub fn spilling(&self) -> usize {
        self.spills.values().filter(|state| state.spilling.is_some()).count()
    }

    /// How often a service began to, since the start, told or not.
    #[must_use]
    pub const fn spills(&self) -> u64 {
        self.began
    }

    fn look_at_spills<'a>(&mut self, now: Instant, spills: impl Iterator<Item = Spill<'a>>) -> Vec<News> {
        // All ports of a service, in both families.
        let mut sums: BTreeMap<&ObjectName, (f64, f64)> = BTreeMap::new();
        for Spill { service, offered, spilled } in spills {
            let sum = sums.entry(service).or_default();
            *sum = (sum.0 + offered, sum.1 + spilled);
        }
        for (service, (_, spilled)) in &sums {
            if *spilled > 0.0 && !self.spills.contains_key(*service) {
                self.spills.insert((*service).clone(), SpillState::default());
            }
        }
        let mut news = Vec::new();
        for (service, state) in &mut self.spills {
            let share = state.share(sums.get(service).copied().unwrap_or_default(), now);
            self.began += u64::from(state.step(share, now));
            news.extend(state.tell(service, share, now, &mut self.ration));
        }
        self.spills.retain(|_, state| !state.is_over(now));
        news
    }

    fn look_at_ejected<'a>(&mut self, now: Instant, ejected: impl Iterator<Item = Ejected<'a>>) -> Vec<News> {
        let mut news = Vec::new();
        let mut out = BTreeSet::new();
        for Ejected { service, address, node, silent } in ejected {
            let endpoint = (service.clone(), address);
            let is_new = !self.out.contains(&endpoint);
            if is_new && silent {
                // Of hundreds of endpoints on it only the node is worth a word.
                if self.silences.is_due(node, now) {
                    self.silences.note(Arc::clone(node), now);
                    news.push(News::Silent { node: Arc::clone(node) });
                }
            } else if is_new && self.ejections.is_due(&endpoint, now) {
                if !self.ration.take(now) {
                    // It stays new, and is told when there is room, if it is still out then.
                    continue;
                }
                self.ejections.note(endpoint.clone(), now);
                news.push(News::Ejected { service: service.clone(), address, node: Arc::clone(node) });
            }
            out.insert(endpoint);
        }
        self.out = out;
        self.ejections.forget_old(now);
        self.silences.forget_old(now);
        news
    }
}

impl SpillState {
    /// Takes the flows of a moment, and says which part leaves.
    fn share(&mut self, (offered, spilled): (f64, f64), now: Instant) -> f64 {
        let elapsed = match self.looked.replace(now) {
            Some(looked) => now.duration_since(looked),
            // None had left so far.
            None => {
                self.flows.0 = offered;
                LOOK
            }
        };
        let part = 1.0 - (-elapsed.div_duration_f64(SMOOTHING)).exp();
        self.flows.0 += (offered - self.flows.0) * part;
        self.flows.1 += (spilled - self.flows.1) * part;
        if self.flows.0 < USED { 0.0 } else { self.flows.1 / self.flows.0 }
    }

    /// Takes the share of a moment. True if the spill begins now.
    fn step(&mut self, share: f64, now: Instant) -> bool {
        let changes = match &mut self.spilling {
            None => share >= BEGIN.0,
            Some(spilling) => {
                spilling.most = spilling.most.max(share);
                share < CEASE.0
            }
        };
        let since = if changes { Some(*self.since.get_or_insert(now)) } else { None };
        self.since = since;
        let begins = self.spilling.is_none() && since.is_some_and(|since| now.duration_since(since) >= BEGIN.1);
        if begins {
            self.spilling = Some(Spilling { began: now, most: share, told: false });
            self.since = None;
        }
        begins
    }

    /// What is to be told after a step.
    fn tell(&mut self, service: &ObjectName, share: f64, now: Instant, ration: &mut Ration) -> Option<News> {
        let spilling = self.spilling.as_mut()?;
        if self.since.is_some_and(|since| now.duration_since(since) >= CEASE.1) {
            let Spilling { began, most, told } = self.spilling.take()?;
            self.since = None;
            let lasted = now.duration_since(began);
            return told.then(|| News::SpillCeased { service: service.clone(), lasted, most });
        }
        let due = !spilling.told && self.told.is_none_or(|told| now.duration_since(told) >= REPEAT);
        // What is about to cease is not told as if it began.
        (due && self.since.is_none() && ration.take(now)).then(|| {
            spilling.told = true;
            self.told = Some(now);
            News::SpillBegan { service: service.clone(), share }
        })
    }

    /// Whether nothing of it matters any more.
    fn is_over(&self, now: Instant) -> bool {
        let told = self.told.is_some_and(|told| now.duration_since(told) < REPEAT);
        let nothing = self.flows.1 < CEASE.0 * USED;
        self.spilling.is_none() && self.since.is_none() && !told && nothing
    }
}

/// When something was told last.
#[derive(Debug)]
struct Told<K>(BTreeMap<K, Instant>);

impl<K> Default for Told<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Told<K> {
    fn is_due(&self, what: &K, now: Instant) -> bool {
        self.0.get(what).is_none_or(|told| now.duration_since(*told) >= REPEAT)
    }

    fn note(&mut self, what: K, now: Instant) {
        self.0.insert(what, now);
    }

    fn forget_old(&mut self, now: Instant) {
        self.0.retain(|_, told| now.duration_since(*told) < REPEAT);
    }
}

/// What may still be told in this span.
#[derive(Debug, Default)]
struct Ration {
    began: Option<Instant>,
    taken: u32,
}

impl Ration {
    fn take(&mut self, now: Instant) -> bool {
        if self.began.is_none_or(|began| now.duration_since(began) >= SPAN) {
            (self.began, self.taken) = (Some(now), 0);
        }
        let left = self.taken < RATION;
        self.taken += u32::from(left);
        left
    }
}

#[cfg(test)]
mod tests;
