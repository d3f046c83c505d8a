//! Addresses of services as such, whatever their ports are.

use weir_abi as abi;
use weir_core::cluster::Cluster;
use weir_core::model::Service;
use weir_core::ops::{Capacity, FrontendKey};
use weir_core::plan::{PlanConfig, plan};

use crate::build::{cluster, config, ip, name, service};
use crate::tables::World;

fn rest_of(address: &str) -> FrontendKey {
    FrontendKey { address: ip(address), port: 0, protocol: 0 }
}

/// A service at these load balancer and external IPs.
fn at(service_name: &str, cluster_ip: &str, balancers: &[&str], externals: &[&str]) -> Service {
    let mut made = service(service_name, &[cluster_ip]);
    made.load_balancer_ips = balancers.iter().map(|address| ip(address)).collect();
    made.external_ips = externals.iter().map(|address| ip(address)).collect();
    made.ports[0].node_port = Some(30080);
    made
}

fn alone(service: Service) -> Cluster {
    cluster(vec![service], vec![])
}

fn kind_of(world: &World, address: &str) -> Option<u32> {
    world.maps.meaning().frontends.get(&rest_of(address)).map(|(_, kind)| *kind)
}

#[test]
fn load_balancer_and_external_ips_that_are_served_are_known_without_a_port_and_those_of_nodes_are_not() {
    let service = at("web", "10.96.0.1", &["203.0.113.1"], &["203.0.113.9"]);
    let asked = ["10.96.0.1", "203.0.113.1", "203.0.113.9", "192.168.0.1"];
    let (unused, address) = (Some(abi::KIND_UNUSED_PORT), Some(abi::KIND_ADDRESS));
    let no_externals = PlanConfig { external_ips: false, ..config() };
    for (config, expected) in
        [(config(), [unused, address, address, None]), (no_externals, [unused, address, None, None])]
    {
        let mut world = World::new();
        world.serve(&alone(service.clone()), &crate::build::config(), "web");
        world.restart();
        world.serve(&alone(service.clone()), &config, "web");
        assert_eq!(asked.map(|address| kind_of(&world, address)), expected);
    }
}

#[test]
fn services_that_share_an_address_share_what_is_known_of_it_and_that_is_no_conflict() {
    let mut world = World::new();
    let mut second = at("b", "10.96.0.2", &["203.0.113.1"], &[]);
    second.ports[0].port = 81;
    world.serve(&alone(at("a", "10.96.0.1", &["203.0.113.1"], &[])), &config(), "a");
    let plans = plan(&alone(second), &config(), &name("b"));
    // Node ports cannot be shared.
    let conflicts = world.try_replace("b", &plans).unwrap().1;
    assert!(conflicts.iter().all(|conflict| conflict.key.port == 30080), "{conflicts:?}");
    world.replace("a", &[]);
    assert_eq!(kind_of(&world, "203.0.113.1"), Some(abi::KIND_ADDRESS));
    world.replace("b", &[]);
    assert!(world.maps.frontends.is_empty());
}

#[test]
fn unused_ports_of_a_cluster_ip_stay_refused_whoever_names_it_as_an_external_ip() {
    for order in [["a", "b"], ["b", "a"]] {
        let mut world = World::new();
        for service in order {
            let made = match service {
                "a" => at("a", "10.96.0.1", &[], &[]),
                _ => at("b", "10.96.0.2", &[], &["10.96.0.1"]),
            };
            let _ = world.try_replace(service, &plan(&alone(made), &config(), &name(service))).unwrap();
        }
        assert_eq!(kind_of(&world, "10.96.0.1"), Some(abi::KIND_UNUSED_PORT), "{order:?}");
        world.replace("a", &[]);
        assert_eq!(kind_of(&world, "10.96.0.1"), Some(abi::KIND_ADDRESS), "{order:?}");
    }
}

#[test]
fn an_address_that_is_not_served_for_want_of_room_for_its_ranges_is_not_known_either() {
    let mut world = World::sized(Capacity { source_ranges: 0, ..Capacity::DEFAULT });
    let mut service = at("web", "10.96.0.1", &["203.0.113.1"], &["203.0.113.9"]);
    service.source_ranges = vec!["10.1.0.0/16".parse().unwrap()];
    let _ = world.update("web", &plan(&alone(service), &config(), &name("web"))).unwrap();
    let known = ["10.96.0.1", "203.0.113.1", "203.0.113.9"].map(|address| kind_of(&world, address).is_some());
    assert_eq!(known, [true, false, true]);
}
