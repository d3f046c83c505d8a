//! Endpoints that no EndpointSlice names for a moment: connections to them go on.

use std::time::{Duration, Instant};

use weir_abi as abi;
use weir_core::cluster::Cluster;
use weir_core::departures::{Departures, LINGER};
use weir_core::model::{Endpoint, Protocol, Service};
use weir_core::plan::plan;

use crate::build::{cluster, config, endpoint, ip, name, service, slice};
use crate::tables::World;

const MOMENT: Duration = Duration::from_millis(100);

/// A service's way from the cluster to the maps.
struct Written {
    world: World,
    departures: Departures,
    now: Instant,
}

impl Written {
    fn new() -> Self {
        Self { world: World::new(), departures: Departures::default(), now: Instant::now() }
    }

    /// Some time later the cluster looks so.
    fn write(&mut self, after: Duration, cluster: &Cluster) {
        self.now += after;
        let web = name("web");
        let mut plans = plan(cluster, &config(), &web);
        let departing = self.world.tables.departing(&web, &plans);
        self.departures.keep(&web, &mut plans, departing, self.now);
        self.world.replace("web", &plans);
    }

    /// The slots that have an address, with their generation and whether the backend is in use and takes new flows.
    fn at(&self, address: &str) -> Vec<(u32, u32, bool, bool)> {
        let all = self.world.maps.backends.iter().filter(|(_, backend)| backend.addr.ip() == ip(address));
        let has = |backend: &abi::Backend, flag: u8| backend.flags & flag != 0;
        all.map(|(slot, b)| (*slot, b.generation, has(b, abi::BACKEND_USED), has(b, abi::BACKEND_CLASSES))).collect()
    }

    fn is_due(&self, after: Duration) -> bool {
        self.departures.due(self.now + after).any(|service| *service == name("web"))
    }
}

fn web(protocol: Protocol, port_name: &str, in_slices: &str, endpoints: Vec<Endpoint>) -> Cluster {
    let mut web = service("web", &["10.96.0.1"]);
    web.ports[0].protocol = protocol;
    web.ports[0].name = port_name.into();
    // SCTP keeps its port.
    web.ports[0].port = 8080;
    let mut of_web = slice("web-1", "web", endpoints);
    of_web.ports[0].protocol = protocol;
    of_web.ports[0].name = in_slices.into();
    cluster(vec![web], vec![of_web])
}

fn both() -> Vec<Endpoint> {
    vec![endpoint("10.0.0.1", "here"), endpoint("10.0.0.2", "far")]
}

fn one() -> Vec<Endpoint> {
    both()[..1].to_vec()
}

/// As where a controller sorts endpoints into other slices, and writes these one after the other.
#[test]
fn an_endpoint_that_is_back_in_a_moment_has_kept_its_connections_and_got_no_new_ones() {
    for protocol in [Protocol::Tcp, Protocol::Sctp] {
        let mut written = Written::new();
        written.write(MOMENT, &web(protocol, "http", "http", both()));
        let before = written.at("10.0.0.2");
        assert!(matches!(before[..], [(_, _, true, true)]), "{before:?}");
        written.write(MOMENT, &web(protocol, "http", "http", one()));
        let (slot, generation, ..) = before[0];
        assert_eq!(written.at("10.0.0.2"), [(slot, generation, true, false)], "{protocol:?}");
        written.write(MOMENT, &web(protocol, "http", "http", both()));
        assert_eq!(written.at("10.0.0.2"), before, "{protocol:?}");
        assert!(!written.is_due(2 * LINGER), "it is there");
    }
}

#[test]
fn an_endpoint_that_does_not_come_back_is_gone_after_a_while_whatever_else_changes() {
    let mut written = Written::new();
    written.write(MOMENT, &web(Protocol::Tcp, "http", "http", both()));
    let (_, generation, ..) = written.at("10.0.0.2")[0];
    written.write(MOMENT, &web(Protocol::Tcp, "http", "http", one()));
    // Other changes of the service give it no more time.
    written.write(LINGER - MOMENT, &web(Protocol::Tcp, "http", "http", one()));
    assert!(matches!(written.at("10.0.0.2")[..], [(_, _, true, false)]));
    assert!(!written.is_due(Duration::ZERO) && written.is_due(MOMENT));
    written.write(MOMENT, &web(Protocol::Tcp, "http", "http", one()));
    let next = generation + 1;
    assert!(matches!(written.at("10.0.0.2")[..], [(_, now, false, _)] if now == next), "{:?}", written.at("10.0.0.2"));
    assert!(!written.is_due(2 * LINGER));
}

#[test]
fn datagrams_of_an_endpoint_that_is_missing_select_anew_at_once() {
    let mut written = Written::new();
    written.write(MOMENT, &web(Protocol::Udp, "dns", "dns", both()));
    let (_, generation, ..) = written.at("10.0.0.2")[0];
    written.write(MOMENT, &web(Protocol::Udp, "dns", "dns", one()));
    let next = generation + 1;
    assert!(matches!(written.at("10.0.0.2")[..], [(_, now, false, _)] if now == next), "{:?}", written.at("10.0.0.2"));
}

/// The slices follow a moment later: the API demands names as soon as there is a second port.
#[test]
fn a_port_with_another_name_keeps_its_connections() {
    let mut written = Written::new();
    written.write(MOMENT, &web(Protocol::Tcp, "", "", both()));
    let (before, services) =
        (["10.0.0.1", "10.0.0.2"].map(|address| written.at(address)), written.world.maps.services.len());
    written.write(MOMENT, &web(Protocol::Tcp, "http", "", both()));
    let missing = ["10.0.0.1", "10.0.0.2"].map(|address| written.at(address));
    assert!(missing.iter().flatten().all(|(_, _, used, takes_new)| *used && !takes_new), "{missing:?}");
    written.write(MOMENT, &web(Protocol::Tcp, "http", "http", both()));
    assert_eq!(["10.0.0.1", "10.0.0.2"].map(|address| written.at(address)), before);
    assert_eq!(written.world.maps.services.len(), services, "it is the same slot");
    let named = |name: &abi::ServiceName| name.port_name.starts_with(b"http\0");
    assert!(written.world.maps.service_names.values().all(named));
}

/// Its number is another one's by then, or its name.
#[test]
fn ports_that_change_places_are_found_by_their_names() {
    let two = |first: &str, second: &str| {
        let mut web = service("web", &["10.96.0.1"]);
        let port = web.ports[0].clone();
        let named = |name: &str, port: &weir_core::model::ServicePort, number| weir_core::model::ServicePort {
            name: name.into(),
            port: number,
            ..port.clone()
        };
        web.ports = vec![named(first, &port, 80), named(second, &port, 81)];
        web
    };
    let of = |service: Service| {
        let mut of_web = slice("web-1", "web", one());
        let port = of_web.ports[0].clone();
        of_web.ports = ["a", "b"].map(|name| weir_core::model::SlicePort { name: name.into(), ..port.clone() }).into();
        cluster(vec![service], vec![of_web])
    };
    let mut written = Written::new();
    written.write(MOMENT, &of(two("a", "b")));
    let before = written.world.maps.service_names.clone();
    written.write(MOMENT, &of(two("b", "a")));
    for (slot, name) in &written.world.maps.service_names {
        assert_eq!(name.port_name, before[slot].port_name, "connections follow the name, as slices do");
    }
}
