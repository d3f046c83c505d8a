//! SCTP, whose checksum forbids to change ports: packets get another address only. The kernel needs no SCTP for that,
//! and must not be made to load it: clients and servers here are raw sockets.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::CLUSTER;
use crate::harness::callers::Caller;
use crate::harness::clients::fresh_port;
use crate::harness::echo::{Echo, Member, Talk, echo, ready, spec};
use crate::harness::http::ask_agent;
use crate::harness::kernel::{assert_no_sctp_loaded, assert_unbound};
use crate::harness::matrix::Kind;
use crate::harness::{Cluster, SOON};
use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::api::discovery::v1::{EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use weir_testbed::{Netns, Pod, wait};

/// IP protocol number.
const SCTP: i32 = 132;
/// The port that the Service and its endpoints have in common.
const PORT: u16 = 9899;
/// What has not arrived within this time does not come.
const SILENCE: Duration = Duration::from_millis(300);

/// An SCTP packet's ports, and its bytes as they came.
#[derive(Debug)]
struct Packet {
    from: IpAddr,
    bytes: Vec<u8>,
}

impl Packet {
    fn ports(&self) -> (u16, u16) {
        let word = |at: usize| u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]]);
        (word(0), word(2))
    }
}

/// An INIT-like packet: ports, a tag, a checksum that nobody computes anew, and a chunk that says `words`.
fn packet(from: u16, to: u16, words: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + words.len()).unwrap();
    let header =
        [&from.to_be_bytes()[..], &to.to_be_bytes(), &[0; 4], b"\xc4\x32\x0c\x32", &[1, 0], &length.to_be_bytes()];
    [&header.concat(), words].concat()
}

/// All SCTP packets of a namespace in one family.
struct Endpoint(Socket);

impl Endpoint {
    fn open(netns: &Netns, v6: bool) -> Self {
        let domain = if v6 { Domain::IPV6 } else { Domain::IPV4 };
        let socket = netns.enter(|| Socket::new(domain, Type::RAW, Some(Protocol::from(SCTP)))).unwrap();
        socket.set_read_timeout(Some(SILENCE)).unwrap();
        Self(socket)
    }

    fn send(&self, to: IpAddr, bytes: &[u8]) {
        self.0.send_to(bytes, &SocketAddr::new(to, 0).into()).unwrap_or_else(|e| panic!("to {to}: {e}"));
    }

    /// The next packet from and to these ports, whatever else comes.
    fn receive(&self, ports: (u16, u16), limit: Duration) -> Option<Packet> {
        let start = Instant::now();
        while start.elapsed() < limit {
            let Ok((bytes, from)) = receive(&self.0) else { continue };
            let from = from.as_socket().unwrap().ip();
            // With IPv4 the IP header comes along.
            let header = if from.is_ipv4() { usize::from(bytes[0] & 15) * 4 } else { 0 };
            let packet = Packet { from, bytes: bytes[header..].to_vec() };
            if packet.ports() == ports {
                return Some(packet);
            }
        }
        None
    }
}

fn receive(socket: &Socket) -> io::Result<(Vec<u8>, SockAddr)> {
    let mut buffer = [MaybeUninit::new(0_u8); 2048];
    let (length, from) = socket.recv_from(&mut buffer)?;
    // SAFETY: every byte was initialised above, and the kernel has written the first `length`.
    let bytes = buffer[..length].iter().map(|byte| unsafe { byte.assume_init() }).collect();
    Ok((bytes, from))
}

/// A Service with an SCTP port besides the usual ones.
fn service(name: &str, number: u8, target: u16) -> Service {
    let mut service = Kind::ExternalIp.service(name, number);
    let sctp = ServicePort {
        name: Some("sctp".into()),
        port: PORT.into(),
        target_port: Some(IntOrString::Int(target.into())),
        protocol: Some("SCTP".into()),
        ..ServicePort::default()
    };
    spec(&mut service).ports.as_mut().unwrap().push(sctp);
    service
}

/// Makes the Service with an endpoint in this pod, whose SCTP port is `target`.
fn serve(cluster: &Cluster, service: &Service, pod: &Pod, target: u16) -> Echo {
    let made = Echo { service: cluster.objects.apply(service).unwrap() };
    for (suffix, v6) in [("v4", false), ("v6", true)] {
        let mut slice: EndpointSlice = crate::harness::echo::slice(made.name(), suffix, v6, &[Member::ready(pod)]);
        let name = Some("sctp".to_owned());
        let port =
            EndpointPort { name, port: Some(target.into()), protocol: Some("SCTP".into()), ..EndpointPort::default() };
        slice.ports.as_mut().unwrap().push(port);
        cluster.objects.apply(&slice).unwrap();
    }
    cluster.await_members(&made, &[Member::ready(pod)]);
    made
}

fn netns<'a>(cluster: &'a Cluster, caller: &'a Caller) -> &'a Netns {
    match caller {
        Caller::Pod(pod) => pod.netns(),
        Caller::Host(node) => cluster.world.node(*node).netns(),
        Caller::Outside => cluster.world.client(),
    }
}

