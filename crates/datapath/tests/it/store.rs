//! Map stores: one suite for the kernel's and the one in memory; and what opening does with the pins that it finds.

use std::os::fd::BorrowedFd;
use std::process::Command;

use aya::programs::ProgramInfo;
use weir_abi as abi;
use weir_core::ops::{Capacity, Dump, FrontendKey, MapOp, SourceRange};
use weir_datapath::{Datapath, Error, MapStore, MemoryStore, PinDir, View};
use weir_testbed::packet::{Packet, decode};
use weir_testbed::prog_run::prog_run;

use crate::pins::{Pins, SMALL};

fn key(address: &str, port: u16) -> FrontendKey {
    FrontendKey { address: address.parse().unwrap(), port, protocol: 17 }
}

fn backend(address: &str, flags: u8, generation: u32) -> abi::Backend {
    let addr = address.parse::<std::net::IpAddr>().unwrap().into();
    abi::Backend { addr, port: abi::Be16::new(8080), proto: 17, flags, generation, service: 1, node: 2 }
}

fn service(local: u32, remote: u32) -> abi::Service {
    let tiers = abi::Tiers { spill: 7, local, remote, pad: 0 };
    abi::Service { tiers: [tiers; abi::CLASS_COUNT], endpoints: 2, flags: abi::SERVICE_USED, affinity: 0, pad: 0 }
}

