//! From the snapshot to plans.

use weir_abi as abi;
use weir_core::cluster::Event;
use weir_core::model::{Endpoint, Family, Protocol, Service, SlicePort, TrafficPolicy};
use weir_core::ops::FrontendKey;
use weir_core::plan::{PlanConfig, ServicePlan, Spread, TierPlan, plan};

use crate::build::{cluster, config, draining, endpoint, failing, ip, name, service, service_port, slice};
use crate::tables::World;

fn web(edit: impl FnOnce(&mut Service), endpoints: Vec<Endpoint>) -> ServicePlan {
    let mut web = service("web", &["10.96.0.1"]);
    edit(&mut web);
    let plans = plan(&cluster(vec![web], vec![slice("web-1", "web", endpoints)]), &config(), &name("web"));
    assert_eq!(plans.len(), 1);
    plans.into_iter().next().unwrap()
}

fn key(address: &str, port: u16) -> FrontendKey {
    FrontendKey { address: ip(address), port, protocol: 6 }
}

fn unused_ports(address: &str) -> (FrontendKey, u32) {
    (FrontendKey { address: ip(address), port: 0, protocol: 0 }, abi::KIND_UNUSED_PORT)
}

fn address(address: &str) -> (FrontendKey, u32) {
    (FrontendKey { address: ip(address), port: 0, protocol: 0 }, abi::KIND_ADDRESS)
}

fn tier(spill: u16, local: &[usize], remote: &[usize]) -> TierPlan {
    let even = |set: &[usize]| set.iter().map(|index| (*index, 1)).collect();
    TierPlan { spill, local: even(local), remote: even(remote) }
}

#[test]
fn an_unknown_service_has_no_plan() {
    assert!(plan(&cluster(vec![], vec![slice("s", "web", vec![])]), &config(), &name("web")).is_empty());
}

#[test]
fn there_is_one_plan_per_port_and_family() {
    let mut web = service("web", &["10.96.0.1", "fd00:96::1"]);
    web.ports = vec![
        service_port("http", Protocol::Tcp, 80),
        service_port("dns", Protocol::Udp, 53),
        service_port("signal", Protocol::Sctp, 36412),
    ];
    let plans = plan(&cluster(vec![web], vec![]), &config(), &name("web"));
    let keys: Vec<_> = plans.iter().map(|p| (&*p.key.port_name, p.key.protocol, p.key.family, p.port)).collect();
    assert_eq!(
        keys,
        [
            ("http", Protocol::Tcp, Family::V4, 80),
            ("http", Protocol::Tcp, Family::V6, 80),
            ("dns", Protocol::Udp, Family::V4, 53),
            ("dns", Protocol::Udp, Family::V6, 53),
            ("signal", Protocol::Sctp, Family::V4, 36412),
            ("signal", Protocol::Sctp, Family::V6, 36412),
        ]
    );
}

#[test]
fn frontends_are_cluster_ip_node_port_load_balancer_and_external_ips_of_the_family() {
    let plan = web(
        |web| {
            web.ports[0].node_port = Some(30080);
            web.load_balancer_ips = vec![ip("203.0.113.1"), ip("2001:db8::1")];
            web.external_ips = vec![ip("203.0.113.9"), ip("2001:db8::9")];
        },
        vec![],
    );
    assert_eq!(
        plan.frontends,
        [
            (key("10.96.0.1", 80), abi::KIND_CLUSTER_IP),
            unused_ports("10.96.0.1"),
            (key("192.168.0.1", 30080), abi::KIND_NODE_PORT),
            (key("203.0.113.1", 80), abi::KIND_LOAD_BALANCER),
            address("203.0.113.1"),
            (key("203.0.113.9", 80), abi::KIND_EXTERNAL_IP),
            address("203.0.113.9"),
        ]
    );
}

#[test]
fn external_ips_are_left_out_when_they_are_switched_off() {
    let mut web = service("web", &["10.96.0.1"]);
    web.external_ips = vec![ip("203.0.113.9")];
    let config = PlanConfig { external_ips: false, ..config() };
    let plans = plan(&cluster(vec![web], vec![]), &config, &name("web"));
    assert_eq!(plans[0].frontends, [(key("10.96.0.1", 80), abi::KIND_CLUSTER_IP), unused_ports("10.96.0.1")]);
}

