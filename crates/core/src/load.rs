//! The words in which nodes tell each other how busy they are. Signals make them, the mesh carries them, policies
//! decide by them. Numbers that cannot be true are refused where they are made or received: a lie never
//! looks like idle.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{ObjectName, Protocol};

/// How far above 1 a share may be before it is a lie: counters of time and of ticks are not read in the same instant.
const ROUNDING: f64 = 1e-3;
/// Flows per second above which a claim is a lie: more than any link carries.
pub const MOST_FLOWS_PER_SECOND: f64 = 1e9;

/// A number that cannot be true, with what it was claimed to be.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Lie {
    /// Not a number, negative, or above one.
    #[error("a share of {0} is claimed, but shares are 0 to 1: ignore the source until it tells one")]
    Share(f64),
    /// Not a number, negative, infinite, or more than can be.
    #[error("{what} of {claimed} is claimed, but that cannot be: ignore the source until it tells what can")]
    Amount {
        /// What is counted, with its unit.
        what: &'static str,
        /// The number.
        claimed: f64,
    },
}

/// A part of a whole, 0 to 1: utilisation, or a share of flows. Never NaN.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Share(f64);

// Never NaN: each is equal to itself.
impl Eq for Share {}

impl Share {
    /// None of it.
    pub const NONE: Self = Self(0.0);
    /// All of it.
    pub const ALL: Self = Self(1.0);

    /// A share that somebody claims. Up to 0.001 above 1 is rounded to 1.
    ///
    /// # Errors
    /// [`Lie::Share`] if it is not a number, negative, or above that.
    pub fn new(claimed: f64) -> Result<Self, Lie> {
        if (0.0..=1.0 + ROUNDING).contains(&claimed) {
            // Adding 0 makes 0 of -0.
            Ok(Self(claimed.min(1.0) + 0.0))
        } else {
            Err(Lie::Share(claimed))
        }
    }

    /// The nearest share to the result of a calculation; NaN is none of it.
    #[must_use]
    pub const fn clamped(number: f64) -> Self {
        // f64::max drops NaN.
        Self(number.max(0.0).min(1.0))
    }

    /// As a number, 0 to 1.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }

    /// What is left of the whole.
    #[must_use]
    pub const fn rest(self) -> Self {
        Self(1.0 - self.0)
    }
}

/// A value and how old it is where it is used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample<T> {
    /// What was measured.
    pub value: T,
    /// Since when it is so.
    pub age: Duration,
}

impl<T> Sample<T> {
    /// A value measured just now.
    pub const fn fresh(value: T) -> Self {
        Self { value, age: Duration::ZERO }
    }

    /// The same some time later.
    #[must_use]
    pub fn aged(self, by: Duration) -> Self {
        Self { value: self.value, age: self.age.saturating_add(by) }
    }
}

/// How busy a node is. What is unknown is None, never 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NodeLoad {
    /// CPU in use, of `capacity`.
    pub cpu: Option<Sample<Share>>,
    /// Memory in use.
    pub memory: Option<Sample<Share>>,
    /// Network in use, of the link's or the configured rate.
    pub network: Option<Sample<Share>>,
    /// Time in which some task waited for CPU: PSI `some avg10` (Documentation/accounting/psi.rst).
    pub pressure: Option<Sample<Share>>,
    /// Cores that the node can give, its quota considered. 0 if unknown.
    pub capacity: f64,
    /// What the network of `network` carries, in bits per second each way. 0 if unknown.
    pub bandwidth: f64,
}

impl NodeLoad {
    /// The load itself, if what it says that the node has can be true.
    ///
    /// # Errors
    /// [`Lie::Amount`] if that is not a number, negative or infinite.
    pub fn checked(self) -> Result<Self, Lie> {
        amount("a capacity in cores", self.capacity)?;
        amount("a bandwidth in bits per second", self.bandwidth)?;
        Ok(self)
    }
}

/// What a service does on one node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServiceLoad {
    /// New flows per second that the node's endpoints get, from clients of any node.
    pub flows_per_second: f64,
    /// Flows that they have open.
    pub open_flows: u32,
    /// New flows per second that the node still takes from one peer, already divided by the peers that spill to it.
    pub spare: f64,
}

impl ServiceLoad {
    /// The load itself, if its numbers can be true.
    ///
    /// # Errors
    /// [`Lie::Amount`] for the first that is not a number, negative, or above [`MOST_FLOWS_PER_SECOND`].
    pub fn checked(self) -> Result<Self, Lie> {
        rate("a rate in flows per second", self.flows_per_second)?;
        rate("spare flows per second", self.spare)?;
        Ok(self)
    }
}

/// What other nodes send of a service straight to the endpoints of this one, as they tell: they translate those flows,
/// so that this node's datapath never counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Inbound {
    /// How many nodes.
    pub spillers: u32,
    /// New flows per second of all of them together.
    pub flows_per_second: f64,
}

fn rate(what: &'static str, claimed: f64) -> Result<f64, Lie> {
    if claimed > MOST_FLOWS_PER_SECOND { Err(Lie::Amount { what, claimed }) } else { amount(what, claimed) }
}

fn amount(what: &'static str, claimed: f64) -> Result<f64, Lie> {
    if claimed.is_finite() && claimed >= 0.0 { Ok(claimed) } else { Err(Lie::Amount { what, claimed }) }
}

/// Names a port of a service in reports: the same number on every node, in every release.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// The FNV-1a hash (draft-eastlake-fnv) of `namespace/name/port/protocol number`. Two services with one number read
    /// each other's reports: their shares are worse, their endpoints are right.
    #[must_use]
    pub fn of(service: &ObjectName, port: u16, protocol: Protocol) -> Self {
        const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
        const PRIME: u64 = 0x0100_0000_01b3;
        let text = format!("{service}/{port}/{}", protocol.number());
        Self(text.bytes().fold(OFFSET_BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME)))
    }
}

/// What a peer told about itself.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerReport {
    /// The peer's node.
    pub node: Arc<str>,
    /// How busy it is. The samples' ages are those when the report was made.
    pub load: NodeLoad,
    /// Its services in the order of their numbers; one may be missing if the report did not hold them all.
    pub services: Vec<(ServiceId, ServiceLoad)>,
    /// Round-trip time to it, without the time that the peer held the probe. None if it was never measured.
    pub rtt: Option<Duration>,
    /// How long ago the report was made.
    pub age: Duration,
}

impl PeerReport {
    /// What it says of a service.
    #[must_use]
    pub fn service(&self, id: ServiceId) -> Option<&ServiceLoad> {
        let at = self.services.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        Some(&self.services[at].1)
    }
}
