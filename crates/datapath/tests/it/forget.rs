//! Flows of UDP when their frontend goes to another service, or to nobody, while the service that had it lives on.

use std::net::{IpAddr, SocketAddr};

use etherparse::TcpHeader;
use weir_abi as abi;
use weir_core::ops::{FrontendKey, MapOp};
use weir_datapath::{Datapath, FlowEntry, MapStore, View};
use weir_testbed::packet::{Packet, decode};
use weir_testbed::prog_run::prog_run;

use crate::pins::{Pins, SMALL};

const UDP: u8 = 17;
const TCP: u8 = 6;

/// Each port of a service has one local endpoint, in the slot of its own number: UDP's is the service's, TCP's the next one.
const FORMER: u32 = 1;
const LATTER: u32 = 3;

/// Addresses of one family.
struct Family {
    /// The frontend that moves.
    moving: IpAddr,
    /// A frontend that stays with the former service.
    staying: IpAddr,
    client: IpAddr,
    /// Of the former service and of the latter.
    endpoints: [IpAddr; 2],
}

fn families() -> [Family; 2] {
    let family = |texts: [&str; 5]| {
        let [moving, staying, client, former, latter] = texts.map(|text| text.parse().unwrap());
        Family { moving, staying, client, endpoints: [former, latter] }
    };
    [
        family(["203.0.113.1", "10.96.0.1", "198.51.100.2", "10.1.0.1", "10.1.0.2"]),
        family(["2001:db8::1", "fd00:96::1", "2001:db8:9::2", "fd00::1", "fd00::2"]),
    ]
}

fn key(address: IpAddr, protocol: u8) -> FrontendKey {
    FrontendKey { address, port: 80, protocol }
}

fn port_of(service: u32, protocol: u8) -> u32 {
    service + u32::from(protocol == TCP)
}

fn put(address: IpAddr, protocol: u8, service: u32) -> MapOp {
    let frontend = abi::Frontend { service: port_of(service, protocol), kind: abi::KIND_EXTERNAL_IP };
    MapOp::PutFrontend { key: key(address, protocol), frontend }
}

/// A port of a service with its endpoint.
fn service(service: u32, protocol: u8, endpoint: IpAddr) -> [MapOp; 2] {
    let id = port_of(service, protocol);
    let flags = abi::BACKEND_USED | abi::BACKEND_LOCAL;
    let (addr, port) = (endpoint.into(), abi::Be16::new(8080));
    let backend = abi::Backend { addr, port, proto: protocol, flags, generation: 1, service: id, node: 0 };
    let tiers = [abi::Tiers { spill: 0, local: id, remote: 0, pad: 0 }; abi::CLASS_COUNT];
    let service = abi::Service { tiers, endpoints: 1, flags: abi::SERVICE_USED, affinity: 0, pad: 0 };
    [MapOp::PutBackend { id, backend }, MapOp::PutService { id, service }]
}

/// Two services, of which the former has all frontends.
fn set_up(datapath: &mut Datapath, family: &Family) {
    let [former, latter] = family.endpoints;
    let mut ops = [UDP, TCP]
        .map(|protocol| [service(FORMER, protocol, former), service(LATTER, protocol, latter)])
        .concat()
        .concat();
    ops.extend([UDP, TCP].map(|protocol| put(family.moving, protocol, FORMER)));
    ops.push(put(family.staying, UDP, FORMER));
    datapath.store().apply(&ops).unwrap();
    let config = datapath.config().unwrap();
    datapath.configure(&abi::Config { udp_idle: u32::MAX / 2, flood: u32::MAX, ..config }).unwrap();
}

/// Where a client's packet ends up.
fn send(datapath: &Datapath, family: &Family, frontend: IpAddr, protocol: u8) -> IpAddr {
    // From one port to one endpoint only one of the two could keep its client's address.
    let port = if frontend == family.moving { 40000 } else { 40001 };
    let (from, to) = (SocketAddr::new(family.client, port), SocketAddr::new(frontend, 80));
    let packet = match protocol {
        UDP => Packet::udp(from, to, b"hello"),
        _ => Packet::tcp(from, to, TcpHeader { syn: true, ..TcpHeader::default() }, b""),
    };
    let run = prog_run(datapath.program("weir_pod_in").unwrap(), &packet.to_bytes(), None, 1).unwrap();
    decode(&run.packet).unwrap().destination
}

/// One flow of UDP to each address, and one of TCP to the one that moves.
fn open_flows(datapath: &Datapath, family: &Family) {
    for (frontend, protocol) in [(family.moving, UDP), (family.moving, TCP), (family.staying, UDP)] {
        assert_eq!(send(datapath, family, frontend, protocol), family.endpoints[0]);
    }
}

/// What flows go to.
fn flows(pins: &Pins) -> Vec<(IpAddr, u8)> {
    let to = |entry: FlowEntry| (entry.frontend.ip(), entry.protocol);
    let mut flows: Vec<_> = View::open(pins.dir.clone()).unwrap().flows().unwrap().into_iter().map(to).collect();
    flows.sort_unstable();
    flows
}

fn sorted<const N: usize>(mut flows: [(IpAddr, u8); N]) -> [(IpAddr, u8); N] {
    flows.sort_unstable();
    flows
}

