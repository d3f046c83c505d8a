//! `bpf/abi.h` as the compiler saw it, compared with its Rust view: every struct field by field, every constant by value.
//!
//! A new field or constant on either side that the other does not have fails here or does not compile.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "btf/reader.rs"]
mod reader;

use std::collections::{BTreeMap, BTreeSet};
use std::mem::{offset_of, size_of};

use reader::{Btf, Field, Struct};
use weir_abi as abi;

/// Nothing but the names of what it declares are taken from the text; layouts come from the objects.
/// The header and its parts.
const HEADER: &str = concat!(
    include_str!("../../../bpf/abi.h"),
    include_str!("../../../bpf/abi/config.h"),
    include_str!("../../../bpf/abi/flows.h"),
    include_str!("../../../bpf/abi/reasons.h")
);
const ENUMS_RS: &str = include_str!("../src/enums.rs");

/// Size of what a field accessor returns.
fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// Lists a struct's fields. The pattern has no `..`, so a field that is missing from the list does not compile.
macro_rules! mirrors {
    ($($rust:ident = $c:literal { $($field:ident),* $(,)? })*) => {
        BTreeMap::from([$({
            let _ = |abi::$rust { $($field: _),* }: abi::$rust| {};
            let fields = vec![$(Field {
                name: stringify!($field).trim_start_matches("r#").to_owned(),
                offset: offset_of!(abi::$rust, $field),
                size: size_of_field(|value: &abi::$rust| &value.$field),
            }),*];
            ($c, Struct { size: size_of::<abi::$rust>(), fields })
        }),*])
    };
}

fn rust_structs() -> BTreeMap<&'static str, Struct> {
    mirrors! {
        Addr = "addr" { word }
        FrontendKey4 = "frontend_key4" { addr, port, proto, pad }
        FrontendKey6 = "frontend_key6" { addr, port, proto, pad }
        FilterWord = "filter_word" { bits }
        GoingFilter = "going_filter" { asked, pad, slots }
        Device = "device" { ifindex, program }
        Shortcut = "shortcut" { kind, bridge }
        Frontend = "frontend" { service, kind }
        Tiers = "tiers" { spill, local, remote, pad }
        Service = "service" { tiers, endpoints, flags, affinity, pad }
        Line = "line" { cumulative, r#ref }
        Backend = "backend" { addr, port, proto, flags, generation, service, node }
        LocalKey = "local_key" { addr, service, pad }
        LocalEndpoint = "local_endpoint" { backend }
        OtherNode = "other_node" { known }
        AffinityKey = "affinity_key" { client, service, pad }
        Affinity = "affinity" { backend, generation, last_seen }
        SourceRangeKey = "source_range_key" { prefixlen, service, client }
        SourceRange = "source_range" { allowed }
        BackendCounters = "backend_counters" { flows, delay, answered, refused, gone_on, going, unanswered, failed_over, bytes_to, bytes_from, balance, base }
        SnatCounter = "snat_counter" { next, pressed, long_search, pad }
        SnatNext = "snat_next" { port }
        SnatPorts = "snat_ports" { answers, left }
        SnatKept = "snat_kept" { entry }
        Displaced = "displaced" { entry, answers }
        ServiceCounters = "service_counters" { local, remote, rejected, dropped, local_gone_on, remote_gone_on, pad }
        FlowKey4 = "flow_key4" { src, dst, sport, dport, proto, pad }
        FlowKey6 = "flow_key6" { src, dst, sport, dport, proto, pad }
        Flow = "flow" { backend, generation, service, flags, snat_port, created, last_seen, bytes, held }
        Flow6 = "flow6" { flow, pad }
        Reply = "reply" { frontend, client, frontend_port, client_port, flags, heard, backend, generation, last_seen, asked, bytes, held }
        FirstSyns = "first_syns" { tag }
        OpeningHead = "opening_head" { tag, born, turn, next, displaced, pad }
        OpeningSet4 = "opening_set4" { head, key, value }
        OpeningSet6 = "opening_set6" { head, key, value }
        AwaitedSet4 = "awaited_set4" { head, key, value }
        AwaitedSet6 = "awaited_set6" { head, key, value }
        Route = "route" { jiffy, pad, asked, answer }
        Pace = "pace" { tick, flows, told, moved, flooded, too_big, lost, adopted }
        FragmentKey = "fragment_key" { src, dst, id, proto, out, pad }
        Fragment = "fragment" { sport, dport, last_seen, state }
        HeldPiece = "held_piece" { key, last_seen, state, length, l3, ifindex, bytes }
        SocketKey = "socket_key" { cookie, addr, port, proto, pad }
        SocketPeer = "socket_peer" { addr, port, pad, backend, generation }
        ConnectionPeer = "connection_peer" { frontend, backend, frontend_port, backend_port }
        HookedPod = "hooked_pod" { addr4, addr6 }
        Config = "config" { netns_cookie, hash_seed, held_until, node4, node6, tunnel4, tunnel6, flags, udp_idle, tcp_idle, abi_version, fragment_idle, service_networks, flood, tcp_half_closed, tcp_linger, held_pieces, service_network }
        Network = "network" { addr, mask }
        Tunnel = "tunnel" { addr, ifindex, pad }
        ServiceName = "service_name" { namespace, name, port_name, port, proto, family, created }
        NodeName = "node_name" { name, zone }
        Counter = "counter" { packets, bytes }
    }
}

