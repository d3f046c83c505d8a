//! The agent may die, stop and start again, also with other options: traffic does not notice.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod harness;

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use harness::busy::Busy;
use harness::{Agent, Cluster, HTTP, cluster_sockets};
use k8s_openapi::api::core::v1::Service;
use weir_core::ops::Dump;
use weir_testbed::objects::service;
use weir_testbed::{ask, wait};

/// From the start of the process until the maps are right.
const CAUGHT_UP: Duration = Duration::from_secs(1);

/// Times are measured here: one world at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Services that change while no agent runs.
struct Changing {
    removed: Service,
    moved: Service,
    added: Service,
}

impl Changing {
    /// Two that exist; the third does not yet.
    fn publish(cluster: &Cluster) -> Self {
        let pod = cluster.world.node(2).pod(1);
        let removed = cluster.publish(&service("removed", 81, "TCP"), HTTP, std::slice::from_ref(&pod));
        let moved = cluster.publish(&service("moved", 82, "TCP"), HTTP, std::slice::from_ref(&pod));
        cluster.agents.iter().for_each(|agent| agent.await_backends("moved", pod.address().both().to_vec()));
        Self { removed, moved, added: service("added", 83, "TCP") }
    }

    /// Takes one away, gives one another endpoint, makes one.
    fn change(&mut self, cluster: &Cluster) {
        cluster.objects.delete(&self.removed).unwrap();
        cluster.set_endpoints(&self.moved, HTTP, &[cluster.world.node(2).pod(2)]);
        self.added = cluster.publish(&self.added, HTTP, &cluster.world.node(1).pods());
    }

    /// What the maps of an agent still have wrong.
    fn wrong(&self, cluster: &Cluster, dump: &Dump) -> Option<String> {
        let serves = |ip: IpAddr, port| dump.frontends.iter().any(|(key, _)| key.address == ip && key.port == port);
        let id = |name: &str| {
            let named = dump.service_names.iter().filter(|(_, known)| harness::text(&known.name) == name);
            named.map(|(id, _)| *id).collect::<Vec<_>>()
        };
        let removed = cluster_sockets(&self.removed).into_iter().find(|at| serves(at.ip(), at.port()));
        let added = cluster_sockets(&self.added).into_iter().find(|at| !serves(at.ip(), at.port()));
        let moved = id("moved");
        // Who is gone has its connections for some seconds more.
        let taking = dump.backends.iter().filter(|(_, backend)| backend.flags & weir_abi::BACKEND_CLASSES != 0);
        let mut backends: Vec<_> =
            taking.filter(|(_, b)| moved.contains(&b.service)).map(|(_, b)| b.addr.ip()).collect();
        backends.sort();
        let expected = cluster.world.node(2).pod(2).address().both();
        removed
            .map(|at| format!("{at} is still served"))
            .or_else(|| added.map(|at| format!("{at} is not served yet")))
            .or_else(|| (backends != expected).then(|| format!("backends {backends:?}")))
    }

    /// Waits until an agent's maps are right.
    fn await_right(&self, cluster: &Cluster, agent: &Agent) {
        let view = agent.view();
        let right = || self.wrong(cluster, &view.dump().unwrap()).map_or(Ok(()), Err);
        wait::until_some("the changes in the maps", harness::SOON, right)
            .unwrap_or_else(|e| panic!("{e}\n{}", agent.log()));
    }

    /// Asks, from a pod of node 1.
    fn assert_served(&self, cluster: &Cluster) {
        let client = cluster.world.node(1).pod(1);
        let ask = |socket| client.netns().enter(|| ask::http_ask(socket));
        for socket in cluster_sockets(&self.moved) {
            assert_eq!(ask(socket).unwrap().name, "node2-pod2");
        }
        for socket in cluster_sockets(&self.added) {
            assert!(ask(socket).unwrap().name.starts_with("node1-"));
        }
        for socket in cluster_sockets(&self.removed) {
            let answer = client.netns().enter(|| ask::http_ask_within(socket, Duration::from_millis(200)));
            assert!(answer.is_err(), "{answer:?}");
        }
    }
}

/// Ends the agents under traffic in some way, changes the cluster, and starts them again.
fn survives(what: &str, end: impl FnMut(&mut Agent)) {
    if !harness::can_run(what) {
        return;
    }
    let _turn = alone();
    let mut busy = Busy::start(&[]);
    let mut changing = Changing::publish(&busy.cluster);
    let traffic = busy.traffic();
    traffic.goes_on();
    busy.agents(end);
    traffic.goes_on();
    changing.change(&busy.cluster);
    for agent in &busy.cluster.agents {
        assert!(changing.wrong(&busy.cluster, &agent.view().dump().unwrap()).is_some(), "who has written that?");
    }
    // One after the other: each of them would have a machine of its own.
    let times = (0..busy.cluster.agents.len()).map(|index| {
        let start = Instant::now();
        busy.cluster.agents[index].start_again(&busy.cluster.world);
        changing.await_right(&busy.cluster, &busy.cluster.agents[index]);
        start.elapsed()
    });
    let times: Vec<_> = times.collect();
    println!("{what}: maps right {times:?} after the start of each process");
    busy.await_ready();
    changing.assert_served(&busy.cluster);
    traffic.goes_on();
    traffic.unharmed_by(what);
    busy.assert_no_panic();
    assert!(times.iter().all(|time| *time <= CAUGHT_UP), "{times:?}");
}