#[test]
fn a_udp_flow_selects_anew_when_its_frontend_moves_to_another_service_although_its_endpoint_lives_on() {
    for family in families() {
        let Some(pins) = Pins::reused("flows of a frontend that moves") else { return };
        let mut datapath = pins.open().unwrap();
        set_up(&mut datapath, &family);
        open_flows(&datapath, &family);
        let moved = [UDP, TCP].map(|protocol| put(family.moving, protocol, LATTER));
        datapath.store().apply(&moved).unwrap();
        assert_eq!(send(&datapath, &family, family.moving, UDP), family.endpoints[0], "the endpoint's flow goes on");

        datapath.store().apply(&[MapOp::ForgetFlows { key: key(family.moving, UDP) }]).unwrap();
        assert_eq!(flows(&pins), sorted([(family.moving, TCP), (family.staying, UDP)]));
        assert_eq!(send(&datapath, &family, family.moving, UDP), family.endpoints[1]);
        assert_eq!(send(&datapath, &family, family.moving, TCP), family.endpoints[0], "connections stay");
        assert_eq!(send(&datapath, &family, family.staying, UDP), family.endpoints[0], "so do other frontends' flows");
    }
}

#[test]
fn a_udp_flow_is_passed_on_when_its_frontend_is_deleted() {
    for family in families() {
        let Some(pins) = Pins::reused("flows of a deleted frontend") else { return };
        let mut datapath = pins.open().unwrap();
        set_up(&mut datapath, &family);
        open_flows(&datapath, &family);
        let key = key(family.moving, UDP);
        // Forgotten once all is written, wherever it stands in the list.
        datapath.store().apply(&[MapOp::ForgetFlows { key }, MapOp::DeleteFrontend { key }]).unwrap();
        assert_eq!(flows(&pins), sorted([(family.moving, TCP), (family.staying, UDP)]));
        assert_eq!(send(&datapath, &family, family.moving, UDP), family.moving);
    }
}

#[test]
fn flows_that_the_present_service_has_opened_already_stay() {
    let Some(pins) = Pins::reused("flows of the present service") else { return };
    let mut datapath = pins.open().unwrap();
    let [family, _] = families();
    set_up(&mut datapath, &family);
    datapath.store().apply(&[put(family.moving, UDP, LATTER)]).unwrap();
    assert_eq!(send(&datapath, &family, family.moving, UDP), family.endpoints[1]);
    datapath.store().apply(&[MapOp::ForgetFlows { key: key(family.moving, UDP) }]).unwrap();
    assert_eq!(flows(&pins), [(family.moving, UDP)]);
}

#[test]
fn flows_are_forgotten_although_a_later_operation_fails() {
    let Some(pins) = Pins::reused("flows before a failure") else { return };
    let mut datapath = pins.open().unwrap();
    let [family, _] = families();
    set_up(&mut datapath, &family);
    open_flows(&datapath, &family);
    let key = key(family.moving, UDP);
    let [_, beyond] = service(SMALL.services, UDP, family.endpoints[0]);
    let ops = [MapOp::DeleteFrontend { key }, MapOp::ForgetFlows { key }, beyond];
    datapath.store().apply(&ops).unwrap_err();
    assert_eq!(flows(&pins), sorted([(family.moving, TCP), (family.staying, UDP)]));
}

#[test]
fn flows_that_were_forgotten_while_maps_are_resized_do_not_come_back() {
    let Some(pins) = Pins::new("forgotten flows in resized maps") else { return };
    let mut datapath = pins.open().unwrap();
    let [family, _] = families();
    set_up(&mut datapath, &family);
    open_flows(&datapath, &family);
    drop(datapath);

    let capacity = weir_core::ops::Capacity { flows: SMALL.flows * 2, ..SMALL };
    let mut datapath = pins.open_with(&capacity).unwrap();
    let moved = [put(family.moving, UDP, LATTER), MapOp::ForgetFlows { key: key(family.moving, UDP) }];
    datapath.store().apply(&moved).unwrap();
    datapath.begin_switch().unwrap();
    datapath.finish_switch().unwrap();
    assert_eq!(flows(&pins), sorted([(family.moving, TCP), (family.staying, UDP)]));
}

#[test]
fn flows_of_datagrams_that_nobody_has_come_to_forget_are_forgotten_later() {
    for family in families() {
        let Some(pins) = Pins::reused("flows that an agent has left behind") else { return };
        let mut datapath = pins.open().unwrap();
        set_up(&mut datapath, &family);
        open_flows(&datapath, &family);
        // The agent ends after the one, and before the other.
        datapath.store().apply(&[put(family.moving, UDP, LATTER)]).unwrap();
        drop(datapath);
        let mut datapath = pins.open().unwrap();
        datapath.store().forget_strange_flows().unwrap();
        assert_eq!(flows(&pins), sorted([(family.moving, TCP), (family.staying, UDP)]));
        assert_eq!(send(&datapath, &family, family.moving, UDP), family.endpoints[1]);

        let key = key(family.staying, UDP);
        datapath.store().apply(&[MapOp::DeleteFrontend { key }]).unwrap();
        datapath.store().forget_strange_flows().unwrap();
        assert_eq!(flows(&pins), sorted([(family.moving, TCP), (family.moving, UDP)]), "nobody's");
    }
}
