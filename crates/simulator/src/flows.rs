//! Flows between nodes: new ones follow the shares, open ones stay where they are.

use std::ops::Range;

use crate::world::World;

/// What goes from each node to each of its zone.
pub(crate) struct Flows {
    /// Requests per second.
    pub(crate) requests: Vec<f64>,
    /// New flows ever.
    pub(crate) ever: Vec<f64>,
    /// New flows since the sender's last tick.
    pub(crate) fresh: Vec<f64>,
    /// By node: new flows from others since it was last asked.
    pub(crate) arrived: Vec<f64>,
}

impl Flows {
    /// None yet.
    pub(crate) fn new(world: &World) -> Self {
        let pairs: usize = (0..world.len()).map(|node| world.zone_of(node).len()).sum();
        Self {
            requests: vec![0.0; pairs],
            ever: vec![0.0; pairs],
            fresh: vec![0.0; pairs],
            arrived: vec![0.0; world.len()],
        }
    }

    /// Opens flows of a node's clients, as its shares say.
    pub(crate) fn open(&mut self, row: Range<usize>, new: &New, shares: &[f64]) {
        let New { node, zone, rate, seconds, part } = *new;
        for (position, (share, pair)) in shares.iter().zip(row).enumerate() {
            let rate = rate * share;
            self.requests[pair] += (rate - self.requests[pair]) * part;
            if rate > 0.0 {
                self.ever[pair] += rate * seconds;
                self.fresh[pair] += rate * seconds;
                if zone + position != node {
                    self.arrived[zone + position] += rate * seconds;
                }
            }
        }
    }
}

/// New flows of a step.
pub(crate) struct New {
    /// Whose clients open them.
    pub(crate) node: usize,
    /// The first node of its zone.
    pub(crate) zone: usize,
    /// How many per second.
    pub(crate) rate: f64,
    /// The length of the step.
    pub(crate) seconds: f64,
    /// How much of the way requests go in it to what new flows bring: flows live on.
    pub(crate) part: f64,
}
