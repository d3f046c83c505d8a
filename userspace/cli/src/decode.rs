//! Keys and values of the maps as fields: numbers in host order, addresses and flags as text.

mod direct;
mod flows;
mod ports;
mod routes;

use std::fmt;
use std::mem::offset_of;
use std::net::{IpAddr, SocketAddr};

use serde::{Serialize, Serializer};
use weir_abi as abi;
use weir_abi::names::kind_name;
use weir_core::ops::{FrontendKey, SourceRange};
use weir_datapath::RawEntry;

use crate::index::{protocol_name, text};
use crate::output::NONE;
use crate::services::{CLASSES, reference};
use direct::tunnel;
pub(crate) use direct::{local_endpoint, nic, other_node};
pub(crate) use flows::{affinity, flow, fragment, held_piece, hooked_pod, reply, reply_key, socket};
pub(crate) use ports::{displaced, first_syns, snat_counter, snat_kept, snat_next, snat_ports};
pub(crate) use routes::route;

/// A decoded key or value, or a part of one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Value {
    /// A number.
    Number(u64),
    /// An address, a name, flags.
    Text(String),
    /// A sequence.
    List(Vec<Self>),
    /// Fields, in their order.
    Fields(Vec<(&'static str, Self)>),
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_u64(*number),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(values) => serializer.collect_seq(values),
            Self::Fields(fields) => serializer.collect_map(fields.iter().map(|(name, value)| (name, value))),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) if text.is_empty() => f.write_str(NONE),
            Self::Text(text) => f.write_str(text),
            Self::List(values) => {
                f.write_str("[")?;
                separated(f, values.iter(), |f, value| write!(f, "{value}"))?;
                f.write_str("]")
            }
            Self::Fields(fields) => separated(f, fields.iter(), |f, (name, value)| match value {
                Self::Fields(_) => write!(f, "{name}={{{value}}}"),
                Self::Number(_) | Self::Text(_) | Self::List(_) => write!(f, "{name}={value}"),
            }),
        }
    }
}