#[test]
fn traffic_goes_on_when_the_agent_is_killed_and_a_restart_catches_up_within_a_second() {
    survives("agents killed and started again", Agent::kill);
}

#[test]
fn traffic_goes_on_when_the_agent_is_asked_to_stop_and_it_exits_with_0() {
    survives("agents stopped and started again", |agent| assert_eq!(agent.stop().code(), Some(0), "{}", agent.log()));
}

#[test]
fn an_agent_that_is_asked_to_stop_while_it_starts_exits_with_0() {
    if !harness::can_run("a stop during the start") {
        return;
    }
    let _turn = alone();
    let mut busy = Busy::start(&[]);
    for pause in [Duration::from_millis(100), Duration::from_millis(200), Duration::from_millis(400)] {
        busy.agents(Agent::kill);
        busy.start_again();
        // It has no sign of how far it is; these times are spread over its start.
        std::thread::sleep(pause);
        busy.agents(|agent| assert_eq!(agent.stop().code(), Some(0), "after {pause:?}\n{}", agent.log()));
        busy.start_again();
    }
    busy.await_ready();
}

#[test]
fn a_restart_without_a_change_writes_nothing_and_flows_and_counters_survive() {
    if !harness::can_run("a restart without a change") {
        return;
    }
    let _turn = alone();
    let mut busy = Busy::start(&[]);
    let traffic = busy.traffic();
    traffic.goes_on();
    traffic.unharmed_by("nothing");
    busy.agents(Agent::kill);
    let seen = |busy: &Busy| {
        let agents = busy.cluster.agents.iter().map(|agent| {
            let view = agent.view();
            let flows: Vec<_> = view.flows().unwrap().iter().map(|f| (f.client_port, f.flow.backend)).collect();
            let dump = view.dump().unwrap();
            let counters: Vec<_> = dump.services.iter().map(|(id, _)| view.service_counters(*id).unwrap()).collect();
            const POD_IN: usize = weir_abi::HOOK_POD_INGRESS as usize;
            const REMOTE: usize = weir_abi::REASON_TO_REMOTE as usize;
            let packets = view.counters().counter(POD_IN, REMOTE).unwrap();
            (dump, flows, counters, packets)
        });
        agents.collect::<Vec<_>>()
    };
    let before = seen(&busy);
    assert!(before[0].1.len() > 100 && before[0].3.packets > 100, "{} flows", before[0].1.len());
    busy.start_again();
    busy.await_ready();
    for agent in &busy.cluster.agents {
        assert_eq!(agent.map_ops(&busy.cluster.world), 0.0, "{}", agent.log());
    }
    assert_eq!(seen(&busy), before);
}

#[test]
fn connections_survive_a_restart_with_larger_and_with_smaller_maps() {
    if !harness::can_run("a restart with other map sizes") {
        return;
    }
    let _turn = alone();
    let mut busy = Busy::start(&[]);
    let traffic = busy.traffic();
    for (flows, backends) in [(65_536, 20_000), (8192, 4096)] {
        traffic.goes_on();
        busy.agents(|agent| {
            agent.kill();
            agent.set_option(&format!("--max-flows={flows}"));
            agent.set_option(&format!("--max-backends={backends}"));
        });
        busy.start_again();
        busy.await_ready();
        for agent in &busy.cluster.agents {
            let sizes = agent.view().counters().maps().unwrap();
            let size = |name| sizes.iter().find(|map| map.name == name).map(|map| map.max_entries);
            assert_eq!(
                [size("flows4"), size("replies6"), size("backends")],
                [Some(flows), Some(flows), Some(backends)]
            );
        }
    }
    traffic.goes_on();
    traffic.unharmed_by("maps of other sizes");
    busy.assert_no_panic();
}

#[test]
fn a_restart_keeps_the_source_address_of_forwarded_connections_where_the_nic_has_several() {
    if !harness::can_run("a restart on a node with several addresses") {
        return;
    }
    let _turn = alone();
    let mut busy = Busy::start(&[]);
    // The kernel lists the newest address of IPv6 first: it is not the one that the cluster knows.
    busy.cluster.world.node(1).netns().ip("addr add fd00:30::fe/64 dev eth0 nodad").unwrap();
    let traffic = busy.traffic();
    traffic.goes_on();
    busy.agents(Agent::kill);
    busy.cluster.api.stop().unwrap();
    busy.start_again();
    for agent in &busy.cluster.agents {
        agent.await_complaint(&busy.cluster.world, "api-server", "unreachable");
        agent.await_log("attached interface=\"eth0\"");
    }
    let config = busy.cluster.agents[0].view().config().unwrap();
    assert_eq!(config.node6.ip(), IpAddr::from(busy.cluster.world.node(1).address().v6));
    traffic.goes_on();
    traffic.unharmed_by("a start that does not know the node's address yet");
}
