//! loadBalancerSourceRanges, as kube-proxy reads them.

use ipnet::IpNet;
use weir_abi as abi;
use weir_core::model::{Family, Service};
use weir_core::ops::{Capacity, FrontendKey, MapOp, SourceRange};
use weir_core::plan::{PlanConfig, ServicePlan, plan};
use weir_core::tables::{MAX_SOURCE_RANGES, TablesError};

use crate::build::{cluster, config, ip, name, service};
use crate::tables::{World, key, kinds, web};

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
    assert_eq!(kinds, [abi::KIND_CLUSTER_IP, abi::KIND_UNUSED_PORT, abi::KIND_LOAD_BALANCER, abi::KIND_ADDRESS]);
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

const VIP: &str = "203.0.113.1";

/// With a load balancer address besides the cluster IP.
fn balanced(service: &str, frontend: &str, vip: &str, ranges: &[&str]) -> ServicePlan {
    let mut plan = with_ranges(service, frontend, ranges);
    plan.frontends.push((key(vip), abi::KIND_LOAD_BALANCER));
    plan
}

const THREE: Capacity = Capacity { source_ranges: 3, ..Capacity::DEFAULT };

fn full() -> TablesError {
    TablesError::Full { map: "source_ranges", size: 3, option: "--max-source-ranges" }
}

/// Two of three ranges are another service's.
fn crowded() -> World {
    let mut world = World::sized(THREE);
    world.replace("a", &[with_ranges("a", "10.96.0.1", &["10.1.0.0/16", "10.2.0.0/16"])]);
    world
}

const TWO: [&str; 2] = ["10.8.0.0/16", "10.9.0.0/16"];

#[test]
fn a_service_whose_ranges_do_not_fit_is_served_without_its_load_balancer_addresses_and_says_which_option_helps() {
    let mut world = crowded();
    let update = world.update("b", &[balanced("b", "10.96.0.2", VIP, &TWO)]).unwrap();
    assert_eq!(update.shortage, Some(full()));
    assert_eq!((world.owner("10.96.0.2"), world.owner(VIP)), (Some("b".into()), None));
    assert_eq!(world.maps.source_ranges.len(), 2, "and no range of it takes room");
}

#[test]
fn a_service_that_was_open_so_far_is_closed_when_its_ranges_do_not_fit_and_not_left_open() {
    let mut world = crowded();
    world.replace("b", &[balanced("b", "10.96.0.2", VIP, &[])]);
    assert_eq!(world.owner(VIP), Some("b".into()));
    let update = world.update("b", &[balanced("b", "10.96.0.2", VIP, &TWO)]).unwrap();
    assert_eq!((update.shortage, world.owner(VIP)), (Some(full()), None));
    assert_eq!(kinds(&update.ops), ["delete frontend"]);
}

#[test]
fn a_closed_service_gets_its_endpoints_and_opens_again_when_there_is_room() {
    let mut world = crowded();
    let mut plan = balanced("b", "10.96.0.2", VIP, &TWO);
    world.update("b", std::slice::from_ref(&plan)).unwrap();
    let again = world.update("b", std::slice::from_ref(&plan)).unwrap();
    assert_eq!((again.ops, again.shortage), (vec![], Some(full())), "it is told each time, and written once");

    plan.backends[0].address = ip("10.0.0.7");
    world.update("b", std::slice::from_ref(&plan)).unwrap();
    assert_eq!(world.maps.choices(&key("10.96.0.2"), abi::CLASS_INTERNAL), [ip("10.0.0.7")].into());

    world.replace("a", &[]);
    let update = world.update("b", &[plan]).unwrap();
    assert_eq!((update.shortage, world.owner(VIP)), (None, Some("b".into())));
    assert_eq!(world.maps.source_ranges.len(), 2);
}

#[test]
fn ranges_that_fit_only_when_the_old_ones_are_gone_close_the_service_for_one_turn() {
    let mut world = World::sized(THREE);
    world.replace("a", &[balanced("a", "10.96.0.1", VIP, &["10.1.0.0/16", "10.2.0.0/16"])]);
    let moved = [balanced("a", "10.96.0.1", VIP, &["10.3.0.0/16", "10.4.0.0/16"])];
    let update = world.update("a", &moved).unwrap();
    assert_eq!((update.shortage, world.owner(VIP)), (Some(full()), None));
    assert_eq!(kinds(&update.ops)[0], "delete frontend", "before it stops to ask for ranges");
    let update = world.update("a", &moved).unwrap();
    assert_eq!((update.shortage, world.owner(VIP)), (None, Some("a".into())));
}

#[test]
fn a_family_without_ranges_stays_open_when_those_of_the_other_do_not_fit() {
    let mut world = crowded();
    let mut six = ServicePlan { source_ranges: vec![], ..web("b", "fd00:96::2", &[]) };
    six.frontends.push((key("2001:db8::1"), abi::KIND_LOAD_BALANCER));
    world.update("b", &[balanced("b", "10.96.0.2", VIP, &TWO), six]).unwrap();
    assert_eq!((world.owner(VIP), world.owner("2001:db8::1")), (None, Some("b".into())));
}

#[test]
fn a_port_with_more_ranges_than_one_may_have_is_closed_and_takes_no_room() {
    let ranges = |count: u32| (0..count).map(|host| IpNet::from(std::net::IpAddr::from(host.to_be_bytes())));
    let with = |count| ServicePlan { source_ranges: ranges(count).collect(), ..balanced("a", "10.96.0.1", VIP, &[]) };
    let limit = u32::try_from(MAX_SOURCE_RANGES).unwrap();
    let mut world = World::new();
    let update = world.update("a", &[with(limit)]).unwrap();
    assert_eq!((update.shortage, world.owner(VIP)), (None, Some("a".into())));

    let update = world.update("a", &[with(limit + 1)]).unwrap();
    let too_many = TablesError::TooManySourceRanges {
        service: name("a"),
        port_name: "http".into(),
        ranges: MAX_SOURCE_RANGES + 1,
    };
    assert_eq!((update.shortage, world.owner(VIP)), (Some(too_many), None));
    assert!(world.maps.source_ranges.is_empty());
}

#[test]
fn ranges_are_counted_again_after_a_restart() {
    let mut world = crowded();
    world.restart_sized(THREE);
    let update = world.update("b", &[balanced("b", "10.96.0.2", VIP, &TWO)]).unwrap();
    assert_eq!(update.shortage, Some(full()));
}

#[test]
fn a_service_that_finds_no_room_even_without_its_ranges_is_not_written() {
    let mut world = World::sized(Capacity { source_ranges: 0, backends: 1, ..Capacity::DEFAULT });
    let error = world.update("a", &[balanced("a", "10.96.0.1", VIP, &TWO)]).unwrap_err();
    assert!(matches!(error, TablesError::Full { map: "backends", .. }), "{error}");
    assert_eq!(world.maps, crate::maps::Maps::default());
}
