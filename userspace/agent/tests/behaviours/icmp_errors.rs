//! ICMP errors reach the sockets on both sides of a service: whoever has sent the packet hears of it, as of one that it knows.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};

use k8s_openapi::api::core::v1::Service;
use nix::errno::Errno;
use socket2::{Domain, SockRef, Socket, Type};
use weir_testbed::address::{self, Pair};
use weir_testbed::ask::PATIENCE;
use weir_testbed::told::{self, Told};
use weir_testbed::{Netns, Node, Pod, objects, wait};

use crate::CLUSTER;
use crate::harness::callers::Caller;
use crate::harness::clients::{any, fresh_port};
use crate::harness::{Cluster, SOON, cluster_sockets, node_port};

/// Of the services and of what listens here.
const PORT: u16 = 9666;
/// Nobody listens there.
const CLOSED: u16 = 9667;
/// Hops of a packet that arrives.
const FAR: u8 = 64;

/// Type and code of the errors here: of IPv4 and of IPv6 (RFC 792, RFC 4443).
const NO_PORT: [[u8; 2]; 2] = [[3, 3], [1, 4]];
/// What a host says of a route that leads nowhere.
const NO_WAY: [[u8; 2]; 2] = [[3, 1], [1, 0]];
const EXPIRED: [[u8; 2]; 2] = [[11, 0], [3, 0]];

fn of_family(kinds: [[u8; 2]; 2], ip: IpAddr) -> [u8; 2] {
    kinds[usize::from(ip.is_ipv6())]
}

/// A service of one endpoint in each family, and where it is reached by way of node 1.
struct Served {
    inside: Vec<SocketAddr>,
    outside: Vec<SocketAddr>,
}

impl Served {
    /// Callers who reach it in different ways, and where.
    fn ways(&self, cluster: &Cluster) -> Vec<(Caller, SocketAddr)> {
        let everywhere = self.inside.iter().chain(&self.outside);
        let outside = everywhere.map(|to| (Caller::Outside, *to));
        let pod = Caller::Pod(cluster.world.node(1).pod(2));
        outside.chain(self.inside.iter().map(|to| (pod.clone(), *to))).collect()
    }
}

/// Lets hosts tell as many errors as there are. Of two bounds on routes that lead nowhere one starves the other: ip_error() in net/ipv4/route.c and
/// icmpv4_xrlim_allow() take from the same account.
fn let_all_tell(cluster: &Cluster) {
    let nodes = cluster.world.nodes();
    let pods: Vec<_> = nodes.iter().flat_map(Node::pods).collect();
    let hosts = nodes.iter().map(Node::netns).chain(pods.iter().map(Pod::netns));
    for netns in hosts.chain([cluster.world.client(), cluster.world.router()]) {
        netns.sysctls(&[("net/ipv4/icmp_ratelimit", "0"), ("net/ipv6/icmp/ratelimit", "0")]).unwrap();
    }
}

fn serve(cluster: &Cluster, name: &str, protocol: &str, node: &Node, endpoint: Pair, port: u16) -> Served {
    let mut service = objects::service(name, PORT, protocol);
    service.spec.as_mut().unwrap().type_ = Some("NodePort".into());
    let made: Service = cluster.objects.apply(&service).unwrap();
    for (suffix, ip) in ["v4", "v6"].into_iter().zip(endpoint.both()) {
        let member = objects::Endpoint { ip, node: node.name(), ready: true };
        cluster.objects.apply(&objects::endpoint_slice(name, suffix, port, protocol, &[member])).unwrap();
    }
    let inside = cluster_sockets(&made);
    let outside: Vec<_> = address::node(1).both().map(|ip| SocketAddr::new(ip, node_port(&made))).into();
    for to in inside.iter().chain(&outside) {
        cluster.agents[0].await_frontend(to.ip(), to.port(), true);
    }
    cluster.agents.iter().for_each(|agent| agent.await_backends(name, endpoint.both().into()));
    Served { inside, outside }
}

/// A socket of the caller's that is connected and hears of errors.
fn connected(cluster: &Cluster, caller: &Caller, to: SocketAddr) -> UdpSocket {
    cluster.run_as(caller, || {
        let socket = UdpSocket::bind(any(to, fresh_port())).unwrap();
        socket.connect(to).unwrap();
        hearing(socket)
    })
}

