//! A conversation between a client and an endpoint, on each of the ways through the node.

use std::cell::Cell;
use std::time::{Duration, Instant};

use etherparse::TcpHeader;
use weir_abi as abi;
use weir_core::model::{Family, Protocol};
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT, Pair};
use weir_testbed::packet::Packet;

use crate::case::{CLUSTER_IP, Case, PORT, cases, tcp};
use crate::entries::{await_longer, calm};
use crate::node::{Device, Node, web};

/// A way that clients' packets take through the node, and the answers back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) client: Pair,
    pub(crate) endpoint: (u8, u8),
    pub(crate) to: (Hook, Device),
    pub(crate) back: (Hook, Device),
}

pub(crate) const XDP: (Hook, Device) = (Hook::Xdp, Device::Eth0);
pub(crate) const NIC_IN: (Hook, Device) = (Hook::NicIn, Device::Eth0);
pub(crate) const NIC_OUT: (Hook, Device) = (Hook::NicOut, Device::Eth0);

/// By XDP and tc, with the client's address and with the node's; and between two pods.
pub(crate) const WAYS: [Way; 5] = [
    Way { client: CLIENT, endpoint: (1, 1), to: NIC_IN, back: NIC_OUT },
    Way { client: CLIENT, endpoint: (1, 1), to: XDP, back: NIC_OUT },
    Way { client: CLIENT, endpoint: (2, 1), to: NIC_IN, back: NIC_IN },
    Way { client: CLIENT, endpoint: (2, 1), to: XDP, back: XDP },
    Way {
        client: address::pod(1, 1),
        endpoint: (1, 2),
        to: (Hook::PodIn, Device::Pod1),
        back: (Hook::PodOut, Device::Pod1),
    },
];

/// A client and an endpoint that talk to each other, and the bytes of all frames that came through.
pub(crate) struct Talk<'a> {
    pub(crate) node: &'a Node,
    pub(crate) case: Case,
    pub(crate) way: Way,
    pub(crate) first: Packet,
    /// The first packet as the endpoint got it.
    pub(crate) seen: Packet,
    pub(crate) bytes_to: Cell<u64>,
    pub(crate) bytes_from: Cell<u64>,
    pub(crate) opened: Instant,
}

impl<'a> Talk<'a> {
    /// The client sends its first packet.
    pub(crate) fn open(node: &'a Node, case: Case, way: Way) -> Self {
        let client = case.at(way.client, node.client_port());
        Self::open_with(node, case, way, case.first(client, case.at(CLUSTER_IP, PORT)))
    }

    pub(crate) fn open_with(node: &'a Node, case: Case, way: Way, first: Packet) -> Self {
        let opened = Instant::now();
        let seen = node.insist(way.to.0, way.to.1, &first).packet();
        let bytes_to = Cell::new(first.to_bytes().len() as u64);
        Self { node, case, way, first, seen, bytes_to, bytes_from: Cell::new(0), opened }
    }

    #[track_caller]
    pub(crate) fn client_sends(&self, packet: &Packet) {
        let outcome = self.node.send(self.way.to.0, self.way.to.1, packet);
        assert!(matches!(outcome.reason, abi::REASON_TO_LOCAL | abi::REASON_TO_REMOTE), "{outcome:?}");
        self.bytes_to.set(self.bytes_to.get() + packet.to_bytes().len() as u64);
    }

    #[track_caller]
    pub(crate) fn endpoint_sends(&self, packet: &Packet) {
        let outcome = self.node.send(self.way.back.0, self.way.back.1, packet);
        assert_eq!(outcome.reason, abi::REASON_BACK, "{outcome:?}");
        self.bytes_from.set(self.bytes_from.get() + packet.to_bytes().len() as u64);
    }

    /// Both sides' segments of TCP with these flags.
    pub(crate) fn client_tcp(&self, header: TcpHeader) -> Packet {
        tcp(self.first.source_socket(), self.first.destination_socket(), header)
    }

    pub(crate) fn endpoint_tcp(&self, header: TcpHeader) -> Packet {
        tcp(self.seen.destination_socket(), self.seen.source_socket(), header)
    }

    pub(crate) fn client_goes_on(&self) {
        self.client_sends(&self.case.later(self.first.source_socket(), self.first.destination_socket()));
    }

    pub(crate) fn endpoint_goes_on(&self) {
        self.endpoint_sends(&self.case.later(self.seen.destination_socket(), self.seen.source_socket()));
    }

    pub(crate) fn accept(&self) {
        self.endpoint_sends(&self.endpoint_tcp(TcpHeader { syn: true, ack: true, ..TcpHeader::default() }));
    }

    pub(crate) fn refuse(&self) {
        self.endpoint_sends(&self.endpoint_tcp(TcpHeader { rst: true, ack: true, ..TcpHeader::default() }));
    }

    pub(crate) fn flow(&self) -> abi::Flow {
        let port = self.first.source_socket().port();
        let mut flows = self.node.view.flows().unwrap().into_iter();
        flows.find(|entry| entry.client_port == port && entry.protocol == self.case.protocol.number()).unwrap().flow
    }

    pub(crate) fn counters(&self) -> abi::BackendCounters {
        self.node.view.backend_counters(self.flow().backend).unwrap()
    }

    /// See [`wait`].
    pub(crate) fn wait(&self, time: Duration) {
        wait(self.node, self.case, time);
    }

    pub(crate) const fn replies(&self) -> &'static str {
        replies(self.case)
    }

    pub(crate) const fn flows(&self) -> &'static str {
        match self.case.family {
            Family::V4 => "flows4",
            Family::V6 => "flows6",
        }
    }
}

const fn replies(case: Case) -> &'static str {
    match case.family {
        Family::V4 => "replies4",
        Family::V6 => "replies6",
    }
}

/// Everything of a family that still waits for an answer has waited longer by so much.
pub(crate) fn wait(node: &Node, case: Case, time: Duration) {
    let units = u32::try_from(time.as_nanos() >> abi::DELAY_SHIFT).unwrap();
    await_longer(node, replies(case), units);
}

/// Runs a conversation each way with an endpoint of its own, whose counters begin at 0.
pub(crate) fn each_way(what: &str, protocol: Protocol, talk: impl Fn(&Talk<'_>)) {
    let Some(mut node) = Node::new(what) else { return };
    for case in cases(protocol) {
        for way in WAYS {
            node.serve_anew(web(), &[way.endpoint]);
            // What conversations before have had of this tick is theirs.
            calm(&node);
            talk(&Talk::open(&node, case, way));
        }
    }
}
