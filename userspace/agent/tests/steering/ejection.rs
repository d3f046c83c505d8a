//! Who fails gets nothing for a while: a node that vanishes though Kubernetes calls it ready, an endpoint that is dead.

use std::time::Duration;

use weir_testbed::load::Load;

use crate::bed::{Bed, SETTLED, Web};
use crate::harness::serve_in;

/// Within which new flows must stay away.
const WITHIN: Duration = Duration::from_secs(2);

/// Waits until the maps lead to no endpoint of a node, which must not take longer than it may; the flows that it got until
/// then.
fn await_out(bed: &Bed, node: u8) -> u64 {
    let out = || {
        let chosen = bed.chosen(1, "web");
        if chosen.contains(&node) { Err(format!("{chosen:?}")) } else { Ok(()) }
    };
    bed.await_that(&format!("node {node} to be out"), WITHIN, out);
    // Whoever was at the old lines a moment ago is counted by now.
    await_more(bed, 1, 1);
    bed.flows_to(1, "web", node)
}

/// Waits until a node got so many flows more.
fn await_more(bed: &Bed, node: u8, more: u64) {
    let flows = || bed.flows_to(1, "web", node);
    let enough = flows() + more;
    let look = || if flows() >= enough { Ok(()) } else { Err(format!("{} of {enough}", flows())) };
    bed.await_that(&format!("{more} more flows to node {node}"), SETTLED, look);
}

#[test]
fn a_node_whose_link_is_cut_gets_no_new_flow_after_two_seconds_and_gets_some_when_it_is_back() {
    let web = Web::new("web", 1);
    let Some(bed) = Bed::start("a cut link", std::slice::from_ref(&web), &["--spread=random"]) else { return };
    let load = Load::http(web.http()).concurrency(64).rate(100).timeout(Duration::from_millis(500));
    let asked = load.start(bed.world.node(1).pod(1).netns()).unwrap();
    let flows = || bed.flows_to(1, "web", 3);
    let before = flows();
    bed.await_that("flows to node 3", SETTLED, || if flows() > before + 20 { Ok(()) } else { Err(String::new()) });

    bed.world.cut_uplink(3).unwrap();
    let after_that = await_out(&bed, 3);
    await_more(&bed, 2, 200);
    assert_eq!(flows(), after_that, "new flows to a node that is gone");

    bed.world.restore_uplink(3).unwrap();
    bed.await_that("flows to node 3 again", SETTLED, || {
        if flows() > after_that + 20 { Ok(()) } else { Err(format!("{}", flows())) }
    });
    drop(asked);
}

/// Asserts that the endpoint on node 2 gets nothing while it fails, beside others, and flows again when it no longer does.
fn assert_out_while_it_fails(what: &str, fail: impl FnOnce(&mut Bed), recover: impl FnOnce(&mut Bed)) {
    let web = Web::new("web", 1);
    let Some(mut bed) = Bed::start(what, std::slice::from_ref(&web), &["--spread=random"]) else { return };
    // Longer than a client waits until it sends its SYN again.
    let load = Load::http(web.http()).concurrency(128).rate(60).timeout(Duration::from_secs(3));
    let asked = load.start(bed.world.node(1).pod(1).netns()).unwrap();
    let await_flows = |bed: &Bed, before: u64| {
        let flows = || bed.flows_to(1, "web", 2);
        bed.await_that("flows to node 2", SETTLED, || if flows() > before + 20 { Ok(()) } else { Err(String::new()) });
    };
    await_flows(&bed, bed.flows_to(1, "web", 2));

    fail(&mut bed);
    let after_that = await_out(&bed, 2);
    await_more(&bed, 1, 60);
    assert_eq!(bed.flows_to(1, "web", 2), after_that, "new flows to an endpoint that fails");
    let metric = |name: &str| bed.agents[0].metric(&bed.world, name);
    assert_eq!((metric("weir_ejected_endpoints"), metric("weir_ejections_total")), (1.0, 1.0));

    recover(&mut bed);
    await_flows(&bed, after_that);
    drop(asked);
}

#[test]
fn an_endpoint_that_answers_no_syn_gets_no_new_flow_after_two_seconds_and_is_tried_again_later() {
    let route = |bed: &mut Bed, change: &str| {
        let pod = bed.world.node(2).pod(1);
        pod.netns().ip(&format!("route {change} blackhole 10.244.1.0/24")).unwrap();
    };
    assert_out_while_it_fails("a dead endpoint", |bed| route(bed, "replace"), |bed| route(bed, "del"));
}

#[test]
fn an_endpoint_that_refuses_connections_gets_no_new_flow_after_two_seconds_and_is_tried_again_later() {
    assert_out_while_it_fails(
        "an endpoint without its server",
        |bed| bed.servers[1].clear(),
        |bed| bed.servers[1] = serve_in(&bed.world.node(2).pod(1)).into(),
    );
}
