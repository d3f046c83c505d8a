//! What browsers are told, as JSON.

use serde_json::{Value, json};
use weir_page::history::{History, NODES, SERVICES};
use weir_page::view::{ENDPOINTS, Now, Past, ServiceView};
use weir_page::{NodeSample, NodeState, Sample, ServiceSample};

use crate::world::{here, node, port, sample, service};

fn recorded(sample: &Sample) -> History {
    let mut history = History::default();
    history.record(sample);
    history
}

fn now(history: &History, sample: &Sample) -> Value {
    // By way of text, as a browser gets it: numbers have the digits that are told.
    serde_json::from_str(&serde_json::to_string(&Now::new(history, sample)).unwrap()).unwrap()
}

#[test]
fn a_small_cluster_is_told_whole() {
    let other = NodeSample { sent: 30.0, received: 5.0, rtt: Some(0.01), cores: 4.0, ..node("node2") };
    let web = ServiceSample { remote: 30.0, inbound: 5.0, ..service("shop/web", 90.0) };
    let sample = Sample { nodes: vec![here(), other], ..sample(vec![web, service("shop/cart", 200.0)]) };
    let told = now(&recorded(&sample), &sample);
    assert_eq!([&told["here"], &told["mesh"], &told["crest"]], [&json!("node1"), &json!(true), &json!(0.8)]);
    assert_eq!([&told["moreNodes"], &told["moreServices"]], [&Value::Null, &Value::Null]);
    assert_eq!(
        told["nodes"][1],
        json!({
            "name": "node2", "state": "heard", "level": 0.5, "memory": null, "network": null, "cores": 4.0, "rtt": 0.01,
            "sent": 30.0, "received": 5.0, "served": null, "failures": 0.0, "point": [0.5, 0.094, 30.0, 0.0],
        })
    );
    let names: Vec<_> = told["services"].as_array().unwrap().iter().map(|service| &service["name"]).collect();
    assert_eq!(names, ["shop/cart", "shop/web"], "the busiest first");
    assert_eq!(told["total"]["local"], 290.0);
}

#[test]
fn a_service_that_nobody_uses_any_more_stays_in_the_list_with_nothing() {
    let mut history = recorded(&sample(vec![service("shop/web", 1.0)]));
    let quiet = sample(vec![]);
    history.record(&quiet);
    let told = now(&history, &quiet);
    assert_eq!(told["services"][0]["name"], "shop/web");
    assert_eq!(told["services"][0]["local"], 0.0);
}

#[test]
fn what_has_no_place_of_its_own_is_counted_and_added_up() {
    let nodes = (0..NODES + 4).map(|index| NodeSample {
        state: if index == 0 { NodeState::Here } else { NodeState::Heard },
        rtt: Some(index as f64),
        ..node(&format!("node{index:02}"))
    });
    let services = (0..SERVICES + 2).map(|index| service(&format!("shop/{index:03}"), 1.0));
    let sample = Sample { nodes: nodes.collect(), ..sample(services.collect()) };
    let told = now(&recorded(&sample), &sample);
    assert_eq!(told["nodes"].as_array().unwrap().len(), NODES);
    assert_eq!(told["moreNodes"], json!({ "count": 4, "level": 0.5, "sent": 0.0, "received": 0.0 }));
    assert_eq!([&told["moreServices"]["count"], &told["moreServices"]["local"]], [&json!(2), &json!(2.0)]);
    assert_eq!(told["total"]["local"], (SERVICES + 2) as f64);
}

#[test]
fn the_past_has_every_node_and_the_service_that_is_asked_for() {
    let history = recorded(&sample(vec![service("shop/web", 3.0)]));
    let told = |name| serde_json::to_value(Past::new(&history, name)).unwrap();
    let web = told(Some("shop/web"));
    assert_eq!([&web["period"], &web["length"]], [&json!(2.0), &json!(300)]);
    assert_eq!(web["nodes"]["node1"]["level"], json!([0.5]));
    assert_eq!(web["service"]["flows"], json!([3.0]));
    assert_eq!([&told(None)["service"], &told(Some("shop/none"))["service"]], [&Value::Null, &Value::Null]);
}

#[test]
fn a_service_is_told_with_its_endpoints_and_reasons_the_greatest_shares_first() {
    let history = recorded(&sample(vec![service("shop/web", 3.0)]));
    let told = |ports| serde_json::to_value(ServiceView::new(&history, "shop/web", ports)).unwrap();
    let web = told(vec![port(&[0.2, 0.8])]);
    assert_eq!(web["ports"][0]["sets"][0]["endpoints"][0]["address"], "10.0.0.1:80");
    assert_eq!(web["ports"][0]["sets"][0]["reasons"][0], "no endpoint here");
    assert_eq!([&web["ports"][0]["leftOut"], &web["point"][2]], [&json!(0), &json!(3.0)]);
    assert_eq!(told(vec![])["ports"], json!([]));

    let many = told(vec![port(&vec![0.001; ENDPOINTS + 50])]);
    assert_eq!(many["ports"][0]["sets"][0]["endpoints"].as_array().unwrap().len(), ENDPOINTS);
    assert_eq!(many["ports"][0]["leftOut"], 50);
}
