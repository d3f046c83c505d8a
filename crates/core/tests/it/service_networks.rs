//! Which networks of the ServiceCIDRs are in force.

use weir_abi as abi;
use weir_core::cluster::{Cluster, Event};
use weir_core::model::{Proxy, ServiceCidr};
use weir_core::service_networks::{Cause, LeftOut, ServiceNetworks};

use crate::build::{ip, name, node, service, service_cidr};

/// Not beside another proxy.
const ALONE: bool = false;

fn cluster(cidrs: Vec<ServiceCidr>) -> Cluster {
    let mut cluster = Cluster::default();
    cluster.apply(Event::ServiceCidrs(cidrs));
    cluster
}

fn networks(cluster: &Cluster) -> ServiceNetworks {
    ServiceNetworks::of(cluster, ALONE).unwrap()
}

fn in_force(cluster: &Cluster) -> Vec<String> {
    networks(cluster).in_force.iter().map(ToString::to_string).collect()
}

fn left_out(name: &str, network: &str, cause: Cause) -> LeftOut {
    LeftOut { name: name.into(), network: network.parse().unwrap(), cause }
}

#[test]
fn nothing_is_known_until_the_service_cidrs_were_listed_even_if_there_are_none() {
    let mut cluster = Cluster::default();
    assert_eq!(ServiceNetworks::of(&cluster, ALONE), None);
    assert!(cluster.apply(Event::ServiceCidrs(vec![])).service_networks, "none is news");
    assert_eq!(networks(&cluster), ServiceNetworks::default());
    assert!(!cluster.synced(), "nor does anything wait for them");
}

#[test]
fn both_families_of_all_objects_are_in_force_and_change_with_them() {
    let kubernetes = service_cidr("kubernetes", &["10.96.0.0/16", "fd00:96::/112"]);
    let more = service_cidr("more", &["10.200.0.0/24"]);
    let mut cluster = cluster(vec![kubernetes.clone()]);
    assert_eq!(in_force(&cluster), ["10.96.0.0/16", "fd00:96::/112"]);
    assert!(cluster.apply(Event::ServiceCidr(more.clone())).service_networks);
    assert_eq!(in_force(&cluster), ["10.96.0.0/16", "10.200.0.0/24", "fd00:96::/112"]);
    assert!(cluster.apply(Event::ServiceCidrGone("kubernetes".into())).service_networks);
    assert_eq!(in_force(&cluster), ["10.200.0.0/24"]);
    assert!(cluster.apply(Event::ServiceCidrGone("kubernetes".into())).is_empty());
    assert!(cluster.apply(Event::ServiceCidrs(vec![more, kubernetes])).service_networks);
    assert_eq!(in_force(&cluster), ["10.96.0.0/16", "10.200.0.0/24", "fd00:96::/112"]);
}

#[test]
fn doubles_and_networks_inside_others_and_neighbours_take_one_place() {
    let cidrs = vec![
        service_cidr("a", &["10.96.4.0/24", "fd00:96::/112"]),
        service_cidr("b", &["10.96.0.0/16"]),
        service_cidr("c", &["10.96.0.0/16", "fd00:96::/112"]),
        service_cidr("d", &["10.97.0.0/16"]),
    ];
    let cluster = cluster(cidrs);
    assert_eq!(in_force(&cluster), ["10.96.0.0/15", "fd00:96::/112"]);
    assert_eq!(networks(&cluster).left_out, []);
}

#[test]
fn more_networks_than_the_kernel_knows_are_left_out_by_name() {
    let cidrs = (0..10).map(|number| service_cidr(&format!("n{number}"), &[&format!("10.{}.0.0/24", 9 - number)]));
    let found = networks(&cluster(cidrs.collect()));
    assert_eq!(found.in_force.len(), abi::SERVICE_NETWORKS);
    assert_eq!(
        found.left_out,
        [left_out("n0", "10.9.0.0/24", Cause::NoRoom), left_out("n1", "10.8.0.0/24", Cause::NoRoom)]
    );
    let told = found.left_out[0].cause.to_string();
    assert_eq!(told, "there are more than 8 networks; join neighbouring ServiceCIDRs");
}

#[test]
fn a_network_that_holds_a_node_would_cut_it_off_and_is_left_out() {
    let wide = service_cidr("wide", &["192.168.0.0/16", "10.96.0.0/16"]);
    let mut cluster = cluster(vec![service_cidr("all", &["::/0"]), wide]);
    assert_eq!(in_force(&cluster), ["10.96.0.0/16", "192.168.0.0/16", "::/0"]);
    cluster.apply(Event::Node(node("here", "", &["192.168.0.1"])));
    let found = networks(&cluster);
    assert_eq!(found.in_force, ["10.96.0.0/16".parse().unwrap()]);
    let cause = Cause::HoldsNode(ip("192.168.0.1"));
    // For the kernel every IPv4 address is an IPv6 one, too.
    let expected = [left_out("all", "::/0", cause.clone()), left_out("wide", "192.168.0.0/16", cause)];
    assert_eq!(found.left_out, expected);
}

#[test]
fn beside_another_proxy_nothing_is_in_force_whether_or_not_the_networks_are_known() {
    let cidrs = vec![service_cidr("kubernetes", &["10.96.0.0/16"])];
    for cluster in [Cluster::default(), cluster(cidrs)] {
        assert_eq!(ServiceNetworks::of(&cluster, true), Some(ServiceNetworks::default()));
    }
}

#[test]
fn as_long_as_a_service_is_another_proxys_nothing_is_in_force() {
    let other = |text: &str| {
        let mut service = service(text, &["10.96.0.9"]);
        service.proxy = Proxy::Other;
        service
    };
    let mut cluster = cluster(vec![service_cidr("kubernetes", &["10.96.0.0/16"])]);
    assert!(!cluster.apply(Event::Service(service("web", &["10.96.0.1"]))).service_networks);
    assert!(cluster.apply(Event::Service(other("web"))).service_networks);
    assert!(in_force(&cluster).is_empty());
    assert!(!cluster.apply(Event::Service(other("second"))).service_networks);
    assert!(!cluster.apply(Event::ServiceGone(name("second"))).service_networks, "one is left");
    assert!(cluster.apply(Event::Service(service("web", &["10.96.0.1"]))).service_networks);
    assert_eq!(in_force(&cluster), ["10.96.0.0/16"]);
    cluster.apply(Event::Services(vec![other("a"), other("b")]));
    assert!(in_force(&cluster).is_empty());
    assert!(cluster.apply(Event::Services(vec![])).service_networks);
    assert_eq!(in_force(&cluster), ["10.96.0.0/16"]);
}

#[test]
fn the_kernel_gets_addresses_and_masks_and_how_many_there_are() {
    let found = networks(&cluster(vec![service_cidr("kubernetes", &["10.96.0.0/16", "fd00:96::/112"])]));
    let (count, entries) = found.entries();
    assert_eq!(count, 2);
    assert_eq!(entries[..2], [abi::Network::new(ip("10.96.0.0"), 16), abi::Network::new(ip("fd00:96::"), 112)]);
    assert_eq!(entries[2..], [abi::Network::UNSET; 6]);
    assert_eq!(ServiceNetworks::default().entries().0, 0);
}
