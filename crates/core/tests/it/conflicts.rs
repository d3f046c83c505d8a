//! Addresses and ports that several claim, or seem to: whoever has one keeps it, and nobody else is affected.

use weir_abi as abi;
use weir_core::cluster::{Cluster, Event};
use weir_core::model::{Protocol, Service};
use weir_core::ops::FrontendKey;
use weir_core::plan::{PlanConfig, plan};
use weir_core::tables::FrontendConflict;

use crate::build::{cluster, config, endpoint, ip, name, service, service_port, slice};
use crate::tables::World;

fn at(address: &str, port: u16, protocol: Protocol) -> FrontendKey {
    FrontendKey { address: ip(address), port, protocol: protocol.number() }
}

/// Which service and port has a frontend.
fn owner(world: &World, key: FrontendKey) -> (String, String) {
    let port = world.maps.meaning().frontends[&key].0.clone();
    (port.1, port.2)
}

fn node_ports(world: &World) -> Vec<FrontendKey> {
    let of_kind = world.maps.frontends.iter().filter(|(_, frontend)| frontend.kind == abi::KIND_NODE_PORT);
    of_kind.map(|(key, _)| *key).collect()
}

#[test]
fn tcp_and_udp_may_have_the_same_node_port_number() {
    let mut web = service("web", &["10.96.0.1"]);
    web.ports = vec![service_port("t", Protocol::Tcp, 80), service_port("u", Protocol::Udp, 80)];
    web.ports.iter_mut().for_each(|port| port.node_port = Some(30080));
    let mut world = World::new();
    world.serve(&cluster(vec![web], vec![]), &config(), "web");
    for (protocol, port) in [(Protocol::Tcp, "t"), (Protocol::Udp, "u")] {
        assert_eq!(owner(&world, at("192.168.0.1", 30080, protocol)).1, port);
    }
}

#[test]
fn both_families_may_have_the_same_node_port_number_even_in_two_services() {
    let with_node_port = |service_name: &str, address: &str| {
        let mut web = service(service_name, &[address]);
        web.ports[0].node_port = Some(30080);
        web
    };
    let cluster = cluster(vec![with_node_port("four", "10.96.0.1"), with_node_port("six", "fd00:96::1")], vec![]);
    let mut world = World::new();
    for service in ["four", "six"] {
        world.serve(&cluster, &config(), service);
    }
    assert_eq!(world.tables.conflicts(), []);
    assert_eq!(owner(&world, at("192.168.0.1", 30080, Protocol::Tcp)).0, "four");
    assert_eq!(owner(&world, at("fd00::1", 30080, Protocol::Tcp)).0, "six");
}

#[test]
fn a_node_port_that_changes_its_protocol_changes_nothing_else() {
    let of = |protocol| {
        let mut web = service("web", &["10.96.0.1"]);
        web.ports = vec![service_port("p", protocol, 80), service_port("other", Protocol::Tcp, 81)];
        web.ports[0].node_port = Some(30080);
        cluster(vec![web], vec![])
    };
    let mut world = World::new();
    world.serve(&of(Protocol::Tcp), &config(), "web");
    let other = world.maps.frontends[&at("10.96.0.1", 81, Protocol::Tcp)];
    world.serve(&of(Protocol::Udp), &config(), "web");
    assert_eq!(node_ports(&world), [at("192.168.0.1", 30080, Protocol::Udp)]);
    assert_eq!(world.maps.frontends[&at("10.96.0.1", 81, Protocol::Tcp)], other);
}

#[test]
fn node_ports_may_answer_at_loopback_addresses() {
    let mut web = service("web", &["10.96.0.1", "fd00:96::1"]);
    web.ports[0].node_port = Some(30080);
    let addresses = ["192.168.0.1", "127.0.0.1", "::1"].map(ip).to_vec();
    let config = PlanConfig { node_port_addresses: addresses, ..config() };
    let mut world = World::new();
    world.serve(&cluster(vec![web], vec![]), &config, "web");
    assert_eq!(node_ports(&world), ["127.0.0.1", "192.168.0.1", "::1"].map(|text| at(text, 30080, Protocol::Tcp)));
}

#[test]
fn a_load_balancer_without_node_ports_has_none() {
    let mut web = service("web", &["10.96.0.1"]);
    web.load_balancer_ips = vec![ip("203.0.113.1")];
    let mut world = World::new();
    world.serve(&cluster(vec![web], vec![]), &config(), "web");
    assert_eq!(node_ports(&world), []);
    assert_eq!(owner(&world, at("203.0.113.1", 80, Protocol::Tcp)).0, "web");
}

