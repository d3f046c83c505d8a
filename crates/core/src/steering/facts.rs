//! What the loop has to know of the world.

use std::time::Duration;

use crate::load::{Inbound, NodeLoad, PeerReport, Sample, ServiceId};
use crate::model::PodUid;
use crate::policies::EndpointLoad;

/// Where a tick's inputs come from. Answers are about one moment, and cheap: they are asked for every endpoint.
pub trait Facts {
    /// How busy this node is.
    fn own(&self) -> NodeLoad;

    /// What another node told last; None if it never did, or too long ago.
    fn report(&self, node: &str) -> Option<&PeerReport>;

    /// How often another node reports.
    fn report_interval(&self, node: &str) -> Duration;

    /// Whether a node that used to answer probes does not any more.
    fn is_silent(&self, node: &str) -> bool;

    /// Whether the nodes that are silent are others than at the tick before.
    fn is_alarmed(&self) -> bool;

    /// What was counted of a service's slot.
    fn service(&self, slot: u32) -> ServiceCounts;

    /// What was counted of a backend's slot.
    fn backend(&self, slot: u32) -> BackendCounts;

    /// Flows that a backend has open from this node; none if unknown.
    fn open_flows(&self, slot: u32, generation: u32) -> OpenCounts;

    /// What a pod of this node uses; None if unknown.
    fn pod(&self, pod: PodUid) -> Option<PodUse>;

    /// What other nodes tell that they send of a service to this one.
    fn inbound(&self, service: ServiceId) -> Inbound;
}

/// Flows of a service's slot since it was taken. They may begin anew.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ServiceCounts {
    /// All that began, whoever sent their first packets.
    pub begun: u64,
    /// Those that stayed on the node and went on: of connections forged first packets load no endpoint.
    pub local: u64,
    /// Those that left it and went on.
    pub remote: u64,
}

impl ServiceCounts {
    /// Per second since `before`, `elapsed` ago. A slot that began anew has all of them since then.
    #[must_use]
    pub fn rates(self, before: Self, elapsed: Duration) -> FlowRates {
        let Self { begun: _, local, remote } = self.since(before);
        FlowRates { local: rate(local, elapsed), remote: rate(remote, elapsed) }
    }

    /// All that began, per second since `before`, `elapsed` ago.
    #[must_use]
    pub fn begun_rate(self, before: Self, elapsed: Duration) -> f64 {
        rate(self.since(before).begun, elapsed)
    }

    fn since(self, before: Self) -> Self {
        let since = || {
            Some(Self {
                begun: self.begun.checked_sub(before.begun)?,
                local: self.local.checked_sub(before.local)?,
                remote: self.remote.checked_sub(before.remote)?,
            })
        };
        since().unwrap_or(self)
    }
}

fn rate(new: u64, elapsed: Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "flows of seconds")]
    let new = new as f64;
    if elapsed.is_zero() { 0.0 } else { new / elapsed.as_secs_f64() }
}

/// New flows per second of a service port from clients of this node that went on, wherever they went.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FlowRates {
    /// Stayed on the node.
    pub local: f64,
    /// Left it.
    pub remote: f64,
}

impl FlowRates {
    /// All of them.
    #[must_use]
    pub fn offered(self) -> f64 {
        self.local + self.remote
    }
}

/// Sums of a backend's slot since it was taken. They may begin anew.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct BackendCounts {
    /// New flows sent there.
    pub flows: u64,
    /// Those that went on after the answer. This and what follows are modulo 2^32: there is one of these for each endpoint of each node.
    pub gone_on: u32,
    /// Flows that it answered.
    pub answered: u32,
    /// SYNs that it answered with a reset.
    pub refused: u32,
    /// SYNs that it had not answered when they came again.
    pub unanswered: u32,
    /// Connections of these that another endpoint has taken since.
    pub failed_over: u32,
}

impl BackendCounts {
    /// What two looks are compared by.
    #[must_use]
    pub const fn outcomes(self) -> Outcomes {
        let Self { flows: _, gone_on, answered, refused, unanswered, failed_over } = self;
        Outcomes { gone_on, answered, refused, unanswered, failed_over }
    }
}

/// What of [`BackendCounts`] is compared with the last look. Small, as there is one for each endpoint. All are modulo 2^32.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Outcomes {
    /// As there, and so are all others.
    pub gone_on: u32,
    /// Flows that it answered.
    pub answered: u32,
    /// SYNs that it answered with a reset.
    pub refused: u32,
    /// SYNs that it had not answered when they came again.
    pub unanswered: u32,
    /// Connections of these that another endpoint has taken since.
    pub failed_over: u32,
}

impl Outcomes {
    /// What came since `before`. A slot that began anew has all of it since then.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        let since = || {
            Some(Self {
                gone_on: grown(self.gone_on, before.gone_on)?,
                answered: grown(self.answered, before.answered)?,
                refused: grown(self.refused, before.refused)?,
                unanswered: grown(self.unanswered, before.unanswered)?,
                failed_over: grown(self.failed_over, before.failed_over)?,
            })
        };
        since().unwrap_or(self)
    }

    /// Flows that it did not take.
    #[must_use]
    pub fn failed(self) -> u64 {
        u64::from(self.refused) + u64::from(self.unanswered)
    }

    /// What must not wait when it grows.
    pub(super) const fn failures(self) -> (u32, u32) {
        (self.refused, self.failed_over)
    }
}

/// By how much a counter has grown that wraps: what went back is not what came round.
fn grown(now: u32, before: u32) -> Option<u32> {
    Some(now.wrapping_sub(before)).filter(|grown| *grown <= u32::MAX / 2)
}

/// Flows that a backend has open.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct OpenCounts {
    /// All, those included that it has not answered, or whose first packets are forged.
    pub all: u32,
    /// Those that went on.
    pub going: u32,
}

/// What a pod uses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PodUse {
    /// Of its limits.
    pub load: EndpointLoad,
    /// Cores in use.
    pub cores: Option<Sample<f64>>,
    /// Cores that it may use; None: no limit.
    pub cores_limit: Option<f64>,
}
