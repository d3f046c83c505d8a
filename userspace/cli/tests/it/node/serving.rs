//! A node in a world of network namespaces that serves one Service, as an agent leaves it behind.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use weir_core::cluster::{Cluster, Event};
use weir_core::model::{Family, Node, NodeCapacity, ObjectName, Protocol, Service, ServicePort};
use weir_datapath::{AttachOptions, Attachment};
use weir_testbed::serve::{self, Server};
use weir_testbed::{Cgroup, Netns, World, address, ask};

use super::{Pins, endpoint, slice, write};

/// Silence for so long is no answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The node, its endpoint, and a client outside. Pins outlive it, and are removed by their own owner.
pub(crate) struct Serving {
    _cgroup: Cgroup,
    _server: Server,
    world: World,
}

impl Serving {
    /// Attaches to the NIC, the pod and a cgroup, fills the maps, and lets go of everything.
    pub(crate) fn leave_behind(pins: &Pins, tcx: bool) -> Self {
        World::sweep().unwrap();
        Cgroup::sweep().unwrap();
        let world = World::builder().nodes(1).pods_per_node(1).build().unwrap();
        let pod = world.node(1).pod(1);
        let server = serve::http(pod.netns(), &pod.name(), 8080).unwrap();
        let cgroup = Cgroup::create(&format!("{}cleanup", world.prefix())).unwrap();
        world.node(1).netns().enter(|| {
            let mut datapath = pins.open();
            write(&mut datapath, &cluster(), &address::node(1).both());
            datapath.set_source_ports(&(10_000..=29_999).collect()).unwrap();
            datapath.attach_cgroup(cgroup.path()).unwrap();
            for (name, role, xdp) in [("eth0", Attachment::Nic, true), (&*pod.host_interface(), Attachment::Pod, false)]
            {
                let index = nix::net::if_::if_nametoindex(name).unwrap();
                datapath
                    .attach_interface(index, name, role, AttachOptions { xdp, tcx, headerless: false, redirects: true })
                    .unwrap();
            }
        });
        Self { _cgroup: cgroup, _server: server, world }
    }

    /// Who answers the client outside at the Service's addresses.
    pub(crate) fn answers(&self) -> [Option<String>; 2] {
        let ask = |ip: IpAddr| ask::http_ask_within(SocketAddr::new(ip, 80), PATIENCE).ok().map(|answer| answer.name);
        self.world.client().enter(|| cluster_ips().map(ask))
    }

    /// Runs the command line in the node's namespace.
    pub(crate) fn weir(&self, pins: &Pins, args: &[&str]) -> Output {
        self.command(pins).args(args).output().unwrap()
    }

    /// The same, to be started.
    pub(crate) fn command(&self, pins: &Pins) -> Command {
        let mut command = self.run(env!("CARGO_BIN_EXE_weir"));
        // A runner of tests may be a pod.
        command.env("WEIR_PIN_DIR", &pins.0).env_remove("KUBERNETES_SERVICE_HOST");
        command
    }

    /// Another program in the node's namespace.
    pub(crate) fn run(&self, program: &str) -> Command {
        self.netns().command(program)
    }

    /// The node's namespace.
    pub(crate) fn netns(&self) -> &Netns {
        self.world.node(1).netns()
    }

    /// What names of this world begin with.
    pub(crate) fn prefix(&self) -> &str {
        self.world.prefix()
    }
}

/// The kernel's number of a pinned map.
pub(crate) fn map_id(pins: &Pins, map: &str) -> u64 {
    let path = pins.dir().map(map).display().to_string();
    bpftool(&["map", "show", "pinned", &path])["id"].as_u64().unwrap()
}

/// Names of the programs in the kernel that use a map: those that something still runs or holds.
pub(crate) fn programs_with(map: u64) -> BTreeSet<String> {
    let all = bpftool(&["prog", "show"]);
    let uses = |program: &&Value| program["map_ids"].as_array().is_some_and(|ids| ids.contains(&map.into()));
    let found = all.as_array().unwrap().iter().filter(uses);
    found.map(|program| program["name"].as_str().unwrap_or_default().to_owned()).collect()
}

fn bpftool(args: &[&str]) -> Value {
    let output = Command::new("bpftool").arg("--json").args(args).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {output:?}"))
}

fn cluster_ips() -> [IpAddr; 2] {
    ["10.96.0.20".parse().unwrap(), "fd00:96::20".parse().unwrap()]
}

/// The node, and a Service with its pod in both families.
fn cluster() -> Cluster {
    let mut cluster = Cluster::default();
    let addresses = address::node(1).both().to_vec();
    let capacity = NodeCapacity::default();
    let node = Node { name: "edge-1".into(), zone: "a".into(), addresses, eligible: true, capacity };
    let port = ServicePort { name: "http".into(), protocol: Protocol::Tcp, port: 80, node_port: None };
    let service = Service {
        cluster_ips: cluster_ips().to_vec(),
        ports: vec![port],
        ..Service::new(ObjectName::new("shop", "web"))
    };
    let [v4, v6] = address::pod(1, 1).both().map(|ip| endpoint(&ip.to_string(), "edge-1", true));
    let slices = vec![slice("web-4", Family::V4, vec![v4]), slice("web-6", Family::V6, vec![v6])];
    for event in [Event::Nodes(vec![node]), Event::Services(vec![service]), Event::Slices(slices)] {
        cluster.apply(event);
    }
    cluster
}
