//! Who fails gets nothing for a while: a node that vanishes though Kubernetes calls it ready, an endpoint that is dead.

use std::time::{Duration, Instant};

use weir_testbed::load::Load;

use crate::bed::{Bed, SETTLED, Web};

/// Within which new flows must stay away.
const WITHIN: Duration = Duration::from_secs(2);

#[test]
fn a_node_whose_link_is_cut_gets_no_new_flow_after_two_seconds_and_gets_some_when_it_is_back() {
    let web = Web::new("web", 1);
    let Some(bed) = Bed::start("a cut link", std::slice::from_ref(&web), &["--spread=random"]) else { return };
    let load = Load::http(web.http()).concurrency(64).rate(100).timeout(Duration::from_millis(500));
    let asked = load.start(bed.world.node(1).pod(1).netns()).unwrap();
    let flows = || bed.flows_to(1, "web", 3);
    let before = flows();
    bed.await_that("flows to node 3", SETTLED, || if flows() > before + 20 { Ok(()) } else { Err(String::new()) });

    let cut = Instant::now();
    bed.world.cut_uplink(3).unwrap();
    while cut.elapsed() < WITHIN {
        std::thread::sleep(Duration::from_millis(5));
    }
    let at_two_seconds = flows();
    let first = bed.weights(1);
    bed.await_that("more flows to the others", SETTLED, || {
        if bed.flows_to(1, "web", 2) > 200 && cut.elapsed() > 3 * WITHIN { Ok(()) } else { Err(String::new()) }
    });
    assert_eq!(flows(), at_two_seconds, "new flows to a node that is gone; after two seconds: {first:#}");

    bed.world.restore_uplink(3).unwrap();
    bed.await_that("flows to node 3 again", SETTLED, || {
        if flows() > at_two_seconds + 20 { Ok(()) } else { Err(format!("{}", flows())) }
    });
    drop(asked);
}

#[test]
fn an_endpoint_that_answers_no_syn_gets_no_new_flow_after_two_seconds_and_is_tried_again_later() {
    let web = Web::new("web", 1);
    let Some(bed) = Bed::start("a dead endpoint", std::slice::from_ref(&web), &["--spread=random"]) else { return };
    // Longer than a client waits until it sends its SYN again.
    let load = Load::http(web.http()).concurrency(128).rate(60).timeout(Duration::from_secs(3));
    let asked = load.start(bed.world.node(1).pod(1).netns()).unwrap();
    let flows = || bed.flows_to(1, "web", 2);
    let before = flows();
    bed.await_that("flows to node 2", SETTLED, || if flows() > before + 20 { Ok(()) } else { Err(String::new()) });

    let died = Instant::now();
    bed.world.node(2).pod(1).netns().ip("route replace blackhole 10.244.1.0/24").unwrap();
    while died.elapsed() < WITHIN {
        std::thread::sleep(Duration::from_millis(5));
    }
    let at_two_seconds = flows();
    let seen = bed.weights(1);
    while died.elapsed() < 2 * WITHIN {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(flows(), at_two_seconds, "new flows to an endpoint that is dead; after two seconds: {seen:#}");
    assert_eq!(bed.agents[0].metric(&bed.world, "weir_ejected_endpoints"), 1.0);

    bed.world.node(2).pod(1).netns().ip("route del blackhole 10.244.1.0/24").unwrap();
    bed.await_that("flows to node 2 again", SETTLED, || {
        if flows() > at_two_seconds + 20 { Ok(()) } else { Err(format!("{}", flows())) }
    });
    drop(asked);
}
