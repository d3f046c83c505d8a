//! The combinations that nearly every fixture runs in: both families, TCP and UDP; and how to say packets in them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use etherparse::TcpHeader;
use weir_core::model::{Endpoint, Family, ObjectName, Protocol, Slice, SlicePort};
use weir_core::plan::ServicePlan;
use weir_testbed::address::{self, Pair};
use weir_testbed::packet::{Packet, Transport};

/// Cluster IP of the service of most fixtures.
pub(crate) const CLUSTER_IP: Pair =
    Pair { v4: Ipv4Addr::new(10, 96, 0, 1), v6: Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 1) };
/// Its load balancer IP.
pub(crate) const BALANCER_IP: Pair =
    Pair { v4: Ipv4Addr::new(203, 0, 113, 8), v6: Ipv6Addr::new(0x2001, 0xdb8, 0x203, 0, 0, 0, 0, 8) };
/// Its external IP.
pub(crate) const EXTERNAL_IP: Pair =
    Pair { v4: Ipv4Addr::new(203, 0, 113, 7), v6: Ipv6Addr::new(0x2001, 0xdb8, 0x203, 0, 0, 0, 0, 7) };
/// Its port at all of them.
pub(crate) const PORT: u16 = 80;
/// Its port at the node's addresses.
pub(crate) const NODE_PORT: u16 = 30080;
/// The port of its endpoints.
pub(crate) const TARGET_PORT: u16 = 8080;

/// A family and a protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) family: Family,
    pub(crate) protocol: Protocol,
}

pub(crate) const CASES: [Case; 4] = [
    Case { family: Family::V4, protocol: Protocol::Tcp },
    Case { family: Family::V4, protocol: Protocol::Udp },
    Case { family: Family::V6, protocol: Protocol::Tcp },
    Case { family: Family::V6, protocol: Protocol::Udp },
];

/// The cases of one protocol.
pub(crate) fn cases(protocol: Protocol) -> impl Iterator<Item = Case> {
    CASES.into_iter().filter(move |case| case.protocol == protocol)
}

impl Case {
    pub(crate) fn ip(self, pair: Pair) -> IpAddr {
        match self.family {
            Family::V4 => pair.v4.into(),
            Family::V6 => pair.v6.into(),
        }
    }

    pub(crate) fn at(self, pair: Pair, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip(pair), port)
    }

    /// The first packet of a flow, with an odd number of bytes.
    pub(crate) fn first(self, from: SocketAddr, to: SocketAddr) -> Packet {
        let header = TcpHeader { sequence_number: 1000, window_size: 64240, syn: true, ..TcpHeader::default() };
        self.packet(from, to, header)
    }

    /// A packet in the middle of a flow.
    pub(crate) fn later(self, from: SocketAddr, to: SocketAddr) -> Packet {
        let header = TcpHeader {
            sequence_number: 1001,
            acknowledgment_number: 5000,
            window_size: 512,
            ack: true,
            psh: true,
            ..TcpHeader::default()
        };
        self.packet(from, to, header)
    }

    fn packet(self, from: SocketAddr, to: SocketAddr, header: TcpHeader) -> Packet {
        match self.protocol {
            Protocol::Tcp => Packet::tcp(from, to, header, b"hello"),
            Protocol::Udp => Packet::udp(from, to, b"hello"),
            Protocol::Sctp => sctp(from, to, if header.syn { SCTP_INIT } else { SCTP_DATA }),
        }
    }
}

/// Types of SCTP chunks.
pub(crate) const SCTP_DATA: u8 = 0;
pub(crate) const SCTP_INIT: u8 = 1;
pub(crate) const SCTP_INIT_ACK: u8 = 2;
pub(crate) const SCTP_ABORT: u8 = 6;
pub(crate) const SCTP_SHUTDOWN_COMPLETE: u8 = 14;

/// An SCTP packet of one chunk. Its checksum is no right one, and must come out as it went in.
pub(crate) fn sctp(from: SocketAddr, to: SocketAddr, chunk: u8) -> Packet {
    let mut bytes = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    // Data comes in one piece; no other chunk has flags.
    let flags = if chunk == SCTP_DATA { 3 } else { 0 };
    bytes.extend([0xaa, 0xbb, 0xcc, 0xdd, 0x12, 0x34, 0x56, 0x78, chunk, flags, 0, 8, 0xff, 0xff, 0xff, 0xff]);
    Packet::new(from.ip(), to.ip(), Transport::Other { protocol: 132, bytes })
}

/// TCP from one end to another with the flags and numbers of `header`.
pub(crate) fn tcp(from: SocketAddr, to: SocketAddr, header: TcpHeader) -> Packet {
    Packet::tcp(from, to, header, b"")
}

/// Has all endpoints be processes on their nodes.
pub(crate) fn on_host_network(plan: &mut ServicePlan) {
    for backend in &mut plan.backends {
        backend.host_network = true;
    }
}

/// Endpoints as (node, pod), and whether they are ready or drain.
pub(crate) fn slice(service: &ObjectName, family: Family, endpoints: &[((u8, u8), bool)]) -> Slice {
    let port = |name: &str, protocol, port| SlicePort { name: name.into(), protocol, port };
    let endpoint = |((node, pod), ready): &((u8, u8), bool)| Endpoint {
        address: match family {
            Family::V4 => address::pod(*node, *pod).v4.into(),
            Family::V6 => address::pod(*node, *pod).v6.into(),
        },
        node: Some(format!("node-{node}").into()),
        ready: *ready,
        serving: true,
        terminating: !ready,
        zone_hints: Box::default(),
        node_hints: Box::default(),
        pod: None,
    };
    Slice {
        name: ObjectName::new("shop", format!("{}-{}", service.name, family.number())),
        service: service.clone(),
        family,
        ports: vec![
            port("tcp", Protocol::Tcp, TARGET_PORT),
            port("udp", Protocol::Udp, TARGET_PORT),
            port("sctp", Protocol::Sctp, PORT),
        ],
        endpoints: endpoints.iter().map(endpoint).collect(),
        triggered: None,
    }
}