#[test]
fn of_two_kinds_that_claim_one_address_and_port_the_first_wins() {
    let plan = web(
        |web| {
            web.load_balancer_ips = vec![ip("203.0.113.1")];
            web.external_ips = vec![ip("203.0.113.1")];
        },
        vec![],
    );
    assert_eq!(plan.frontends[2..], [(key("203.0.113.1", 80), abi::KIND_LOAD_BALANCER), address("203.0.113.1")]);
}

#[test]
fn a_service_without_cluster_ips_is_served_in_the_families_of_its_other_frontends() {
    let mut web = service("web", &[]);
    web.load_balancer_ips = vec![ip("2001:db8::1")];
    let plans = plan(&cluster(vec![web], vec![]), &config(), &name("web"));
    assert_eq!(plans.iter().map(|plan| plan.key.family).collect::<Vec<_>>(), [Family::V6]);
}

#[test]
fn new_flows_stay_on_the_node_as_long_as_it_has_endpoints() {
    let plan = web(|_| {}, vec![endpoint("10.0.0.1", "here"), endpoint("10.0.0.2", "far")]);
    assert_eq!(plan.tiers, [tier(0, &[0], &[1]), tier(0, &[0], &[1]), tier(0, &[0], &[1])]);
    let plan = web(|_| {}, vec![endpoint("10.0.0.2", "far")]);
    assert_eq!(plan.tiers[abi::CLASS_INTERNAL], tier(65535, &[], &[0]));
}

#[test]
fn a_random_spread_gives_each_endpoint_the_same_share() {
    let config = PlanConfig { spread: Spread::Random, ..config() };
    let share = |endpoints| {
        let cluster = cluster(vec![service("web", &["10.96.0.1"])], vec![slice("s", "web", endpoints)]);
        plan(&cluster, &config, &name("web"))[0].tiers[abi::CLASS_INTERNAL].spill
    };
    let (here, far) = (endpoint("10.0.0.1", "here"), endpoint("10.0.0.2", "far"));
    assert_eq!(share(vec![here.clone(), far.clone()]), 32768);
    assert_eq!(share(vec![here.clone(), far.clone(), endpoint("10.0.0.3", "far")]), 43691);
    assert_eq!(share(vec![here]), 0);
    assert_eq!(share(vec![far]), 65535);
}

#[test]
fn each_traffic_class_follows_its_own_policy() {
    let endpoints = || vec![endpoint("10.0.0.1", "here"), endpoint("10.0.0.2", "far")];
    let (all, local) = (tier(0, &[0], &[1]), tier(0, &[0], &[]));
    let plan = web(|web| web.internal_policy = TrafficPolicy::Local, endpoints());
    assert_eq!(plan.tiers, [local.clone(), all.clone(), all.clone()]);
    let plan = web(|web| web.external_policy = TrafficPolicy::Local, endpoints());
    assert_eq!(plan.tiers, [all.clone(), local, all]);
}

#[test]
fn the_maps_say_of_which_services_clients_keep_their_addresses_and_a_change_of_the_policy_is_written() {
    let mut world = World::new();
    for (policy, keeps) in
        [(TrafficPolicy::Cluster, 0), (TrafficPolicy::Local, abi::SERVICE_EXTERNAL_LOCAL), (TrafficPolicy::Cluster, 0)]
    {
        world.replace("web", &[web(|web| web.external_policy = policy, vec![endpoint("10.0.0.1", "here")])]);
        assert_eq!(world.maps.services[&1].flags, abi::SERVICE_USED | keeps, "{policy:?}");
    }
}

#[test]
fn a_local_policy_without_local_endpoints_leaves_the_class_empty_but_counts_endpoints() {
    let plan = web(|web| web.internal_policy = TrafficPolicy::Local, vec![endpoint("10.0.0.2", "far")]);
    assert_eq!(plan.tiers[abi::CLASS_INTERNAL], tier(65535, &[], &[]));
    assert_eq!(plan.endpoints, 1);
    assert_eq!(web(|_| {}, vec![failing("10.0.0.2", "far")]).endpoints, 0);
}

#[test]
fn a_draining_backend_keeps_its_flows_and_one_that_fails_loses_those_of_udp() {
    for (protocol, kept) in [(Protocol::Tcp, 3), (Protocol::Udp, 2)] {
        let mut web = service("web", &["10.96.0.1"]);
        web.ports[0].protocol = protocol;
        let list = vec![endpoint("10.0.0.1", "here"), draining("10.0.0.2", "here"), failing("10.0.0.3", "here")];
        let mut of_web = slice("web-1", "web", list);
        of_web.ports[0].protocol = protocol;
        let plans = plan(&cluster(vec![web], vec![of_web]), &config(), &name("web"));
        let addresses: Vec<_> = plans[0].backends.iter().map(|backend| backend.address).collect();
        assert_eq!(addresses, [ip("10.0.0.1"), ip("10.0.0.2"), ip("10.0.0.3")][..kept], "{protocol:?}");
        assert_eq!(plans[0].tiers[abi::CLASS_INTERNAL], tier(0, &[0], &[]), "{protocol:?}");
    }
}

