//! loadBalancerSourceRanges, as kube-proxy reads them.

use ipnet::IpNet;
use weir_abi as abi;
use weir_core::model::{Family, Service};
use weir_core::ops::{Capacity, FrontendKey, MapOp, SourceRange};
use weir_core::plan::{PlanConfig, ServicePlan, plan};
use weir_core::tables::TablesError;

use crate::build::{cluster, config, ip, name, service};
use crate::tables::{World, kinds, web};

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn nets(list: &[&str]) -> Vec<IpNet> {
    list.iter().map(|text| net(text)).collect()
}

fn guarded(ranges: &[&str]) -> Service {
    let mut web = service("web", &["10.96.0.1", "fd00:96::1"]);
    web.load_balancer_ips = vec![ip("203.0.113.1"), ip("2001:db8::1")];
    web.source_ranges = nets(ranges);
    web
}

/// Of IPv4 and of IPv6.
fn planned(ranges: &[&str], config: &PlanConfig) -> [Vec<IpNet>; 2] {
    let plans = plan(&cluster(vec![guarded(ranges)], vec![]), config, &name("web"));
    let of = |family| plans.iter().find(|plan| plan.key.family == family).unwrap().source_ranges.clone();
    [of(Family::V4), of(Family::V6)]
}

fn with_ranges(service: &str, frontend: &str, ranges: &[&str]) -> ServicePlan {
    ServicePlan { source_ranges: nets(ranges), ..web(service, frontend, &["10.0.0.1"]) }
}

#[test]
fn each_family_has_its_own_ranges() {
    assert_eq!(planned(&["10.1.0.0/16", "fd01::/64"], &config()), [nets(&["10.1.0.0/16"]), nets(&["fd01::/64"])]);
}

#[test]
fn a_family_without_a_range_admits_everybody() {
    assert_eq!(planned(&["10.1.0.0/16"], &config()), [nets(&["10.1.0.0/16"]), vec![]]);
}

#[test]
fn a_range_of_all_addresses_admits_everybody_of_its_family() {
    assert_eq!(planned(&["10.1.0.0/16", "0.0.0.0/0", "fd01::/64"], &config()), [vec![], nets(&["fd01::/64"])]);
    assert_eq!(planned(&["10.1.0.0/16", "::/0"], &config()), [nets(&["10.1.0.0/16"]), vec![]]);
}

#[test]
fn host_bits_are_cut_and_ranges_that_repeat_or_overlap_do_no_harm() {
    let [four, _] = planned(&["10.1.2.3/16", "10.1.0.0/16", "10.1.2.0/24", "10.0.0.9/32"], &config());
    assert_eq!(four, nets(&["10.0.0.9/32", "10.1.0.0/16", "10.1.2.0/24"]));
}

#[test]
fn if_a_range_contains_the_node_ip_the_load_balancer_ip_itself_is_admitted() {
    let [four, six] = planned(&["192.168.0.0/24", "fd01::/64"], &config());
    assert_eq!(four, nets(&["192.168.0.0/24", "203.0.113.1/32"]));
    assert_eq!(six, nets(&["fd01::/64"]), "the node's IPv6 address is in no range");
    let [_, six] = planned(&["fd00::/64"], &config());
    assert_eq!(six, nets(&["2001:db8::1/128", "fd00::/64"]));
    let elsewhere = PlanConfig { node: "unknown".into(), ..config() };
    assert_eq!(planned(&["192.168.0.0/24"], &elsewhere)[0], nets(&["192.168.0.0/24"]));
}

#[test]
fn only_the_frontends_of_load_balancer_ips_are_told_apart() {
    let plans = plan(&cluster(vec![guarded(&["10.1.0.0/16"])], vec![]), &config(), &name("web"));
    let kinds: Vec<_> = plans[0].frontends.iter().map(|(_, kind)| *kind).collect();
    assert_eq!(kinds, [abi::KIND_CLUSTER_IP, abi::KIND_UNUSED_PORT, abi::KIND_LOAD_BALANCER]);
}

#[test]
fn a_range_is_written_before_the_service_asks_for_it() {
    let mut world = World::new();
    let ops = world.replace("a", &[with_ranges("a", "10.96.0.1", &["10.1.0.0/16"])]);
    let order = ["put source range", "reset service counters", "put service", "put service name", "put frontend"];
    assert_eq!(kinds(&ops)[2..], order);
    assert_eq!(world.maps.services[&1].flags, abi::SERVICE_USED | abi::SERVICE_SOURCE_RANGES);
    assert_eq!(world.maps.source_ranges, [SourceRange { service: 1, net: net("10.1.0.0/16") }].into());
}

#[test]
fn ranges_change_in_place_and_the_new_ones_are_there_before_the_old_ones_go() {
    let mut world = World::new();
    world.replace("a", &[with_ranges("a", "10.96.0.1", &["10.1.0.0/16", "10.2.0.0/16"])]);
    let ops = world.replace("a", &[with_ranges("a", "10.96.0.1", &["10.2.0.0/16", "10.3.0.0/16"])]);
    let range = |text: &str| SourceRange { service: 1, net: net(text) };
    let put = MapOp::PutSourceRange { range: range("10.3.0.0/16") };
    assert_eq!(ops, [put, MapOp::DeleteSourceRange { range: range("10.1.0.0/16") }]);
}

