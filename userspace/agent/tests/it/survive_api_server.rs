//! The API server may be away, for a while or from the start: what is known stays in force.

use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use weir_testbed::apiserver::User;
use weir_testbed::objects::service;
use weir_testbed::{address, ask, role, wait};

use crate::harness::busy::Busy;
use crate::harness::traffic::{Client, Traffic};
use crate::harness::{self, Agent, Cluster, HTTP, SOON, cluster_sockets};

/// The longest pause between two attempts, with its jitter, and a little for the server itself.
const BACK_OFF: Duration = Duration::from_secs(40);

fn code(busy: &Busy, agent: &Agent, path: &str) -> u16 {
    agent.get(&busy.cluster.world, 10256, path).unwrap().0
}

fn assert_unreachable(busy: &Busy) {
    for agent in &busy.cluster.agents {
        agent.await_complaint(&busy.cluster.world, "api-server", "API server unreachable: ");
        assert_eq!([code(busy, agent, "/healthz"), code(busy, agent, "/livez")], [200, 200], "{}", agent.log());
    }
    busy.assert_no_panic();
}

fn await_ready(busy: &Busy, limit: Duration) {
    for agent in &busy.cluster.agents {
        let ready = || code(busy, agent, "/readyz") == 200;
        wait::until("the agent to be ready", limit, ready).unwrap_or_else(|e| panic!("{e}\n{}", agent.log()));
    }
}

fn outage(length: Duration) {
    let what = format!("an API server that is away for {length:?}");
    if !harness::can_run(&what) {
        return;
    }
    let mut busy = Busy::start(&[]);
    let traffic = busy.traffic();
    traffic.goes_on();
    let before: Vec<_> = busy.cluster.agents.iter().map(|agent| agent.view().dump().unwrap()).collect();
    busy.cluster.api.stop().unwrap();
    let gone = Instant::now();
    assert_unreachable(&busy);
    // The outage itself takes time.
    std::thread::sleep(length.saturating_sub(gone.elapsed()));
    assert_unreachable(&busy);
    for (agent, before) in busy.cluster.agents.iter().zip(before) {
        assert_eq!(agent.view().dump().unwrap(), before);
    }
    busy.cluster.api.start_again().unwrap();
    let back = Instant::now();
    let late = busy.cluster.publish(&service("late", 81, "TCP"), HTTP, &busy.cluster.world.node(2).pods());
    busy.cluster.objects.delete(&busy.cluster.publish(&service("brief", 82, "TCP"), HTTP, &[])).unwrap();
    for agent in &busy.cluster.agents {
        let view = agent.view();
        let there =
            |ip, port| view.dump().unwrap().frontends.iter().any(|(key, _)| key.address == ip && key.port == port);
        let caught_up = || cluster_sockets(&late).iter().all(|socket| there(socket.ip(), socket.port()));
        wait::until("the late service", BACK_OFF, caught_up).unwrap_or_else(|e| panic!("{e}\n{}", agent.log()));
    }
    println!("{what}: changes caught up {:?} after it was back", back.elapsed());
    await_ready(&busy, BACK_OFF.saturating_sub(back.elapsed()));
    // Slices have a watch and pauses of their own.
    for socket in cluster_sockets(&late) {
        let ask = || busy.cluster.world.node(1).pod(1).netns().enter(|| ask::http_ask(socket));
        wait::until_some("an answer of the late service", BACK_OFF, || ask().map_err(|e| e.to_string())).unwrap();
    }
    traffic.unharmed_by(&what);
}

#[test]
fn traffic_goes_on_while_the_api_server_is_away_and_changes_are_caught_up_after() {
    outage(Duration::from_secs(5));
}

#[test]
#[ignore = "takes more than a minute"]
fn traffic_goes_on_while_the_api_server_is_away_for_a_minute() {
    outage(Duration::from_secs(60));
}

#[test]
fn an_agent_that_starts_while_the_api_server_is_away_deletes_nothing() {
    if !harness::can_run("a start without an API server") {
        return;
    }
    let mut busy = Busy::start(&[]);
    let traffic = busy.traffic();
    traffic.goes_on();
    // A port may be a node port as long as nobody knows of all: none is taken that was not before.
    let port = 20_000;
    let listener =
        busy.cluster.world.node(1).netns().enter(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap());
    let is_taken = |agent: &Agent| agent.view().source_ports().unwrap().contains(port);
    wait::until("a bound port to be the host's", SOON, || !is_taken(&busy.cluster.agents[0])).unwrap();
    let seen =
        |agent: &Agent| (agent.view().dump().unwrap(), weir_datapath::PinDir::new(&agent.pins).link_names().unwrap());
    let before: Vec<_> = busy.cluster.agents.iter().map(seen).collect();
    busy.cluster.agents.iter_mut().for_each(Agent::kill);
    drop(listener);
    busy.cluster.api.stop().unwrap();
    for agent in &mut busy.cluster.agents {
        agent.start_again(&busy.cluster.world);
    }
    assert_unreachable(&busy);
    traffic.goes_on();
    let after: Vec<_> = busy.cluster.agents.iter().map(seen).collect();
    assert_eq!(after, before);
    assert!(!is_taken(&busy.cluster.agents[0]));
    for agent in &busy.cluster.agents {
        assert_eq!(agent.map_ops(&busy.cluster.world), 0.0);
    }
    busy.cluster.api.start_again().unwrap();
    let back = Instant::now();
    await_ready(&busy, BACK_OFF);
    wait::until("the port to be free for new flows", SOON, || is_taken(&busy.cluster.agents[0])).unwrap();
    println!("a start without an API server: ready {:?} after it was back", back.elapsed());
    traffic.unharmed_by("a start without an API server");
}

