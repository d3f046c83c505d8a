//! What is worth knowing of decisions is told where the owner of a Service looks.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::events::v1::Event;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use weir_testbed::load::Load;
use weir_testbed::{ask, objects, wait};

use crate::harness::{self, Cluster, HTTP, SOON, cluster_sockets};

/// A program without a cgroup v2 hierarchy, whatever else of its machine it sees.
const WITHOUT_CGROUP2: [&str; 5] =
    ["unshare", "--mount", "sh", "-c", "umount --all --types cgroup2 && exec \"$0\" \"$@\""];

/// A Service whose new flows are distributed by a policy.
fn with_policy(name: &str, policy: &str) -> Service {
    let mut service = objects::service(name, 80, "TCP");
    service.metadata.annotations = Some([("weir.dev/policy".to_owned(), policy.to_owned())].into());
    service
}

/// Asserts that an event warns, in these words.
fn assert_warns(event: &Event, note: &str) {
    let told = (event.type_.as_deref(), event.note.as_deref());
    assert_eq!(told, (Some("Warning"), Some(note)));
}

#[test]
fn an_endpoint_that_does_not_answer_is_told_of_on_its_service() {
    if !harness::can_run("an event about an ejection") {
        return;
    }
    let cluster = Cluster::start(2, 1, &[]);
    let service = with_policy("ejecting", "random");
    let pods = [cluster.world.node(1).pod(1), cluster.world.node(2).pod(1)];
    let service = cluster.publish(&service, HTTP, &pods);
    let target = cluster_sockets(&service)[0];
    cluster.await_frontend(target.ip(), target.port());
    // What it sends back goes nowhere.
    pods[1].netns().ip("route replace blackhole 10.244.1.0/24").unwrap();
    let load = Load::http(target).concurrency(64).rate(60).timeout(Duration::from_secs(3));
    let asked = load.start(pods[0].netns()).unwrap();
    let event = cluster.await_event(&service, "EndpointEjected");
    drop(asked);
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    let note = event.note.unwrap();
    assert!(note.contains(&pods[1].address().v4.to_string()) && note.contains("on node node2"), "{note}");
}

#[test]
fn endpoints_that_answer_others_are_not_blamed_for_a_client_that_none_of_them_lets_in() {
    if !harness::can_run("a client that no endpoint lets in") {
        return;
    }
    let cluster = Cluster::start(1, 3, &[]);
    let [pods @ .., client] = &cluster.world.node(1).pods()[..] else { unreachable!("three pods") };
    let service = cluster.publish(&with_policy("choosy", "random"), HTTP, pods);
    let target = cluster_sockets(&service)[0];
    cluster.await_frontend(target.ip(), target.port());
    // As a network policy would have it.
    for pod in pods {
        pod.netns().ip(&format!("route add blackhole {}/32", client.address().v4)).unwrap();
    }
    let load = Load::http(target).concurrency(64).rate(20).timeout(Duration::from_secs(3));
    let asked = load.start(client.netns()).unwrap();
    let agent = &cluster.agents[0];
    let enough = || {
        let mut unanswered = 0;
        agent.view().visit_endpoints(|_, _, counters| unanswered += counters.unanswered).unwrap();
        if unanswered > 60 { Ok(()) } else { Err(format!("{unanswered} SYNs came again")) }
    };
    wait::until_some("SYNs that nobody answers", SOON, enough).unwrap();
    drop(asked);
    assert_eq!(agent.metric(&cluster.world, "weir_ejections_total"), 0.0);
}

#[test]
fn what_the_kernel_of_a_node_lacks_is_told_of_on_the_node() {
    if !harness::can_run("an event about a kernel") {
        return;
    }
    let mut cluster = Cluster::start(1, 1, &[]);
    assert_eq!(cluster.events_about("Node", "node1").len(), 0);
    let mut sysctl = cluster.world.node(1).netns().command("sysctl");
    assert!(sysctl.args(["-w", "net.ipv4.ip_forward=0"]).stdout(Stdio::null()).status().unwrap().success());
    let Cluster { agents, world, .. } = &mut cluster;
    agents[0].kill();
    agents[0].remove_option("--cgroup");
    agents[0].start_through(world, &WITHOUT_CGROUP2);
    let note = "net.ipv4.ip_forward is 0: pods and other nodes cannot be reached; set it with `sysctl -w \
                net.ipv4.ip_forward=1`";
    assert_warns(&cluster.await_event_about("Node", "node1", "ForwardingDisabled"), note);
    let note = "no cgroup v2 hierarchy is mounted: processes on the host cannot reach services; mount one with `mount -t \
                cgroup2 none DIR` and pass --cgroup DIR";
    assert_warns(&cluster.await_event_about("Node", "node1", "KernelFeatureMissing"), note);
    assert_eq!(cluster.events_about("Node", "node1").len(), 2, "nothing else is missing");
}

/// Reasons of all events on a Service.
fn told(cluster: &Cluster, service: &str) -> Vec<String> {
    cluster.events_on(service).into_iter().filter_map(|event| event.reason).collect()
}

