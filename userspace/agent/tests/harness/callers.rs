//! Everybody who asks a Service: pods, processes on the nodes, a client outside.

use std::fmt;
use std::net::IpAddr;

use weir_testbed::{Pod, address};

use super::Cluster;

/// Who asks.
#[derive(Clone, Debug)]
pub(crate) enum Caller {
    Pod(Pod),
    /// A process of the node with this number.
    Host(u8),
    Outside,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(pod) => f.write_str(&pod.name()),
            Self::Host(node) => write!(f, "host of node {node}"),
            Self::Outside => f.write_str("outside"),
        }
    }
}

impl Caller {
    /// The node that translates what it sends to `target`.
    pub(crate) fn entry(&self, target: IpAddr) -> u8 {
        match self {
            Self::Pod(pod) => pod.node(),
            Self::Host(node) => *node,
            // The router sends to node 1 what is no node's own address.
            Self::Outside => (1..address::MAX).find(|node| address::node(*node).like(target) == target).unwrap_or(1),
        }
    }
}

impl Cluster {
    /// A pod and a process on each node, and the client outside.
    pub(crate) fn callers(&self) -> Vec<Caller> {
        let nodes = self.world.nodes().iter();
        let inside = nodes.flat_map(|node| [Caller::Pod(node.pod(1)), Caller::Host(node.number())]);
        inside.chain([Caller::Outside]).collect()
    }

    /// Does something on a thread that is where the caller's threads are, in its namespace and its cgroup.
    pub(crate) fn run_as<T: Send>(&self, caller: &Caller, work: impl FnOnce() -> T + Send) -> T {
        match caller {
            Caller::Pod(pod) => pod.netns().enter(work),
            Caller::Host(node) => {
                let cgroup = &self.agents[usize::from(*node) - 1].cgroup;
                cgroup.enter(|| self.world.node(*node).netns().enter(work)).unwrap()
            }
            Caller::Outside => self.world.client().enter(work),
        }
    }
}