fn sharing_a_load_balancer_ip() -> Cluster {
    let balanced = |service_name: &str, address: &str, ports: &[u16]| {
        let mut web = service(service_name, &[address]);
        web.load_balancer_ips = vec![ip("203.0.113.1")];
        let port = |number: &u16| service_port(&format!("p{number}"), Protocol::Tcp, *number);
        Service { ports: ports.iter().map(port).collect(), ..web }
    };
    let slices = ["first", "second"].map(|service| {
        let mut slice = slice(service, service, vec![endpoint("10.0.0.1", "far")]);
        slice.ports[0].name = "p80".into();
        slice
    });
    let services = vec![balanced("first", "10.96.0.1", &[80, 443]), balanced("second", "10.96.0.2", &[80, 8443])];
    cluster(services, slices.into())
}

#[test]
fn of_two_services_with_one_load_balancer_ip_the_first_keeps_a_common_port_and_each_has_its_others() {
    let mut cluster = sharing_a_load_balancer_ip();
    let mut world = World::new();
    world.serve(&cluster, &config(), "first");
    let update = world.try_replace("second", &plan(&cluster, &config(), &name("second"))).unwrap();
    let vip = |port| at("203.0.113.1", port, Protocol::Tcp);
    let conflict = FrontendConflict { key: vip(80), kept_by: name("first"), refused: name("second") };
    assert_eq!((update.1, world.tables.conflicts()), (vec![conflict.clone()], vec![conflict]));
    assert_eq!([80, 443, 8443].map(|port| owner(&world, vip(port)).0), ["first", "first", "second"]);
    assert_eq!(owner(&world, at("10.96.0.2", 80, Protocol::Tcp)).0, "second", "its cluster IP serves the common port");

    cluster.apply(Event::ServiceGone(name("first")));
    world.serve(&cluster, &config(), "first");
    assert_eq!(owner(&world, vip(80)).0, "second");
    assert_eq!(world.tables.conflicts(), []);
    assert!(!world.maps.frontends.contains_key(&vip(443)));
}

#[test]
fn a_service_that_gains_a_family_gets_its_frontends_there_and_keeps_its_slots() {
    let slices = vec![
        slice("four", "web", vec![endpoint("10.0.0.1", "far")]),
        slice("six", "web", vec![endpoint("fd00:10::1", "far")]),
    ];
    let mut cluster = cluster(vec![service("web", &["10.96.0.1"])], slices);
    let mut world = World::new();
    world.serve(&cluster, &config(), "web");
    let before = world.maps.clone();

    cluster.apply(Event::Service(service("web", &["10.96.0.1", "fd00:96::1"])));
    world.serve(&cluster, &config(), "web");
    let six = at("fd00:96::1", 80, Protocol::Tcp);
    assert_eq!(world.maps.choices(&six, abi::CLASS_INTERNAL), [ip("fd00:10::1")].into());
    assert!(before.services.iter().all(|(slot, service)| world.maps.services[slot] == *service));
    assert!(before.backends.iter().all(|(slot, backend)| world.maps.backends[slot] == *backend));
    assert!(before.frontends.iter().all(|(key, frontend)| world.maps.frontends[key] == *frontend));

    cluster.apply(Event::Service(service("web", &["10.96.0.1"])));
    world.serve(&cluster, &config(), "web");
    assert!(!world.maps.frontends.contains_key(&six));
    assert_eq!(world.maps.frontends, before.frontends);
}

#[test]
fn a_service_of_ipv6_alone_has_nothing_of_ipv4() {
    let mut web = service("web", &["fd00:96::1"]);
    web.ports[0].node_port = Some(30080);
    web.load_balancer_ips = vec![ip("203.0.113.1"), ip("2001:db8::1")];
    web.external_ips = vec![ip("203.0.113.9"), ip("2001:db8::9")];
    let slices = vec![slice("four", "web", vec![endpoint("10.0.0.1", "far")])];
    let mut world = World::new();
    world.serve(&cluster(vec![web], slices), &config(), "web");
    assert!(world.maps.frontends.keys().all(|key| key.address.is_ipv6()));
    assert_eq!((world.maps.frontends.len(), world.maps.used_backends().len()), (7, 0));
}
