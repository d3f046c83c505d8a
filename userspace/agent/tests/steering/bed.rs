//! The world of these tests.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use weir_abi as abi;
use weir_testbed::serve::Server;
use weir_testbed::{Cgroup, World, address, bpffs, require_root, wait};

use crate::harness::machine::Machine;
use crate::harness::{Agent, HTTP, SOON, TCP, serve_in, text};

/// Round-trip time between two nodes that are near each other, and from any to one that is far.
const NEAR: Duration = Duration::from_millis(2);
const FAR: Duration = Duration::from_millis(12);
/// Patience with what takes a controller's time constants.
pub(crate) const SETTLED: Duration = Duration::from_secs(40);

/// A service of the file: HTTP at port 80, echo at port 7.
#[derive(Clone, Debug)]
pub(crate) struct Web {
    pub(crate) name: &'static str,
    pub(crate) number: u8,
    /// More lines of its entry, such as a traffic policy.
    pub(crate) more: &'static str,
}

impl Web {
    pub(crate) fn new(name: &'static str, number: u8) -> Self {
        Self { name, number, more: "" }
    }

    pub(crate) fn http(&self) -> SocketAddr {
        SocketAddr::new(IpAddr::from([10, 96, 0, self.number]), 80)
    }

    pub(crate) fn echo(&self) -> SocketAddr {
        SocketAddr::new(IpAddr::from([10, 96, 0, self.number]), 7)
    }
}

/// So many beds at a time: each is three agents on machines of a part of a CPU, whose readings others' load would change.
const BEDS: usize = 2;
static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

/// A bed's turn.
struct Turn;

impl Turn {
    fn take() -> Self {
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let free = ENDED.wait_while(running, |running| *running >= BEDS);
        *free.unwrap_or_else(PoisonError::into_inner) += 1;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ENDED.notify_one();
    }
}

/// Three nodes with a pod each, the third one far away. All services have an endpoint in each pod.
pub(crate) struct Bed {
    // Agents go before the namespaces that they live in.
    pub(crate) agents: Vec<Agent>,
    pub(crate) machines: Vec<Machine>,
    /// Of each node's pod, node 1 first.
    pub(crate) servers: Vec<Vec<Server>>,
    files: Vec<PathBuf>,
    pub(crate) world: World,
    _turn: Turn,
}

impl Bed {
    /// Starts everything, and returns when each node knows how far the others are. None where the machine cannot.
    pub(crate) fn start(what: &str, services: &[Web], options: &[&str]) -> Option<Self> {
        if !require_root(what) || !Machine::require(what) {
            return None;
        }
        let turn = Turn::take();
        World::sweep().unwrap();
        Cgroup::sweep().unwrap();
        bpffs::ensure_mounted().unwrap();
        let world = World::builder().nodes(3).pods_per_node(1).delay(NEAR).build().unwrap();
        world.node(3).link().unwrap().set_delay((FAR - NEAR / 2) / 2);
        let servers = world.nodes().iter().map(|node| serve_in(&node.pod(1)).into()).collect();
        let file = |suffix: &str, text: &str| {
            let file = std::env::temp_dir().join(format!("{}{suffix}", world.prefix()));
            fs::write(&file, text).unwrap();
            file
        };
        let (source, key) = (file("services.yaml", &yaml(services)), file("mesh.key", &format!("{:064x}\n", 0x5eed)));
        let (mut agents, mut machines) = (Vec::new(), Vec::new());
        for number in 1..=3 {
            let machine = Machine::create(&format!("{}machine{number}", world.prefix()));
            let source = ["--static".to_owned(), source.display().to_string()];
            let mut agent = Agent::prepared(&world, number, source, &["--max-flows=65536"]);
            agent.set_option(&format!("--mesh-key-file={}", key.display()));
            agent.set_option(&format!("--node-cgroup={}", machine.name()));
            options.iter().for_each(|option| agent.set_option(option));
            agent.start_again(&world);
            agents.push(agent);
            machines.push(machine);
        }
        let bed = Self { agents, machines, servers, files: vec![source, key], world, _turn: turn };
        for agent in &bed.agents {
            agent.await_ready(&bed.world);
            agent.await_peers(2);
        }
        Some(bed)
    }

    /// What a node's agent says of its weights.
    pub(crate) fn weights(&self, node: u8) -> Value {
        self.agents[usize::from(node) - 1].weights()
    }

    /// A service of the first port in what a node says.
    pub(crate) fn service(&self, node: u8, name: &str) -> Option<Value> {
        let services = self.weights(node)["services"].as_array().unwrap().clone();
        services.into_iter().find(|service| service["name"] == name && service["portName"] == "http")
    }

    /// The share of each node in what a node has decided.
    pub(crate) fn shares(&self, node: u8, name: &str) -> BTreeMap<String, f64> {
        let service = self.service(node, name).unwrap_or_default();
        let endpoints = service["sets"][0]["endpoints"].as_array().cloned().unwrap_or_default();
        let share = |end: &Value| (end["node"].as_str().unwrap().to_owned(), end["share"].as_f64().unwrap());
        endpoints.iter().map(share).collect()
    }

