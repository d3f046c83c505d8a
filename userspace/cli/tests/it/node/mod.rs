//! A node's maps in a pin directory of their own, filled as the agent would fill them.

pub(crate) mod serving;
pub(crate) mod told;

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::Value;
use weir_abi as abi;
use weir_abi::ticks::TickClock;
use weir_core::cluster::{Cluster, Event};
use weir_core::model::{
    Endpoint, Family, Node, NodeCapacity, ObjectName, Protocol, Service, ServicePort, Slice, SlicePort, TrafficPolicy,
};
use weir_core::ops::Capacity;
use weir_core::plan::{PlanConfig, Spread, plan};
use weir_core::tables::Tables;
use weir_datapath::{Datapath, MapStore, PinDir};
use weir_prepared::{Prepared, has_filters};

const BPFFS: &str = "/sys/fs/bpf";

/// `nobody`, on every system.
pub(crate) const NOBODY: u32 = 65_534;

/// Small maps: tests run side by side.
const CAPACITY: Capacity = Capacity {
    services: 64,
    backends: 256,
    lines: 64,
    frontends: 64,
    nodes: 16,
    flows: 1024,
    openings: 1024,
    sockets: 64,
    ..Capacity::DEFAULT
};

/// A pin directory that goes away with the test, or is emptied for the next one.
pub(crate) struct Pins(pub(crate) PathBuf, OnceLock<Prepared>);

impl Pins {
    /// None, loudly, where no maps can be pinned.
    pub(crate) fn new(test: &str) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIPPED: {test}: maps need root; run it with sudo");
            return None;
        }
        let bpffs = nix::sys::statfs::statfs(BPFFS).map(|stat| stat.filesystem_type());
        if bpffs != Ok(nix::sys::statfs::BPF_FS_MAGIC) {
            eprintln!("SKIPPED: {test}: no BPF file system at {BPFFS}; mount -t bpf bpf {BPFFS}");
            return None;
        }
        Some(Self::at(Path::new(BPFFS).join(format!("weir-cli-{test}-{}", std::process::id()))))
    }

    pub(crate) fn at(root: PathBuf) -> Self {
        Self(root, OnceLock::new())
    }

    /// Opens maps and programs as an agent does, in the calling thread's network namespace.
    pub(crate) fn open(&self) -> Datapath {
        self.1.get_or_init(|| Prepared::at(&self.dir(), &CAPACITY).unwrap());
        Datapath::open(self.dir(), &CAPACITY).unwrap()
    }

    /// As the library has it.
    pub(crate) fn dir(&self) -> PinDir {
        PinDir::new(&self.0)
    }

    /// Runs the binary.
    pub(crate) fn weir(&self, args: &[&str]) -> Output {
        let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
        weir.args(args).env("WEIR_PIN_DIR", &self.0).env("WEIR_STATE_DIR", self.state_dir()).output().unwrap()
    }

    /// Where a migration's stage would be.
    pub(crate) fn state_dir(&self) -> PathBuf {
        std::env::temp_dir().join(self.0.file_name().unwrap())
    }

    /// In a network namespace of its own: cleanup takes tc filters from all interfaces, and others test here too.
    pub(crate) fn weir_alone(&self, args: &[&str]) -> Output {
        let weir = env!("CARGO_BIN_EXE_weir");
        let mut alone = Command::new("unshare");
        alone.args(["--net", weir]).args(args).env("WEIR_PIN_DIR", &self.0).env("WEIR_STATE_DIR", self.state_dir());
        alone.output().unwrap()
    }

    /// A command's JSON.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let output = self.weir(&[args, &["-o", "json"]].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {output:?}"))
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let (found, dir) = (self.1.take(), self.dir());
        let left = Prepared::leave(found.filter(|_| !std::thread::panicking() && !has_filters(&dir)), &dir);
        assert!(left.is_ok() || std::thread::panicking(), "{left:?}");
    }
}

/// What was printed.
pub(crate) fn text(output: &[u8]) -> String {
    String::from_utf8(output.to_vec()).unwrap()
}

