//! What other nodes take of a service: their headroom, how far they are, and who is out.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::constants::{BAD_NEWS, CLASS_MARGIN, ENTER_MARGIN, GOOD_NEWS, MEMORY_FULL, NEAREST, SMOOTHING};
use super::fill::Vessel;
use super::smooth::Smoothed;
use crate::load::{MOST_FLOWS_PER_SECOND, NodeLoad, PeerReport, Sample};
use crate::policies::{Ineligible, Inputs, Reading, Reason};

/// What is known of other nodes over time, by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Peers(HashMap<Arc<str>, Peer>);

#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    headroom: Smoothed,
    /// It tells its headroom itself.
    told: bool,
    rtt: Smoothed,
    class: Option<u32>,
    /// New flows per second that it got after the last decision.
    got: f64,
    /// The same, smoothed: what its utilisation shows.
    sent: Smoothed,
}

/// Another node that could take flows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// Index of the node.
    pub(super) node: usize,
    /// What it could take.
    pub(super) vessel: Vessel,
}

/// What a flow costs here, for nodes that do not tell what they could take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Yardstick {
    /// New flows per second from clients of this node.
    pub(super) offered: f64,
    /// Utilisation of this node that one new flow per second costs, if it is known.
    pub(super) cost: Option<f64>,
    /// Utilisation up to which a node takes flows.
    pub(super) target: f64,
}

impl Peers {
    /// The nodes that could take flows, and why the others cannot. `endpoints` is their number by node.
    pub(super) fn candidates(
        &mut self,
        inputs: &Inputs<'_>,
        endpoints: &[u32],
        yardstick: &Yardstick,
        reasons: &mut Vec<Reason>,
    ) -> Vec<Candidate> {
        let remote = |node: &usize| !inputs.nodes[*node].local && endpoints[*node] > 0;
        let sharers = endpoints.iter().filter(|count| **count > 0).count();
        let mut known = HashMap::with_capacity(inputs.nodes.len());
        let mut candidates = Vec::new();
        for node in (0..inputs.nodes.len()).filter(remote) {
            let name = &inputs.nodes[node].name;
            let mut peer = self.0.remove(name).unwrap_or_default();
            match peer.judge(inputs, node, yardstick, sharers, reasons) {
                Ok(vessel) => candidates.push(Candidate { node, vessel }),
                Err(cause) => {
                    // It begins anew when it is back.
                    peer = Peer::default();
                    reasons.push(Reason::Ineligible { node: Arc::clone(name), cause });
                }
            }
            known.insert(Arc::clone(name), peer);
        }
        self.0 = known;
        candidates
    }

    /// Remembers what a node gets from now on.
    pub(super) fn gets(&mut self, name: &str, flows: f64) {
        if let Some(peer) = self.0.get_mut(name) {
            peer.got = flows;
        }
    }
}

impl Peer {
    fn judge(
        &mut self,
        inputs: &Inputs<'_>,
        node: usize,
        yardstick: &Yardstick,
        sharers: usize,
        reasons: &mut Vec<Reason>,
    ) -> Result<Vessel, Ineligible> {
        let report = inputs.nodes[node].report.ok_or(Ineligible::Silent)?;
        let reading = inputs.reading(node, report.age).ok_or(Ineligible::Old(report.age))?;
        if !inputs.is_near_enough(node) {
            return Err(Ineligible::Far);
        }
        let NodeLoad { cpu, memory, capacity, network: _, pressure: _, bandwidth: _ } =
            report.load.checked().map_err(|_lie| Ineligible::Unusable)?;
        let cpu = cpu.ok_or(Ineligible::Unusable)?.aged(report.age);
        // A node can report in time and yet measure nothing any more.
        let reading_of_cpu = inputs.reading(node, cpu.age).ok_or(Ineligible::Old(cpu.age))?;
        if memory.is_some_and(|memory| memory.value.get() >= MEMORY_FULL) {
            return Err(Ineligible::Full);
        }
        self.sent.follow(self.got, inputs.elapsed, SMOOTHING + cpu.age);
        let told = told(inputs, report)?;
        if told.is_some() && !self.told {
            // What it knows of itself is not news about its load.
            self.headroom = Smoothed::default();
        }
        self.told = told.is_some();
        let mut headroom = told.unwrap_or_else(|| self.guess(inputs, cpu, capacity, yardstick, sharers));
        let frozen = reading == Reading::Frozen || reading_of_cpu == Reading::Frozen;
        if frozen {
            reasons.push(Reason::Frozen { node: Arc::clone(&report.node), age: cpu.age });
        }
        if frozen || cpu.value.get() >= yardstick.target + ENTER_MARGIN {
            headroom = headroom.min(self.got);
        }
        let headroom = self.headroom.follow_unevenly(headroom, inputs.elapsed, GOOD_NEWS, BAD_NEWS);
        Ok(Vessel { class: self.class(report.rtt, inputs.elapsed), headroom })
    }

    /// From its utilisation and size, by what flows cost here. It shows what it got already as used, so that comes on
    /// top. Others may think the same, so what is free is divided by all nodes of the service.
    fn guess(
        &self,
        inputs: &Inputs<'_>,
        cpu: Sample<crate::load::Share>,
        capacity: f64,
        yardstick: &Yardstick,
        sharers: usize,
    ) -> f64 {
        let free = (yardstick.target - cpu.value.get()).max(0.0);
        let own = inputs.own.load.capacity;
        match yardstick.cost {
            Some(cost) if cost > 0.0 && own > 0.0 && own.is_finite() => {
                let flows = free * capacity / own / cost / sharers.max(1) as f64;
                (self.sent.get().unwrap_or(0.0) + flows).min(MOST_FLOWS_PER_SECOND)
            }
            // No flow ever came to this node: a node without any load takes all that is offered here.
            Some(_) | None => yardstick.offered * free / yardstick.target,
        }
    }

    /// The class of a node's distance, which changes only when the distance has really left it. Unknown is the last.
    fn class(&mut self, rtt: Option<Duration>, elapsed: Duration) -> u32 {
        let Some(rtt) = rtt else { return u32::MAX };
        let rtt = self.rtt.follow(rtt.as_secs_f64(), elapsed, SMOOTHING);
        let (low, high) = (class_of(rtt * (1.0 - CLASS_MARGIN)), class_of(rtt * (1.0 + CLASS_MARGIN)));
        let class = self.class.filter(|class| (low..=high).contains(class)).unwrap_or_else(|| class_of(rtt));
        self.class = Some(class);
        class
    }
}

/// 0 up to [`NEAREST`], and one more for each doubling.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small whole number, not negative")]
fn class_of(seconds: f64) -> u32 {
    (seconds / NEAREST.as_secs_f64()).log2().ceil().max(0.0) as u32
}

/// What the node itself says that it takes from this one.
fn told(inputs: &Inputs<'_>, report: &PeerReport) -> Result<Option<f64>, Ineligible> {
    let Some(load) = report.service(inputs.service) else { return Ok(None) };
    let load = load.checked().map_err(|_lie| Ineligible::Unusable)?;
    Ok(Some(load.spare))
}
