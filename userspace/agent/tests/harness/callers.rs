//! Everybody who asks a Service: pods, processes on the nodes, a client outside.

use std::fmt;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use weir_testbed::ask::{self, Answer, PATIENCE};
use weir_testbed::connection::LongConnection;
use weir_testbed::{Pod, address};

use super::Cluster;
use super::echo::Talk;

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
    /// The node that translates what it sends to `target`. A node's own address is served by that node only; the router
    /// sends everything else to node 1.
    pub(crate) fn entry(&self, target: IpAddr) -> u8 {
        let owner = (1..address::MAX).find(|node| address::node(*node).like(target) == target);
        owner.or(self.node()).unwrap_or(1)
    }

    /// The node that it lives on.
    pub(crate) fn node(&self) -> Option<u8> {
        match self {
            Self::Pod(pod) => Some(pod.node()),
            Self::Host(node) => Some(*node),
            Self::Outside => None,
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

    /// Who answers the caller; the test ends where nobody does.
    #[track_caller]
    pub(crate) fn answer(&self, caller: &Caller, talk: Talk, target: SocketAddr) -> Answer {
        let answer = self.run_as(caller, || talk.ask(target, PATIENCE));
        answer.unwrap_or_else(|e| panic!("{caller} at {talk:?} {target}: {e}"))
    }

    /// A long TCP connection of the caller to an echo server.
    pub(crate) fn connect(&self, caller: &Caller, target: SocketAddr) -> LongConnection {
        /// Between two exchanges.
        const INTERVAL: Duration = Duration::from_millis(10);
        let open = |netns| LongConnection::open(netns, target, INTERVAL, PATIENCE);
        let opened = match caller {
            Caller::Pod(pod) => open(pod.netns()),
            Caller::Host(node) => {
                let cgroup = &self.agents[usize::from(*node) - 1].cgroup;
                cgroup.enter(|| open(self.world.node(*node).netns())).unwrap()
            }
            Caller::Outside => open(self.world.client()),
        };
        opened.unwrap_or_else(|e| panic!("{caller} to {target}: {e}"))
    }

    /// A UDP socket of the caller for the family of `target`.
    pub(crate) fn socket(&self, caller: &Caller, target: SocketAddr) -> UdpSocket {
        let socket = self.run_as(caller, || ask::udp_socket(target).unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }
}

/// Sends one datagram over a socket, to its peer or to `target`, and returns who answered.
pub(crate) fn say(socket: &UdpSocket, target: Option<SocketAddr>) -> std::io::Result<Answer> {
    match target {
        Some(target) => socket.send_to(b"who", target)?,
        None => socket.send(b"who")?,
    };
    let mut buffer = [0; 256];
    let length = socket.recv(&mut buffer)?;
    let text = String::from_utf8_lossy(&buffer[..length]);
    Ok(text.parse().unwrap_or_else(|()| panic!("{text:?} is no answer")))
}
