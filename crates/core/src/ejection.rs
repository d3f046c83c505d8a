//! Passive ejection: endpoints that do not answer, or reset what they get, get nothing for a while.
//!
//! What counts are flows that failed in the datapath, those that were reset more than those that another endpoint had to take; nothing is probed. An endpoint that is out is tried again after a
//! time that doubles with each failure. Never more than half of a service's endpoints are out: if most fail, the fault
//! is elsewhere, and the rest must not be drowned.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

/// Failures without an answer between them until an endpoint is out: 3, so that one lost packet's retransmission or one
/// client that hangs up is not enough.
pub const FAILURES: u32 = 3;
/// What a reset that answers a SYN counts for, in failures: nobody listens there, whereas a SYN that has no answer may have been lost on
/// its way. Two of them are enough, and one is not: a server that starts anew, or a client that is not let in, has one soon.
pub const REFUSAL: u32 = 2;
/// How long an endpoint is out at first.
pub const FIRST_BACKOFF: Duration = Duration::from_secs(5);
/// How long it is out at most: Envoy's `max_ejection_time`, 300 s.
pub const LONGEST_BACKOFF: Duration = Duration::from_secs(300);
/// How long an endpoint must hold after its return to be forgiven: as long as its share grows.
pub const TRIAL: Duration = Duration::from_secs(10);

/// What became of an endpoint's flows in a tick.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Outcome {
    /// Flows that it answered.
    pub answered: u32,
    /// SYNs that it answered with a reset. Beside answers they count for nothing.
    pub refused: u32,
    /// Connections that another endpoint has taken, as this one had not answered when their SYN came again. What nobody takes is not held
    /// against any: its client may be kept out, or not be there.
    pub failed_over: u32,
    /// Its node answers nobody any more: it is out for as long as that lasts.
    pub silent: bool,
}

/// Where an endpoint stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Standing {
    /// In, with failures since it last answered.
    In { failures: u32 },
    /// Out for some time more; the time that it was given.
    Out { left: Duration, backoff: Duration },
    /// In again for some time; the time that it was out.
    Trial { passed: Duration, failures: u32, backoff: Duration },
}

/// Which endpoints of a service are out, or might be soon: those without a failure are not kept.
#[derive(Clone, Debug, Default)]
pub struct Ejections(HashMap<SocketAddr, Standing>);

impl Ejections {
    /// After a tick: whether each endpoint is in. `endpoints` are all that may be used, `outcomes` theirs in the same
    /// order. What is no endpoint any more is forgotten.
    pub fn tick(&mut self, elapsed: Duration, endpoints: &[SocketAddr], outcomes: &[Outcome]) -> Vec<bool> {
        let mut next = HashMap::new();
        for (index, endpoint) in endpoints.iter().enumerate() {
            // Hashing is what a tick costs: mostly nobody failed, and there is nothing to look up.
            let before = if self.0.is_empty() { None } else { self.0.remove(endpoint) };
            let outcome = outcomes.get(index).copied().unwrap_or_default();
            let standing = before.unwrap_or(Standing::BLAMELESS).after(elapsed, outcome);
            if standing != Standing::BLAMELESS {
                next.insert(*endpoint, standing);
            }
        }
        self.0 = next;
        self.cap(endpoints);
        endpoints.iter().map(|endpoint| !self.is_out(endpoint)).collect()
    }

    /// Whether an endpoint has just come back and is on trial, and for how long.
    #[must_use]
    pub fn trial(&self, endpoint: &SocketAddr) -> Option<Duration> {
        match self.0.get(endpoint)? {
            Standing::Trial { passed, .. } => Some(*passed),
            Standing::In { .. } | Standing::Out { .. } => None,
        }
    }

    /// Throws out who failed too often, the worst first, as long as half of the set stays. If the set has shrunk below
    /// that, those who have been out longest come back.
    fn cap(&mut self, endpoints: &[SocketAddr]) {
        let most = endpoints.len() / 2;
        let mut out: Vec<(Duration, SocketAddr)> = Vec::new();
        let mut failing: Vec<(u32, SocketAddr)> = Vec::new();
        for endpoint in endpoints {
            match self.0.get(endpoint) {
                Some(Standing::Out { left, .. }) => out.push((*left, *endpoint)),
                Some(standing) => failing.extend(standing.is_failing().map(|failures| (failures, *endpoint))),
                None => {}
            }
        }
        out.sort_unstable();
        let back = out.len().saturating_sub(most);
        for (_, endpoint) in out.drain(..back) {
            self.replace(&endpoint, Standing::back);
        }
        failing.sort_unstable_by_key(|(failures, endpoint)| (std::cmp::Reverse(*failures), *endpoint));
        for (_, endpoint) in failing.iter().take(most - out.len()) {
            self.replace(endpoint, Standing::thrown_out);
        }
    }

    fn replace(&mut self, endpoint: &SocketAddr, with: impl Fn(Standing) -> Standing) {
        if let Some(standing) = self.0.get_mut(endpoint) {
            *standing = with(*standing);
        }
    }

    fn is_out(&self, endpoint: &SocketAddr) -> bool {
        matches!(self.0.get(endpoint), Some(Standing::Out { .. }))
    }
}

impl Standing {
    /// That of an endpoint that nothing is known of.
    const BLAMELESS: Self = Self::In { failures: 0 };

    fn after(self, elapsed: Duration, outcome: Outcome) -> Self {
        if outcome.silent {
            return self.silent();
        }
        let add = |failures: u32| {
            let Outcome { answered, refused, failed_over, silent: _ } = outcome;
            // Who has agreed to a connection listens: what it has reset beside that somebody else may have sent, or a network policy.
            let refused = if answered > 0 { 0 } else { refused };
            // Who answers more than it fails is in order.
            if answered > failed_over {
                return 0;
            }
            failures.saturating_add(failed_over).saturating_add(refused.saturating_mul(REFUSAL))
        };
        match self {
            Self::In { failures } => Self::In { failures: add(failures) },
            Self::Out { left, backoff } if left > elapsed => Self::Out { left: left - elapsed, backoff },
            Self::Out { .. } => self.back(),
            Self::Trial { passed, failures, backoff } => match (add(failures), passed + elapsed) {
                (0, passed) if passed >= TRIAL => Self::In { failures: 0 },
                (failures, passed) => Self::Trial { passed, failures, backoff },
            },
        }
    }

    /// The first to be thrown out, and no time passes for who is out.
    const fn silent(self) -> Self {
        let failures = u32::MAX;
        match self {
            Self::In { .. } => Self::In { failures },
            Self::Trial { passed, failures: _, backoff } => Self::Trial { passed, failures, backoff },
            Self::Out { .. } => self,
        }
    }

    /// How often it failed, if that is too often. On trial once is.
    const fn is_failing(self) -> Option<u32> {
        match self {
            Self::In { failures } if failures >= FAILURES => Some(failures),
            Self::Trial { failures, .. } if failures > 0 => Some(failures),
            Self::In { .. } | Self::Trial { .. } | Self::Out { .. } => None,
        }
    }

    fn thrown_out(self) -> Self {
        let backoff = match self {
            Self::In { .. } => FIRST_BACKOFF,
            Self::Out { backoff, .. } | Self::Trial { backoff, .. } => backoff.saturating_mul(2).min(LONGEST_BACKOFF),
        };
        Self::Out { left: backoff, backoff }
    }

    const fn back(self) -> Self {
        match self {
            Self::Out { backoff, .. } => Self::Trial { passed: Duration::ZERO, failures: 0, backoff },
            Self::In { .. } | Self::Trial { .. } => self,
        }
    }
}
