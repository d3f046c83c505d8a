//! Which share of a service's new flows goes to which endpoint: one file per policy, all behind [`Policy`].
//!
//! A policy sees only endpoints that kube-proxy's rules allow ([`crate::endpoints`]), and gives each of them a share.
//! It can never widen that set, since shares are answered in the order of the endpoints asked about. Nothing here has
//! a clock or does I/O: the same questions in the same order give the same answers, in the agent as in a simulation.

pub mod ability;
mod decision;
mod inputs;
mod least_conn;
pub mod maglev;
pub mod nearest_half;
pub mod net_balance;
mod random;
pub mod rap;
mod reason;
pub mod waterfill;

use std::str::FromStr;

use crate::plan::Selector;
pub use decision::Decision;
pub use inputs::{Endpoint, EndpointLoad, Inputs, Node, Offered, Own, Parameters, PodsLoad, Reading};
pub use least_conn::LeastConn;
pub use random::Random;
pub use reason::{Ineligible, Reason};

/// How new flows of one service are divided. What it remembers between ticks is its own.
pub trait Policy: Send {
    /// The shares for the next tick.
    fn decide(&mut self, inputs: &Inputs<'_>) -> Decision;

    /// New flows per second that this node takes from each of `peers` in all, as it tells them. None if the policy
    /// does not know: then peers judge by the node's load.
    fn spare(&self, _peers: u32) -> Option<f64> {
        None
    }
}

/// The policies by name, as the annotation `weir.dev/policy` has it.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum Kind {
    /// Local until the level, then over to the nearest nodes that can take it.
    #[default]
    Waterfill,
    /// Local below two thresholds, otherwise all to the best node.
    Rap,
    /// The nearest half of the endpoints, by fewest flows for their weight.
    NearestHalf,
    /// By grades of several metrics.
    Ability,
    /// Least variance of network load.
    NetBalance,
    /// The same for each endpoint.
    Random,
    /// Of two endpoints the one with fewer open flows.
    LeastConn,
    /// Consistent hashing: the same endpoint for a flow at every node.
    Maglev,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Waterfill,
        Self::Rap,
        Self::NearestHalf,
        Self::Ability,
        Self::NetBalance,
        Self::Random,
        Self::LeastConn,
        Self::Maglev,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waterfill => "waterfill",
            Self::Rap => "rap",
            Self::NearestHalf => "nearest-half",
            Self::Ability => "ability",
            Self::NetBalance => "net-balance",
            Self::Random => "random",
            Self::LeastConn => "least-conn",
            Self::Maglev => "maglev",
        }
    }

    /// How the kernel selects where this policy divides.
    #[must_use]
    pub const fn selector(self) -> Selector {
        match self {
            Self::LeastConn => Selector::LeastConn,
            Self::Maglev => Selector::Maglev,
            Self::Waterfill | Self::Rap | Self::NearestHalf | Self::Ability | Self::NetBalance | Self::Random => {
                Selector::Weights
            }
        }
    }

    /// A policy that remembers nothing yet.
    #[must_use]
    pub fn start(self) -> Box<dyn Policy> {
        match self {
            Self::Waterfill => Box::<waterfill::Waterfill>::default(),
            Self::Rap => Box::new(rap::Rap),
            Self::NearestHalf => Box::new(nearest_half::NearestHalf),
            Self::Ability => Box::new(ability::Ability),
            Self::NetBalance => Box::new(net_balance::NetBalance),
            Self::Random => Box::new(Random),
            Self::LeastConn => Box::new(LeastConn),
            Self::Maglev => Box::<maglev::Maglev>::default(),
        }
    }
}

/// A policy that nobody knows.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "policy {0:?} does not exist: use waterfill, rap, nearest-half, ability, net-balance, random, least-conn or maglev"
)]
pub struct UnknownPolicy(String);

impl FromStr for Kind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}
