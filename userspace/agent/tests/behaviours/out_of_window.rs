//! Packets of a server that its connection does not expect. A proxy that takes them for nobody's lets them through with
//! the server's own address; the client resets what it does not know, and the reset ends the connection
//! (kubernetes#74839).

use std::io::Read;
use std::net::SocketAddr;

use crate::CLUSTER;
use crate::harness::Cluster;
use crate::harness::callers::Caller;
use crate::harness::clients::send_raw;
use crate::harness::echo::{Talk, echo, ready, spec};
use etherparse::TcpHeader;
use socket2::{Domain, Protocol, Socket, Type};
use weir_testbed::ask::PATIENCE;
use weir_testbed::connection::LongConnection;
use weir_testbed::packet::Packet;
use weir_testbed::{Netns, Pod, address};

/// So far behind what was sent that no window reaches there.
const BEHIND: u32 = 100_000;
/// Strays in a row: one of them finds the connection at rest.
const STRAYS: usize = 5;
/// Exchanges after which a reset would have been noticed.
const ENOUGH: u64 = 10;

/// A connection to a pod, seen from the pod.
struct Tapped {
    tap: Socket,
    connection: LongConnection,
    client: SocketAddr,
    server: SocketAddr,
}

impl Tapped {
    fn open(cluster: &Cluster, caller: &Caller, target: SocketAddr, pod: &Pod) -> Self {
        let connection = cluster.connect(caller, target);
        let client = connection.history().answer.client;
        let server = SocketAddr::new(pod.address().like(target.ip()), Talk::Tcp.target());
        let tap = || Socket::new(Domain::for_address(target), Type::RAW, Some(Protocol::TCP));
        let tap = pod.netns().enter(tap).unwrap();
        tap.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { tap, connection, client, server }
    }

    /// An answer to what the client says next that acknowledges it and is out of the window; none once it says no more.
    fn stray(&self) -> Option<Packet> {
        let mut buffer = [0; 2048];
        loop {
            let length = (&self.tap).read(&mut buffer).ok()?;
            // With IPv4 the IP header comes along.
            let header = if self.server.is_ipv4() { usize::from(buffer[0] & 15) * 4 } else { 0 };
            let (said, words) = TcpHeader::from_slice(&buffer[header..length]).unwrap();
            let ports = (said.source_port, said.destination_port);
            if ports == (self.client.port(), self.server.port()) && !words.is_empty() {
                let header = TcpHeader {
                    sequence_number: said.acknowledgment_number.wrapping_sub(BEHIND),
                    acknowledgment_number: said.sequence_number.wrapping_add(u32::try_from(words.len()).unwrap()),
                    window_size: 512,
                    ack: true,
                    ..TcpHeader::default()
                };
                return Some(Packet::tcp(self.server, self.client, header, b"boom"));
            }
        }
    }

    /// Sends strays from a place; whether the connection outlives them.
    fn survives(&self, from: &Netns) -> weir_testbed::Result<()> {
        for stray in (0..STRAYS).map_while(|_| self.stray()) {
            from.enter(|| send_raw(&stray, self.client.ip())).unwrap();
        }
        self.connection.await_exchanges(ENOUGH, PATIENCE)
    }
}

#[test]
fn a_connection_survives_packets_of_its_server_that_are_out_of_its_window() {
    let Some(cluster) = CLUSTER.join("packets out of the window") else { return };
    for (name, node) in [("stray-near", 1), ("stray-far", 2)] {
        let pod = cluster.world.node(node).pod(2);
        let served = cluster.serve_echo(&echo(name, "NodePort"), &ready(std::slice::from_ref(&pod)));
        for caller in cluster.callers() {
            let node_ports = served.node_ports(cluster.world.node(1), Talk::Tcp);
            for target in served.cluster_ips(Talk::Tcp).into_iter().chain(node_ports) {
                let tapped = Tapped::open(&cluster, &caller, target, &pod);
                let goes_on = tapped.survives(pod.netns());
                assert!(goes_on.is_ok(), "{caller} to {name} at {target}, seen as {}: {goes_on:?}", tapped.client);
            }
        }
    }
}

/// What makes the other test a test.
#[test]
fn such_a_packet_with_the_servers_own_address_ends_the_connection() {
    let Some(cluster) = CLUSTER.join("packets past the proxy") else { return };
    let mut service = echo("stray-past", "NodePort");
    // Nobody masquerades: the server sees the client's own address.
    spec(&mut service).external_traffic_policy = Some("Local".into());
    let pod = cluster.world.node(1).pod(2);
    let served = cluster.serve_echo(&service, &ready(std::slice::from_ref(&pod)));
    for target in served.node_ports(cluster.world.node(1), Talk::Tcp) {
        let tapped = Tapped::open(&cluster, &Caller::Outside, target, &pod);
        assert_eq!(tapped.client.ip(), address::CLIENT.like(target.ip()));
        // Behind the node there is no proxy any more.
        let goes_on = tapped.survives(cluster.world.router());
        assert!(goes_on.is_err(), "{target} goes on");
    }
}
