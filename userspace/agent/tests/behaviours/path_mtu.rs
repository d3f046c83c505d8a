//! Path MTU discovery through a service: whoever sends too much hears how much fits, in terms of the connection that it knows,
//! wherever on its way the narrow link is.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use weir_abi as abi;
use weir_testbed::address::{self, Pair};
use weir_testbed::{Netns, Node, Pod, objects};

use crate::CLUSTER;
use crate::harness::callers::Caller;
use crate::harness::clients::{any, fresh_port};
use crate::harness::{Cluster, cluster_sockets, node_port};

/// Of the narrow link: the least that IPv6 allows.
const NARROW: u16 = 1280;
/// Many full segments.
const LARGE: usize = 1_000_000;
/// Of the pods' servers here, and of the services.
const PORT: u16 = 9555;
/// A connection that never hears of the narrow link stalls for longer.
const PATIENCE: Duration = Duration::from_secs(5);
/// These tests change routes and listen in the same pods: one at a time does.
static TURN: Mutex<()> = Mutex::new(());

/// Waits for this test's turn, and lets everybody forget what earlier ones have told: hosts remember for minutes, and say at
/// once what fits when they connect.
fn turn(cluster: &Cluster) -> MutexGuard<'static, ()> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let nodes = cluster.world.nodes();
    let pods: Vec<_> = nodes.iter().flat_map(Node::pods).collect();
    let hosts = nodes.iter().map(Node::netns).chain(pods.iter().map(Pod::netns));
    for netns in hosts.chain([cluster.world.client(), cluster.world.router()]) {
        for family in ["-4", "-6"] {
            let flushed = netns.command("ip").args([family, "route", "flush", "cache"]).status().unwrap();
            assert!(flushed.success(), "{}: {flushed}", netns.name());
        }
    }
    turn
}

/// What a connection begins with: who sends the rest.
const UPLOAD: u8 = b'u';
const DOWNLOAD: u8 = b'd';

/// Serves so many connections: reads all of a large request and says so, or writes a large answer.
fn serve(listener: &TcpListener, connections: usize) -> io::Result<()> {
    for _ in 0..connections {
        let (mut stream, _) = listener.accept()?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut way = [0];
        stream.read_exact(&mut way)?;
        if way[0] == UPLOAD {
            stream.read_exact(&mut vec![0; LARGE])?;
            stream.write_all(b"!")?;
        } else {
            stream.write_all(&vec![0x5a; LARGE])?;
        }
    }
    Ok(())
}

/// Connects from an address and moves all bytes one way. Must run in the caller's namespace.
fn transfer(from: SocketAddr, server: SocketAddr, way: u8) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
    socket.bind(&from.into())?;
    socket.connect_timeout(&server.into(), PATIENCE)?;
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&[way])?;
    if way == UPLOAD {
        stream.write_all(&vec![0xa5; LARGE])?;
        stream.read_exact(&mut [0])
    } else {
        stream.read_exact(&mut vec![0; LARGE])
    }
}

/// Routes to single addresses, until they are dropped.
struct Routes<'a> {
    netns: &'a Netns,
    to: Pair,
}

impl<'a> Routes<'a> {
    /// `how`: what follows the address in both families, such as `dev eth0`; `{via}` stands for that address in the family.
    fn new(netns: &'a Netns, to: Pair, via: Pair, how: &str) -> Self {
        for ip in to.both() {
            let how = how.replace("{via}", &via.like(ip).to_string());
            netns.ip(&format!("route replace {}{how}", host(ip))).unwrap();
        }
        Self { netns, to }
    }

    /// One that is narrow, as a router has it in front of a tunnel.
    fn narrow(router: &'a Netns, to: Pair, via: Pair) -> Self {
        Self::new(router, to, via, &format!(" via {{via}} mtu lock {NARROW}"))
    }
}

fn host(ip: IpAddr) -> String {
    format!("{ip}/{}", if ip.is_ipv4() { 32 } else { 128 })
}

impl Drop for Routes<'_> {
    fn drop(&mut self) {
        for ip in self.to.both() {
            let _ = self.netns.ip(&format!("route del {}", host(ip)));
        }
    }
}

