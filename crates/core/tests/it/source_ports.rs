//! Which source ports new flows may take.

use std::ops::RangeInclusive;

use weir_core::cluster::{Cluster, Event};
use weir_core::source_ports::{
    FEW, HostPorts, NODE_PORTS, PortSet, local_port_range, reserved_ports, usable, usable_until_listed,
};

use crate::build::{node, service};

const ALL: RangeInclusive<u16> = 1024..=u16::MAX;
/// Of a Linux that nobody has tuned.
const EPHEMERAL: RangeInclusive<u16> = 32_768..=60_999;

fn set(ports: impl IntoIterator<Item = u16>) -> PortSet {
    ports.into_iter().collect()
}

/// A host with these ephemeral ports which uses some more.
fn host(ephemeral: RangeInclusive<u16>, used: impl IntoIterator<Item = u16>) -> HostPorts {
    HostPorts { ephemeral, used: set(used) }
}

#[test]
fn everything_that_the_host_does_not_use_may_be_taken() {
    let used = [6443, 10_250, 61_000];
    let usable = usable(&ALL, &host(EPHEMERAL, used), &Cluster::default());
    let hosts = |port: &u16| EPHEMERAL.contains(port) || used.contains(port) || NODE_PORTS.contains(port);
    assert_eq!(usable, ALL.filter(|port| !hosts(port)).collect());
    assert_eq!(usable.len(), 33_512 - 3, "more than half of all ports on a host with the usual settings");
}

#[test]
fn a_range_that_is_asked_for_is_not_left() {
    let usable = usable(&(29_000..=29_999), &host(EPHEMERAL, [29_500]), &Cluster::default());
    assert_eq!(usable, set((29_000..=29_999).filter(|port| *port != 29_500)));
}

#[test]
fn of_a_host_whose_ports_are_all_ephemeral_its_connections_spare_every_second_one() {
    let usable = usable(&ALL, &host(ALL, [20_001, 20_002]), &Cluster::default());
    let spared = |port: &u16| port % 2 == 1 && *port != 20_001 && !NODE_PORTS.contains(port);
    assert_eq!(usable, ALL.filter(spared).collect());
}

#[test]
fn what_is_spared_has_the_other_parity_than_the_first_ephemeral_port() {
    let usable = usable(&(40_000..=41_000), &host(32_769..=60_999, []), &Cluster::default());
    assert_eq!(usable, set((40_000..=41_000).filter(|port| port % 2 == 0)));
}

#[test]
fn no_ephemeral_port_is_taken_where_enough_others_are_left() {
    let first = 60_000;
    let enough = 1024 + u16::try_from(FEW).unwrap();
    let of = |last| usable(&ALL, &host(first..=u16::MAX, last..=first - 1), &Cluster::default());
    assert_eq!(of(enough), set(1024..enough));
    assert!(of(enough - 1).contains(first + 1));
}

#[test]
fn node_ports_of_services_are_left_out_wherever_they_are() {
    let mut cluster = Cluster::default();
    let mut web = service("web", &["10.96.0.1"]);
    web.ports[0].node_port = Some(20_080);
    web.health_check_port = Some(20_081);
    cluster.apply(Event::Service(web));
    let usable = usable(&(20_079..=20_082), &host(EPHEMERAL, []), &cluster);
    assert_eq!(usable, set([20_079, 20_082]));
}

/// On every node what comes to them is a client's, and this node's answers would come to them.
#[test]
fn ports_at_which_services_have_nodes_addresses_are_left_out() {
    let mut cluster = Cluster::default();
    cluster.apply(Event::Node(node("a", "", &["192.168.0.1"])));
    let mut of_node = service("of-node", &["10.96.0.1"]);
    of_node.ports[0].port = 20_080;
    of_node.external_ips = vec!["192.168.0.1".parse().unwrap()];
    let mut elsewhere = service("elsewhere", &["10.96.0.2"]);
    elsewhere.ports[0].port = 20_081;
    elsewhere.load_balancer_ips = vec!["192.0.2.1".parse().unwrap()];
    [of_node, elsewhere].into_iter().for_each(|service| drop(cluster.apply(Event::Service(service))));
    let usable = usable(&(20_079..=20_082), &host(EPHEMERAL, []), &cluster);
    assert_eq!(usable, set([20_079, 20_081, 20_082]));
}

#[test]
fn nothing_is_left_of_a_range_that_is_all_in_use() {
    let usable = usable(&(40_000..=41_000), &host(EPHEMERAL, EPHEMERAL), &Cluster::default());
    assert!(usable.is_empty());
    assert!(usable.ring().iter().all(|next| *next == 0));
}

#[test]
fn while_node_ports_are_not_known_only_what_was_taken_before_is() {
    let (usable, before) = (set(1024..=2000), set((1024..=2000).filter(|port| *port != 1080).chain([5000])));
    assert_eq!(usable_until_listed(usable.clone(), &before), set((1024..=2000).filter(|port| *port != 1080)));
    assert_eq!(usable_until_listed(usable.clone(), &set([1024, 5000])), usable, "another range than before");
}

#[test]
fn the_ring_leads_from_every_number_to_the_next_port_of_the_set_and_around_the_end() {
    let ports = set([1024, 1025, 30_000, u16::MAX - 1]);
    let ring = ports.ring();
    assert_eq!(ring.len(), 65_536);
    let leads = |number: u16| ring[usize::from(number)];
    assert_eq!([leads(0), leads(1024), leads(1025)], [1024, 1024, 1025]);
    assert_eq!([leads(1026), leads(29_999), leads(30_000)], [30_000; 3]);
    assert_eq!([leads(30_001), leads(u16::MAX - 1), leads(u16::MAX)], [u16::MAX - 1, u16::MAX - 1, 1024]);
}

#[test]
fn a_set_knows_its_first_and_its_last_port() {
    let mut ports = set([0, u16::MAX]);
    assert!(ports.contains(0) && ports.contains(u16::MAX) && !ports.contains(1));
    assert_eq!(ports.iter().collect::<Vec<_>>(), [0, u16::MAX]);
    ports.remove(u16::MAX);
    assert_eq!((ports.len(), ports.words().next()), (1, Some(1)));
    ports.add(&set([1, 64]));
    assert_eq!(ports, set([0, 1, 64]));
}

#[test]
fn the_ephemeral_range_is_read_as_the_kernel_prints_it() {
    assert_eq!(local_port_range("32768\t60999\n"), Some(EPHEMERAL));
    for wrong in ["", "32768", "60999 32768", "1 2 3", "x 2", "1 70000"] {
        assert_eq!(local_port_range(wrong), None, "{wrong:?}");
    }
}

#[test]
fn reserved_ports_are_read_as_the_kernel_prints_them() {
    assert_eq!(reserved_ports("\n"), Some(PortSet::default()));
    assert_eq!(reserved_ports("8080,9000-9002,65535\n"), Some(set([8080, 9000, 9001, 9002, 65_535])));
    for wrong in ["8080;9000", "9000-", "70000"] {
        assert_eq!(reserved_ports(wrong), None, "{wrong:?}");
    }
}

#[test]
fn a_set_is_written_as_the_kernel_prints_it() {
    for text in ["", "8080", "1024-29999,61000-65535", "1,3-4,65535"] {
        assert_eq!(reserved_ports(text).unwrap().to_string(), text);
    }
}
