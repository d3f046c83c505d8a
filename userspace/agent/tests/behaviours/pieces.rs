//! Datagrams whose pieces come in another order than they were sent: whole in the end, in both directions and on every way.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use weir_abi as abi;
use weir_testbed::address::{self, Pair};
use weir_testbed::packet::Packet;
use weir_testbed::{Pod, objects};

use crate::CLUSTER;
use crate::harness::callers::Caller;
use crate::harness::clients::{any, fresh_port, send_raw};
use crate::harness::echo::{Member, Talk, echo};
use crate::harness::{Cluster, cluster_sockets, node_port};

/// Bytes of a datagram, of four pieces.
const LARGE: usize = 4000;
const PIECE: usize = 1024;
/// The first one comes last, in the middle, second.
const ORDERS: [[usize; 4]; 3] = [[3, 2, 1, 0], [2, 3, 0, 1], [1, 0, 3, 2]];
/// A datagram that lacks a piece never arrives.
const PATIENCE: Duration = Duration::from_secs(2);
/// Of the servers here that answer in pieces.
const PORT: u16 = 9556;

fn payload() -> Vec<u8> {
    (0..LARGE).map(|index| b'a' + u8::try_from(index % 23).unwrap()).collect()
}

/// Sends a datagram's pieces in an order, from the calling thread's namespace by a neighbour.
fn send_pieces(from: SocketAddr, to: SocketAddr, order: [usize; 4], neighbour: IpAddr) -> io::Result<()> {
    // No datagram of the last half minute between the same hosts may have it.
    static NUMBER: AtomicU16 = AtomicU16::new(1);
    let identification = NUMBER.fetch_add(1, Ordering::Relaxed);
    let whole = Packet { dont_fragment: false, identification, ..Packet::udp(from, to, &payload()) };
    let pieces = whole.cut(PIECE);
    assert_eq!(pieces.len(), order.len());
    order.into_iter().try_for_each(|number| send_raw(&pieces[number], neighbour))
}

/// The address that a caller sends from, and its gateway.
fn place(caller: &Caller) -> (Pair, Pair) {
    match caller {
        Caller::Pod(pod) => (pod.address(), address::gateway(pod.node())),
        Caller::Host(node) => (address::node(*node), address::ROUTER_INSIDE),
        Caller::Outside => (address::CLIENT, address::ROUTER_OUTSIDE),
    }
}

fn held(cluster: &Cluster) -> u64 {
    let hooks = [abi::HOOK_NIC_INGRESS, abi::HOOK_POD_INGRESS];
    let of_agent =
        |hook| cluster.agents.iter().map(|agent| agent.packets(hook, abi::REASON_FRAGMENT_HELD)).sum::<u64>();
    hooks.into_iter().map(of_agent).sum()
}