#[test]
fn the_service_stops_to_ask_before_its_ranges_go() {
    let mut world = World::new();
    world.replace("a", &[with_ranges("a", "10.96.0.1", &["10.1.0.0/16"])]);
    let ops = world.replace("a", &[with_ranges("a", "10.96.0.1", &[])]);
    assert_eq!(kinds(&ops), ["put service", "delete source range"]);
    assert_eq!(world.maps.services[&1].flags, abi::SERVICE_USED);
}

#[test]
fn a_load_balancer_ip_is_never_open_to_all_while_it_goes_together_with_its_ranges() {
    let vip = FrontendKey { address: ip("203.0.113.1"), port: 80, protocol: 6 };
    let mut guarded = with_ranges("a", "10.96.0.1", &["10.1.0.0/16"]);
    guarded.frontends.push((vip, abi::KIND_LOAD_BALANCER));
    let mut open = with_ranges("a", "10.96.0.1", &[]);
    open.frontends.push((FrontendKey { port: 30080, ..vip }, abi::KIND_NODE_PORT));
    let mut other = with_ranges("b", "10.96.0.2", &["10.2.0.0/16"]);
    other.frontends.push((vip, abi::KIND_LOAD_BALANCER));

    // Either nobody gets the address, or a service that waits for it.
    for waiting in [None, Some(other)] {
        let mut world = World::new();
        world.replace("a", std::slice::from_ref(&guarded));
        world.replace("b", waiting.as_slice());
        let update = world.tables.replace(&name("a"), std::slice::from_ref(&open), 7).unwrap();
        for op in &update.ops {
            world.maps.apply_all(std::slice::from_ref(op));
            let asks = |service: u32| world.maps.services[&service].flags & abi::SERVICE_SOURCE_RANGES != 0;
            assert!(world.maps.frontends.get(&vip).is_none_or(|frontend| asks(frontend.service)), "after {op:?}");
        }
        assert_eq!(world.maps.frontends.contains_key(&vip), waiting.is_some());
    }
}

#[test]
fn ranges_go_with_their_service_and_after_it() {
    let mut world = World::new();
    world.replace("a", &[with_ranges("a", "10.96.0.1", &["10.1.0.0/16"])]);
    let ops = world.replace("a", &[]);
    assert_eq!(kinds(&ops)[..4], ["delete frontend", "delete service name", "clear service", "delete source range"]);
    assert!(world.maps.source_ranges.is_empty());
}

#[test]
fn a_restart_knows_the_ranges_again() {
    let mut world = World::new();
    let plans = [
        with_ranges("a", "10.96.0.1", &["10.1.0.0/16", "10.0.0.0/16"]),
        ServicePlan { source_ranges: nets(&["fd01::/64"]), ..web("a", "fd00:96::1", &[]) },
    ];
    world.replace("a", &plans);
    world.restart();
    assert_eq!(world.replace("a", &plans), []);
    assert_eq!(world.prune(&["a"]), []);
    world.prune(&[]);
    assert!(world.maps.source_ranges.is_empty());
}

#[test]
fn a_range_without_a_service_is_pruned_and_admits_nobody_else_s_clients() {
    let mut world = World::new();
    let stray = |service, text| SourceRange { service, net: net(text) };
    world.maps.source_ranges = [stray(1, "10.9.0.0/16"), stray(0, "10.9.0.0/16"), stray(99_999, "::/0")].into();
    world.restart();
    world.replace("a", &[with_ranges("a", "10.96.0.1", &["10.9.0.0/16"])]);
    assert_ne!(world.maps.frontends.values().next().unwrap().service, 1);
    world.prune(&["a"]);
    assert_eq!(world.maps.source_ranges.len(), 1);
    assert_eq!(world.replace("a", &[with_ranges("a", "10.96.0.1", &["10.9.0.0/16"])]), []);
}

#[test]
fn a_range_of_the_other_family_is_pruned_and_its_service_stays() {
    let mut world = World::new();
    let plan = with_ranges("a", "10.96.0.1", &["10.1.0.0/16"]);
    world.replace("a", std::slice::from_ref(&plan));
    let stray = SourceRange { service: 1, net: net("fd01::/64") };
    world.maps.source_ranges.insert(stray);
    world.restart();
    assert_eq!(world.replace("a", &[plan]), []);
    assert_eq!(world.prune(&["a"]), [MapOp::DeleteSourceRange { range: stray }]);
}

#[test]
fn ranges_that_do_not_fit_are_refused_with_the_option_s_name_and_change_nothing() {
    let mut world = World::sized(Capacity { source_ranges: 3, ..Capacity::default() });
    world.replace("a", &[with_ranges("a", "10.96.0.1", &["10.1.0.0/16", "10.2.0.0/16"])]);
    let before = world.maps.clone();
    let full = TablesError::Full { map: "source_ranges", size: 3, option: "--max-source-ranges" };
    let too_many = [with_ranges("b", "10.96.0.2", &["10.1.0.0/16", "10.2.0.0/16"])];
    assert_eq!(world.try_replace("b", &too_many), Err(full.clone()));
    // A replaced range needs room until it is gone.
    let moved = [with_ranges("a", "10.96.0.1", &["10.3.0.0/16", "10.4.0.0/16"])];
    assert_eq!(world.try_replace("a", &moved), Err(full));
    assert_eq!(world.maps, before);

    world.replace("a", &[with_ranges("a", "10.96.0.1", &["10.1.0.0/16"])]);
    world.replace("b", &too_many);
    world.restart_sized(Capacity { source_ranges: 3, ..Capacity::default() });
    assert!(world.try_replace("c", &[with_ranges("c", "10.96.0.3", &["10.1.0.0/16"])]).is_err());
}
