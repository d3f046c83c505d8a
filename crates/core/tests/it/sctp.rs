//! SCTP: served without touching its ports, and never with a silent hole.

use weir_abi as abi;
use weir_core::cluster::Cluster;
use weir_core::model::{Endpoint, Protocol, Proxy, Service, Slice, SlicePort};
use weir_core::ops::FrontendKey;
use weir_core::plan::{Refusal, ServicePlan, plan, refusals};

use crate::build::{cluster, config, endpoint, ip, name, service, service_port, slice};
use crate::tables::World;

fn signal(edit: impl FnOnce(&mut Service)) -> Service {
    let mut web = service("web", &["10.96.0.1"]);
    web.ports = vec![service_port("signal", Protocol::Sctp, 36412)];
    edit(&mut web);
    web
}

fn on_port(slice_name: &str, port: u16, endpoints: Vec<Endpoint>) -> Slice {
    let ports = vec![SlicePort { name: "signal".into(), protocol: Protocol::Sctp, port }];
    Slice { ports, ..slice(slice_name, "web", endpoints) }
}

fn only_plan(cluster: &Cluster) -> ServicePlan {
    let mut plans = plan(cluster, &config(), &name("web"));
    assert_eq!(plans.len(), 1);
    plans.remove(0)
}

fn refused(cluster: &Cluster) -> Vec<Refusal> {
    refusals(cluster, &config(), &name("web"))
}

#[test]
fn it_is_planned_like_the_others() {
    let slices = vec![on_port("s", 36412, vec![endpoint("10.0.0.1", "here"), endpoint("10.0.0.2", "far")])];
    let cluster = cluster(vec![signal(|web| web.load_balancer_ips = vec![ip("203.0.113.1")])], slices);
    let plan = only_plan(&cluster);
    let key = |address: &str| FrontendKey { address: ip(address), port: 36412, protocol: 132 };
    assert_eq!(plan.frontends[0], (key("10.96.0.1"), abi::KIND_CLUSTER_IP));
    assert_eq!(plan.frontends[2], (key("203.0.113.1"), abi::KIND_LOAD_BALANCER));
    assert_eq!((plan.backends.len(), plan.endpoints), (2, 2));
    assert_eq!(refused(&cluster), []);

    let mut world = World::new();
    world.serve(&cluster, &config(), "web");
    assert_eq!(world.maps.backends[&1].proto, 132);
    world.restart();
    assert_eq!(world.serve(&cluster, &config(), "web"), []);
}

#[test]
fn an_endpoint_on_another_port_is_left_out_and_named() {
    let slices = vec![
        on_port("a", 36412, vec![endpoint("10.0.0.1", "here")]),
        on_port("b", 9999, vec![endpoint("10.0.0.2", "far"), endpoint("10.0.0.3", "far")]),
    ];
    let cluster = cluster(vec![signal(|_| {})], slices);
    let plan = only_plan(&cluster);
    assert_eq!(plan.backends.iter().map(|b| b.address).collect::<Vec<_>>(), [ip("10.0.0.1")]);
    assert_eq!(plan.endpoints, 1);
    let [refusal] = &refused(&cluster)[..] else { panic!("one refusal") };
    assert_eq!(refusal.reason(), "SctpPortMismatch");
    assert_eq!(
        refusal.to_string(),
        "shop/web port \"signal\": SCTP ports cannot be translated: 2 of 3 endpoints are left out, since they listen \
         on another port (10.0.0.2 on 9999) than the service (36412): give both the same port"
    );
}

#[test]
fn a_service_all_of_whose_endpoints_are_left_out_has_none() {
    let cluster = cluster(vec![signal(|_| {})], vec![on_port("b", 9999, vec![endpoint("10.0.0.2", "far")])]);
    assert_eq!((only_plan(&cluster).backends, only_plan(&cluster).endpoints), (vec![], 0));
    assert_eq!(refused(&cluster).len(), 1);
}

#[test]
fn without_endpoints_nothing_is_refused() {
    assert_eq!(refused(&cluster(vec![signal(|_| {})], vec![])), []);
}

#[test]
fn a_node_port_answers_only_if_it_is_the_service_s_port_and_is_named_if_not() {
    let with = |node_port| cluster(vec![signal(|web| web.ports[0].node_port = Some(node_port))], vec![]);
    let has_node_port =
        |cluster: &Cluster| only_plan(cluster).frontends.iter().any(|(_, kind)| *kind == abi::KIND_NODE_PORT);
    assert!(has_node_port(&with(36412)));
    assert_eq!(refused(&with(36412)), []);

    assert!(!has_node_port(&with(31000)));
    let [refusal] = &refused(&with(31000))[..] else { panic!("one refusal") };
    assert_eq!(refusal.reason(), "SctpNodePortNotServed");
    let text = refusal.to_string();
    assert!(text.starts_with("shop/web port \"signal\": SCTP ports cannot be translated: node port 31000"), "{text}");
}

#[test]
fn other_protocols_translate_ports_and_refuse_nothing() {
    let mut web = service("web", &["10.96.0.1"]);
    web.ports[0].node_port = Some(30080);
    let cluster = cluster(vec![web], vec![slice("s", "web", vec![endpoint("10.0.0.1", "far")])]);
    assert_eq!(only_plan(&cluster).backends[0].port, 8080);
    assert_eq!(refused(&cluster), []);
}

#[test]
fn what_another_proxy_serves_is_not_refused_here() {
    let other = signal(|web| {
        web.proxy = Proxy::Other;
        web.ports[0].node_port = Some(31000);
    });
    let cluster = cluster(vec![other], vec![on_port("b", 9999, vec![endpoint("10.0.0.2", "far")])]);
    assert_eq!(refused(&cluster), []);
    assert_eq!(refusals(&cluster, &config(), &name("unknown")), []);
}