fn endpoint(address: &str, node: &str, ready: bool) -> Endpoint {
    Endpoint {
        address: address.parse().unwrap(),
        node: Some(node.into()),
        ready,
        serving: true,
        terminating: !ready,
        zone_hints: Box::default(),
        node_hints: Box::default(),
        pod: None,
    }
}

fn slice(name: &str, family: Family, endpoints: Vec<Endpoint>) -> Slice {
    Slice {
        name: ObjectName::new("shop", name),
        service: ObjectName::new("shop", "web"),
        family,
        ports: vec![SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: 8080 }],
        endpoints,
        triggered: None,
    }
}

/// A dual-stack web service: one endpoint here, one elsewhere, one draining; in IPv6 one elsewhere.
fn cluster() -> Cluster {
    let mut cluster = Cluster::default();
    let node = |name: &str, address: &str| Node {
        name: name.into(),
        zone: "a".into(),
        addresses: vec![address.parse().unwrap()],
        eligible: true,
        capacity: NodeCapacity::default(),
    };
    let events = [
        Event::Nodes(vec![node("edge-1", "192.168.0.11"), node("edge-2", "192.168.0.12")]),
        Event::Services(vec![Service {
            cluster_ips: vec!["10.96.0.20".parse().unwrap(), "fd00:96::20".parse().unwrap()],
            load_balancer_ips: vec!["203.0.113.7".parse().unwrap()],
            ports: vec![ServicePort {
                name: "http".into(),
                protocol: Protocol::Tcp,
                port: 80,
                node_port: Some(30_080),
            }],
            external_policy: TrafficPolicy::Local,
            affinity: Some(10_800),
            source_ranges: vec!["198.51.100.0/24".parse().unwrap()],
            ..Service::new(ObjectName::new("shop", "web"))
        }]),
        Event::Slices(vec![
            slice(
                "web-4",
                Family::V4,
                vec![
                    endpoint("10.244.1.5", "edge-1", true),
                    endpoint("10.244.2.6", "edge-2", true),
                    endpoint("10.244.2.7", "edge-2", false),
                ],
            ),
            slice("web-6", Family::V6, vec![endpoint("fd00:244::6", "edge-2", true)]),
        ]),
    ];
    for event in events {
        cluster.apply(event);
    }
    cluster
}

/// Fills the maps as the agent does, and leaves them behind as a dead one would.
pub(crate) fn fill(pins: &Pins) -> Datapath {
    let mut datapath = pins.open();
    write(&mut datapath, &cluster(), &["192.168.0.11".parse().unwrap()]);
    datapath
}

/// Writes the service `shop/web` of a cluster, as seen from the node `edge-1` with these addresses.
fn write(datapath: &mut Datapath, cluster: &Cluster, node: &[IpAddr]) {
    let config = PlanConfig {
        node: Arc::from("edge-1"),
        node_port_addresses: node.to_vec(),
        carried_addresses: BTreeSet::new(),
        external_ips: true,
        spread: Spread::Random,
        clock: TickClock::new(Duration::from_millis(1)),
        handing_over: BTreeSet::new(),
    };
    let name = ObjectName::new("shop", "web");
    let plans = plan(cluster, &config, &name);
    let update = Tables::new(CAPACITY).replace(&name, &plans, 1).unwrap();
    datapath.store().apply(&update.ops).unwrap();
    let first = |v6| node.iter().find(|ip| ip.is_ipv6() == v6).map_or(abi::Addr::UNSET, |ip| abi::Addr::from(*ip));
    let config = abi::Config {
        hash_seed: 1,
        node4: first(false),
        node6: first(true),
        flags: abi::CONFIG_RESET_STALE,
        udp_idle: 120,
        ..abi::Config::PLAIN
    };
    datapath.configure(&config).unwrap();
    datapath.set_source_ports(&(40_000..=40_099).collect()).unwrap();
}

/// The program where everybody may start it: a checkout may be in a home directory.
pub(crate) fn program_for_all(dir: &Path) -> PathBuf {
    fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
    let program = dir.join("weir");
    // A process of its own writes it: what another test's thread forks while this one has the file open for writing would
    // hold it open, and nobody can execute such a file (`ETXTBSY`).
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_weir")).arg(&program).status().unwrap();
    assert!(copied.success(), "cannot copy the program to {}", program.display());
    program
}