#[test]
fn datagrams_whose_pieces_come_in_any_order_arrive_whole_on_every_way() {
    let Some(cluster) = CLUSTER.join("pieces out of order") else { return };
    let mut wrong = Vec::new();
    for (name, node) in [("pieces-near", 1), ("pieces-far", 2)] {
        let pod = cluster.world.node(node).pod(2);
        let served = cluster.serve_echo(&echo(name, "NodePort"), &[Member::ready(&pod)]);
        let node_ports = cluster.world.nodes().iter().flat_map(|node| served.node_ports(node, Talk::Udp));
        let inside = served.cluster_ips(Talk::Udp);
        let outside = node_ports.chain(inside).map(|target| (Caller::Outside, target));
        let pods = inside.map(|target| (Caller::Pod(cluster.world.node(1).pod(1)), target));
        for (caller, target) in outside.chain(pods) {
            for order in ORDERS {
                let before = held(&cluster);
                let seen = cluster.run_as(&caller, || exchange(&caller, target, order));
                let kept = held(&cluster) > before;
                if seen != Ok(pod.name()) || (inside.contains(&target) && !kept) {
                    wrong.push(format!("{caller} to {name} at {target}, {order:?}: {seen:?}, held: {kept}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Asks with a large datagram, of which all must come back; returns who answers.
fn exchange(caller: &Caller, target: SocketAddr, order: [usize; 4]) -> Result<String, String> {
    let (own, gateway) = place(caller);
    let local = SocketAddr::new(own.like(target.ip()), fresh_port());
    let socket = UdpSocket::bind(local).and_then(|socket| {
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.connect(target)?;
        Ok(socket)
    });
    let socket = socket.map_err(|e| e.to_string())?;
    send_pieces(local, target, order, gateway.like(target.ip())).map_err(|e| format!("sending: {e}"))?;
    let mut buffer = vec![0; 2 * LARGE];
    let length = socket.recv(&mut buffer).map_err(|e| format!("receiving: {e}"))?;
    if !buffer[..length].ends_with(&payload()) {
        return Err(format!("{length} bytes that do not end with those that were sent"));
    }
    Ok(String::from_utf8_lossy(&buffer[..length]).split_whitespace().next().unwrap_or_default().to_owned())
}

/// Answers so many datagrams in a pod, each with a large one whose pieces leave in the order that it asks for.
fn serve(pod: &Pod, socket: &UdpSocket, count: usize) -> io::Result<()> {
    let local = socket.local_addr()?;
    let gateway = address::gateway(pod.node()).like(local.ip());
    pod.netns().enter(|| {
        socket.set_read_timeout(Some(20 * PATIENCE))?;
        for _ in 0..count {
            let mut order = [0; 4];
            let (_, client) = socket.recv_from(&mut order)?;
            send_pieces(local, client, order.map(usize::from), gateway)?;
        }
        Ok(())
    })
}

#[test]
fn answers_whose_pieces_come_in_any_order_arrive_whole_on_every_way() {
    let Some(cluster) = CLUSTER.join("pieces of answers out of order") else { return };
    for (name, node) in [("answers-near", 1), ("answers-far", 2)] {
        let pod = cluster.world.node(node).pod(2);
        let mut service = objects::service(name, PORT, "UDP");
        service.spec.as_mut().unwrap().type_ = Some("NodePort".into());
        let made = cluster.publish(&service, PORT, std::slice::from_ref(&pod));
        cluster.agents.iter().for_each(|agent| agent.await_backends(name, pod.address().both().to_vec()));
        let inside = cluster_sockets(&made);
        let at_node = address::node(1).both().map(|ip| SocketAddr::new(ip, node_port(&made)));
        let outside = inside.iter().copied().chain(at_node).map(|target| (Caller::Outside, target));
        let pods = inside.iter().map(|target| (Caller::Pod(cluster.world.node(1).pod(1)), *target));
        let asked: Vec<_> = outside.chain(pods).collect();
        asked.iter().for_each(|(_, to)| cluster.agents[0].await_frontend(to.ip(), to.port(), true));
        for ip in pod.address().both() {
            let asked: Vec<_> = asked.iter().filter(|(_, target)| target.is_ipv4() == ip.is_ipv4()).collect();
            let socket = pod.netns().enter(|| UdpSocket::bind((ip, PORT))).unwrap();
            std::thread::scope(|scope| {
                let server = scope.spawn(|| serve(&pod, &socket, asked.len() * ORDERS.len()));
                for (caller, target) in &asked {
                    for order in ORDERS {
                        let seen = cluster.run_as(caller, || ask_for(*target, order));
                        let whole = seen.as_ref().is_ok_and(|seen| *seen == payload());
                        assert!(whole, "{caller} to {name} at {target}, {order:?}: {:?}", seen.map(|seen| seen.len()));
                    }
                }
                server.join().unwrap().unwrap();
            });
        }
    }
}

fn ask_for(target: SocketAddr, order: [usize; 4]) -> io::Result<Vec<u8>> {
    let socket = UdpSocket::bind(any(target, fresh_port()))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(target)?;
    socket.send(&order.map(|number| u8::try_from(number).unwrap()))?;
    let mut buffer = vec![0; 2 * LARGE];
    let length = socket.recv(&mut buffer)?;
    buffer.truncate(length);
    Ok(buffer)
}
