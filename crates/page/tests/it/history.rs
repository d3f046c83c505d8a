//! What is remembered, and that it is bounded.

use weir_page::history::{History, LENGTH, NODES, SERVICES};
use weir_page::{NodeSample, NodeState, Sample, ServiceSample};

use crate::world::{here, node, sample, service};

#[test]
fn this_node_is_remembered_with_all_flows_of_its_clients_and_another_one_with_those_that_went_there() {
    let other = NodeSample { sent: 30.0, failures: 2.0, ..node("node2") };
    let web = ServiceSample { remote: 30.0, failures: 2.0, ..service("shop/web", 90.0) };
    let mut history = History::default();
    history.record(&Sample { nodes: vec![here(), other], ..sample(vec![web]) });
    let last = |name: &str| *history.nodes()[name].last().unwrap();
    assert_eq!([last("node1").level, last("node1").spill, last("node1").flows], [0.5, 0.25, 120.0]);
    assert_eq!([last("node2").level, last("node2").spill, last("node2").flows], [0.5, 0.25, 30.0]);
    assert_eq!([last("node2").failures, history.services()["shop/web"].last().unwrap().failures], [2.0, 2.0]);
}

#[test]
fn what_nobody_knows_is_unknown_and_not_zero() {
    let silent = NodeSample { state: NodeState::Silent, level: None, ..node("node2") };
    let mut history = History::default();
    history.record(&Sample { nodes: vec![here(), silent], ..sample(vec![]) });
    history.record(&sample(vec![]));
    let gone = &history.nodes()["node2"];
    assert_eq!(gone.len(), 2);
    assert!(gone.last().unwrap().flows.is_nan());
    // No flows have no share that leaves.
    assert!(history.nodes()["node1"].last().unwrap().spill.is_nan());
    let json = serde_json::to_string(gone).unwrap();
    assert_eq!(json, r#"{"level":[null,null],"spill":[null,null],"flows":[0.0,null],"failures":[0.0,null]}"#);
}

#[test]
fn ten_minutes_are_kept_and_a_node_that_is_gone_for_as_long_is_forgotten() {
    let mut history = History::default();
    history.record(&Sample { nodes: vec![here(), node("node2")], ..sample(vec![service("shop/web", 1.0)]) });
    for _ in 1..LENGTH {
        history.record(&sample(vec![]));
    }
    assert_eq!(history.nodes().keys().map(|name| &**name).collect::<Vec<_>>(), ["node1", "node2"]);
    assert!(history.services().contains_key("shop/web"));
    history.record(&sample(vec![]));
    history.record(&sample(vec![]));
    assert_eq!(history.nodes().keys().map(|name| &**name).collect::<Vec<_>>(), ["node1"]);
    assert_eq!(history.nodes()["node1"].len(), LENGTH);
    assert!(history.services().is_empty());
}

#[test]
fn services_beyond_the_limit_are_remembered_together() {
    let many = (0..SERVICES + 3).map(|index| service(&format!("shop/{index:03}"), 10.0)).collect();
    let mut history = History::default();
    for _ in 0..3 {
        history.record(&sample(Vec::clone(&many)));
    }
    assert_eq!(history.services().len(), SERVICES);
    assert_eq!(history.others().last().unwrap().flows, 30.0);
}

#[test]
fn a_service_that_is_far_busier_gets_the_place_of_the_least_busy_one_and_one_that_is_alike_does_not() {
    let mut all: Vec<_> = (0..SERVICES).map(|index| service(&format!("shop/{index:03}"), 10.0)).collect();
    all[7].local = 4.0;
    let mut history = History::default();
    history.record(&sample(all.clone()));
    all.push(service("shop/alike", 6.0));
    history.record(&sample(all.clone()));
    assert!(!history.services().contains_key("shop/alike"));
    all.push(service("shop/busy", 9.0));
    history.record(&sample(all));
    assert!(history.services().contains_key("shop/busy") && !history.services().contains_key("shop/007"));
    assert_eq!(history.services().len(), SERVICES);
}

#[test]
fn a_service_that_is_asked_in_vain_is_as_busy_as_one_that_answers() {
    let mut all: Vec<_> = (0..SERVICES).map(|index| service(&format!("shop/{index:03}"), 10.0)).collect();
    all[7] = ServiceSample { failures: 10.0, ..service("shop/refuses", 0.0) };
    let mut history = History::default();
    for _ in 0..=LENGTH {
        history.record(&sample(all.clone()));
    }
    all.push(service("shop/alike", 15.0));
    history.record(&sample(all.clone()));
    assert!(history.services().contains_key("shop/refuses"));
    all.push(ServiceSample { failures: 30.0, ..service("shop/refuses-more", 0.0) });
    history.record(&sample(all));
    assert!(history.services().contains_key("shop/refuses-more"));
}

#[test]
fn of_very_many_nodes_this_one_those_with_flows_and_the_near_ones_are_remembered() {
    let far = |index: usize| NodeSample { rtt: Some(index as f64), ..node(&format!("far{index:04}")) };
    let mut nodes: Vec<_> = (0..5000).map(far).collect();
    nodes.push(NodeSample { sent: 1.0, ..node("used") });
    nodes.push(here());
    let mut history = History::default();
    history.record(&Sample { nodes, ..sample(vec![]) });
    assert_eq!(history.nodes().len(), NODES);
    for name in ["node1", "used", "far0000", "far0021"] {
        assert!(history.nodes().contains_key(name), "{name}");
    }
}