/// A service of one pod.
struct Served {
    pod: Pod,
    inside: Vec<SocketAddr>,
    outside: Vec<SocketAddr>,
    /// One for all transfers: what is closed here is open for a moment in whatever process another test starts just then.
    listener: TcpListener,
}

/// Where a service is served outside.
enum Outside {
    /// At a node port of node 1.
    NodePort,
    /// At external IPs that end in this number, by node 1.
    External(u8),
}

fn external(number: u8) -> Pair {
    Pair { v4: Ipv4Addr::new(203, 0, 113, number), v6: Ipv6Addr::new(0x2001, 0xdb8, 0x203, 0, 0, 0, 0, number.into()) }
}

fn publish(cluster: &Cluster, name: &str, pod: Pod, outside: &Outside) -> Served {
    let mut service = objects::service(name, PORT, "TCP");
    let spec = service.spec.as_mut().unwrap();
    match outside {
        Outside::NodePort => spec.type_ = Some("NodePort".into()),
        Outside::External(number) => spec.external_ips = Some(external(*number).both().map(|ip| ip.to_string()).into()),
    }
    let made = cluster.publish(&service, PORT, std::slice::from_ref(&pod));
    let inside = cluster_sockets(&made);
    let outside: Vec<_> = match outside {
        Outside::NodePort => address::node(1).both().map(|ip| SocketAddr::new(ip, node_port(&made))).into(),
        Outside::External(number) => external(*number).both().map(|ip| SocketAddr::new(ip, PORT)).into(),
    };
    for socket in inside.iter().chain(&outside) {
        cluster.agents[0].await_frontend(socket.ip(), socket.port(), true);
    }
    let backends = pod.address().both().to_vec();
    cluster.agents.iter().for_each(|agent| agent.await_backends(name, backends.clone()));
    let listener = pod.netns().enter(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT))).unwrap();
    Served { pod, inside, outside, listener }
}

/// Moves all bytes one way over each of the sockets, from `from` or any address.
#[track_caller]
fn assert_transfers(
    cluster: &Cluster,
    served: &Served,
    (caller, from): (&Caller, Option<Pair>),
    to: &[SocketAddr],
    way: u8,
) {
    let (listener, connections) = (served.listener.try_clone().unwrap(), to.len());
    // Of no scope, which would wait for the clients of a test that has failed.
    let server = std::thread::spawn(move || serve(&listener, connections));
    for to in to {
        let local = from.map_or_else(|| any(*to, 0), |from| SocketAddr::new(from.like(to.ip()), fresh_port()));
        let seen = cluster.run_as(caller, || transfer(local, *to, way));
        seen.unwrap_or_else(|e| panic!("{caller} to {to} with {}, {}: {e}", served.pod.name(), char::from(way)));
    }
    server.join().unwrap().unwrap();
}

/// Errors that the agents' programs have told, at hooks where they come from.
fn told(cluster: &Cluster, hook: u32, reason: u32) -> u64 {
    cluster.agents.iter().map(|agent| agent.packets(hook, reason)).sum()
}

#[test]
fn an_endpoint_hears_of_a_narrow_link_on_the_way_to_its_client() {
    let Some(cluster) = CLUSTER.join("a narrow link to a client") else { return };
    let _turn = turn(&cluster);
    let [client] = cluster.more_clients(151, 1)[..] else { panic!("one more client") };
    let router = cluster.world.router();
    let _narrow = Routes::new(router, client, client, &format!(" dev eth1 mtu lock {NARROW}"));
    // On the node that the client asks, and on the other one.
    for node in [1, 2] {
        let served =
            publish(&cluster, &format!("narrow-client-{node}"), cluster.world.node(node).pod(1), &Outside::NodePort);
        for to in &served.outside {
            let before = told(&cluster, abi::HOOK_NIC_INGRESS, abi::REASON_ERROR_TOLD);
            let to = std::slice::from_ref(to);
            assert_transfers(&cluster, &served, (&Caller::Outside, Some(client)), to, DOWNLOAD);
            let after = told(&cluster, abi::HOOK_NIC_INGRESS, abi::REASON_ERROR_TOLD);
            assert!(after > before, "nothing was too big for {to:?}");
        }
    }
}

