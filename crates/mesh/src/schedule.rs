//! Whom to probe when: the nearest peers every interval, the others in turn, new ones soon.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::config::Config;
use crate::packet::NodeId;

/// Times per interval and sampled peer that one which was never probed gets its turn: 64 per second by default, so that
/// 1000 peers are known within 16 s.
const SURVEY: u32 = 8;

/// Samples that were not asked for in time are not made up for beyond this: the pauses of who asks are shorter.
const CATCH_UP: Duration = Duration::from_millis(300);

/// The turn of a near peer.
#[derive(Clone, Copy, Debug)]
struct Turn {
    due: Duration,
    /// It is not put off beyond that.
    latest: Duration,
    /// When it probed this node last.
    came: Option<Duration>,
}

/// The turn of each peer. All times are of one steady clock.
#[derive(Debug)]
pub struct Schedule {
    config: Config,
    nearest: BTreeMap<NodeId, Turn>,
    /// Never probed.
    unseen: VecDeque<NodeId>,
    /// All of them, shuffled; `position` is whose turn it is.
    rotation: Vec<NodeId>,
    position: usize,
    /// When the next one of the unseen or of the rotation is due.
    sample_due: Duration,
    /// When the nearest are chosen again.
    choice_due: Duration,
}

impl Schedule {
    /// Nobody to probe.
    #[must_use]
    pub const fn new(config: Config) -> Self {
        Self {
            config,
            nearest: BTreeMap::new(),
            unseen: VecDeque::new(),
            rotation: Vec::new(),
            position: 0,
            sample_due: Duration::ZERO,
            choice_due: Duration::ZERO,
        }
    }

    /// These peers are to be probed from now on. What stands for those that stay is kept.
    pub fn set(&mut self, peers: &BTreeSet<NodeId>, rng: &mut fastrand::Rng) {
        self.nearest.retain(|id, _| peers.contains(id));
        self.unseen.retain(|id| peers.contains(id));
        let known: BTreeSet<_> = self.rotation.iter().copied().collect();
        let mut new: Vec<_> = peers.difference(&known).copied().collect();
        rng.shuffle(&mut new);
        let before = self.position.min(self.rotation.len());
        self.position = self.rotation[..before].iter().filter(|id| peers.contains(id)).count();
        self.rotation.retain(|id| peers.contains(id));
        self.rotation.extend(&new);
        self.unseen.extend(new);
    }

    /// Is it one of the nearest?
    #[must_use]
    pub fn is_near(&self, id: NodeId) -> bool {
        self.nearest.contains_key(&id)
    }

    /// When to ask [`Schedule::take`] again. None if there is nobody to probe.
    #[must_use]
    pub fn next(&self) -> Option<Duration> {
        let others = (self.rotation.len() > self.nearest.len()).then_some(self.sample_due);
        self.nearest.values().map(|turn| turn.due).chain(others).min()
    }

    /// The next one to probe, if one is due. Ask until there is none. `distance` is None for a peer that was not
    /// measured.
    pub fn take(
        &mut self,
        now: Duration,
        distance: impl Fn(NodeId) -> Option<Duration>,
        rng: &mut fastrand::Rng,
    ) -> Option<NodeId> {
        if now >= self.choice_due {
            self.choose(now, distance, rng);
        }
        if let Some((id, turn)) = self.nearest.iter_mut().find(|(_, turn)| turn.due <= now) {
            let interval = self.config.interval;
            let mutual = turn.came.is_some_and(|came| now.saturating_sub(came) < 2 * interval);
            // Of two that are near to each other, the other one is next.
            let pause = if mutual { interval * 3 / 2 } else { interval };
            *turn = Turn { due: now + jittered(pause, rng), latest: now + 2 * interval, came: turn.came };
            return Some(*id);
        }
        if now < self.sample_due {
            return None;
        }
        let sample = u32::try_from(self.config.sample).unwrap_or(u32::MAX);
        let pause = self.config.interval / sample.max(1);
        let (id, pause) = match self.unseen.pop_front() {
            Some(id) => (Some(id), pause / SURVEY),
            None => (self.rotate(rng), pause),
        };
        // Who asks at intervals gets several at once.
        self.sample_due = self.sample_due.max(now.saturating_sub(CATCH_UP)) + jittered(pause, rng);
        id
    }

    /// A probe came from a peer then. By that both nodes have heard of each other's load, so a near one is probed an
    /// interval later: two that are near to each other take turns. Who probes all the time is probed every two intervals
    /// nevertheless.
    pub fn probed_by(&mut self, id: NodeId, then: Duration, rng: &mut fastrand::Rng) {
        if let Some(turn) = self.nearest.get_mut(&id) {
            let next = then + jittered(self.config.interval, rng);
            turn.due = turn.due.max(next.min(turn.latest));
            turn.came = Some(then);
        }
    }

    /// The next one of the rotation that is not near. It is shuffled when all had their turn, so that the nodes of a
    /// cluster do not come to one of them together.
    fn rotate(&mut self, rng: &mut fastrand::Rng) -> Option<NodeId> {
        for _ in 0..self.rotation.len() {
            if self.position >= self.rotation.len() {
                self.position = 0;
                rng.shuffle(&mut self.rotation);
            }
            let id = self.rotation[self.position];
            self.position += 1;
            if !self.nearest.contains_key(&id) {
                return Some(id);
            }
        }
        None
    }

    /// The nearest ones. Who is one stays it unless another is nearer by a fifth: on one switch all are as near.
    fn choose(&mut self, now: Duration, distance: impl Fn(NodeId) -> Option<Duration>, rng: &mut fastrand::Rng) {
        self.choice_due = now + jittered(self.config.interval, rng);
        let far = |id: &NodeId| distance(*id).map(|rtt| if self.nearest.contains_key(id) { rtt * 4 / 5 } else { rtt });
        let mut measured: Vec<_> = self.rotation.iter().filter_map(|id| Some((far(id)?, *id))).collect();
        if measured.len() > self.config.nearest {
            measured.select_nth_unstable(self.config.nearest);
            measured.truncate(self.config.nearest);
        }
        let before = std::mem::take(&mut self.nearest);
        for (_, id) in measured {
            // New ones begin anywhere within the interval.
            let turn = before.get(&id).copied().unwrap_or_else(|| {
                let due = now + self.config.interval.mul_f64(rng.f64());
                Turn { due, latest: due, came: None }
            });
            self.nearest.insert(id, turn);
        }
    }
}

/// Up to a tenth more or less, so that agents which start together do not stay together.
fn jittered(time: Duration, rng: &mut fastrand::Rng) -> Duration {
    time.mul_f64(0.9 + 0.2 * rng.f64())
}
