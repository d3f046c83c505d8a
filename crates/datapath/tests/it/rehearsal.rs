//! A rehearsal shows what the program then does with the real packet, and leaves nothing behind.

use std::collections::BTreeMap;

use weir_abi as abi;
use weir_core::model::{Family, Protocol, Service, ServicePort};
use weir_datapath::{Action, Client, Hook, RawEntry, Rehearsal};
use weir_testbed::address::{self, CLIENT, Pair};
use weir_testbed::packet::Packet;

use crate::case::{BALANCER_IP, CLUSTER_IP, Case, PORT};
use crate::node::{Device, Node, TC_REDIRECT, TC_SHOT, TC_UNSPEC, XDP_DROP, XDP_PASS, XDP_REDIRECT, XDP_TX, web};

/// Every protocol, so that each has its turn at one hook or the other.
fn cases() -> impl Iterator<Item = Case> {
    let of = |family| [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(|protocol| Case { family, protocol });
    [Family::V4, Family::V6].into_iter().flat_map(of)
}

/// Of all protocols, and a client keeps its endpoint: what a flow leaves behind is of every kind.
fn service() -> Service {
    let sctp = ServicePort { name: "sctp".into(), protocol: Protocol::Sctp, port: PORT, node_port: None };
    let mut service = Service { affinity: Some(300), ..web() };
    service.ports.push(sctp);
    service
}

fn client_of(case: Case, packet: &Packet) -> Client {
    let (mut from, mut to) = (packet.source_socket(), packet.destination_socket());
    if let weir_testbed::packet::Transport::Other { bytes, .. } = &packet.transport {
        from.set_port(u16::from_be_bytes([bytes[0], bytes[1]]));
        to.set_port(u16::from_be_bytes([bytes[2], bytes[3]]));
    }
    Client { from, to, protocol: case.protocol.number() }
}

const fn action(hook: Hook, verdict: u32) -> Option<Action> {
    match (hook, verdict) {
        (Hook::Xdp, XDP_PASS) | (_, TC_UNSPEC) => Some(Action::Pass),
        (Hook::Xdp, XDP_DROP) => Some(Action::Drop),
        (Hook::Xdp, XDP_TX | XDP_REDIRECT) => Some(Action::Send),
        (Hook::NicIn | Hook::PodIn, TC_SHOT) => Some(Action::Drop),
        (Hook::NicIn | Hook::PodIn, TC_REDIRECT) => Some(Action::Send),
        _ => None,
    }
}

/// Entries of maps, by the maps' names.
pub(crate) type Maps = BTreeMap<&'static str, Vec<RawEntry>>;

/// All maps but those whose contents the namespace's own multicast reports move, byte by byte.
pub(crate) fn maps(node: &Node) -> Maps {
    let all = node.view.counters().maps().unwrap();
    let entries = |name: &'static str| {
        let mut entries = node.view.raw(name).unwrap().unwrap();
        entries.sort();
        (name, entries)
    };
    all.iter().map(|map| map.name).filter(|name| *name != "counters").map(entries).collect()
}

/// Where a packet comes from, and to which address: they take turns, since each rehearsal loads a program.
fn turn(number: usize) -> (Hook, Device, Pair, Pair) {
    let (hook, device, source) = match number % 3 {
        0 => (Hook::Xdp, Device::Eth0, CLIENT),
        1 => (Hook::NicIn, Device::Eth0, CLIENT),
        _ => (Hook::PodIn, Device::Pod1, address::pod(1, 1)),
    };
    (hook, device, source, if number.is_multiple_of(2) { CLUSTER_IP } else { BALANCER_IP })
}

#[test]
fn a_rehearsal_shows_what_the_real_packet_meets_and_leaves_nothing_behind() {
    // Endpoints here, which get the packet as it is, and elsewhere, which see the node.
    for (first, endpoints) in [[(1, 1)], [(2, 1)]].iter().enumerate() {
        let Some(mut node) = Node::new("a rehearsal") else { return };
        node.serve(service(), endpoints);
        for (number, case) in cases().enumerate() {
            let (hook, device, source, frontend) = turn(first + number);
            let sent = case.first(case.at(source, node.client_port()), case.at(frontend, PORT));
            let before = maps(&node);
            let (shown, flow) = rehearse(&node, case, hook, device, &sent);
            let changed: Vec<_> = maps(&node).into_iter().filter(|(name, entries)| before[name] != *entries).collect();
            assert_eq!(changed, [], "{case:?} at {hook}");
            let real = node.send(hook, device, &sent);
            let expected = (action(hook, real.verdict).unwrap(), real.reason);
            assert_eq!((shown.action, shown.reason), expected, "{case:?} at {hook}");
            assert_eq!(shown.frame, real.frame, "{case:?} at {hook}: the source port, too");
            assert!(flow.expect("the rehearsal has begun a flow").backend > 0);
        }
    }
}

/// What a packet would meet at a device, and the flow that it would belong to.
pub(crate) fn rehearse(
    node: &Node,
    case: Case,
    hook: Hook,
    device: Device,
    sent: &Packet,
) -> (weir_datapath::Rehearsed, Option<abi::Flow>) {
    let name = if device == Device::Pod1 { "pod1" } else { "eth0" };
    let pins = node.datapath.pins();
    node.netns.enter(|| {
        let index = nix::net::if_::if_nametoindex(name).unwrap();
        let rehearsal = Rehearsal::open(pins, hook, client_of(case, sent)).unwrap();
        assert_eq!(rehearsal.is_attached(pins, index).unwrap(), Some(true), "the same program");
        let shown = rehearsal.run(index, &sent.to_bytes()).unwrap();
        let flow = rehearsal.flow().unwrap();
        (shown, flow)
    })
}

#[test]
fn what_the_kernel_knows_of_the_client_counts_in_a_rehearsal() {
    let Some(mut node) = Node::new("a rehearsal of a known flow") else { return };
    node.serve(service(), &[(1, 1), (1, 2), (1, 3), (1, 4)]);
    let case = Case { family: Family::V4, protocol: Protocol::Tcp };
    let sent = case.first(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
    let real = node.send(Hook::NicIn, Device::Eth0, &sent);
    let backend = node.flow_of(&sent).backend;
    // The same connection goes on, and a new one of the client goes where affinity says.
    let later = case.later(sent.source_socket(), sent.destination_socket());
    let again = case.first(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
    for packet in [later, again] {
        let (shown, flow) = rehearse(&node, case, Hook::NicIn, Device::Eth0, &packet);
        assert_eq!((shown.reason, flow.unwrap().backend), (real.reason, backend));
    }
}

#[test]
fn the_kernel_takes_all_programs_on_maps_that_nobody_pins() {
    let Some(_node) = Node::new("a check of the programs") else { return };
    assert_eq!(weir_datapath::check_programs().unwrap(), 15);
}
