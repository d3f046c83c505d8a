//! A service that another proxy takes over, or gives back.

use weir_abi as abi;
use weir_core::cluster::{Cluster, Event};
use weir_core::model::{Endpoint, Proxy, Service};
use weir_core::plan::{PlanConfig, TierPlan, plan};
use weir_core::stage::Stage;

use crate::build::{cluster, config, endpoint, ip, name, service, slice};
use crate::tables::{World, key, kinds};

fn of(proxy: Proxy) -> Service {
    let mut web = service("web", &["10.96.0.1"]);
    web.load_balancer_ips = vec![ip("203.0.113.1")];
    web.source_ranges = vec!["10.1.0.0/16".parse().unwrap()];
    web.affinity = Some(100);
    web.proxy = proxy;
    web
}

fn two() -> Vec<Endpoint> {
    vec![endpoint("10.0.0.1", "here"), endpoint("10.0.0.2", "far")]
}

fn snapshot(proxy: Proxy) -> Cluster {
    cluster(vec![of(proxy)], vec![slice("web-1", "web", two())])
}

fn handing_over() -> PlanConfig {
    PlanConfig { handing_over: [name("web")].into(), ..config() }
}

#[test]
fn it_has_no_frontends_and_no_new_flows_but_all_its_backends() {
    let ours = plan(&snapshot(Proxy::Ours), &config(), &name("web")).remove(0);
    let other = plan(&snapshot(Proxy::Other), &config(), &name("web")).remove(0);
    assert_eq!(other.frontends, []);
    assert_eq!(other.tiers, <[TierPlan; abi::CLASS_COUNT]>::default());
    assert_eq!((other.affinity, other.source_ranges), (0, vec![]));
    assert_eq!((other.key, other.backends), (ours.key, ours.backends));
    assert_eq!(other.endpoints, 2, "a packet on its way in is dropped, not refused: it comes again to the other proxy");
}

#[test]
fn it_keeps_everything_while_it_is_handed_over() {
    let ours = plan(&snapshot(Proxy::Ours), &config(), &name("web"));
    assert_eq!(plan(&snapshot(Proxy::Other), &handing_over(), &name("web")), ours);
    assert_eq!(plan(&snapshot(Proxy::Ours), &handing_over(), &name("web")), ours);
}

#[test]
fn a_stage_that_begins_serves_what_nobody_is_named_for_and_one_that_drains_serves_nothing() {
    let mut cluster = cluster(vec![of(Proxy::Unlabelled), service("other", &["10.96.0.2"])], vec![]);
    let mut other = service("another", &["10.96.0.3"]);
    other.proxy = Proxy::Other;
    cluster.apply(Event::Service(other));
    let served = |cluster: &Cluster| cluster.services().map(|service| cluster.serves(service)).collect::<Vec<_>>();
    // In the order of their names: another, other, web.
    assert_eq!(served(&cluster), [false, true, false]);
    let dirty = cluster.set_stage(Stage::TakeOver);
    assert_eq!((served(&cluster), dirty.services), (vec![false, true, true], [name("web")].into()));
    assert_eq!(cluster.set_stage(Stage::Alone).services, [].into(), "nothing is served anew");
    let dirty = cluster.set_stage(Stage::Drain);
    assert_eq!((served(&cluster), dirty.services), (vec![false; 3], [name("other"), name("web")].into()));
    let ours = plan(&cluster, &config(), &name("other")).remove(0);
    assert_eq!((ours.frontends, ours.tiers), (vec![], Default::default()));
}

#[test]
fn a_stage_that_serves_all_has_no_other_proxy_beside_it() {
    let mut cluster = cluster(vec![of(Proxy::Unlabelled)], vec![]);
    assert!(cluster.has_other_proxy());
    assert!(cluster.set_stage(Stage::Alone).service_networks && !cluster.has_other_proxy());
    cluster.apply(Event::ServiceGone(name("web")));
    assert!(!cluster.set_stage(Stage::Usual).service_networks && !cluster.has_other_proxy());
}