fn separated<T>(
    f: &mut fmt::Formatter<'_>,
    items: impl Iterator<Item = T>,
    write: impl Fn(&mut fmt::Formatter<'_>, T) -> fmt::Result,
) -> fmt::Result {
    for (i, item) in items.enumerate() {
        if i > 0 {
            f.write_str(" ")?;
        }
        write(f, item)?;
    }
    Ok(())
}

/// A number.
pub(crate) fn number(number: impl Into<u64>) -> Value {
    Value::Number(number.into())
}

fn word(value: impl Into<String>) -> Value {
    Value::Text(value.into())
}

fn address(addr: abi::Addr) -> Value {
    word(if addr.is_unset() { String::new() } else { addr.ip().to_string() })
}

fn end(ip: IpAddr, port: u16) -> Value {
    word(SocketAddr::new(ip, port).to_string())
}

fn flags(value: u32, names: &[(u32, &str)]) -> Value {
    let set: Vec<_> = names.iter().filter(|(bit, _)| value & bit != 0).map(|(_, name)| *name).collect();
    word(set.join("|"))
}

const CONFIG_FLAGS: [(u32, &str); 9] = [
    (abi::CONFIG_RESET_STALE, "reset_stale"),
    (abi::CONFIG_HOLD, "hold"),
    (abi::CONFIG_BESIDE, "beside"),
    (abi::CONFIG_MASQUERADE_EXTERNAL, "masquerade_external"),
    (abi::CONFIG_MASQUERADE_ALL, "masquerade_all"),
    (abi::CONFIG_ECHO, "echo"),
    (abi::CONFIG_HOST_BYPASS, "host_bypass"),
    (abi::CONFIG_SETTLE, "settle"),
    (abi::CONFIG_UNWRAP, "unwrap"),
];

fn shown(network: abi::Network) -> String {
    format!("{}/{}", network.addr.ip(), network.prefix())
}

/// Of `config`.
pub(crate) fn config(config: &abi::Config) -> Value {
    let abi::Config {
        netns_cookie,
        hash_seed,
        held_until,
        node4,
        node6,
        tunnel4,
        tunnel6,
        flags: bits,
        udp_idle,
        tcp_idle,
        abi_version,
        fragment_idle,
        service_networks,
        flood,
        tcp_half_closed,
        tcp_linger,
        held_pieces,
        service_network,
    } = config;
    let used = usize::try_from(*service_networks).unwrap_or(usize::MAX);
    let networks = service_network.iter().take(used).map(|network| word(shown(*network)));
    Value::Fields(vec![
        ("netnsCookie", number(*netns_cookie)),
        ("hashSeed", word(format!("{hash_seed:#018x}"))),
        ("node4", address(*node4)),
        ("node6", address(*node6)),
        ("tunnel4", tunnel(*tunnel4)),
        ("tunnel6", tunnel(*tunnel6)),
        ("flags", flags(*bits, &CONFIG_FLAGS)),
        ("heldUntilNanoseconds", number(*held_until)),
        ("udpIdleTicks", number(*udp_idle)),
        ("tcpIdleTicks", number(*tcp_idle)),
        ("tcpHalfClosedTicks", number(*tcp_half_closed)),
        ("tcpLingerTicks", number(*tcp_linger)),
        ("fragmentIdleTicks", number(*fragment_idle)),
        ("floodFlows", number(*flood)),
        ("heldPieces", number(*held_pieces)),
        ("serviceNetworks", Value::List(networks.collect())),
        ("abiVersion", number(*abi_version)),
    ])
}

/// Of `services`.
pub(crate) fn service(service: &abi::Service) -> Value {
    let abi::Service { tiers, endpoints, flags: bits, affinity, pad: _ } = service;
    let tier = |tiers: &abi::Tiers| {
        let abi::Tiers { spill, local, remote, pad: _ } = tiers;
        let (local, remote) = (word(reference(*local)), word(reference(*remote)));
        Value::Fields(vec![("spill", number(*spill)), ("local", local), ("remote", remote)])
    };
    let mut fields: Vec<_> = CLASSES.into_iter().zip(tiers).map(|(class, tiers)| (class, tier(tiers))).collect();
    fields.push(("endpoints", number(*endpoints)));
    let names = [
        (abi::SERVICE_USED, "used"),
        (abi::SERVICE_SOURCE_RANGES, "source_ranges"),
        (abi::SERVICE_EXTERNAL_LOCAL, "external_local"),
        (abi::SERVICE_LEAST_CONN, "least_conn"),
        (abi::SERVICE_MAGLEV, "maglev"),
    ];
    fields.push(("flags", flags(*bits, &names)));
    fields.push(("affinityTicks", number(*affinity)));
    Value::Fields(fields)
}

/// Of `backends`.
pub(crate) fn backend(backend: &abi::Backend) -> Value {
    let abi::Backend { addr, port, proto, flags: bits, generation, service, node } = backend;
    let names = [
        (abi::BACKEND_USED, "used"),
        (abi::BACKEND_LOCAL, "local"),
        (abi::BACKEND_HOST_NETWORK, "host_network"),
        (abi::BACKEND_CLASS << abi::CLASS_INTERNAL, "internal"),
        (abi::BACKEND_CLASS << abi::CLASS_EXTERNAL, "external"),
        (abi::BACKEND_CLASS << abi::CLASS_SHORT_CIRCUIT, "short_circuit"),
        (abi::BACKEND_DIRECT, "direct"),
    ];
    Value::Fields(vec![
        ("address", end(addr.ip(), port.get())),
        ("protocol", word(protocol_name(*proto))),
        ("flags", flags(u32::from(*bits), &names.map(|(bit, name)| (bit.into(), name)))),
        ("generation", number(*generation)),
        ("service", number(*service)),
        ("node", number(*node)),
    ])
}

/// Of `lines`: each entry with its inclusive upper bound.
pub(crate) fn line(line: &abi::Line) -> Value {
    let abi::Line { cumulative, r#ref } = line;
    let used = cumulative.iter().position(|bound| *bound == u32::MAX).map_or(abi::LINE_ENTRIES, |last| last + 1);
    let entry = |(bound, next): (&u32, &u32)| word(format!("{}<={bound:#010x}", reference(*next)));
    Value::List(cumulative.iter().zip(r#ref).take(used).map(entry).collect())
}

/// Of `service_counters`.
pub(crate) fn service_counters(counters: &abi::ServiceCounters) -> Value {
    let abi::ServiceCounters { local, remote, rejected, dropped, local_gone_on, remote_gone_on, pad: _ } = counters;
    let fields = [
        ("local", local),
        ("remote", remote),
        ("rejected", rejected),
        ("dropped", dropped),
        ("localGoneOn", local_gone_on),
        ("remoteGoneOn", remote_gone_on),
    ];
    Value::Fields(fields.map(|(name, count)| (name, number(*count))).into())
}

/// Of `backend_counters`.
pub(crate) fn backend_counters(counters: &abi::BackendCounters) -> Value {
    let abi::BackendCounters {
        flows,
        delay,
        answered,
        refused,
        gone_on,
        going,
        unanswered,
        failed_over,
        bytes_to,
        bytes_from,
        balance,
        base,
    } = counters;
    let [answered, refused, gone_on, going, unanswered, failed_over, balance, base] =
        [answered, refused, gone_on, going, unanswered, failed_over, balance, base].map(|count| u64::from(*count));
    let fields = [
        ("flows", flows),
        ("answered", &answered),
        ("delayUnits", delay),
        ("refused", &refused),
        ("goneOn", &gone_on),
        ("going", &going),
        ("unanswered", &unanswered),
        ("failedOver", &failed_over),
        ("bytesTo", bytes_to),
        ("bytesFrom", bytes_from),
        ("balance", &balance),
        ("base", &base),
    ];
    Value::Fields(fields.map(|(name, count)| (name, number(*count))).into())
}

/// Key and value of `frontends4` and `frontends6`.
pub(crate) fn frontend(key: &FrontendKey, frontend: &abi::Frontend) -> (Value, Value) {
    let FrontendKey { address, port, protocol } = key;
    let abi::Frontend { service, kind } = frontend;
    let key = vec![("address", end(*address, *port)), ("protocol", word(protocol_name(*protocol)))];
    let value = vec![("service", number(*service)), ("kind", word(kind_name(*kind)))];
    (Value::Fields(key), Value::Fields(value))
}

/// Of `service_names`.
pub(crate) fn service_name(name: &abi::ServiceName) -> Value {
    let abi::ServiceName { namespace, name, port_name, port, proto, family, created } = name;
    Value::Fields(vec![
        ("namespace", word(text(namespace))),
        ("name", word(text(name))),
        ("portName", word(text(port_name))),
        ("port", number(*port)),
        ("protocol", word(protocol_name(*proto))),
        ("family", number(*family)),
        ("created", number(*created)),
    ])
}

/// Of `node_names`.
pub(crate) fn node_name(name: &abi::NodeName) -> Value {
    let abi::NodeName { name, zone } = name;
    Value::Fields(vec![("name", word(text(name))), ("zone", word(text(zone)))])
}

/// Key and value of `source_ranges`.
pub(crate) fn source_range(range: &SourceRange) -> (Value, Value) {
    let SourceRange { service, net } = range;
    let key = vec![("service", number(*service)), ("clients", word(net.to_string()))];
    (Value::Fields(key), Value::Fields(vec![("allowed", number(1u32))]))
}

/// Key and value of `shortcuts`.
pub(crate) fn shortcut(index: u32, shortcut: &abi::Shortcut) -> (Value, Value) {
    let abi::Shortcut { kind, bridge } = shortcut;
    let kinds =
        [(abi::SHORTCUT_NEIGHBOUR, "neighbour"), (abi::SHORTCUT_PEER, "peer"), (abi::SHORTCUT_BRIDGE, "bridge")];
    let name = kinds.into_iter().find(|(number, _)| number == kind).map_or("unknown", |(_, name)| name);
    (number(index), Value::Fields(vec![("kind", word(name)), ("bridge", number(*bridge))]))
}

/// Key and value of `pod_macs`: a MAC address in the first bytes of a number, and the interface's index.
pub(crate) fn pod_mac(mac: u64, index: u32) -> (Value, Value) {
    let [bytes @ .., _, _] = mac.to_ne_bytes();
    let shown = bytes.map(|byte| format!("{byte:02x}")).join(":");
    (Value::Fields(vec![("mac", word(shown))]), Value::Fields(vec![("ifindex", number(index))]))
}

/// Of `devices`.
pub(crate) fn device(device: &abi::Device) -> (Value, Value) {
    let abi::Device { ifindex, program } = device;
    (number(*ifindex), Value::Fields(vec![("ifindex", number(*ifindex)), ("program", number(*program))]))
}

/// Key and value of `frontend_filter`, from bytes: the word's index, and its bits.
pub(crate) fn filter_word((index, bits): &RawEntry) -> (Value, Value) {
    let index = index.as_slice().try_into().map_or(u32::MAX, u32::from_ne_bytes);
    let bits = bits.as_slice().try_into().map_or(u64::MAX, u64::from_ne_bytes);
    (number(index), Value::Fields(vec![("bits", word(format!("{bits:#018x}")))]))
}

/// Key and value of `going_filter`, from bytes: the index; whether programs ask, and slots that are not known to be empty.
pub(crate) fn going_filter((index, filter): &RawEntry) -> (Value, Value) {
    let word = |bytes: &[u8]| bytes.first_chunk().map_or(u32::MAX, |bytes| u32::from_ne_bytes(*bytes));
    let slots = filter.get(offset_of!(abi::GoingFilter, slots)..).unwrap_or_default();
    let states = slots.iter().flat_map(|byte| (0..u8::BITS).step_by(2).map(move |at| u32::from(*byte) >> at));
    let taken = states.filter(|state| state & abi::GOING_MASK != abi::GOING_NONE).count();
    let taken = u32::try_from(taken).unwrap_or(u32::MAX);
    (number(word(index)), Value::Fields(vec![("asked", number(word(filter))), ("taken", number(taken))]))
}

/// Of `counters`.
pub(crate) fn counter(counter: &abi::Counter) -> Value {
    let abi::Counter { packets, bytes } = counter;
    Value::Fields(vec![("packets", number(*packets)), ("bytes", number(*bytes))])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn values_read_as_fields_with_addresses_and_names() {
        let dump = sample::dump();
        let texts = [
            service(&dump.services[0].1).to_string(),
            backend(&dump.backends[0].1).to_string(),
            backend(&dump.backends[5].1).to_string(),
            line(&dump.lines[0].1).to_string(),
            service_name(&dump.service_names[2].1).to_string(),
            frontend(&dump.frontends[3].0, &dump.frontends[3].1).0.to_string(),
        ];
        insta::assert_snapshot!(texts.join("\n"), @r"
        internal={spill=6554 local=backend:1 remote=line:4} external={spill=0 local=backend:1 remote=<none>} shortCircuit={spill=6554 local=backend:1 remote=line:4} endpoints=3 flags=used|source_ranges affinityTicks=10546
        address=10.244.1.5:8080 protocol=TCP flags=used|local generation=3 service=1 node=1
        address=10.244.3.1:8080 protocol=TCP flags=<none> generation=4 service=1 node=2
        [backend:2<=0x7fffffff backend:3<=0xffffffff]
        namespace=default name=dns portName=<none> port=53 protocol=UDP family=4 created=99800
        address=[fd00:96::20]:80 protocol=TCP
        ");
    }

    #[test]
    fn the_configuration_shows_its_flags_and_the_networks_that_are_in_use() {
        let mut service_network = [abi::Network::UNSET; abi::SERVICE_NETWORKS];
        service_network[0] = abi::Network::new("10.96.0.0".parse().unwrap(), 16);
        service_network[1] = abi::Network::new("fd00:96::".parse().unwrap(), 112);
        let shown = |service_networks, flags| {
            let known = sample::config();
            let text = serde_json::to_value(config(&abi::Config { service_networks, service_network, flags, ..known }));
            let text = text.unwrap();
            (text["flags"].as_str().unwrap().to_owned(), text["serviceNetworks"].clone())
        };
        let flags = abi::CONFIG_BESIDE | abi::CONFIG_MASQUERADE_EXTERNAL | abi::CONFIG_MASQUERADE_ALL;
        let networks = serde_json::json!(["10.96.0.0/16", "fd00:96::/112"]);
        assert_eq!(shown(2, flags), ("beside|masquerade_external|masquerade_all".into(), networks));
        assert_eq!(shown(0, 0), (String::new(), serde_json::json!([])));
    }

    #[test]
    fn json_keeps_the_order_of_the_fields() {
        let text = serde_json::to_string(&node_name(&sample::dump().node_names[0].1)).unwrap();
        assert_eq!(text, r#"{"name":"edge-1","zone":"a"}"#);
    }
}