fn hearing(socket: UdpSocket) -> UdpSocket {
    told::listen(&socket).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// How many hops what a socket sends may go.
fn set_hops(socket: &UdpSocket, hops: u8) {
    match socket.local_addr().unwrap() {
        SocketAddr::V4(_) => SockRef::from(socket).set_ttl_v4(hops.into()).unwrap(),
        SocketAddr::V6(_) => SockRef::from(socket).set_unicast_hops_v6(hops.into()).unwrap(),
    }
}

/// What a socket is told of what `send` sends. Hosts tell so many errors in a second and no more: it is sent until one is. A call fails by what an
/// earlier one has caused, and then the next one does not.
#[track_caller]
fn heard(socket: &UdpSocket, what: &str, send: impl Fn()) -> Told {
    let hear = || {
        send();
        told::next(socket, PATIENCE).map_err(|e| e.to_string())?.ok_or_else(|| "nothing".to_owned())
    };
    wait::until_some(what, SOON, hear).unwrap()
}

/// Routes of a node that lead nowhere and say so, until they are dropped.
struct Nowhere<'a> {
    netns: &'a Netns,
    to: Pair,
}

impl<'a> Nowhere<'a> {
    fn new(netns: &'a Netns, to: Pair) -> Self {
        for ip in to.both() {
            netns.ip(&format!("route replace unreachable {ip}")).unwrap();
        }
        Self { netns, to }
    }
}

impl Drop for Nowhere<'_> {
    fn drop(&mut self) {
        for ip in self.to.both() {
            let _ = self.netns.ip(&format!("route del unreachable {ip}"));
        }
    }
}

#[test]
fn a_client_hears_that_nobody_listens_at_the_endpoint() {
    let Some(cluster) = CLUSTER.join("ports that nobody listens at") else { return };
    let_all_tell(&cluster);
    for node in cluster.world.nodes() {
        let name = format!("closed-{}", node.name());
        let served = serve(&cluster, &name, "UDP", node, node.pod(1).address(), CLOSED);
        for (caller, to) in served.ways(&cluster) {
            let socket = connected(&cluster, &caller, to);
            let what = format!("{caller} hears of {name} at {to}");
            let told = heard(&socket, &what, || {
                let _ = socket.send(b"who");
            });
            let kind = of_family(NO_PORT, to.ip());
            assert_eq!(told, Told { error: Errno::ECONNREFUSED, kind, teller: to.ip(), about: to }, "{caller}");
        }
        // The host's own sockets are connected to the endpoint itself.
        for to in &served.inside {
            let socket = connected(&cluster, &Caller::Host(1), *to);
            let told = heard(&socket, &format!("a process hears of {name} at {to}"), || {
                let _ = socket.send(b"who");
            });
            assert_eq!((told.error, told.kind), (Errno::ECONNREFUSED, of_family(NO_PORT, to.ip())), "{to}");
        }
    }
}

#[test]
fn a_client_hears_that_the_endpoint_cannot_be_reached() {
    let Some(cluster) = CLUSTER.join("endpoints that cannot be reached") else { return };
    let_all_tell(&cluster);
    for node in cluster.world.nodes() {
        let number = node.number();
        // Nobody has this address.
        let gone = address::pod(number, 188);
        let _nowhere = Nowhere::new(node.netns(), gone);
        let served = serve(&cluster, &format!("nowhere-{}", node.name()), "UDP", node, gone, PORT);
        for (caller, to) in served.ways(&cluster) {
            let socket = connected(&cluster, &caller, to);
            let what = format!("{caller} hears that nobody is reached at {to}");
            let told = heard(&socket, &what, || {
                let _ = socket.send(b"who");
            });
            let (kind, error) = (of_family(NO_WAY, to.ip()), [Errno::EHOSTUNREACH, Errno::ENETUNREACH]);
            let error = error[usize::from(to.is_ipv6())];
            assert_eq!(told, Told { error, kind, teller: to.ip(), about: to }, "{caller}");
        }
        let served = serve(&cluster, &format!("nowhere-tcp-{}", node.name()), "TCP", node, gone, PORT);
        for (caller, to) in served.ways(&cluster) {
            let wanted = if to.is_ipv4() { ErrorKind::HostUnreachable } else { ErrorKind::NetworkUnreachable };
            let connect = || {
                let seen = cluster.run_as(&caller, || TcpStream::connect_timeout(&to, PATIENCE).map_err(|e| e.kind()));
                if seen.as_ref().err() == Some(&wanted) { Ok(()) } else { Err(format!("{seen:?}")) }
            };
            // As often as hosts tell errors.
            wait::until_some(&format!("{wanted:?} of {caller} that connects to {to}"), SOON, connect).unwrap();
        }
    }
}