/// One node, whose agent may watch and nothing else.
fn with_an_account_of_its_own() -> Cluster {
    let mut cluster = Cluster::without_agents(1, 1);
    role::allow_agent(&cluster.objects, role::to_watch()).unwrap();
    let kubeconfig =
        cluster.api.kubeconfig(User::Agent, &cluster.api.url_at(address::ROUTER_INSIDE.v4.into())).unwrap();
    let source = ["--kubeconfig".to_owned(), kubeconfig.display().to_string()];
    let agent = Agent::with_source(&cluster.world, 1, source, &[]);
    agent.await_ready(&cluster.world);
    cluster.agents.push(agent);
    cluster
}

#[test]
fn an_agent_whose_rights_are_taken_away_serves_on_and_names_them() {
    let what = "rights that are taken away";
    if !harness::can_run(what) {
        return;
    }
    let mut cluster = with_an_account_of_its_own();
    let pods = cluster.world.node(1).pods();
    let served = cluster.publish(&service("served", 84, "TCP"), HTTP, &pods);
    let endpoints: Vec<_> = pods.iter().flat_map(|pod| pod.address().both()).collect();
    cluster.agents.iter().for_each(|agent| agent.await_backends("served", endpoints.clone()));
    let mut traffic = Traffic::default();
    for socket in cluster_sockets(&served) {
        cluster.await_frontend(socket.ip(), socket.port());
        traffic.stream("outside", Client::Netns(cluster.world.client()), socket);
    }
    traffic.goes_on();
    role::allow_agent(&cluster.objects, Vec::new()).unwrap();
    // Watches that were granted go on: who starts asks anew.
    cluster.agents[0].kill();
    cluster.agents[0].start_again(&cluster.world);
    cluster.agents[0].await_complaint(&cluster.world, "api-server", "cannot list resource");
    traffic.goes_on();
    role::allow_agent(&cluster.objects, role::to_watch()).unwrap();
    let ready = || cluster.agents[0].get(&cluster.world, 10256, "/readyz").unwrap().0 == 200;
    wait::until("the agent to be ready", BACK_OFF, ready)
        .unwrap_or_else(|e| panic!("{e}\n{}", cluster.agents[0].log()));
    traffic.unharmed_by(what);
}

#[test]
fn a_service_that_moves_to_another_proxy_before_the_endpoints_are_known_is_left_alone() {
    /// Ten seconds until it would be let go, five until the next look, and one more.
    const LET_GO: Duration = Duration::from_secs(16);
    if !harness::can_run("a service that moves before the first sync") {
        return;
    }
    let mut cluster = with_an_account_of_its_own();
    let mut moved = service("moved", 83, "TCP");
    let sockets = cluster_sockets(&cluster.publish(&moved, HTTP, &cluster.world.node(1).pods()));
    let served = || {
        let ask = |socket: &_| cluster.world.client().enter(|| ask::http_ask(*socket)).map(drop);
        sockets.iter().try_for_each(ask).map_err(|e| e.to_string())
    };
    wait::until_some("both families to be served", SOON, served).unwrap();

    cluster.agents[0].kill();
    let without_slices =
        role::to_watch().into_iter().filter(|rule| rule.resources != Some(vec!["endpointslices".into()]));
    role::allow_agent(&cluster.objects, without_slices.collect()).unwrap();
    let before = cluster.agents[0].view().dump().unwrap();
    cluster.agents[0].start_again(&cluster.world);
    let agent = &cluster.agents[0];
    agent.await_complaint(&cluster.world, "api-server", "endpointslices");
    let seen = || agent.metric(&cluster.world, "weir_watch_events_total{kind=\"services\",type=\"applied\"}");
    let listed = seen();
    moved.metadata.labels = Some([("service.kubernetes.io/service-proxy-name".into(), "other".into())].into());
    cluster.objects.apply(&moved).unwrap();
    wait::until("the agent to learn of the move", SOON, || seen() > listed).unwrap();
    // That nothing happens takes its time.
    std::thread::sleep(LET_GO);
    assert_eq!(agent.view().dump().unwrap(), before, "{}", agent.log());
    assert_eq!(agent.map_ops(&cluster.world), 0.0);
    served().unwrap();
}