fn line(first: u32, second: u32) -> abi::Line {
    let mut line = abi::Line { cumulative: [u32::MAX; abi::LINE_ENTRIES], r#ref: [0; abi::LINE_ENTRIES] };
    line.cumulative[0] = 1 << 30;
    (line.r#ref[0], line.r#ref[1]) = (first, second);
    line
}

fn service_name(name: &str) -> abi::ServiceName {
    let mut out = abi::ServiceName {
        namespace: [0; abi::NAME_SIZE],
        name: [0; abi::NAME_SIZE],
        port_name: [0; abi::NAME_SIZE],
        port: 80,
        proto: 17,
        family: 4,
        created: 3,
    };
    out.name[..name.len()].copy_from_slice(name.as_bytes());
    out
}

fn range(net: &str) -> SourceRange {
    SourceRange { service: 1, net: net.parse().unwrap() }
}

fn node_name(name: &str) -> abi::NodeName {
    let mut out = abi::NodeName { name: [0; abi::NAME_SIZE], zone: [0; abi::NAME_SIZE] };
    out.name[..name.len()].copy_from_slice(name.as_bytes());
    out
}

/// A service of each family on the same endpoints, by two levels of lines.
pub(crate) fn put_all() -> Vec<MapOp> {
    let frontend = abi::Frontend { service: 1, kind: abi::KIND_CLUSTER_IP };
    vec![
        MapOp::PutNodeName { id: 2, name: Box::new(node_name("edge-2")) },
        MapOp::PutBackend { id: 5, backend: backend("fd00::5", abi::BACKEND_USED, 1) },
        MapOp::ResetBackendCounters { id: 5 },
        MapOp::PutBackend { id: 4, backend: backend("10.1.0.4", abi::BACKEND_USED | abi::BACKEND_LOCAL, 9) },
        MapOp::PutLine { id: 0, line: Box::new(line(4, 5)) },
        MapOp::PutLine { id: 8, line: Box::new(line(abi::REF_LINE, 5)) },
        MapOp::PutService { id: 1, service: service(4, abi::REF_LINE | 8) },
        MapOp::ResetServiceCounters { id: 1 },
        MapOp::PutServiceName { id: 1, name: Box::new(service_name("web")) },
        MapOp::PutSourceRange { range: range("2001:db8::/32") },
        MapOp::PutSourceRange { range: range("0.0.0.0/0") },
        MapOp::PutSourceRange { range: range("192.0.2.0/24") },
        MapOp::PutFrontend { key: key("fd00:96::1", 80), frontend },
        MapOp::PutFrontend { key: key("10.96.0.1", 80), frontend },
    ]
}

pub(crate) fn all() -> Dump {
    let frontend = abi::Frontend { service: 1, kind: abi::KIND_CLUSTER_IP };
    Dump {
        services: vec![(1, service(4, abi::REF_LINE | 8))],
        backends: vec![
            (4, backend("10.1.0.4", abi::BACKEND_USED | abi::BACKEND_LOCAL, 9)),
            (5, backend("fd00::5", abi::BACKEND_USED, 1)),
        ],
        lines: vec![(0, line(4, 5)), (8, line(abi::REF_LINE, 5))],
        frontends: vec![(key("10.96.0.1", 80), frontend), (key("fd00:96::1", 80), frontend)],
        service_names: vec![(1, service_name("web"))],
        node_names: vec![(2, node_name("edge-2"))],
        source_ranges: vec![range("0.0.0.0/0"), range("192.0.2.0/24"), range("2001:db8::/32")],
    }
}

/// What every store must do.
fn conforms(store: &mut dyn MapStore) {
    assert_eq!(store.dump().unwrap(), Dump::default(), "a new store is empty");
    store.apply(&put_all()).unwrap();
    assert_eq!(store.dump().unwrap(), all(), "what was put is read back, sorted");
    store.apply(&put_all()).unwrap();
    assert_eq!(store.dump().unwrap(), all(), "putting the same again changes nothing");

    let frontend = abi::Frontend { service: 1, kind: abi::KIND_NODE_PORT };
    let changes = [
        MapOp::PutFrontend { key: key("10.96.0.1", 80), frontend },
        MapOp::PutService { id: 1, service: service(4, 5) },
        MapOp::PutServiceName { id: 1, name: Box::new(service_name("renamed")) },
        MapOp::PutNodeName { id: 2, name: Box::new(node_name("edge-3")) },
        MapOp::DeleteSourceRange { range: range("0.0.0.0/0") },
    ];
    store.apply(&changes).unwrap();
    let mut expected = all();
    expected.frontends[0].1 = frontend;
    expected.services = vec![(1, service(4, 5))];
    expected.lines.clear();
    expected.service_names = vec![(1, service_name("renamed"))];
    expected.node_names = vec![(2, node_name("edge-3"))];
    expected.source_ranges.remove(0);
    assert_eq!(store.dump().unwrap(), expected, "the last value counts, and lines that nothing refers to do not");

    let unused =
        abi::Service { tiers: [abi::Tiers { spill: 0, local: 0, remote: 0, pad: 0 }; 3], flags: 0, ..service(0, 0) };
    let removals = [
        MapOp::DeleteFrontend { key: key("10.96.0.1", 80) },
        MapOp::DeleteFrontend { key: key("fd00:96::1", 80) },
        MapOp::DeleteSourceRange { range: range("192.0.2.0/24") },
        MapOp::DeleteSourceRange { range: range("2001:db8::/32") },
        MapOp::DeleteServiceName { id: 1 },
        MapOp::PutService { id: 1, service: unused },
        MapOp::PutBackend { id: 4, backend: backend("10.1.0.4", 0, 10) },
        MapOp::PutBackend { id: 5, backend: backend("fd00::5", 0, 0) },
        MapOp::DeleteNodeName { id: 2 },
    ];
    store.apply(&removals).unwrap();
    let expected = Dump { backends: vec![(4, backend("10.1.0.4", 0, 10))], ..Dump::default() };
    assert_eq!(store.dump().unwrap(), expected, "a free slot keeps its generation; without one it is as good as new");
    store.apply(&removals).unwrap();
    assert_eq!(store.dump().unwrap(), expected, "removing what is not there is no error");
}

#[test]
fn the_memory_store_conforms() {
    conforms(&mut MemoryStore::default());
}

#[test]
fn the_kernel_store_conforms() {
    let Some(pins) = Pins::reused("the kernel store") else { return };
    conforms(pins.open().unwrap().store());
}

/// The frontends of `put_all` are for UDP; this opens a flow of a client to the IPv4 one.
pub(crate) fn open_flow(datapath: &Datapath, port: u16) -> Packet {
    open_flow_by(datapath.program("weir_pod_in").unwrap(), port)
}

/// The same, by a program that need not be of an agent that lives.
pub(crate) fn open_flow_by(program: BorrowedFd<'_>, port: u16) -> Packet {
    let packet =
        Packet::udp(format!("198.51.100.2:{port}").parse().unwrap(), "10.96.0.1:80".parse().unwrap(), b"hello");
    let run = prog_run(program, &packet.to_bytes(), None, 1).unwrap();
    decode(&run.packet).unwrap()
}

/// Sorted by key, without the fields that change with every packet.
pub(crate) fn flows(pins: &Pins) -> Vec<(u16, u32, u32)> {
    let flows = View::open(pins.dir.clone()).unwrap().flows().unwrap();
    flows.iter().map(|entry| (entry.client_port, entry.flow.backend, entry.flow.generation)).collect()
}

#[test]
fn opening_again_adopts_what_is_pinned() {
    let Some(pins) = Pins::new("adoption") else { return };
    let mut datapath = pins.open().unwrap();
    assert!(!datapath.adopted(), "nothing was there");
    datapath.store().apply(&put_all()).unwrap();
    let config = abi::Config { hash_seed: 77, udp_idle: 300, ..datapath.config().unwrap() };
    datapath.configure(&config).unwrap();
    let first = open_flow(&datapath, 40000);
    drop(datapath);

    let mut datapath = pins.open().unwrap();
    assert!(datapath.adopted());
    assert_eq!(datapath.store().dump().unwrap(), all());
    assert_eq!(datapath.config().unwrap(), config);
    assert_eq!(flows(&pins).len(), 1);
    assert_eq!(open_flow(&datapath, 40000), first);
}

/// The kernel's numbers of the loaded programs.
fn programs(datapath: &Datapath) -> Vec<u32> {
    let id = |name| ProgramInfo::from_pin(datapath.program_pin(name)).unwrap().id();
    ["weir_xdp", "weir_nic_in", "weir_connect6"].map(id).to_vec()
}

#[test]
fn programs_are_kept_for_the_next_agent_on_the_same_maps_and_for_no_other() {
    let Some(pins) = Pins::new("programs that are kept") else { return };
    let first = programs(&pins.open().unwrap());
    assert_eq!(programs(&pins.open().unwrap()), first);

    // A map that somebody has put in another's place, of the same layout: all maps are there.
    let Some(others) = Pins::new("another agent's maps") else { return };
    let (path, datapath) = (pins.dir.map("counters"), others.open().unwrap());
    let other = aya::maps::MapData::from_pin(others.dir.map("counters")).unwrap();
    std::fs::remove_file(&path).unwrap();
    other.pin(&path).unwrap();
    drop(datapath);
    let datapath = pins.open().unwrap();
    assert!(datapath.adopted());
    let second = programs(&datapath);
    drop(datapath);
    assert!(second.iter().all(|id| !first.contains(id)), "{first:?} {second:?}");
    let larger = Capacity { openings: SMALL.openings * 2, ..SMALL };
    let mut datapath = pins.open_with(&larger).unwrap();
    datapath.finish_switch().unwrap();
    let third = programs(&datapath);
    drop(datapath);
    assert!(third.iter().all(|id| !second.contains(id)), "{second:?} {third:?}");

    // An agent that died while it pinned them, and one whose programs were others.
    for left in ["programs-unfinished", "programs-0123456789abcdef"] {
        std::fs::create_dir(pins.dir.root().join(left)).unwrap();
    }
    let kept = pins.open_with(&larger).unwrap();
    assert_eq!(programs(&kept), third);
    let directories = pins.dir.entries().unwrap().into_iter().map(|name| name.into_string().unwrap());
    assert_eq!(directories.filter(|name| name.starts_with("programs-")).count(), 1, "what nobody uses is gone");

    std::fs::remove_file(kept.program_pin("weir_connect6")).unwrap();
    drop(kept);
    let last = programs(&pins.open_with(&larger).unwrap());
    assert!(last.iter().all(|id| !third.contains(id)), "one of them was missing: {third:?} {last:?}");
}

#[test]
fn a_second_writer_is_refused_while_the_first_lives() {
    let Some(pins) = Pins::reused("the lock of the pin directory") else { return };
    let first = pins.open().unwrap();
    let error = pins.open().unwrap_err();
    assert!(matches!(&error, Error::Locked { path } if path == pins.dir.root()), "{error}");
    assert!(error.to_string().contains("--pin-dir"), "{error}");
    drop(first);
    pins.open().unwrap();
}

#[test]
fn a_directory_outside_of_bpffs_is_refused_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let error = Datapath::open(PinDir::new(dir.path().join("weir")), &SMALL).unwrap_err();
    assert!(matches!(error, Error::NoBpffs { .. }), "{error}");
    assert!(error.to_string().contains("mount -t bpf"), "{error}");
    assert!(!dir.path().join("weir").exists(), "nothing is left behind");
}

#[test]
fn a_view_of_nothing_says_that_nothing_is_set_up() {
    let Some(pins) = Pins::new("a view without pins") else { return };
    let error = View::open(pins.dir.clone()).unwrap_err();
    assert!(matches!(error, Error::NotSetUp { .. }), "{error}");
}

#[test]
fn a_full_map_names_itself_its_size_and_the_option_that_raises_it() {
    let Some(pins) = Pins::new("full maps") else { return };
    let mut datapath =
        pins.open_with(&Capacity { frontends: 2, nodes: 1, services: 2, source_ranges: 1, ..SMALL }).unwrap();
    let frontend = abi::Frontend { service: 1, kind: abi::KIND_CLUSTER_IP };
    let put = |address: &str| MapOp::PutFrontend { key: key(address, 80), frontend };
    for (full, ops) in [
        (("frontends4", 2, "--max-frontends"), ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(put).to_vec()),
        (("frontends6", 2, "--max-frontends"), ["fd00::1", "fd00::2", "fd00::3"].map(put).to_vec()),
        (
            ("service_names", 2, "--max-services"),
            (1..=3).map(|id| MapOp::PutServiceName { id, name: Box::new(service_name("web")) }).collect(),
        ),
        (
            ("node_names", 1, "--max-nodes"),
            (1..=2).map(|id| MapOp::PutNodeName { id, name: Box::new(node_name("edge")) }).collect(),
        ),
        (
            ("source_ranges", 1, "--max-source-ranges"),
            ["192.0.2.0/24", "fd00::/8"].map(|net| MapOp::PutSourceRange { range: range(net) }).to_vec(),
        ),
    ] {
        let error = datapath.store().apply(&ops).unwrap_err();
        assert!(
            matches!(error, Error::MapFull { map, size, option } if (map, size, option) == full),
            "{full:?}: {error}"
        );
        assert!(error.to_string().contains(full.2), "{error}");
    }
    assert_eq!(datapath.store().dump().unwrap().frontends.len(), 4, "what fitted is in force");
}

#[test]
fn a_slot_beyond_the_end_of_an_array_is_an_error() {
    let Some(pins) = Pins::reused("slots beyond the end") else { return };
    let mut datapath = pins.open().unwrap();
    let op = MapOp::PutBackend { id: SMALL.backends, backend: backend("10.0.0.1", 1, 1) };
    let error = datapath.store().apply(&[op]).unwrap_err();
    assert!(matches!(error, Error::NoSlot { map: "backends", slot, size } if slot == size), "{error}");
}

#[test]
fn a_map_of_another_layout_at_a_pin_is_never_used() {
    let Some(pins) = Pins::new("foreign maps") else { return };
    for (name, shape) in [
        ("flows4", ["type", "lru_hash", "key", "16", "value", "24", "entries", "8192"]),
        ("services", ["type", "array", "key", "4", "value", "64", "entries", "64"]),
        ("frontends6", ["type", "hash", "key", "8", "value", "8", "entries", "256"]),
    ] {
        drop(pins.open().unwrap());
        let path = pins.dir.map(name);
        std::fs::remove_file(&path).unwrap();
        let made =
            Command::new("bpftool").args(["map", "create"]).arg(&path).args(shape).args(["name", "foreign"]).status();
        assert!(made.expect("bpftool is installed").success());
        let error = View::open(pins.dir.clone()).unwrap_err();
        assert!(matches!(&error, Error::Layout { path: at, .. } if *at == path), "{name}: {error}");

        let mut datapath = pins.open().unwrap();
        assert!(!datapath.adopted(), "{name} is new");
        datapath.store().apply(&put_all()).unwrap();
        assert_eq!(open_flow(&datapath, 40000).destination, "10.1.0.4".parse::<std::net::IpAddr>().unwrap());
        View::open(pins.dir.clone()).unwrap();
    }
}
