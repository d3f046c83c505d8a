//! `least-conn` and `maglev` from the annotation to the maps: what only an agent that runs can do for them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use weir_abi as abi;
use weir_testbed::wait;

use crate::harness::SOON;
use crate::harness::standalone::{self, Standalone, Web, yaml};

/// The services with a policy.
fn with_policy(policy: &str, services: &[Web]) -> String {
    let annotated = format!("    annotations: {{weir.dev/policy: {policy}}}\n    clusterIPs");
    yaml(services).replace("    clusterIPs", &annotated)
}

/// Open flows of all endpoints of a service's port, as the kernel compares them.
fn open_flows(node: &Standalone) -> Vec<u32> {
    let mut open = Vec::new();
    let count = |_, _: &abi::Backend, counters: &abi::BackendCounters| {
        open.push(counters.begun_or_failed().wrapping_sub(counters.base));
    };
    node.agent.view().visit_endpoints(count).unwrap();
    open
}

#[test]
fn flows_that_only_the_agent_counts_are_compared_by_the_kernel() {
    if !standalone::can_run("open flows of UDP") {
        return;
    }
    let web = Web::new("names", 1, &[1, 2, 3]);
    let of_udp =
        with_policy("least-conn", std::slice::from_ref(&web)).replace("{port: 80,", "{port: 80, protocol: UDP,");
    let node = Standalone::start(3, &of_udp, &[]);
    let client = |target: SocketAddr| {
        let any: SocketAddr =
            if target.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
        (node.world.client().enter(move || UdpSocket::bind(any).unwrap()), target)
    };
    let clients: Vec<_> = web.sockets().into_iter().flat_map(|target| (0..9).map(move |_| client(target))).collect();
    let counted = || {
        // What nobody answers is open for 8 ticks, and a machine that is busy counts less often than that.
        for (socket, target) in &clients {
            socket.send_to(b"hello", target).unwrap();
        }
        open_flows(&node).iter().sum::<u32>() == 18
    };
    wait::until("the count of 9 flows in each family", 4 * SOON, counted)
        .unwrap_or_else(|e| panic!("{e}: {:?}\n{}", open_flows(&node), node.agent.log()));
    assert!(node.agent.slots("names").iter().all(|service| service.flags & abi::SERVICE_LEAST_CONN != 0));
}

#[test]
fn a_table_without_room_is_told_and_all_endpoints_are_served_by_weight() {
    if !standalone::can_run("Maglev's table without room") {
        return;
    }
    let web = Web::new("shared", 1, &[1, 2, 3, 4]);
    let text = with_policy("maglev", std::slice::from_ref(&web));
    let mut node = Standalone::prepared(4, &text, &["--max-lines=16"]);
    node.agent.start_again(&node.world);
    let complaint = node.agent.await_complaint(&node.world, "maps", "full");
    assert_eq!(complaint, "default/shared: map lines is full (16 entries): raise --max-lines");
    node.agent.await_log("no room for Maglev's table");
    node.assert_served(&web);
    for service in node.agent.slots("shared") {
        let tiers = service.tiers[abi::CLASS_INTERNAL];
        assert_eq!((service.flags & abi::SERVICE_MAGLEV, tiers.local), (abi::SERVICE_MAGLEV, 0));
        let line =
            node.agent.view().dump().unwrap().lines.into_iter().find(|(id, _)| id | abi::REF_LINE == tiers.remote);
        assert_eq!(line.unwrap().1.r#ref.iter().filter(|backend| **backend != 0).count(), 4);
    }
}
