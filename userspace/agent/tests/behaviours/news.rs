//! What is worth knowing of decisions is told where the owner of a Service looks.

use std::process::Stdio;
use std::time::Duration;

use weir_testbed::load::Load;
use weir_testbed::objects;

use crate::harness::{self, Cluster, HTTP, cluster_sockets};

#[test]
fn an_endpoint_that_does_not_answer_is_told_of_on_its_service() {
    if !harness::can_run("an event about an ejection") {
        return;
    }
    let cluster = Cluster::start(2, 1, &[]);
    let mut service = objects::service("ejecting", 80, "TCP");
    service.metadata.annotations = Some([("weir.dev/policy".to_owned(), "random".to_owned())].into());
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
    agents[0].start_again(world);
    let event = cluster.await_event_about("Node", "node1", "ForwardingDisabled");
    let note = event.note.unwrap();
    assert!(note.contains("sysctl -w net.ipv4.ip_forward=1"), "{note}");
    assert_eq!(cluster.events_about("Node", "node1").len(), 1, "nothing else is missing");
}