#[test]
fn what_finds_no_room_is_told_of_once_on_its_service_with_the_option_that_makes_room() {
    if !harness::can_run("events about maps that are full") {
        return;
    }
    // Two slots for each of ten Services, one for the API server's own, and the first one, which is never used. A line for
    // eight of the ten in each family.
    let cluster = Cluster::start(1, 4, &["--max-services=22", "--max-lines=16"]);
    let pods = cluster.world.node(1).pods();
    let publish = |service: &Service| cluster.publish(service, HTTP, &pods);
    let full = "map lines is full (16 entries): raise --max-lines";

    // Shares that move would take lines of their own in between.
    let webs: Vec<_> = (1..=8).map(|number| publish(&with_policy(&format!("web{number}"), "random"))).collect();
    let eighth = &webs[7];
    cluster.agents[0].await_backends("web8", pods.iter().flat_map(|pod| pod.address().both()).collect());
    assert_eq!(told(&cluster, "web8"), [""; 0], "there is just room for it");
    cluster.objects.apply(&with_policy("web8", "nearest-half")).unwrap();
    let note = format!("port \"tcp\" does not follow the load, its last shares stay in force: {full}");
    assert_warns(&cluster.await_event(eighth, "SharesNotWritten"), &note);

    let thin = publish(&with_policy("thin", "random"));
    let note = format!("new flows go to some of the endpoints only: {full}");
    assert_warns(&cluster.await_event(&thin, "EndpointsNotWritten"), &note);

    let table = publish(&with_policy("table", "maglev"));
    let note = "no room for Maglev's table: new flows go by weight, and one may have another endpoint at another node";
    assert_warns(&cluster.await_event(&table, "TableNotWritten"), &format!("{note}: {full}"));

    let late = publish(&with_policy("late", "random"));
    let note = "not written, what was served before goes on: map services is full (22 entries): raise --max-services";
    assert_warns(&cluster.await_event(&late, "ServiceNotWritten"), note);

    for target in [eighth, &thin, &table].map(cluster_sockets).concat() {
        cluster.world.client().enter(|| ask::http_ask(target)).unwrap();
    }
    // A Service that is thin may be told that it does not follow the load, too.
    for service in ["web8", "thin", "table", "late"] {
        let reasons = told(&cluster, service);
        let different: BTreeSet<_> = reasons.iter().collect();
        assert_eq!(
            different.len(),
            reasons.len(),
            "{service} is told once of what is tried again and again: {reasons:?}"
        );
    }
}

/// Has so many clients send a datagram to a server, from a port each.
fn knock(server: SocketAddr, clients: usize) {
    for _ in 0..clients {
        let socket = ask::udp_socket(server).unwrap();
        socket.connect(server).unwrap();
        socket.send(b"who").unwrap();
    }
}

#[test]
fn a_table_that_is_full_of_open_flows_is_told_of_on_the_node_with_the_option_that_makes_room() {
    /// More than there is room for, of ports that come twice now and then.
    const CLIENTS: [usize; 2] = [3400, 500];
    if !harness::can_run("events about flow tables that are full") {
        return;
    }
    let mut cluster = Cluster::start(1, 1, &["--max-flows=3072", "--max-openings=64"]);
    let pods = cluster.world.node(1).pods();
    let [heard, unheard] = [("heard", "TCP", HTTP), ("unheard", "UDP", 9)].map(|(name, protocol, port)| {
        let service = cluster.publish(&objects::service(name, 7, protocol), port, &pods);
        let targets = cluster_sockets(&service);
        cluster.agents[0].await_backends(name, pods[0].address().both().to_vec());
        targets
    });
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let open = cluster.world.client().enter(|| {
        // Of a table that forgets what is used least each CPU has up to 128 entries in hand, which are free: less than a tenth of this one.
        harness::stay_on_one_cpu();
        // Datagrams get no more than half of it.
        let connect = |_| TcpStream::connect_timeout(&heard[0], SOON).unwrap();
        let open: Vec<_> = (0..CLIENTS[0]).map(connect).collect();
        knock(unheard[1], CLIENTS[1]);
        open
    });
    // It counts soon after its start, and then twice a minute.
    let Cluster { agents, world, .. } = &mut cluster;
    agents[0].kill();
    agents[0].start_again(world);
    assert_eq!(cluster.await_event_about("Node", "node1", "FlowTablePressure").type_.as_deref(), Some("Warning"));
    let unanswered = "table openings6 is full, 64 of 64 entries are flows that begin, as in a flood";
    for (beginning, option) in [("table flows4 is full, ", "--max-flows"), (unanswered, "--max-openings")] {
        let told = || {
            let notes = cluster.events_about("Node", "node1").into_iter().filter_map(|event| event.note);
            let notes: Vec<_> = notes.collect();
            let found = notes.iter().any(|note| note.starts_with(beginning) && note.ends_with(option));
            found.then_some(()).ok_or_else(|| notes.join("\n"))
        };
        wait::until_some(&format!("an event that {beginning}"), SOON, told).unwrap_or_else(|e| panic!("{e}"));
    }
    drop(open);
}
