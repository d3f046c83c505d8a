//! Whether Weir's maps and the other proxy's rules say the same.

use std::fmt;
use std::net::SocketAddr;

use crate::served::{Frontend, Ours, Served};

/// What keeps clients from being served as they were.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Difference {
    /// Weir does not serve what the other proxy does.
    NotOurs(Frontend),
    /// Weir serves it and has no endpoint for it, unlike the other proxy.
    Nowhere(Frontend),
    /// Weir does not know an endpoint that the other proxy uses.
    UnknownEndpoint(Frontend, SocketAddr),
    /// The other proxy does not serve what Weir does.
    NotTheirs(Frontend),
    /// The other proxy does not use an endpoint that Weir does.
    UnusedEndpoint(Frontend, SocketAddr),
}

impl Difference {
    /// Whether time can make it without a fault of anybody, once the other proxy follows the cluster no more.
    #[must_use]
    pub const fn is_of_age(&self) -> bool {
        match self {
            Self::UnknownEndpoint(..) | Self::UnusedEndpoint(..) | Self::Nowhere(_) => true,
            Self::NotOurs(_) | Self::NotTheirs(_) => false,
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOurs(frontend) => write!(f, "{frontend} is kube-proxy's and not in Weir's maps"),
            Self::Nowhere(frontend) => {
                write!(f, "{frontend} leads to no endpoint in Weir's maps, and kube-proxy has some")
            }
            Self::UnknownEndpoint(frontend, endpoint) => {
                write!(f, "{frontend}: Weir's maps lack endpoint {endpoint}, which kube-proxy has")
            }
            Self::NotTheirs(frontend) => write!(f, "{frontend} is in Weir's maps and not in kube-proxy's rules"),
            Self::UnusedEndpoint(frontend, endpoint) => {
                write!(f, "{frontend}: kube-proxy's rules lack endpoint {endpoint}, which Weir has")
            }
        }
    }
}

/// What Weir must have before it replaces the other proxy: every frontend and every endpoint, and where that proxy has
/// endpoints a way to one. And none at a cluster IP that the other one has not: either they know different things, or we
/// cannot read its rules. In the order of the frontends.
#[must_use]
pub fn take_over(theirs: &Served, ours: &Ours) -> Vec<Difference> {
    let mut differences = Vec::new();
    for (frontend, endpoints) in theirs {
        let Some(programmed) = ours.get(frontend) else {
            differences.push(Difference::NotOurs(*frontend));
            continue;
        };
        if programmed.chosen.is_empty() && !endpoints.is_empty() {
            differences.push(Difference::Nowhere(*frontend));
        }
        let unknown = endpoints.difference(&programmed.known);
        differences.extend(unknown.map(|endpoint| Difference::UnknownEndpoint(*frontend, *endpoint)));
        let unused = programmed.inside.difference(endpoints);
        differences.extend(unused.map(|endpoint| Difference::UnusedEndpoint(*frontend, *endpoint)));
    }
    differences
}

/// What the other proxy must have before Weir lets go: every frontend, every endpoint at cluster IPs, and none that Weir
/// knows nothing of, which would be of an older state of the cluster. In the order of the frontends.
#[must_use]
pub fn hand_back(theirs: &Served, ours: &Ours) -> Vec<Difference> {
    let mut differences = Vec::new();
    for (frontend, programmed) in ours {
        let Some(endpoints) = theirs.get(frontend) else {
            differences.push(Difference::NotTheirs(*frontend));
            continue;
        };
        let unused = programmed.inside.difference(endpoints);
        differences.extend(unused.map(|endpoint| Difference::UnusedEndpoint(*frontend, *endpoint)));
        let unknown = endpoints.difference(&programmed.known);
        differences.extend(unknown.map(|endpoint| Difference::UnknownEndpoint(*frontend, *endpoint)));
    }
    differences
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::served::{Place, Programmed};

    fn frontend(port: u16) -> Frontend {
        Frontend { place: Place::Address("10.96.0.1".parse().unwrap()), port, protocol: 6 }
    }

    fn endpoint(number: u8) -> SocketAddr {
        SocketAddr::from(([10, 244, 0, number], 8080))
    }

    fn endpoints(numbers: &[u8]) -> BTreeSet<SocketAddr> {
        numbers.iter().copied().map(endpoint).collect()
    }

    fn theirs(numbers: &[u8]) -> Served {
        [(frontend(80), endpoints(numbers))].into()
    }

    fn ours(known: &[u8], chosen: &[u8]) -> Ours {
        let (known, chosen) = (endpoints(known), endpoints(chosen));
        [(frontend(80), Programmed { known, inside: chosen.clone(), chosen })].into()
    }

    #[test]
    fn weir_may_take_over_when_it_has_all_that_the_other_has_whatever_shares_it_gives() {
        assert_eq!(take_over(&theirs(&[1, 2]), &ours(&[1, 2, 3], &[1])), []);
        assert_eq!(take_over(&theirs(&[]), &ours(&[], &[])), [], "refused by both");
        assert_eq!(take_over(&Served::new(), &ours(&[1], &[1])), [], "it may have more");
    }

    #[test]
    fn weir_must_not_take_over_what_it_lacks() {
        assert_eq!(take_over(&theirs(&[1]), &Ours::new()), [Difference::NotOurs(frontend(80))]);
        let lacking = take_over(&theirs(&[1, 2]), &ours(&[1], &[1]));
        assert_eq!(lacking, [Difference::UnknownEndpoint(frontend(80), endpoint(2))]);
        assert_eq!(take_over(&theirs(&[1]), &ours(&[1], &[])), [Difference::Nowhere(frontend(80))]);
        let more = take_over(&theirs(&[]), &ours(&[1], &[1]));
        assert_eq!(more, [Difference::UnusedEndpoint(frontend(80), endpoint(1))]);
    }

    #[test]
    fn weir_may_let_go_when_the_other_has_all_that_it_gives_to_new_flows() {
        assert_eq!(hand_back(&theirs(&[1, 2]), &ours(&[1, 2, 3], &[1, 2])), [], "the third one drains");
        assert_eq!(hand_back(&theirs(&[1]), &Ours::new()), [], "nothing to hand back");
    }

    #[test]
    fn weir_must_not_let_go_of_what_the_other_lacks_or_has_from_before() {
        assert_eq!(hand_back(&Served::new(), &ours(&[1], &[1])), [Difference::NotTheirs(frontend(80))]);
        let lacking = hand_back(&theirs(&[1]), &ours(&[1, 2], &[1, 2]));
        assert_eq!(lacking, [Difference::UnusedEndpoint(frontend(80), endpoint(2))]);
        let old = hand_back(&theirs(&[1, 9]), &ours(&[1], &[1]));
        assert_eq!(old, [Difference::UnknownEndpoint(frontend(80), endpoint(9))]);
    }
}