    /// Slots of a service's HTTP port on a node, with its counters.
    pub(crate) fn slot(&self, node: u8, name: &str) -> (abi::Service, abi::ServiceCounters) {
        let view = self.agents[usize::from(node) - 1].view();
        let dump = view.dump().unwrap();
        let named = |known: &abi::ServiceName| text(&known.name) == name && text(&known.port_name) == "http";
        let (id, _) = dump.service_names.iter().find(|(_, known)| named(known)).unwrap();
        (view.service(*id).unwrap(), view.service_counters(*id).unwrap())
    }

    /// New flows that a node sent to the HTTP endpoint of a service on another one so far.
    pub(crate) fn flows_to(&self, node: u8, name: &str, endpoint: u8) -> u64 {
        let view = self.agents[usize::from(node) - 1].view();
        let dump = view.dump().unwrap();
        let named = |known: &abi::ServiceName| text(&known.name) == name && text(&known.port_name) == "http";
        let (service, _) = dump.service_names.iter().find(|(_, known)| named(known)).unwrap();
        let pod = address::pod(endpoint, 1).v4;
        let mut backends = dump.backends.iter();
        let (slot, _) = backends.find(|(_, b)| b.service == *service && b.addr.ip() == IpAddr::V4(pod)).unwrap();
        view.backend_counters(*slot).unwrap().flows
    }

    /// The nodes whose endpoints new flows of a service's HTTP port may go to from a node, as its maps say.
    pub(crate) fn chosen(&self, node: u8, name: &str) -> Vec<u8> {
        let dump = self.agents[usize::from(node) - 1].view().dump().unwrap();
        let tiers = self.slot(node, name).0.tiers[abi::CLASS_INTERNAL];
        let mut open = vec![tiers.local, tiers.remote];
        let mut chosen = Vec::new();
        while let Some(reference) = open.pop() {
            let slot = reference & !abi::REF_LINE;
            if reference & abi::REF_LINE != 0 {
                // Shares that move between two looks: looked at anew.
                let Some((_, line)) = dump.lines.iter().find(|(id, _)| *id == slot) else { return (1..=3).collect() };
                open.extend(line.r#ref);
            } else if let Some((_, backend)) = dump.backends.iter().find(|(id, _)| *id == slot) {
                chosen.extend((1..=3).find(|node| backend.addr.ip() == IpAddr::V4(address::pod(*node, 1).v4)));
            }
        }
        chosen
    }

    /// Waits until something holds, and says what was seen if it never does.
    pub(crate) fn await_that<T>(&self, what: &str, limit: Duration, look: impl FnMut() -> Result<T, String>) -> T {
        wait::until_some(what, limit, look).unwrap_or_else(|e| {
            let all = (1..=3).map(|node| serde_json::to_string_pretty(&self.weights(node)).unwrap());
            panic!("{e}\n{}\n{}", all.collect::<Vec<_>>().join("\n"), self.agents[0].log())
        })
    }
}

impl Agent {
    /// What it says of its weights.
    fn weights(&self) -> Value {
        let body = self.told("/weights");
        serde_json::from_str(&body).unwrap_or_else(|e| panic!("{e}: {body}"))
    }

    /// Waits until it knows of so many peers how far they are, and how busy.
    pub(crate) fn await_peers(&self, count: usize) {
        let knows = || {
            let peers = self.weights()["peers"].as_array().unwrap().clone();
            let known = |peer: &&Value| peer["rtt"].is_f64() && peer["load"]["cpu"]["share"].is_f64();
            if peers.iter().filter(known).count() == count { Ok(()) } else { Err(format!("{peers:?}")) }
        };
        let what = format!("{count} peers to be known");
        wait::until_some(&what, SOON, knows).unwrap_or_else(|e| panic!("{e}\n{}", self.log()));
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
    }
}

fn yaml(services: &[Web]) -> String {
    let mut yaml = String::from("nodes:\n");
    for number in 1..=3 {
        let node = address::node(number);
        // Writing to a string does not fail.
        let _ = writeln!(yaml, "  - {{name: node{number}, addresses: [{}, \"{}\"]}}", node.v4, node.v6);
    }
    yaml.push_str("services:\n");
    for Web { name, number, more } in services {
        let _ = writeln!(yaml, "  - name: {name}\n    clusterIPs: [10.96.0.{number}]\n    ports:");
        let _ = writeln!(yaml, "      - {{name: http, port: 80, targetPort: {HTTP}}}");
        let _ = writeln!(yaml, "      - {{name: echo, port: 7, targetPort: {TCP}}}");
        for line in more.lines() {
            let _ = writeln!(yaml, "    {line}");
        }
        yaml.push_str("    endpoints:\n");
        for node in 1..=3 {
            let _ = writeln!(yaml, "      - {{address: {}, node: node{node}}}", address::pod(node, 1).v4);
        }
    }
    yaml
}