#[test]
fn a_client_finds_each_hop_on_its_way_to_the_endpoint() {
    let Some(cluster) = CLUSTER.join("hops to an endpoint") else { return };
    let_all_tell(&cluster);
    for node in cluster.world.nodes() {
        let name = format!("hops-{}", node.name());
        let pod = node.pod(1);
        let served = serve(&cluster, &name, "UDP", node, pod.address(), CLOSED);
        for (caller, to) in served.ways(&cluster) {
            let socket = connected(&cluster, &caller, to);
            let mut hops = Vec::new();
            for hop in 1..FAR {
                set_hops(&socket, hop);
                let what = format!("{caller} hears of hop {hop} to {name} at {to}");
                let told = heard(&socket, &what, || {
                    let _ = socket.send(b"who");
                });
                assert_eq!(told.about, to, "{caller}");
                hops.push(told.teller);
                if told.kind == of_family(NO_PORT, to.ip()) {
                    break;
                }
                assert_eq!(told.kind, of_family(EXPIRED, to.ip()), "{caller} to {to}: hop {hop}");
            }
            // Whoever has translated it hides behind the service's address, and those behind him.
            let nodes = usize::from(node.number());
            let mut expected = vec![to.ip(); nodes + 1];
            if matches!(caller, Caller::Outside) {
                expected.insert(0, address::ROUTER_OUTSIDE.like(to.ip()));
            }
            assert_eq!(hops, expected, "{caller} to {name} at {to}");
        }
    }
}

/// What the endpoint answers, and to whom it does.
struct Server(UdpSocket);

impl Server {
    fn start(pod: &Pod, v6: bool) -> Self {
        let (ip, domain): (IpAddr, _) = if v6 {
            (Ipv6Addr::UNSPECIFIED.into(), Domain::IPV6)
        } else {
            (Ipv4Addr::UNSPECIFIED.into(), Domain::IPV4)
        };
        let socket = pod.netns().enter(|| Socket::new(domain, Type::DGRAM, None)).unwrap();
        // The one of the other family may live for a moment in a process that another test starts just now.
        if v6 {
            socket.set_only_v6(true).unwrap();
        }
        socket.bind(&SocketAddr::new(ip, PORT).into()).unwrap();
        Self(hearing(socket.into()))
    }

    /// Whom a question came from.
    fn asked(&self) -> SocketAddr {
        self.0.recv_from(&mut [0; 16]).unwrap().1
    }
}

#[test]
fn an_endpoint_hears_that_its_client_is_gone_and_that_its_answers_do_not_get_there() {
    let Some(cluster) = CLUSTER.join("answers that do not arrive") else { return };
    let_all_tell(&cluster);
    let pods = cluster.world.nodes().iter().map(|node| (node, node.pod(2)));
    for (node, pod) in pods {
        let served = serve(&cluster, &format!("answers-{}", node.name()), "UDP", node, pod.address(), PORT);
        for v6 in [false, true] {
            let server = Server::start(&pod, v6);
            for to in served.inside.iter().chain(&served.outside).filter(|to| to.is_ipv6() == v6) {
                let client = connected(&cluster, &Caller::Outside, *to);
                client.send(b"who").unwrap();
                let peer = server.asked();
                // Each node on the way, and then the router.
                for hop in 1..=node.number() + 1 {
                    set_hops(&server.0, hop);
                    let what = format!("the endpoint on {} hears of hop {hop} to {peer}", node.name());
                    let told = heard(&server.0, &what, || {
                        let _ = server.0.send_to(b"me", peer);
                    });
                    assert_eq!((told.kind, told.about), (of_family(EXPIRED, to.ip()), peer), "{what}");
                }
                set_hops(&server.0, FAR);
                server.0.send_to(b"me", peer).unwrap();
                assert_eq!(client.recv(&mut [0; 16]).unwrap(), 2, "the client is answered by {to}");
                drop(client);
                let what = format!("the endpoint on {} hears that the client of {to} is gone", node.name());
                let told = heard(&server.0, &what, || {
                    let _ = server.0.send_to(b"me", peer);
                });
                let expected = (Errno::ECONNREFUSED, of_family(NO_PORT, to.ip()), peer);
                assert_eq!((told.error, told.kind, told.about), expected, "{what}");
            }
        }
    }
}
