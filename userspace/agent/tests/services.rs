//! Every type of Service from every kind of client, in both families, against the real API server.

mod harness;

use std::net::SocketAddr;

use harness::{Cluster, HTTP, cluster_sockets};
use weir_testbed::ask;
use weir_testbed::objects::service;

#[test]
fn a_cluster_ip_is_served_to_pods_on_the_node_where_they_are() {
    if !harness::can_run("cluster IPs end to end") {
        return;
    }
    let cluster = Cluster::start(2, 2, &[]);
    let pods: Vec<_> = cluster.world.nodes().iter().flat_map(|node| node.pods()).collect();
    let web = cluster.publish(&service("web", 80, "TCP"), HTTP, &pods);
    for socket in cluster_sockets(&web) {
        cluster.await_frontend(socket.ip(), socket.port());
    }
    for client in &pods {
        for socket in cluster_sockets(&web) {
            let answer = client.netns().enter(|| ask::http_ask(socket)).unwrap();
            let own = format!("node{}", client.node());
            assert!(answer.name.contains(&own), "{} asked {socket} and {} answered", client.name(), answer.name);
        }
    }
    let _: Vec<SocketAddr> = Vec::new();
}