#[test]
fn an_endpoint_without_a_node_is_on_the_node_whose_address_it_has() {
    let by_hand = |address| Endpoint { node: None, ..endpoint(address, "") };
    let plan = web(|_| {}, vec![by_hand("192.168.0.1"), by_hand("192.168.0.3"), by_hand("10.9.9.9")]);
    let local: Vec<_> = plan.backends.iter().map(|b| (b.address, b.local)).collect();
    assert_eq!(local, [(ip("10.9.9.9"), false), (ip("192.168.0.1"), true), (ip("192.168.0.3"), false)]);
}

/// The API server's Service names none, and may be told an address that is none of the cluster's for the node.
#[test]
fn an_endpoint_at_an_address_that_the_nodes_interfaces_carry_is_a_process_of_the_node() {
    let config = PlanConfig { carried_addresses: [ip("203.0.113.1"), ip("203.0.113.2")].into(), ..config() };
    let by_hand = Endpoint { node: None, ..endpoint("203.0.113.1", "") };
    let endpoints = vec![by_hand, endpoint("203.0.113.2", "far"), endpoint("203.0.113.3", "far")];
    let cluster = cluster(vec![service("web", &["10.96.0.1"])], vec![slice("web-1", "web", endpoints)]);
    let plans = plan(&cluster, &config, &name("web"));
    let here: Vec<_> = plans[0].backends.iter().map(|b| (b.local, b.host_network)).collect();
    assert_eq!(here, [(true, true), (true, true), (false, false)]);
}

#[test]
fn backends_know_their_node_its_zone_and_whether_they_use_its_network() {
    let plan = web(|_| {}, vec![endpoint("192.168.0.3", "far"), endpoint("10.0.0.1", "here")]);
    let facts: Vec<_> =
        plan.backends.iter().map(|b| (b.node.as_deref(), &*b.zone, b.local, b.host_network, b.port)).collect();
    assert_eq!(facts, [(Some("here"), "east", true, false, 8080), (Some("far"), "west", false, true, 8080)]);
}

#[test]
fn endpoints_of_both_families_stay_apart() {
    let cluster = cluster(
        vec![service("web", &["10.96.0.1", "fd00:96::1"])],
        vec![
            slice("four", "web", vec![endpoint("10.0.0.1", "here")]),
            slice("six", "web", vec![endpoint("fd00:10::1", "here"), endpoint("fd00:10::2", "far")]),
        ],
    );
    let counts: Vec<_> = plan(&cluster, &config(), &name("web")).iter().map(|p| p.backends.len()).collect();
    assert_eq!(counts, [1, 2]);
}

#[test]
fn the_order_of_slices_and_endpoints_does_not_matter() {
    let mut named = slice("b", "web", vec![endpoint("10.0.0.3", "far")]);
    named.ports.push(SlicePort { name: "other".into(), protocol: Protocol::Tcp, port: 1 });
    let lists = [vec!["10.0.0.1", "10.0.0.2"], vec!["10.0.0.2", "10.0.0.1"]];
    let plans = lists.map(|list| {
        let endpoints = list.into_iter().map(|address| endpoint(address, "far")).collect();
        let mut cluster = cluster(vec![service("web", &["10.96.0.1"])], vec![]);
        cluster.apply(Event::Slice(named.clone()));
        cluster.apply(Event::Slice(slice("a", "web", endpoints)));
        plan(&cluster, &config(), &name("web"))
    });
    assert_eq!(plans[0], plans[1]);
}

#[test]
fn a_port_that_only_endpoints_on_their_way_out_serve_is_at_its_last_resort() {
    let last_resort = |endpoints| web(|_| {}, endpoints).last_resort;
    assert!(last_resort(vec![draining("10.0.0.1", "here"), failing("10.0.0.2", "far")]));
    assert!(!last_resort(vec![draining("10.0.0.1", "here"), endpoint("10.0.0.2", "far")]));
    assert!(!last_resort(vec![failing("10.0.0.2", "far")]) && !last_resort(vec![]), "nobody serves it");
}
