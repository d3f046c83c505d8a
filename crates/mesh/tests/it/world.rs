//! Nodes on a network without sockets: time passes from event to event.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use weir_core::load::{NodeLoad, PeerReport, Sample, ServiceId, ServiceLoad, Share};
use weir_mesh::{Arrival, Config, KeyRing, Mesh, Now, PeerState, Transmit};

pub(crate) const OLD: &str = "old-0123456789abcdef0123456789abcdef";
pub(crate) const NEW: &str = "new-0123456789abcdef0123456789abcdef";
/// Any moment since 1970.
const START: Duration = Duration::from_secs(1_800_000_000);

pub(crate) fn keys(lines: &[&str]) -> KeyRing {
    KeyRing::parse(&lines.join("\n")).expect("keys")
}

pub(crate) fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub(crate) fn busy(cpu: f64) -> NodeLoad {
    NodeLoad { cpu: Some(Sample::fresh(Share::clamped(cpu))), capacity: 2.0, ..NodeLoad::default() }
}

/// The service with this number, with as many flows per second.
pub(crate) fn service(number: u32) -> (ServiceId, ServiceLoad) {
    let flows_per_second = f64::from(number);
    (ServiceId(number.into()), ServiceLoad { flows_per_second, open_flows: number, spare: 7.0 })
}

pub(crate) struct Node {
    pub(crate) mesh: Mesh,
    pub(crate) address: SocketAddr,
    /// The node's clock is so much later than in the world.
    pub(crate) ahead: Duration,
    /// From a datagram's arrival until the agent looks at it.
    pub(crate) holds: Duration,
    /// Told again each time that it sends, as an agent that works does.
    pub(crate) tells: Option<(NodeLoad, Vec<(ServiceId, ServiceLoad)>)>,
}

struct Flight {
    to: usize,
    from: SocketAddr,
    arrived: Duration,
    bytes: Vec<u8>,
}

pub(crate) struct Sent {
    pub(crate) from: usize,
    pub(crate) transmit: Transmit,
}

pub(crate) struct World {
    pub(crate) steady: Duration,
    pub(crate) nodes: Vec<Node>,
    /// One way, between each two nodes.
    pub(crate) delay: fn(usize, usize) -> Duration,
    /// Whose packets are lost.
    pub(crate) cut: Vec<usize>,
    pub(crate) sent: Vec<Sent>,
    flights: BTreeMap<(Duration, usize), Flight>,
}

pub(crate) fn name(number: usize) -> String {
    format!("node-{number}")
}

impl World {
    /// So many nodes that all know each other.
    pub(crate) fn new(count: usize, config: Config, ring: &KeyRing) -> Self {
        let config = config.checked().expect("config");
        let address = |number: usize| SocketAddr::new([10, 0, 0, u8::try_from(number).expect("few")].into(), 10777);
        let peers: Vec<(Arc<str>, _)> = (0..count).map(|number| (name(number).into(), address(number))).collect();
        let node = |number: usize| {
            let now = Now { steady: Duration::ZERO, wall: START };
            let mut mesh = Mesh::new(&name(number), config, ring.clone(), number as u64, now);
            mesh.set_peers(peers.iter().cloned());
            Node { mesh, address: address(number), ahead: Duration::ZERO, holds: Duration::ZERO, tells: None }
        };
        Self {
            steady: Duration::ZERO,
            nodes: (0..count).map(node).collect(),
            delay: |_, _| Duration::from_micros(500),
            cut: Vec::new(),
            sent: Vec::new(),
            flights: BTreeMap::new(),
        }
    }

    pub(crate) fn now(&self, node: usize) -> Now {
        Now { steady: self.steady, wall: START + self.steady + self.nodes[node].ahead }
    }

    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.steady + time;
        loop {
            let probe = self.nodes.iter().filter_map(|node| node.mesh.next_probe()).min();
            let flight = self.flights.first_key_value().map(|((due, _), _)| *due);
            let next = probe.into_iter().chain(flight).min().filter(|due| *due <= end);
            self.steady = next.unwrap_or(end).max(self.steady);
            self.arrivals();
            self.probes();
            if next.is_none() {
                return;
            }
        }
    }

    /// Hands a datagram to a node now.
    pub(crate) fn hand(
        &mut self,
        node: usize,
        from: SocketAddr,
        bytes: &[u8],
    ) -> Result<Option<Transmit>, weir_mesh::Refusal> {
        let now = self.now(node);
        self.nodes[node].mesh.receive(Arrival { bytes, from, stamp: Some(now.wall) }, now)
    }

    fn arrivals(&mut self) {
        while let Some(entry) = self.flights.first_entry().filter(|entry| entry.key().0 <= self.steady) {
            let Flight { to, from, arrived, bytes } = entry.remove();
            let (now, stamp) = (self.now(to), START + arrived + self.nodes[to].ahead);
            self.tell(to);
            let result = self.nodes[to].mesh.receive(Arrival { bytes: &bytes, from, stamp: Some(stamp) }, now);
            if let Ok(Some(reply)) = result {
                assert!(reply.bytes.len() <= bytes.len(), "a reply is longer than its probe");
                self.send(to, reply);
            }
        }
    }

    fn probes(&mut self) {
        for number in 0..self.nodes.len() {
            if self.nodes[number].mesh.next_probe().is_none_or(|due| due > self.steady) {
                continue;
            }
            self.tell(number);
            let now = self.now(number);
            while let Some(probe) = self.nodes[number].mesh.probe(now) {
                self.send(number, probe);
            }
        }
    }

    fn tell(&mut self, number: usize) {
        let now = self.now(number);
        let Node { mesh, tells, .. } = &mut self.nodes[number];
        if let Some((load, services)) = tells {
            mesh.publish(*load, services.iter().copied(), now);
        }
    }

    fn send(&mut self, from: usize, transmit: Transmit) {
        let to = self.nodes.iter().position(|node| node.address == transmit.to).expect("an address of the world");
        if !self.cut.contains(&from) && !self.cut.contains(&to) {
            let arrived = self.steady + (self.delay)(from, to);
            let key = (arrived + self.nodes[to].holds, self.sent.len());
            let bytes = transmit.bytes.clone();
            self.flights.insert(key, Flight { to, from: self.nodes[from].address, arrived, bytes });
        }
        self.sent.push(Sent { from, transmit });
    }

    /// What one node knows of another.
    pub(crate) fn peer(&self, node: usize, of: usize) -> PeerState {
        let peers = self.nodes[node].mesh.peers(self.now(node));
        peers.into_iter().find(|peer| *peer.node == name(of)).expect("a peer of the world")
    }

    pub(crate) fn report(&self, node: usize, of: usize) -> Option<PeerReport> {
        self.reports(node).remove(name(of).as_str())
    }

    pub(crate) fn reports(&self, node: usize) -> HashMap<Arc<str>, PeerReport> {
        let mut reports = HashMap::new();
        self.nodes[node].mesh.reports(self.now(node), &mut reports);
        reports
    }
}
