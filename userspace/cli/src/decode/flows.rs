//! The tables that the programs write by themselves: flows, answers, sockets, affinity, fragments.

use std::net::SocketAddr;

use weir_abi as abi;
use weir_datapath::FlowEntry;

use super::{Value, address, end, flags, number, word};
use crate::index::protocol_name;

/// `own`: what the bits that mean something else of a flow than of its answers are.
fn flow_flags(value: u16, own: [(u16, &'static str); 3]) -> Value {
    let names = [
        (abi::FLOW_SNAT, "snat"),
        (abi::FLOW_CLOSING, "closing"),
        (abi::FLOW_REPLIED, "replied"),
        (abi::FLOW_MOVED, "moved"),
        (abi::FLOW_OPENING, "opening"),
        (abi::FLOW_ENDED, "ended"),
        (abi::FLOW_BY_HASH, "by-hash"),
        (abi::FLOW_KEPT, "kept"),
        (abi::FLOW_SETTLED, "settled"),
        (abi::FLOW_TUNNEL, "tunnel"),
        (abi::FLOW_LAST, "last"),
    ];
    let names: Vec<_> = names.into_iter().chain(own).map(|(bit, name)| (bit.into(), name)).collect();
    flags(value.into(), &names)
}

/// Key and value of `flows4` and `flows6`.
pub(crate) fn flow(entry: &FlowEntry) -> (Value, Value) {
    let FlowEntry { client, client_port, frontend, frontend_port, protocol, flow } = entry;
    let abi::Flow { backend, generation, service, flags: bits, snat_port, created, last_seen, bytes, held } = flow;
    let key = vec![
        ("source", end(client.ip(), *client_port)),
        ("destination", end(frontend.ip(), *frontend_port)),
        ("protocol", word(protocol_name(*protocol))),
    ];
    let value = vec![
        ("backend", number(*backend)),
        ("generation", number(*generation)),
        ("service", number(*service)),
        (
            "flags",
            flow_flags(*bits, [(abi::FLOW_DIRECT, "direct"), (abi::FLOW_OWN, "own"), (abi::FLOW_GONE_ON, "gone-on")]),
        ),
        ("snatPort", number(snat_port.get())),
        ("createdTicks", number(*created)),
        ("lastSeenTicks", number(*last_seen)),
        ("bytes", number(*bytes)),
        ("bytesHeld", number(*held)),
    ];
    (Value::Fields(key), Value::Fields(value))
}

/// Key of `replies4` and `replies6`.
pub(crate) fn reply_key(from: SocketAddr, to: SocketAddr, protocol: u8) -> Value {
    Value::Fields(vec![
        ("source", word(from.to_string())),
        ("destination", word(to.to_string())),
        ("protocol", word(protocol_name(protocol))),
    ])
}

/// Value of `replies4` and `replies6`.
pub(crate) fn reply(reply: &abi::Reply) -> Value {
    let abi::Reply {
        frontend,
        client,
        frontend_port,
        client_port,
        flags: bits,
        heard,
        backend,
        generation,
        last_seen,
        asked,
        bytes,
        held,
    } = reply;
    let own = [(abi::FLOW_ALONE, "alone"), (abi::FLOW_LENT, "lent"), (abi::FLOW_ASKED_AGAIN, "asked-again")];
    Value::Fields(vec![
        ("frontend", end(frontend.ip(), frontend_port.get())),
        ("client", end(client.ip(), client_port.get())),
        ("flags", flow_flags(*bits, own)),
        ("backend", number(*backend)),
        ("generation", number(*generation)),
        ("lastSeenTicks", number(*last_seen)),
        ("askedUnits", number(*asked)),
        ("heard", number(*heard)),
        ("bytes", number(*bytes)),
        ("bytesHeld", number(*held)),
    ])
}

/// Key and value of `socket_peers`.
pub(crate) fn socket(key: &abi::SocketKey, peer: &abi::SocketPeer) -> (Value, Value) {
    let abi::SocketKey { cookie, addr, port, proto, pad: _ } = key;
    let key = vec![
        ("cookie", number(*cookie)),
        ("address", end(addr.ip(), port.get())),
        ("protocol", word(protocol_name(*proto))),
    ];
    let abi::SocketPeer { addr, port, pad: _, backend, generation } = peer;
    let value =
        vec![("peer", end(addr.ip(), port.get())), ("backend", number(*backend)), ("generation", number(*generation))];
    (Value::Fields(key), Value::Fields(value))
}

/// Key and value of `hooked_pods`.
pub(crate) fn hooked_pod(group: u64, pod: &abi::HookedPod) -> (Value, Value) {
    let abi::HookedPod { addr4, addr6 } = pod;
    (
        Value::Fields(vec![("cgroup", number(group))]),
        Value::Fields(vec![("ipv4", address(*addr4)), ("ipv6", address(*addr6))]),
    )
}

/// Key and value of `affinities`.
pub(crate) fn affinity(key: &abi::AffinityKey, affinity: &abi::Affinity) -> (Value, Value) {
    let abi::AffinityKey { client, service, pad: _ } = key;
    let abi::Affinity { backend, generation, last_seen } = affinity;
    let key = vec![("client", address(*client)), ("service", number(*service))];
    let value =
        vec![("backend", number(*backend)), ("generation", number(*generation)), ("lastSeenTicks", number(*last_seen))];
    (Value::Fields(key), Value::Fields(value))
}

/// Key and value of `fragments`.
pub(crate) fn fragment(key: &abi::FragmentKey, fragment: &abi::Fragment) -> (Value, Value) {
    let abi::Fragment { sport, dport, last_seen, state } = fragment;
    let states = [(abi::FRAGMENT_AWAITED, "awaited"), (abi::FRAGMENT_OURS, "ours"), (abi::FRAGMENT_FOREIGN, "foreign")];
    let name = states.into_iter().find(|(number, _)| number == state).map_or("unknown", |(_, name)| name);
    let value = vec![
        ("sourcePort", number(sport.get())),
        ("destinationPort", number(dport.get())),
        ("state", word(name)),
        ("lastSeenTicks", number(*last_seen)),
    ];
    (fragment_key(key), Value::Fields(value))
}

/// Key and value of `held_pieces`.
pub(crate) fn held_piece(slot: u32, piece: &abi::HeldPiece) -> (Value, Value) {
    let abi::HeldPiece { key, last_seen, state: _, length, l3: _, ifindex, bytes: _ } = piece;
    let value = vec![
        ("datagram", fragment_key(key)),
        ("bytes", number(*length)),
        ("interface", number(*ifindex)),
        ("lastSeenTicks", number(*last_seen)),
    ];
    (number(slot), Value::Fields(value))
}

fn fragment_key(key: &abi::FragmentKey) -> Value {
    let abi::FragmentKey { src, dst, id, proto, out, pad: _ } = key;
    Value::Fields(vec![
        ("source", address(*src)),
        ("destination", address(*dst)),
        ("id", word(format!("{:#x}", id.get()))),
        ("protocol", word(protocol_name(*proto))),
        ("direction", word(if *out == 0 { "in" } else { "out" })),
    ])
}
