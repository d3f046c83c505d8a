//! Whom to probe when: the nearest peers every interval, the others in turn, new ones soon.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::config::Config;
use crate::packet::NodeId;

/// Times per interval and sampled peer that one which was never probed gets its turn: 64 per second by default, so that
/// 1000 peers are known within 16 s.
const SURVEY: u32 = 8;

/// The turn of each peer. All times are of one steady clock.
#[derive(Debug)]
pub struct Schedule {
    config: Config,
    /// The nearest peers and when each is due.
    nearest: BTreeMap<NodeId, Duration>,
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
        self.nearest.values().copied().chain(others).min()
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
        if let Some((id, due)) = self.nearest.iter_mut().find(|(_, due)| **due <= now) {
            *due = now + jittered(self.config.interval, rng);
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
        self.sample_due = now + jittered(pause, rng);
        id
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
            let due = before.get(&id).copied().unwrap_or_else(|| now + self.config.interval.mul_f64(rng.f64()));
            self.nearest.insert(id, due);
        }
    }
}

/// Up to a fifth more or less, so that agents which start together do not stay together.
fn jittered(time: Duration, rng: &mut fastrand::Rng) -> Duration {
    time.mul_f64(0.8 + 0.4 * rng.f64())
}
