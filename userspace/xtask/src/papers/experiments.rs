//! What is measured: each figure's points, and whom it compares. Numbers are the papers', where they give any.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use weir_testbed::kube_proxy::Mode;

/// Nodes of the world.
pub(super) const NODES: u8 = 4;
/// One number for each node.
pub(super) type PerNode<T> = [T; NODES as usize];

/// CPU time of a request of RAP's experiments in the server itself; what TCP costs comes on top.
const LIGHT: Duration = Duration::from_micros(50);
/// The same of the EdgeMesh table, whose pods answer a hundred requests a second.
const HEAVY: Duration = Duration::from_micros(2500);
/// Cores of each node. All four together leave more than half of a small machine to what drives and carries the load:
/// a request costs `ab` and the kernel nearly as much as its server.
const ALIKE: PerNode<f64> = [0.2; NODES as usize];
/// Cores of EdgeMesh's three nodes, which differ at the edge.
const MIXED: PerNode<f64> = [0.4, 0.25, 0.1, 0.1];
/// Round-trip time between nodes where it is not what is varied.
const BETWEEN: Duration = Duration::from_millis(10);

/// A figure or table of a paper.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Figure {
    /// RAP, Figure 5: the threshold.
    Threshold,
    /// RAP, Figure 6: the delay between nodes.
    Delay,
    /// RAP, Figure 7: all load at one node.
    Concentrated,
    /// RAP, Figure 8: load at all nodes, in ratios.
    Distributed,
    /// The EdgeMesh table: bursts of requests at one node.
    EdgeMesh,
}

impl Figure {
    /// All, in the papers' order.
    pub(super) const ALL: [Self; 5] =
        [Self::Threshold, Self::Delay, Self::Concentrated, Self::Distributed, Self::EdgeMesh];

    /// Its name on the command line, in files and results.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Threshold => "5",
            Self::Delay => "6",
            Self::Concentrated => "7",
            Self::Distributed => "8",
            Self::EdgeMesh => "edgemesh",
        }
    }

    /// A heading.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Threshold => "RAP, Figure 5: the threshold",
            Self::Delay => "RAP, Figure 6: delay between nodes",
            Self::Concentrated => "RAP, Figure 7: all load at one node",
            Self::Distributed => "RAP, Figure 8: load at all nodes",
            Self::EdgeMesh => "EdgeMesh: bursts at one of three nodes",
        }
    }

    /// What the experiment does, in a sentence or two.
    pub(super) const fn about(self) -> &'static str {
        match self {
            Self::Threshold => {
                "16 concurrent requests at node 1 and 4 at each other node, 10 ms between nodes; \
                 `weir.dev/target` is the threshold. kube-proxy has none."
            }
            Self::Delay => "8 concurrent requests at each of the four nodes; the round-trip time between nodes varies.",
            Self::Concentrated => "1 to 32 concurrent requests at node 1, none elsewhere; 10 ms between nodes.",
            Self::Distributed => "So many concurrent requests at each of the four nodes; 10 ms between nodes.",
            Self::EdgeMesh => {
                "`hey` at node 1, half as many concurrent requests as requests, a new connection for each. Six pods on \
                 three nodes of 0.4, 0.25 and 0.1 cores; 5 and 19 ms from the first to the others. kube-proxy chooses \
                 at random."
            }
        }
    }

    /// What its x axis shows.
    pub(super) const fn axis(self) -> &'static str {
        match self {
            Self::Threshold => "threshold",
            Self::Delay => "round-trip time between nodes, ms",
            Self::Concentrated => "concurrent requests at node 1",
            Self::Distributed => "concurrent requests at nodes 1:2:3:4",
            Self::EdgeMesh => "requests",
        }
    }

    /// The Service that is asked.
    pub(super) const fn service(self) -> Service {
        match self {
            Self::Threshold | Self::Delay | Self::Concentrated | Self::Distributed => Service::Web,
            Self::EdgeMesh => Service::Edge,
        }
    }

    /// Whom it compares, Weir first.
    pub(super) const fn contenders(self) -> &'static [Contender] {
        const IPTABLES: Contender = Contender::KubeProxy(Mode::Iptables);
        const NFTABLES: Contender = Contender::KubeProxy(Mode::Nftables);
        const WATERFILL: Contender = Contender::Weir("waterfill");
        const RAP: Contender = Contender::Weir("rap");
        const NEAREST_HALF: Contender = Contender::Weir("nearest-half");
        match self {
            Self::Threshold => &[WATERFILL, RAP],
            Self::Delay | Self::Concentrated | Self::Distributed => &[WATERFILL, RAP, IPTABLES, NFTABLES],
            Self::EdgeMesh => &[WATERFILL, NEAREST_HALF, IPTABLES, NFTABLES],
        }
    }

    /// Its points in the order of its x axis.
    pub(super) fn points(self) -> Vec<Point> {
        let web = |x: String, round_trip, concurrency| Point {
            x,
            uplinks: [round_trip / 4; NODES as usize],
            cores: ALIKE,
            target: None,
            cost: LIGHT,
            load: Load::Ab(concurrency),
        };
        match self {
            Self::Threshold => [0.5, 0.6, 0.7, 0.8, 0.9, 0.99]
                .map(|target| Point { target: Some(target), ..web(target.to_string(), BETWEEN, [16, 4, 4, 4]) })
                .into(),
            Self::Delay => [3, 6, 12, 18].map(|ms| web(ms.to_string(), Duration::from_millis(ms), [8; 4])).into(),
            Self::Concentrated => [1, 2, 4, 8, 16, 32].map(|c| web(c.to_string(), BETWEEN, [c, 0, 0, 0])).into(),
            Self::Distributed => [
                [2, 2, 2, 2],
                [4, 4, 4, 4],
                [8, 8, 8, 8],
                [16, 16, 16, 16],
                [8, 4, 4, 4],
                [16, 4, 4, 4],
                [32, 4, 4, 4],
                [32, 2, 1, 1],
                [16, 8, 8, 4],
                [12, 8, 8, 8],
            ]
            .map(|ratio| web(ratio.map(|c: u32| c.to_string()).join(":"), BETWEEN, ratio))
            .into(),
            Self::EdgeMesh => [100, 200, 400, 800]
                .map(|requests| Point {
                    x: requests.to_string(),
                    // One way: 5 ms there and back to the second node, 19 to the third.
                    uplinks: [500, 2000, 9000, 9000].map(Duration::from_micros),
                    cores: MIXED,
                    target: None,
                    cost: HEAVY,
                    load: Load::Hey { requests, concurrency: requests / 2 },
                })
                .into(),
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ValueEnum for Figure {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()).help(self.title()))
    }
}