#[test]
fn a_client_hears_of_a_narrow_link_on_its_way_to_the_node() {
    let Some(cluster) = CLUSTER.join("a narrow link to a node") else { return };
    let _turn = turn(&cluster);
    for node in [1, 2] {
        let pod = cluster.world.node(node).pod(1);
        let number = 150 + node;
        let served = publish(&cluster, &format!("narrow-node-{node}"), pod, &Outside::External(number));
        let _narrow = Routes::narrow(cluster.world.router(), external(number), address::node(1));
        assert_transfers(&cluster, &served, (&Caller::Outside, None), &served.outside, UPLOAD);
    }
}

#[test]
fn clients_hear_of_a_narrow_link_between_the_node_and_the_endpoints_node() {
    let Some(cluster) = CLUSTER.join("a narrow link to an endpoint") else { return };
    let _turn = turn(&cluster);
    let served = publish(&cluster, "narrow-endpoint", cluster.world.node(2).pod(1), &Outside::External(154));
    // Past the switch: by way of the router, which tells whoever sends too much.
    let (here, router) = (cluster.world.node(1), cluster.world.router());
    let _detour = Routes::new(here.netns(), served.pod.address(), address::ROUTER_INSIDE, " via {via}");
    let _narrow = Routes::narrow(router, served.pod.address(), address::node(2));
    let pod = Caller::Pod(here.pod(2));
    for (caller, to, hook) in [
        (&Caller::Outside, &served.outside, abi::HOOK_NIC_INGRESS),
        (&Caller::Outside, &served.inside, abi::HOOK_NIC_INGRESS),
        (&pod, &served.inside, abi::HOOK_POD_EGRESS),
    ] {
        for to in to {
            let before = told(&cluster, hook, abi::REASON_ERROR_TOLD);
            assert_transfers(&cluster, &served, (caller, None), std::slice::from_ref(to), UPLOAD);
            let after = told(&cluster, hook, abi::REASON_ERROR_TOLD);
            assert!(after > before, "nothing from {caller} was too big for {to}");
        }
        assert_transfers(&cluster, &served, (caller, None), to, DOWNLOAD);
    }
}

#[test]
fn an_endpoint_hears_of_a_narrow_link_on_its_way_to_the_node_that_was_asked() {
    let Some(cluster) = CLUSTER.join("a narrow link from an endpoint") else { return };
    let _turn = turn(&cluster);
    let served = publish(&cluster, "narrow-answer", cluster.world.node(2).pod(2), &Outside::NodePort);
    let (there, router) = (cluster.world.node(2), cluster.world.router());
    let pod = cluster.world.node(1).pod(2);
    // To the node, in whose name clients outside ask, and to a client pod.
    for (caller, asks_as, to) in [
        (Caller::Outside, address::node(1), &served.outside),
        (Caller::Pod(pod.clone()), pod.address(), &served.inside),
    ] {
        let _detour = Routes::new(there.netns(), asks_as, address::ROUTER_INSIDE, " via {via}");
        let _narrow = Routes::narrow(router, asks_as, address::node(1));
        assert_transfers(&cluster, &served, (&caller, None), to, DOWNLOAD);
        assert_transfers(&cluster, &served, (&caller, None), to, UPLOAD);
    }
}

#[test]
fn a_client_hears_of_a_narrow_route_of_the_node_itself() {
    let Some(cluster) = CLUSTER.join("a narrow route of the node") else { return };
    let _turn = turn(&cluster);
    let served = publish(&cluster, "narrow-route", cluster.world.node(2).pod(1), &Outside::External(153));
    let here = cluster.world.node(1).netns();
    let _narrow = Routes::narrow(here, served.pod.address(), address::node(2));
    for to in &served.outside {
        let before = told(&cluster, abi::HOOK_NIC_INGRESS, abi::REASON_TOO_BIG_TOLD);
        assert_transfers(&cluster, &served, (&Caller::Outside, None), std::slice::from_ref(to), UPLOAD);
        let after = told(&cluster, abi::HOOK_NIC_INGRESS, abi::REASON_TOO_BIG_TOLD);
        assert!(after > before, "nothing was too big for the route to {to}");
    }
    let pod = Caller::Pod(cluster.world.node(1).pod(2));
    assert_transfers(&cluster, &served, (&pod, None), &served.inside, UPLOAD);
}