/// Names and values of constants.
macro_rules! constants {
    ($($name:ident),* $(,)?) => { BTreeMap::from([$((stringify!($name), u64::try_from(abi::$name).unwrap())),*]) };
}

fn rust_constants() -> BTreeMap<&'static str, u64> {
    constants![
        ABI_VERSION,
        LINE_ENTRIES,
        LINE_DEPTH,
        REF_LINE,
        MAGLEV_SEED,
        SECOND_DRAW,
        SERVICE_NETWORKS,
        HELD_BYTES,
        HELD_REGION,
        NAME_SIZE,
        OPENING_IDLE,
        ANSWER_IDLE,
        ASKED_ONCE_IDLE,
        ANSWERS_SHIFT,
        OPENING_WAYS,
        OPENING_FREE,
        OPENING_BUSY,
        IDLE_TAKEN_OUT,
        SETTLED_BYTES,
        ERRORS_TOLD,
        ROUTE_BITS,
        ROUTE_WORDS,
        DELAY_SHIFT,
        SNAT_COUNTERS,
        FIRST_SYNS,
        SNAT_KEPT_WAYS,
        DISPLACED_WAYS,
        DISPLACED_BACKEND,
        DISPLACED_TICK,
        DISPLACED_TAG,
        TIME_WAIT_LINGERS,
        SNAT_NEXT_BITS,
        SNAT_WORD_BITS,
        FILTER_BITS,
        FILTER_NEAR_BITS,
        FILTER_WORD_BITS,
        GOING_BITS,
        GOING_WORD_BITS,
        GOING_MOST,
        GOING_MASK,
        GOING_MAY_BE,
        GOING_NONE,
        GOING_ASKED,
        KIND_CLUSTER_IP,
        KIND_NODE_PORT,
        KIND_LOAD_BALANCER,
        KIND_EXTERNAL_IP,
        KIND_UNUSED_PORT,
        KIND_ADDRESS,
        CLASS_INTERNAL,
        CLASS_EXTERNAL,
        CLASS_SHORT_CIRCUIT,
        CLASS_COUNT,
        SERVICE_USED,
        SERVICE_SOURCE_RANGES,
        SERVICE_EXTERNAL_LOCAL,
        SERVICE_LEAST_CONN,
        SERVICE_MAGLEV,
        BACKEND_USED,
        BACKEND_LOCAL,
        BACKEND_HOST_NETWORK,
        BACKEND_CLASS,
        BACKEND_CLASSES,
        BACKEND_DIRECT,
        FLOW_SNAT,
        FLOW_CLOSING,
        FLOW_REPLIED,
        FLOW_MOVED,
        FLOW_RETRY,
        FLOW_RETRIES,
        FLOW_OPENING,
        FLOW_ASKED_AGAIN,
        FLOW_GONE_ON,
        FLOW_BY_HASH,
        FLOW_KEPT,
        FLOW_SETTLED,
        FLOW_TUNNEL,
        FLOW_LAST,
        FLOW_OWN,
        FLOW_LENT,
        FLOW_ENDED,
        FLOW_DIRECT,
        FLOW_ALONE,
        FRAGMENT_AWAITED,
        FRAGMENT_OURS,
        FRAGMENT_FOREIGN,
        HEARD_SHIFT,
        HEARD_MASK,
        HEARD_KNOWN,
        HEARD_FAR,
        HELD_FREE,
        HELD_BUSY,
        HELD_USED,
        CONFIG_RESET_STALE,
        CONFIG_HOLD,
        CONFIG_BESIDE,
        CONFIG_MASQUERADE_EXTERNAL,
        CONFIG_MASQUERADE_ALL,
        CONFIG_POD_SOCKETS,
        CONFIG_ECHO,
        CONFIG_HOST_BYPASS,
        CONFIG_SETTLE,
        CONFIG_UNWRAP,
        SHORTCUT_NEIGHBOUR,
        SHORTCUT_PEER,
        SHORTCUT_BRIDGE,
        HOOK_XDP,
        HOOK_NIC_INGRESS,
        HOOK_NIC_EGRESS,
        HOOK_POD_INGRESS,
        HOOK_POD_EGRESS,
        HOOK_SOCKET,
        HOOK_COUNT,
        REASON_NONE,
        REASON_NOT_IP,
        REASON_NOT_TRANSPORT,
        REASON_FRAGMENT,
        REASON_MALFORMED,
        REASON_NO_FRONTEND,
        REASON_NO_REPLY,
        REASON_LEFT_TO_TC,
        REASON_XDP_DONE,
        REASON_MID_FLOW,
        REASON_OTHER_HOST,
        REASON_TO_LOCAL,
        REASON_TO_REMOTE,
        REASON_BACK,
        REASON_HAIRPIN,
        REASON_ERROR_TOLD,
        REASON_DIRECT,
        REASON_NO_ENDPOINTS,
        REASON_STALE_RESET,
        REASON_UNUSED_PORT,
        REASON_UNANSWERED,
        REASON_TOO_BIG_TOLD,
        REASON_ECHO,
        REASON_TTL_TOLD,
        REASON_NO_LOCAL_ENDPOINTS,
        REASON_STALE,
        REASON_SNAT_EXHAUSTED,
        REASON_NO_ROUTE,
        REASON_TTL_EXCEEDED,
        REASON_BROKEN_TABLE,
        REASON_REWRITE_FAILED,
        REASON_FLOW_TABLE,
        REASON_TOO_BIG,
        REASON_HELD,
        REASON_SOURCE_RANGE,
        REASON_NO_SERVICE,
        REASON_FRAGMENT_LOST,
        REASON_FRAGMENT_HELD,
        REASON_FIRST_SYN,
        REASON_UNTOLD,
        REASON_COUNT
    ]
}

