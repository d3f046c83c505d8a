//! Path MTU discovery through a service: whoever sends too much hears how much fits, in terms of the connection that it
//! knows, whichever side the narrow link is on.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use weir_abi as abi;
use weir_testbed::{Netns, Pod, objects};

use crate::CLUSTER;
use crate::harness::Cluster;
use crate::harness::clients::fresh_port;

/// Of the narrow link: the least that IPv6 allows.
const NARROW: u16 = 1280;
/// Many full segments.
const LARGE: usize = 300_000;
/// Of the pods' servers here, and of the service.
const PORT: u16 = 9555;
/// A connection that never hears of the narrow link stalls for longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a connection is for, by its first byte.
#[derive(Clone, Copy, Debug)]
enum Transfer {
    Download = b'd' as isize,
    Upload = b'u' as isize,
}

/// Serves so many connections in a pod.
fn serve(pod: &Pod, connections: usize) -> JoinHandle<io::Result<()>> {
    let listener = pod.netns().enter(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT))).unwrap();
    std::thread::spawn(move || {
        for _ in 0..connections {
            let (mut stream, _) = listener.accept()?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let mut kind = [0];
            stream.read_exact(&mut kind)?;
            if kind[0] == Transfer::Upload as u8 {
                stream.read_exact(&mut vec![0; LARGE])?;
            }
            stream.write_all(&vec![kind[0]; LARGE])?;
        }
        Ok(())
    })
}

/// A connection from an address of the client's.
fn transfer(client: &Netns, from: IpAddr, to: SocketAddr, kind: Transfer) -> io::Result<()> {
    client.enter(|| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        socket.bind(&SocketAddr::new(from, fresh_port()).into())?;
        socket.connect_timeout(&to.into(), PATIENCE)?;
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(&[kind as u8])?;
        if matches!(kind, Transfer::Upload) {
            stream.write_all(&vec![0; LARGE])?;
        }
        stream.read_exact(&mut vec![0; LARGE])
    })
}

/// A route that is narrow, until it is dropped.
struct Narrow<'a> {
    netns: &'a Netns,
    to: IpAddr,
}

impl<'a> Narrow<'a> {
    fn new(netns: &'a Netns, to: IpAddr, way: &str) -> Self {
        let bits = if to.is_ipv4() { 32 } else { 128 };
        netns.ip(&format!("route replace {to}/{bits} {way} mtu lock {NARROW}")).unwrap();
        Self { netns, to }
    }
}

impl Drop for Narrow<'_> {
    fn drop(&mut self) {
        let bits = if self.to.is_ipv4() { 32 } else { 128 };
        let _ = self.netns.ip(&format!("route del {}/{bits}", self.to));
    }
}

/// The node ports of a service of one pod, at node 1.
fn publish(cluster: &Cluster, name: &str, pod: &Pod) -> [SocketAddr; 2] {
    let mut service = objects::service(name, PORT, "TCP");
    service.spec.as_mut().unwrap().type_ = Some("NodePort".into());
    let made = cluster.publish(&service, PORT, std::slice::from_ref(pod));
    let port = made.spec.unwrap().ports.unwrap()[0].node_port.unwrap();
    let sockets = cluster.world.node(1).address().both().map(|ip| SocketAddr::new(ip, u16::try_from(port).unwrap()));
    sockets.iter().for_each(|socket| cluster.await_frontend(socket.ip(), socket.port()));
    let backends = pod.address().both().to_vec();
    cluster.agents.iter().for_each(|agent| agent.await_backends(name, backends.clone()));
    sockets
}

fn told(cluster: &Cluster, reason: u32) -> u64 {
    cluster.agents.iter().map(|agent| agent.packets(abi::HOOK_NIC_INGRESS, reason)).sum()
}

#[test]
fn an_endpoint_hears_of_a_narrow_link_on_the_way_to_its_client() {
    let Some(cluster) = CLUSTER.join("a narrow link to a client") else { return };
    let [client] = cluster.more_clients(151, 1)[..] else { panic!("one more client") };
    let router = cluster.world.router();
    let _narrow = client.both().map(|ip| Narrow::new(router, ip, "dev eth1"));
    // On the node that the client asks, and on the other one.
    for node in [1, 2] {
        let pod = cluster.world.node(node).pod(1);
        let server = serve(&pod, 2);
        for to in publish(&cluster, &format!("narrow-client-{node}"), &pod) {
            let before = told(&cluster, abi::REASON_ERROR_TOLD);
            let from = client.like(to.ip());
            transfer(cluster.world.client(), from, to, Transfer::Download)
                .unwrap_or_else(|e| panic!("{to} with a pod of node {node}: {e}"));
            assert!(told(&cluster, abi::REASON_ERROR_TOLD) > before, "nothing was too big");
        }
        server.join().unwrap().unwrap();
    }
}

#[test]
fn a_client_hears_of_a_narrow_link_on_the_way_to_the_endpoint() {
    let Some(cluster) = CLUSTER.join("a narrow link to an endpoint") else { return };
    let [client] = cluster.more_clients(152, 1)[..] else { panic!("one more client") };
    let pod = cluster.world.node(2).pod(2);
    let server = serve(&pod, 2);
    let node = cluster.world.node(2).address();
    let _narrow = pod
        .address()
        .both()
        .map(|ip| Narrow::new(cluster.world.node(1).netns(), ip, &format!("via {}", node.like(ip))));
    for to in publish(&cluster, "narrow-endpoint", &pod) {
        let before = told(&cluster, abi::REASON_TOO_BIG_TOLD);
        transfer(cluster.world.client(), client.like(to.ip()), to, Transfer::Upload)
            .unwrap_or_else(|e| panic!("{to}: {e}"));
        assert!(told(&cluster, abi::REASON_TOO_BIG_TOLD) > before, "nothing was too big");
    }
    server.join().unwrap().unwrap();
}
