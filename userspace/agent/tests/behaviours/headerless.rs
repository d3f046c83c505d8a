//! Clients behind an interface without link headers, as WireGuard, PPP and tun make them: served as others are, near and far.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use weir_testbed::address::Pair;
use weir_testbed::ask::PATIENCE;
use weir_testbed::delay::DelayLink;
use weir_testbed::packet::Packet;
use weir_testbed::{Pod, objects, wait};

use crate::harness::clients::{fresh_port, send_raw};
use crate::harness::echo::{Member, Talk, echo};
use crate::harness::{self, Cluster, SOON, node_port};

const DEVICE: &str = "wg0";
/// The least that IPv6 allows: what the nodes' network carries does not fit.
const MTU: u16 = 1280;
/// Many full segments.
const MUCH: usize = 1_000_000;
/// Of the pods' servers that move as much.
const PORT: u16 = 9557;
/// Bytes of a datagram that is cut, of four pieces.
const LARGE: usize = 4000;
const PIECE: usize = 1024;

/// The first node's end of the link to its client, or the client's.
const fn end(number: u8) -> Pair {
    Pair { v4: Ipv4Addr::new(10, 8, 0, number), v6: Ipv6Addr::new(0xfd08, 0, 0, 0, 0, 0, 0, number as u16) }
}
const NODE: Pair = end(1);
const CLIENT: Pair = end(2);

/// Two nodes; whoever is outside gets to the first one by a link without headers, which is gone with the last of these.
struct Bed {
    cluster: Cluster,
    _link: DelayLink,
}

impl Bed {
    fn new(what: &str, options: &[&str]) -> Option<Self> {
        if !harness::can_run(what) {
            return None;
        }
        let cluster = Cluster::start(2, 1, options);
        let (node, client) = (cluster.world.node(1), cluster.world.client());
        let link = DelayLink::headerless([(node.netns(), DEVICE), (client, DEVICE)]).unwrap();
        let up = |end: Pair| {
            format!(
                "link set {DEVICE} mtu {MTU} up\naddr add {}/24 dev {DEVICE}\naddr add {}/64 dev {DEVICE} nodad\n",
                end.v4, end.v6
            )
        };
        let to_node: String = node.address().both().map(|ip| format!("route replace {ip} dev {DEVICE}\n")).concat();
        node.netns().ip(&up(NODE)).unwrap();
        client.ip(&(up(CLIENT) + &to_node)).unwrap();
        let bed = Self { cluster, _link: link };
        bed.await_attached("Tunnel");
        Some(bed)
    }

    /// Waits until the agent has taken the link for this kind of interface.
    fn await_attached(&self, kind: &str) {
        let index = self.cluster.world.node(1).netns().enter(|| nix::net::if_::if_nametoindex(DEVICE)).unwrap();
        let line = format!("attached interface=\"{DEVICE}\" index={index} kind={kind}");
        wait::until(&line, SOON, || self.cluster.agents[0].log().contains(&line)).unwrap();
    }

    /// A service of a pod of each node, and whether that is the first one's.
    fn pods(&self) -> [(Pod, bool); 2] {
        [1, 2].map(|node| (self.cluster.world.node(node).pod(1), node == 1))
    }

    /// Asks in all ways and both families at node ports of the first node.
    #[track_caller]
    fn assert_serves(&self) {
        let node = self.cluster.world.node(1);
        for (pod, near) in self.pods() {
            let served = self.cluster.serve_echo(&echo(&pod.name(), "NodePort"), &[Member::ready(&pod)]);
            for talk in Talk::ALL {
                for target in served.node_ports(node, talk) {
                    let answer = self.cluster.world.client().enter(|| talk.ask(target, SOON));
                    let answer = answer.unwrap_or_else(|error| {
                        panic!("{talk:?} at {target} with {}: {error}\n{}", pod.name(), self.cluster.agents[0].log())
                    });
                    let seen_as = if near { CLIENT } else { node.address() };
                    let seen = (answer.name, answer.client.ip());
                    assert_eq!(seen, (pod.name(), seen_as.like(target.ip())), "{talk:?} at {target}");
                }
            }
        }
    }
}

#[test]
fn clients_behind_a_link_without_headers_are_served_by_endpoints_near_and_far() {
    let Some(bed) = Bed::new("a link without headers", &[]) else { return };
    bed.assert_serves();
}

#[test]
fn with_xdp_on_the_nodes_cards_and_past_the_hosts_stack_they_are_served_as_well() {
    let options = ["--xdp-on-veth", "--host-bypass"];
    let Some(bed) = Bed::new("a link without headers with all options", &options) else { return };
    bed.assert_serves();
}

#[test]
fn by_filters_as_before_linux_6_6_they_are_served_as_well() {
    let Some(bed) = Bed::new("a link without headers by filters", &["--no-tcx"]) else { return };
    bed.assert_serves();
}

#[test]
fn a_link_with_a_default_route_is_the_nodes_own_as_an_uplink_by_ppp_is() {
    let Some(bed) = Bed::new("an uplink without headers", &[]) else { return };
    bed.cluster.world.node(1).netns().ip(&format!("route add default dev {DEVICE} metric 9999")).unwrap();
    bed.await_attached("Nic");
    bed.assert_serves();
}