/// Who divides the connections.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Contender {
    /// Weir with this policy.
    Weir(&'static str),
    /// kube-proxy in this mode.
    KubeProxy(Mode),
}

impl Contender {
    /// Each once, in the order in which a repetition runs them: the proxy changes as seldom as can be.
    pub(super) const ALL: [Self; 5] = [
        Self::Weir("waterfill"),
        Self::Weir("rap"),
        Self::Weir("nearest-half"),
        Self::KubeProxy(Mode::Iptables),
        Self::KubeProxy(Mode::Nftables),
    ];

    /// The proxy's name in results.
    pub(super) const fn proxy(self) -> &'static str {
        match self {
            Self::Weir(_) => "weir",
            Self::KubeProxy(Mode::Iptables) => "kube-proxy iptables",
            Self::KubeProxy(Mode::Nftables) => "kube-proxy nftables",
            Self::KubeProxy(Mode::Ipvs) => "kube-proxy ipvs",
        }
    }

    /// Its policy in results.
    pub(super) const fn policy(self) -> &'static str {
        match self {
            Self::Weir(policy) => policy,
            Self::KubeProxy(_) => "random",
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Weir(policy) => write!(f, "weir {policy}"),
            Self::KubeProxy(_) => f.write_str(self.proxy()),
        }
    }
}

/// One of the two Services; both are node ports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Service {
    /// One pod on each node.
    Web,
    /// Two pods on each of the first three.
    Edge,
}

impl Service {
    /// Both.
    pub(super) const ALL: [Self; 2] = [Self::Web, Self::Edge];

    /// Its name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Web => "web",
            Self::Edge => "edge",
        }
    }

    /// Its nodes from the first, and pods on each.
    pub(super) const fn endpoints(self) -> (u8, u8) {
        match self {
            Self::Web => (NODES, 1),
            Self::Edge => (3, 2),
        }
    }
}

/// One point of a figure.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Point {
    /// Where it is on the x axis.
    pub(super) x: String,
    /// One-way delay of each node's uplink; a round trip between two nodes is twice the sum of theirs.
    pub(super) uplinks: PerNode<Duration>,
    /// CPU quota of each node's pods.
    pub(super) cores: PerNode<f64>,
    /// `weir.dev/target`, if it is not the policy's own.
    pub(super) target: Option<f64>,
    /// CPU time of a request in the server.
    pub(super) cost: Duration,
    pub(super) load: Load,
}

impl Point {
    /// Round-trip time between two nodes, numbered from 1.
    pub(super) fn round_trip(&self, a: u8, b: u8) -> Duration {
        2 * (self.uplinks[usize::from(a) - 1] + self.uplinks[usize::from(b) - 1])
    }
}

/// Who asks, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Load {
    /// `ab` for a while, with so many concurrent requests at each node; 0 is none.
    Ab(PerNode<u32>),
    /// `hey` at node 1.
    Hey { requests: u32, concurrency: u32 },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_together_leave_half_of_two_cores_to_the_load() {
        for point in Figure::ALL.into_iter().flat_map(Figure::points) {
            assert!(point.cores.iter().sum::<f64>() < 1.0, "{point:?}");
        }
    }

    #[test]
    fn delays_are_those_of_the_papers() {
        let [first, .., last] = &Figure::Delay.points()[..] else { panic!("two points at least") };
        assert_eq!(first.round_trip(1, 2), Duration::from_millis(3));
        assert_eq!(last.round_trip(3, 4), Duration::from_millis(18));
        let edge = &Figure::EdgeMesh.points()[0];
        assert_eq!([2, 3].map(|node| edge.round_trip(1, node).as_millis()), [5, 19]);
    }

    #[test]
    fn every_contender_of_a_figure_has_its_turn() {
        for contender in Figure::ALL.into_iter().flat_map(Figure::contenders) {
            assert!(Contender::ALL.contains(contender), "{contender}");
        }
    }
}
