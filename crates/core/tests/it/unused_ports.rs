//! Ports of a cluster IP that no service port uses are refused.

use weir_abi as abi;
use weir_core::cluster::Cluster;
use weir_core::model::{Protocol, Service};
use weir_core::ops::FrontendKey;
use weir_core::plan::plan;

use crate::build::{cluster, config, ip, name, service, service_port};
use crate::tables::World;

fn rest_of(address: &str) -> FrontendKey {
    FrontendKey { address: ip(address), port: 0, protocol: 0 }
}

fn two_ports() -> Service {
    let mut web = service("web", &["10.96.0.1", "fd00:96::1"]);
    web.ports = vec![service_port("http", Protocol::Tcp, 80), service_port("dns", Protocol::Udp, 53)];
    web.load_balancer_ips = vec![ip("203.0.113.1")];
    web.external_ips = vec![ip("203.0.113.9")];
    web.ports[0].node_port = Some(30080);
    web
}

fn snapshot(edit: impl FnOnce(&mut Service)) -> Cluster {
    let mut web = two_ports();
    edit(&mut web);
    cluster(vec![web], vec![])
}

/// Name of the port that has the rest of a cluster IP.
fn owner(world: &World, address: &str) -> Option<String> {
    world.maps.meaning().frontends.get(&rest_of(address)).map(|(port, kind)| {
        assert_eq!(*kind, abi::KIND_UNUSED_PORT);
        port.2.clone()
    })
}

#[test]
fn the_first_port_of_each_family_has_the_rest_of_its_cluster_ip_and_of_no_other_address() {
    let plans = plan(&snapshot(|_| {}), &config(), &name("web"));
    let rests = plans.iter().map(|plan| {
        let rest = plan.frontends.iter().filter(|(_, kind)| *kind == abi::KIND_UNUSED_PORT);
        rest.map(|(key, _)| *key).collect::<Vec<_>>()
    });
    assert_eq!(rests.collect::<Vec<_>>(), [vec![rest_of("10.96.0.1")], vec![rest_of("fd00:96::1")], vec![], vec![]]);
}

#[test]
fn it_moves_to_the_next_port_without_a_gap_when_the_first_one_goes() {
    let mut world = World::new();
    world.serve(&snapshot(|_| {}), &config(), "web");
    assert_eq!(owner(&world, "10.96.0.1").unwrap(), "http");
    let cluster = snapshot(|web| drop(web.ports.remove(0)));
    let update = world.tables.replace(&name("web"), &plan(&cluster, &config(), &name("web")), 7).unwrap();
    for op in &update.ops {
        world.maps.apply_all(std::slice::from_ref(op));
        assert!(world.maps.frontends.contains_key(&rest_of("10.96.0.1")), "after {op:?}");
    }
    assert_eq!(owner(&world, "10.96.0.1").unwrap(), "dns");
    assert_eq!(owner(&world, "fd00:96::1").unwrap(), "dns");
}

#[test]
fn no_port_of_a_service_that_comes_or_goes_is_refused_while_another_proxy_has_it() {
    let mut world = World::new();
    let ports = |world: &World, address: &str| {
        world.maps.frontends.keys().filter(|key| key.address == ip(address) && **key != rest_of(address)).count()
    };
    for present in [true, false] {
        let cluster = snapshot(|_| {});
        let plans = if present { plan(&cluster, &config(), &name("web")) } else { vec![] };
        for op in world.tables.replace(&name("web"), &plans, 7).unwrap().ops {
            world.maps.apply_all(std::slice::from_ref(&op));
            for address in ["10.96.0.1", "fd00:96::1"] {
                let complete = ports(&world, address) == 2;
                assert!(complete || !world.maps.frontends.contains_key(&rest_of(address)), "{address} after {op:?}");
            }
        }
    }
}

#[test]
fn a_service_of_sctp_alone_has_it_too() {
    let mut world = World::new();
    world.serve(&snapshot(|web| web.ports = vec![service_port("s", Protocol::Sctp, 9)]), &config(), "web");
    assert_eq!(owner(&world, "10.96.0.1").unwrap(), "s");
}

#[test]
fn a_restart_knows_it_again() {
    let mut world = World::new();
    world.serve(&snapshot(|_| {}), &config(), "web");
    world.restart();
    assert_eq!(world.serve(&snapshot(|_| {}), &config(), "web"), []);
    assert_eq!(world.prune(&["web"]), []);
}

#[test]
fn it_does_not_survive_its_service_not_even_over_a_restart() {
    for restart in [false, true] {
        let mut world = World::new();
        world.serve(&snapshot(|_| {}), &config(), "web");
        if restart {
            world.restart();
            world.prune(&[]);
        } else {
            world.replace("web", &[]);
        }
        assert!(world.maps.frontends.is_empty());
    }
}

#[test]
fn it_goes_with_its_cluster_ip_and_with_the_last_port() {
    let mut world = World::new();
    world.serve(&snapshot(|_| {}), &config(), "web");
    world.serve(&snapshot(|web| web.cluster_ips.truncate(1)), &config(), "web");
    assert_eq!(owner(&world, "fd00:96::1"), None);
    world.serve(&snapshot(|web| web.ports.clear()), &config(), "web");
    assert!(world.maps.frontends.is_empty());
}

#[test]
fn services_that_share_a_cluster_ip_share_its_rest_and_that_is_no_conflict() {
    let mut world = World::new();
    let on_port = |service_name: &str, port| {
        let mut web = service(service_name, &["10.96.0.1"]);
        web.ports[0].port = port;
        cluster(vec![web], vec![])
    };
    world.serve(&on_port("a", 80), &config(), "a");
    let plans = plan(&on_port("b", 81), &config(), &name("b"));
    assert_eq!(world.try_replace("b", &plans).unwrap().1, []);
    assert_eq!(world.tables.conflicts(), []);
    world.replace("a", &[]);
    assert_eq!(world.maps.meaning().frontends[&rest_of("10.96.0.1")].0.1, "b");
}