#[test]
fn whoever_asks_where_there_is_no_endpoint_is_refused() {
    let Some(bed) = Bed::new("refusals by a link without headers", &[]) else { return };
    let (cluster, node) = (&bed.cluster, bed.cluster.world.node(1));
    let nobody = cluster.serve_echo(&echo("nobody", "NodePort"), &[]);
    for talk in [Talk::Tcp, Talk::Udp] {
        for target in nobody.node_ports(node, talk) {
            let refused = || match talk {
                Talk::Udp => {
                    let socket = UdpSocket::bind(SocketAddr::new(CLIENT.like(target.ip()), 0))?;
                    socket.set_read_timeout(Some(SOON))?;
                    socket.connect(target)?;
                    socket.send(b"anybody?")?;
                    socket.recv(&mut [0; 16]).map(drop)
                }
                Talk::Http | Talk::Tcp => TcpStream::connect_timeout(&target, SOON).map(drop),
            };
            let seen = cluster.world.client().enter(refused).map_err(|error| error.kind());
            assert_eq!(seen, Err(ErrorKind::ConnectionRefused), "{talk:?} at {target}");
        }
    }
}

/// Takes what a client sends, and answers with as much, so many times.
fn serve(listener: &TcpListener, connections: usize) -> io::Result<()> {
    for _ in 0..connections {
        let (mut stream, _) = listener.accept()?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.read_exact(&mut vec![0; MUCH])?;
        stream.write_all(&vec![0x5a; MUCH])?;
    }
    Ok(())
}

fn exchange(target: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&target, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&vec![0xa5; MUCH])?;
    let mut answer = vec![0; MUCH];
    stream.read_exact(&mut answer)?;
    assert!(answer.iter().all(|byte| *byte == 0x5a), "what came is what was sent");
    Ok(())
}

#[test]
fn large_transfers_arrive_whole_in_both_directions_though_the_link_is_narrow() {
    let Some(bed) = Bed::new("transfers by a link without headers", &[]) else { return };
    let (cluster, node) = (&bed.cluster, bed.cluster.world.node(1));
    for (pod, _) in bed.pods() {
        let mut service = objects::service(&format!("much-{}", pod.name()), PORT, "TCP");
        service.spec.as_mut().unwrap().type_ = Some("NodePort".into());
        let made = cluster.publish(&service, PORT, std::slice::from_ref(&pod));
        let targets = node.address().both().map(|ip| SocketAddr::new(ip, node_port(&made)));
        for target in targets {
            cluster.agents[0].await_frontend(target.ip(), target.port(), true);
        }
        cluster.agents[0].await_backends(service.metadata.name.as_deref().unwrap(), pod.address().both().to_vec());
        let listener = pod.netns().enter(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT))).unwrap();
        // Of no scope, which would wait for the clients of a test that has failed.
        let server = std::thread::spawn(move || serve(&listener, targets.len()));
        for target in targets {
            let seen = cluster.world.client().enter(|| exchange(target));
            seen.unwrap_or_else(|error| panic!("{target} with {}: {error}", pod.name()));
        }
        server.join().unwrap().unwrap();
    }
}

#[test]
fn datagrams_arrive_whole_with_their_pieces_in_any_order() {
    let Some(bed) = Bed::new("pieces by a link without headers", &[]) else { return };
    let (cluster, node) = (&bed.cluster, bed.cluster.world.node(1));
    // A pod's first answer in pieces that are too big would only tell it so.
    for netns in [node.netns(), cluster.world.client()] {
        netns.ip(&format!("link set {DEVICE} mtu 1500")).unwrap();
    }
    let payload: Vec<u8> = (0..LARGE).map(|index| b'a' + u8::try_from(index % 23).unwrap()).collect();
    // No datagram of the last half minute between the same hosts may have it.
    let mut identification = 0;
    for (pod, _) in bed.pods() {
        let served = cluster.serve_echo(&echo(&pod.name(), "NodePort"), &[Member::ready(&pod)]);
        for order in [[0, 1, 2, 3], [1, 0, 3, 2], [3, 2, 1, 0]] {
            for target in served.node_ports(node, Talk::Udp) {
                let local = SocketAddr::new(CLIENT.like(target.ip()), fresh_port());
                identification += 1;
                let ask = || -> io::Result<Vec<u8>> {
                    let socket = UdpSocket::bind(local)?;
                    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
                    let whole = Packet { dont_fragment: false, identification, ..Packet::udp(local, target, &payload) };
                    let pieces = whole.cut(PIECE);
                    order.into_iter().try_for_each(|piece| send_raw(&pieces[piece], NODE.like(target.ip())))?;
                    let mut answer = vec![0; 2 * LARGE];
                    let length = socket.recv(&mut answer)?;
                    answer.truncate(length);
                    Ok(answer)
                };
                let answer = cluster.world.client().enter(ask);
                let answer = answer.unwrap_or_else(|e| panic!("{target} with {}, {order:?}: {e}", pod.name()));
                assert!(answer.starts_with(pod.name().as_bytes()) && answer.ends_with(&payload), "{target}, {order:?}");
            }
        }
    }
}
