//! What the steering does is told where the owner of a Service, or of a node, looks: as events of a real API server.

use std::io::Write;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::events::v1::Event;
use regex::Regex;
use tempfile::NamedTempFile;
use weir_testbed::load::{Load, RunningLoad};
use weir_testbed::{objects, wait};

use crate::bed::SETTLED;
use crate::harness::machine::Machine;
use crate::harness::{self, Agent, Cluster, HTTP, cluster_sockets};

/// New connections per second of clients in each family.
const RATE: u32 = 40;
/// A spill is over when next to nothing has left for half a minute; what left before fades for half a minute more.
const OVER: Duration = Duration::from_secs(90);

/// A Service with an endpoint on each of two nodes, whose agents share a key. Its clients are on the first one.
struct Shop {
    _clients: Vec<RunningLoad>,
    cluster: Cluster,
    service: Service,
    machines: Vec<Machine>,
    _key: NamedTempFile,
}

impl Shop {
    /// Starts everything, and returns when the agents know of each other. None where the machine cannot.
    fn open(what: &str) -> Option<Self> {
        if !harness::can_run(what) || !Machine::require(what) {
            return None;
        }
        let mut cluster = Cluster::without_agents(2, 1);
        let mut key = NamedTempFile::new().unwrap();
        writeln!(key, "{:064x}", 0x5eed).unwrap();
        let mut machines = Vec::new();
        for node in 1..=2 {
            let machine = Machine::create(&format!("{}machine{node}", cluster.world.prefix()));
            let key = format!("--mesh-key-file={}", key.path().display());
            let options = [key.as_str(), &format!("--node-cgroup={}", machine.name())];
            let agent = Agent::start(&cluster.world, &cluster.api, node, &options);
            cluster.agents.push(agent);
            machines.push(machine);
        }
        let pods = [1, 2].map(|node| cluster.world.node(node).pod(1));
        let service = cluster.publish(&objects::service("web", 80, "TCP"), HTTP, &pods);
        for agent in &cluster.agents {
            agent.await_ready(&cluster.world);
            agent.await_backends("web", pods.iter().flat_map(|pod| pod.address().both()).collect());
            agent.await_peers(1);
        }
        let ask = |target| Load::http(target).concurrency(8).rate(RATE).start(pods[0].netns()).unwrap();
        let clients = cluster_sockets(&service).into_iter().map(ask).collect();
        Some(Self { _clients: clients, cluster, service, machines, _key: key })
    }

    /// Waits until the agent of node 1 has decided to tell something. Its log is asked, not the API server: it is cheap.
    fn await_log(&self, text: &str, limit: Duration) {
        let agent = &self.cluster.agents[0];
        wait::until(text, limit, || agent.log().contains(text))
            .unwrap_or_else(|e| panic!("{e}\n{}\n{}", agent.told("/weights"), agent.log()));
    }

    /// The first node has too much to do from now on. The event that tells so.
    fn overload(&mut self) -> Event {
        self.machines[0].work();
        self.await_log("new flows leave this node", SETTLED);
        self.cluster.await_event(&self.service, "SpillStarted")
    }

    /// Reasons of all events on the Service, as they came.
    fn told(&self) -> Vec<String> {
        self.cluster.events_on("web").into_iter().filter_map(|event| event.reason).collect()
    }
}

/// Asserts whether an event asks somebody to do something, that node 1 tells it, and its text, which `note` matches.
fn assert_told(event: &Event, severity: &str, note: &str) {
    let text = event.note.as_deref().unwrap();
    let how = (event.type_.as_deref(), event.reporting_instance.as_deref());
    assert_eq!(how, (Some(severity), Some("node1")), "{text}");
    assert!(Regex::new(&format!("^{note}$")).unwrap().is_match(text), "{text}");
}

#[test]
fn a_spill_and_a_node_that_falls_silent_are_told_of_once_on_the_service_and_on_the_node() {
    let Some(mut shop) = Shop::open("events about a spill and a silent node") else { return };
    let began = shop.overload();
    let note = r"[1-9]\d* % of the new flows that begin on node node1 go to other nodes: it has no room for them";
    assert_told(&began, "Normal", note);

    shop.cluster.world.cut_uplink(2).unwrap();
    shop.await_log("the node does not answer", SETTLED);
    let silent = shop.cluster.await_event_about("Node", "node2", "NodeSilent");
    let note = "does not answer node node1: its endpoints get no new flows from there until it does";
    assert_told(&silent, "Warning", note);
    assert_eq!(shop.cluster.events_about("Node", "node2").len(), 1, "for endpoints in both families");
    assert_eq!(shop.told(), ["SpillStarted"], "a silent node's endpoints are not told of one by one");
}

#[test]
#[ignore = "takes a minute: that is how long a spill takes to be over"]
fn the_end_of_a_spill_is_told_of_on_the_service() {
    let Some(mut shop) = Shop::open("an event about the end of a spill") else { return };
    shop.overload();
    shop.machines[0].rest();
    shop.await_log("new flows stay again", OVER);
    let ended = shop.cluster.await_event(&shop.service, "SpillEnded");
    let note = r"new flows that begin on node node1 stay there again; for \d+ s up to [1-9]\d* % went to other nodes";
    assert_told(&ended, "Normal", note);
    let mut told = shop.told();
    told.sort();
    assert_eq!(told, ["SpillEnded", "SpillStarted"]);
}