#[test]
fn its_flows_go_on_until_their_endpoints_go() {
    let mut world = World::new();
    world.serve(&snapshot(Proxy::Ours), &config(), "web");
    let generations = |world: &World| ["10.0.0.1", "10.0.0.2"].map(|text| world.maps.backends[&world.slot_of(text)]);
    let before = generations(&world).map(|backend| backend.generation);

    let mut cluster = snapshot(Proxy::Other);
    assert_eq!(world.serve(&cluster, &handing_over(), "web"), [], "nothing changes before the other proxy is ready");
    world.serve(&cluster, &config(), "web");
    assert!(world.maps.frontends.is_empty() && world.maps.source_ranges.is_empty());
    assert_eq!(generations(&world).map(|backend| backend.generation), before);
    assert!(generations(&world).iter().all(|backend| backend.flags & !abi::BACKEND_LOCAL == abi::BACKEND_USED));

    let slot = world.slot_of("10.0.0.2");
    cluster.apply(Event::Slice(slice("web-1", "web", two()[..1].to_vec())));
    world.serve(&cluster, &config(), "web");
    assert_eq!(world.maps.backends[&slot].generation, before[1] + 1);
    cluster.apply(Event::ServiceGone(name("web")));
    world.serve(&cluster, &config(), "web");
    assert!(world.maps.used_backends().is_empty() && !world.tables.holds(&name("web")));
}

#[test]
fn its_frontends_go_before_its_endpoints_so_that_no_client_is_refused() {
    let mut world = World::new();
    world.serve(&snapshot(Proxy::Ours), &config(), "web");
    let ops = world.serve(&snapshot(Proxy::Other), &config(), "web");
    let expected = [
        "delete frontend",
        "delete frontend",
        "delete frontend",
        "delete frontend",
        "put service",
        "delete source range",
        "put backend",
        "put backend",
    ];
    assert_eq!(kinds(&ops), expected);
}

#[test]
fn back_with_us_it_has_its_frontends_again_in_the_same_slots() {
    let mut world = World::new();
    world.serve(&snapshot(Proxy::Ours), &config(), "web");
    let before = world.maps.clone();
    world.serve(&snapshot(Proxy::Other), &config(), "web");
    world.release_twice();
    world.serve(&snapshot(Proxy::Ours), &config(), "web");
    assert_eq!(world.maps, before);
}

#[test]
fn its_slots_survive_a_restart_and_the_prune() {
    let mut world = World::new();
    world.serve(&snapshot(Proxy::Ours), &config(), "web");
    world.serve(&snapshot(Proxy::Other), &config(), "web");
    let before = world.maps.clone();
    world.restart();
    assert!(world.tables.holds(&name("web")));
    assert_eq!(world.serve(&snapshot(Proxy::Other), &config(), "web"), []);
    let cluster = snapshot(Proxy::Other);
    assert_eq!(world.tables.prune(|service| cluster.service(service).is_some()), []);
    assert_eq!(world.maps, before);
}

#[test]
fn a_service_that_was_never_ours_is_not_held() {
    let world = World::new();
    assert!(!world.tables.holds(&name("web")));
    let mut world = World::new();
    world.replace("web", &[]);
    assert!(!world.tables.holds(&name("web")));
    world.serve(&snapshot(Proxy::Ours), &config(), "web");
    assert!(world.tables.holds(&name("web")));
}

#[test]
fn an_address_that_it_gives_up_goes_to_the_service_that_waits_for_it() {
    let mut world = World::new();
    world.serve(&snapshot(Proxy::Ours), &config(), "web");
    let mut second = service("second", &["10.96.0.1"]);
    second.proxy = Proxy::Ours;
    let cluster = cluster(vec![second], vec![]);
    world.serve(&cluster, &config(), "second");
    assert_eq!(world.owner("10.96.0.1").unwrap(), "web");
    world.serve(&snapshot(Proxy::Other), &config(), "web");
    assert_eq!(world.owner("10.96.0.1").unwrap(), "second");
    assert!(world.maps.frontends.contains_key(&key("10.96.0.1")));
}
