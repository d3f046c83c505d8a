//! What metrics tell of a flood of SYNs, and of what it has displaced.

use std::net::SocketAddr;

use etherparse::TcpHeader;
use weir_testbed::address::{self, CLIENT};
use weir_testbed::packet::Packet;
use weir_testbed::wait;

use super::metrics::sample;
use crate::harness::SOON;
use crate::harness::clients::send_raw;
use crate::harness::standalone::{self, Standalone, Web, yaml};

/// More than the node remembers, and faster than it is told to take for clients.
const SYNS: u16 = 3000;
const OPTIONS: [&str; 3] = ["--max-flows=1024", "--max-openings=64", "--flood-rate=1000"];

fn send(node: &Standalone, ports: std::ops::Range<u16>, target: SocketAddr, header: &TcpHeader) {
    let [client, router] = [CLIENT, address::ROUTER_OUTSIDE].map(|pair| pair.like(target.ip()));
    let send = |port| send_raw(&Packet::tcp(SocketAddr::new(client, port), target, header.clone(), &[]), router);
    node.world.client().enter(|| ports.into_iter().try_for_each(send)).unwrap();
}

#[test]
fn a_flood_shows_in_the_metrics_that_are_named_for_it() {
    if !standalone::can_run("metrics of a flood") {
        return;
    }
    let web = Web::new("web", 42, &[1]);
    let mut node = Standalone::start(1, &yaml(std::slice::from_ref(&web)), &OPTIONS);
    node.assert_served(&web);
    let syn = TcpHeader { syn: true, window_size: 512, ..TcpHeader::default() };
    let ack = TcpHeader { ack: true, window_size: 512, ..TcpHeader::default() };
    let told = |node: &Standalone, name: &str| sample(node.world.node(1), name, "");
    assert!(told(&node, "weir_flooded_cpus").abs() < 0.5, "nobody floods it yet");
    for target in web.sockets() {
        send(&node, 1024..1024 + SYNS, target, &syn);
        assert!(told(&node, "weir_flooded_cpus") > 0.5, "{target}");
        let before = told(&node, "weir_flows_adopted_total");
        // Connections of which it has never heard.
        send(&node, 50_000..50_010, target, &ack);
        let adopted = || told(&node, "weir_flows_adopted_total") >= before + 10.0;
        wait::until("connections that are met in their middle", SOON, adopted).unwrap();
    }
    let over = || told(&node, "weir_flooded_cpus").abs() < 0.5;
    wait::until("the flood to be over", SOON, over).unwrap();
    // It counts at its start, and then every half a minute.
    node.agent.kill();
    node.agent.start_again(&node.world);
    node.agent.await_ready(&node.world);
    for family in [4, 6] {
        let of =
            |map: &str| sample(node.world.node(1), "weir_opening_evictions_total", &format!("map=\"{map}{family}\""));
        // Of a flow that its client has reset nobody misses the entry: its answers' may be what was displaced.
        let counted = || of("openings") + of("awaited") >= 1.0;
        wait::until("entries that were displaced", SOON, counted)
            .unwrap_or_else(|e| panic!("{e}\n{}", node.agent.log()));
    }
}