/// Names that the header declares with a keyword: "struct NAME {" or "enum NAME {".
fn declared(keyword: &str) -> BTreeSet<&'static str> {
    let name = |line: &'static str| line.strip_prefix(keyword)?.strip_prefix(' ')?.strip_suffix(" {");
    HEADER.lines().filter_map(name).collect()
}

fn objects() -> Vec<(&'static str, Btf)> {
    weir_datapath::objects().into_iter().map(|(name, bytes)| (name, Btf::of_object(bytes))).collect()
}

#[test]
fn every_struct_of_the_header_has_a_rust_view_and_every_view_a_struct() {
    let rust: BTreeSet<_> = rust_structs().into_keys().collect();
    assert_eq!(rust, declared("struct"));
}

#[test]
fn every_field_lies_where_the_compiler_put_it() {
    for (object, btf) in objects() {
        for (name, rust) in rust_structs() {
            let c = btf.structs.get(name).unwrap_or_else(|| panic!("{object} has no BTF of struct {name}"));
            assert_eq!(&rust, c, "struct {name} of {object}: Rust on the left, C on the right");
        }
    }
}

#[test]
fn every_constant_of_the_header_has_the_same_value_in_rust() {
    let rust = rust_constants();
    for (object, btf) in objects() {
        let mut c = BTreeMap::new();
        for name in declared("enum") {
            let values = btf.enums.get(name).unwrap_or_else(|| panic!("{object} has no BTF of enum {name}"));
            c.extend(values.iter().map(|(name, value)| (name.as_str(), *value)));
        }
        assert_eq!(rust, c, "enumerations of {object}: Rust on the left, C on the right");
    }
}

#[test]
fn every_rust_constant_is_compared() {
    let name = |line: &'static str| Some(line.strip_prefix("pub const ")?.split_once(':')?.0);
    let listed: BTreeSet<_> = rust_constants().into_keys().collect();
    assert_eq!(listed, ENUMS_RS.lines().filter_map(name).collect());
}
