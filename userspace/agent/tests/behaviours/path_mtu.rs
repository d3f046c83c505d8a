//! Path MTU discovery through a service: an endpoint that sends too much hears how much fits, in terms of the connection that
//! it knows.

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

/// Serves so many connections in a pod, each with a large answer.
fn serve(pod: &Pod, connections: usize) -> JoinHandle<io::Result<()>> {
    let listener = pod.netns().enter(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT))).unwrap();
    std::thread::spawn(move || {
        for _ in 0..connections {
            let (mut stream, _) = listener.accept()?;
            stream.write_all(&vec![0x5a; LARGE])?;
        }
        Ok(())
    })
}

/// Asks from an address of the client's and reads all of the answer.
fn download(client: &Netns, from: IpAddr, server: SocketAddr) -> io::Result<()> {
    client.enter(|| {
        let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
        socket.bind(&SocketAddr::new(from, fresh_port()).into())?;
        socket.connect_timeout(&server.into(), PATIENCE)?;
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.read_exact(&mut vec![0; LARGE])
    })
}

/// A route of the router to one of the client's addresses that is narrow, until it is dropped.
struct Narrow<'a> {
    router: &'a Netns,
    route: String,
}

impl<'a> Narrow<'a> {
    fn new(router: &'a Netns, client: IpAddr) -> Self {
        let route = format!("{client}/{}", if client.is_ipv4() { 32 } else { 128 });
        router.ip(&format!("route replace {route} dev eth1 mtu lock {NARROW}")).unwrap();
        Self { router, route }
    }
}

impl Drop for Narrow<'_> {
    fn drop(&mut self) {
        let _ = self.router.ip(&format!("route del {}", self.route));
    }
}

/// The node ports of a service of one pod, at node 1.
fn publish(cluster: &Cluster, name: &str, pod: &Pod) -> [SocketAddr; 2] {
    let mut service = objects::service(name, PORT, "TCP");
    service.spec.as_mut().unwrap().type_ = Some("NodePort".into());
    let made = cluster.publish(&service, PORT, std::slice::from_ref(pod));
    let port = made.spec.unwrap().ports.unwrap()[0].node_port.unwrap();
    let sockets = cluster.world.node(1).address().both().map(|ip| SocketAddr::new(ip, u16::try_from(port).unwrap()));
    sockets.iter().for_each(|socket| cluster.agents[0].await_frontend(socket.ip(), socket.port(), true));
    let backends = pod.address().both().to_vec();
    cluster.agents.iter().for_each(|agent| agent.await_backends(name, backends.clone()));
    sockets
}

fn told(cluster: &Cluster) -> u64 {
    cluster.agents.iter().map(|agent| agent.packets(abi::HOOK_NIC_INGRESS, abi::REASON_ERROR_TOLD)).sum()
}

#[test]
fn an_endpoint_hears_of_a_narrow_link_on_the_way_to_its_client() {
    let Some(cluster) = CLUSTER.join("a narrow link to a client") else { return };
    let [client] = cluster.more_clients(151, 1)[..] else { panic!("one more client") };
    let router = cluster.world.router();
    let _narrow = client.both().map(|ip| Narrow::new(router, ip));
    // On the node that the client asks, and on the other one.
    for node in [1, 2] {
        let pod = cluster.world.node(node).pod(1);
        let server = serve(&pod, 2);
        for to in publish(&cluster, &format!("narrow-client-{node}"), &pod) {
            let before = told(&cluster);
            let from = client.like(to.ip());
            download(cluster.world.client(), from, to)
                .unwrap_or_else(|e| panic!("{to} with a pod of node {node}: {e}"));
            assert!(told(&cluster) > before, "nothing was too big");
        }
        server.join().unwrap().unwrap();
    }
}