#[test]
fn packets_get_another_address_and_keep_their_ports_and_bytes_and_so_do_the_answers() {
    let Some(cluster) = CLUSTER.join("SCTP") else { return };
    for (name, number, node) in [("sctp-near", 120, 1), ("sctp-far", 121, 2)] {
        let pod = cluster.world.node(node).pod(1);
        let served = serve(&cluster, &service(name, number, PORT), &pod, PORT);
        for caller in [Caller::Pod(cluster.world.node(1).pod(2)), Caller::Outside] {
            for target in served.cluster_ips(Talk::Http).map(|socket| socket.ip()) {
                cluster.agents.iter().for_each(|agent| agent.await_frontend(target, PORT, true));
                let server = Endpoint::open(pod.netns(), target.is_ipv6());
                let client = Endpoint::open(netns(&cluster, &caller), target.is_ipv6());
                let port = fresh_port();
                for round in ["first", "second"] {
                    let what = format!("{caller} to {name} at {target}, {round} packet");
                    let question = packet(port, PORT, round.as_bytes());
                    client.send(target, &question);
                    let seen = server
                        .receive((port, PORT), SOON)
                        .unwrap_or_else(|| panic!("{what}: nothing came to {}", pod.name()));
                    assert_eq!(seen.bytes, question, "{what}: other bytes came");
                    let answer = packet(PORT, port, b"answer");
                    server.send(seen.from, &answer);
                    let heard = client
                        .receive((PORT, port), SOON)
                        .unwrap_or_else(|| panic!("{what}: no answer by way of {}", seen.from));
                    assert_eq!(
                        (heard.from, &heard.bytes),
                        (target, &answer),
                        "{what}: the answer is not the Service's"
                    );
                }
            }
        }
    }
    assert_no_sctp_loaded();
}

#[test]
fn a_service_with_another_target_port_gets_an_event_and_no_packets_and_disturbs_nobody() {
    let Some(cluster) = CLUSTER.join("SCTP with another target port") else { return };
    let pod = cluster.world.node(1).pod(1);
    let other = cluster.serve_echo(&echo("sctp-neighbour", "NodePort"), &ready(std::slice::from_ref(&pod)));
    let served = serve(&cluster, &service("sctp-other-port", 122, PORT + 1), &pod, PORT + 1);
    let event = cluster.await_event(&served.service, "SctpPortMismatch");
    let note = event.note.clone().unwrap_or_default();
    let names = ["sctp", &PORT.to_string(), &(PORT + 1).to_string()].map(|word| note.contains(word));
    assert_eq!(names, [true; 3], "{note:?} names the port, its number and the target's");
    cluster.agents[0].await_log("sctp-other-port");
    assert_refusals_are_told(&cluster);
    for target in served.cluster_ips(Talk::Http).map(|socket| socket.ip()) {
        let server = Endpoint::open(pod.netns(), target.is_ipv6());
        let client = Endpoint::open(cluster.world.client(), target.is_ipv6());
        let from = fresh_port();
        client.send(target, &packet(from, PORT, b"who"));
        for port in [PORT, PORT + 1] {
            let seen = server.receive((from, port), SILENCE);
            assert!(seen.is_none(), "{target}: {seen:?} came to port {port}");
        }
    }
    for caller in cluster.callers() {
        for talk in Talk::ALL {
            for target in served.cluster_ips(talk).into_iter().chain(other.cluster_ips(talk)) {
                assert_eq!(cluster.answer(&caller, talk, target).name, pod.name());
            }
        }
    }
}

/// Other services may be refused at the same time, and one of all is told as an example.
fn assert_refusals_are_told(cluster: &Cluster) {
    for node in cluster.world.nodes() {
        let told = || {
            let reply = ask_agent(node, 10256, "/readyz");
            let ready: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
            let maps = ready["components"].as_array().unwrap().iter().find(|part| part["name"] == "maps").unwrap();
            let reason = maps["reason"].as_str().unwrap_or_default();
            let right = maps["ready"] == true && reason.contains("SCTP ports cannot be translated");
            if right { Ok(()) } else { Err(reply.body) }
        };
        wait::until_some("/readyz to tell what is refused", SOON, told).unwrap();
        let metrics = ask_agent(node, 10249, "/metrics").body;
        let refused = metrics.lines().find_map(|line| line.strip_prefix("weir_refused_ports "));
        assert!(refused.is_some_and(|count| count != "0"), "{refused:?}");
    }
}

#[test]
fn a_node_port_of_sctp_is_left_out_with_an_event_and_the_cluster_ip_is_served() {
    let Some(cluster) = CLUSTER.join("node ports of SCTP") else { return };
    let pod = cluster.world.node(2).pod(2);
    let mut service = service("sctp-node-port", 123, PORT);
    spec(&mut service).type_ = Some("NodePort".into());
    let served = serve(&cluster, &service, &pod, PORT);
    cluster.await_event(&served.service, "SctpNodePortNotServed");
    let target = served.cluster_ips(Talk::Http)[0].ip();
    let server = Endpoint::open(pod.netns(), false);
    let client = Endpoint::open(cluster.world.node(2).pod(1).netns(), false);
    let from = fresh_port();
    let question = packet(from, PORT, b"who");
    let arrived = || {
        client.send(target, &question);
        server.receive((from, PORT), SILENCE).map(drop).ok_or_else(|| "nothing".to_owned())
    };
    wait::until_some(&format!("a packet at {} by way of {target}", pod.name()), SOON, arrived).unwrap();
    let ports = served.service.spec.as_ref().unwrap().ports.as_ref().unwrap();
    let node_ports: Vec<_> = ports.iter().map(|port| u16::try_from(port.node_port.unwrap()).unwrap()).collect();
    for node in cluster.world.nodes() {
        assert_unbound(node.netns(), &node_ports);
    }
    assert_no_sctp_loaded();
}
