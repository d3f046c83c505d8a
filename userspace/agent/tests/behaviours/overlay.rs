//! An overlay network as flannel has it: pods of other nodes are reached by VXLAN devices, one of each family, which have the first
//! address of their node's pods.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use weir_abi as abi;
use weir_testbed::connection::LongConnection;
use weir_testbed::delay::DelayLink;
use weir_testbed::packet::Packet;
use weir_testbed::{Node, address, wait};

use crate::harness::clients::{fresh_port, send_raw};
use crate::harness::echo::{Echo, Member, Talk, echo};
use crate::harness::{self, Cluster, SOON};

/// Of each family.
const DEVICES: [&str; 2] = ["flannel.1", "flannel-v6.1"];
/// How often an open connection asks.
const INTERVAL: Duration = Duration::from_millis(10);

/// Bytes of a packet that a link takes; the overlay's devices take 50 fewer.
const LINK: usize = 1500;

/// What the devices of a node have for addresses.
fn tunnel_ips(node: u8) -> [IpAddr; 2] {
    address::pod_cidrs(node).map(|cidr| cidr.addr())
}

/// Has a node reach the pods of another one by its overlay.
fn join(node: &Node, peer: &Node) {
    let mac = |number: u8, family: usize| format!("0e:00:00:00:{family:02x}:{number:02x}");
    let [ours, theirs] = [node, peer].map(|node| (node.number(), node.address().both()));
    let mut script = String::new();
    for (family, name) in DEVICES.into_iter().enumerate() {
        let (here, there) = (tunnel_ips(ours.0)[family], tunnel_ips(theirs.0)[family]);
        let (pods, length) = (address::pod_cidrs(theirs.0)[family], if here.is_ipv4() { 32 } else { 128 });
        script += &format!(
            "link add {name} address {} type vxlan id {} local {} remote {} dstport 8472 nolearning
            link set {name} mtu 1450 up
            addr add {here}/{length} dev {name}
            neigh add {there} lladdr {} dev {name} nud permanent
            route del {pods}
            route add {pods} via {there} dev {name} onlink\n",
            mac(ours.0, family),
            family + 1,
            ours.1[family],
            theirs.1[family],
            mac(theirs.0, family),
        );
    }
    node.netns().ip(&script).unwrap();
}

/// Two nodes; the pods of the second one are reached by an overlay that comes when agents run, and what keeps it there.
fn laid<T>(what: &str, options: &[&str], lay: impl Fn(&Node, &Node) -> T) -> Option<(Cluster, Echo, T)> {
    if !harness::can_run(what) {
        return None;
    }
    let cluster = Cluster::start(2, 1, options);
    let [one, other] = [1, 2].map(|number| cluster.world.node(number));
    let laid = lay(one, other);
    await_tunnels(&cluster, true);
    let served = cluster.serve_echo(&echo("far", "NodePort"), &[Member::ready(&other.pod(1))]);
    Some((cluster, served, laid))
}

/// By VXLAN.
fn overlaid(what: &str, options: &[&str]) -> Option<(Cluster, Echo)> {
    let (cluster, served, _) = laid(what, options, |one, other| {
        join(one, other);
        join(other, one);
    })?;
    Some((cluster, served))
}

/// By a link without headers to both families' pods, as flannel and Calico have it by WireGuard.
fn join_by_wireguard(one: &Node, other: &Node) -> DelayLink {
    const DEVICE: &str = "flannel-wg";
    let link = DelayLink::headerless([(one.netns(), DEVICE), (other.netns(), DEVICE)]).unwrap();
    for (node, peer) in [(one, other), (other, one)] {
        let mut script = format!("link set {DEVICE} mtu 1420 up\n");
        for (here, pods) in tunnel_ips(node.number()).into_iter().zip(address::pod_cidrs(peer.number())) {
            let length = if here.is_ipv4() { 32 } else { 128 };
            script += &format!("addr add {here}/{length} dev {DEVICE}\nroute replace {pods} dev {DEVICE}\n");
        }
        node.netns().ip(&script).unwrap();
    }
    link
}

/// Waits until the first node's programs know of its tunnels, or that they are gone.
fn await_tunnels(cluster: &Cluster, there: bool) {
    let known = || {
        let config = cluster.agents[0].view().config().unwrap();
        [config.tunnel4, config.tunnel6].iter().all(|tunnel| (tunnel.ifindex != 0) == there)
    };
    wait::until("the programs know of the tunnels", SOON, known).unwrap_or_else(|error| {
        panic!("{error}\n{}", cluster.agents[0].log());
    });
}

/// Asks from outside at each of the first node's node ports; endpoints must see these addresses.
#[track_caller]
fn assert_seen_as(cluster: &Cluster, served: &Echo, seen: [IpAddr; 2]) {
    for talk in Talk::ALL {
        for (target, seen) in served.node_ports(cluster.world.node(1), talk).into_iter().zip(seen) {
            let answer = cluster.world.client().enter(|| talk.ask(target, SOON));
            let answer = answer.unwrap_or_else(|error| panic!("{talk:?} at {target}: {error}"));
            assert_eq!((answer.name.as_str(), answer.client.ip()), ("node2-pod1", seen), "{talk:?} at {target}");
        }
    }
}

#[test]
fn endpoints_behind_an_overlay_see_the_tunnels_address_as_with_kube_proxy_and_answer_through_it() {
    let Some((cluster, served)) = overlaid("an overlay network", &[]) else { return };
    assert_seen_as(&cluster, &served, tunnel_ips(1));
}

#[test]
fn by_a_tunnel_without_link_headers_it_is_the_same_with_and_without_xdp() {
    for options in [&[][..], &["--xdp-on-veth", "--host-bypass"]] {
        let Some((cluster, served, _link)) = laid("an overlay without headers", options, join_by_wireguard) else {
            return;
        };
        assert_seen_as(&cluster, &served, tunnel_ips(1));
        let counters = cluster.agents[0].view();
        let back = counters.counters().counter(abi::HOOK_NIC_INGRESS as usize, abi::REASON_BACK as usize).unwrap();
        assert!(back.packets >= 6, "answers come by the tunnel: {back:?}");
    }
}

#[test]
fn of_two_tunnels_the_one_by_which_endpoints_are_reached_lends_its_address() {
    let lay = |one: &Node, other: &Node| {
        // Of private clients, and first: it is taken until endpoints are known.
        let link = DelayLink::headerless([(one.netns(), "wg0"), (other.netns(), "wg0")]).unwrap();
        let ways = "route add 10.0.0.0/8 dev wg0\nroute add fd00::/8 dev wg0";
        one.netns()
            .ip(&format!("link set wg0 up\naddr add 10.8.0.1/24 dev wg0\naddr add fd08::1/64 dev wg0 nodad\n{ways}"))
            .unwrap();
        (link, join_by_wireguard(one, other))
    };
    let Some((cluster, served, _links)) = laid("two tunnels", &[], lay) else { return };
    let lent = || {
        let config = cluster.agents[0].view().config().unwrap();
        let lent = [config.tunnel4, config.tunnel6].map(|tunnel| tunnel.addr.ip());
        if lent == tunnel_ips(1) { Ok(()) } else { Err(format!("{lent:?}")) }
    };
    wait::until_some("the address of the tunnel to the endpoints", SOON, lent).unwrap();
    assert_seen_as(&cluster, &served, tunnel_ips(1));
}

#[test]
fn xdp_leaves_what_goes_by_a_tunnel_to_tc() {
    let Some((cluster, served)) = overlaid("an overlay network with XDP", &["--xdp-on-veth"]) else { return };
    assert_seen_as(&cluster, &served, tunnel_ips(1));
    let counters = cluster.agents[0].view();
    let left = counters.counters().counter(abi::HOOK_XDP as usize, abi::REASON_LEFT_TO_TC as usize).unwrap();
    assert!(left.packets >= 6, "each question begins with XDP: {left:?}");
}

/// Asks with a datagram that routers may cut, as it is or in pieces of a full link; must run in the client's namespace. Returns whether
/// all of it comes back.
fn comes_back(target: SocketAddr, bytes: usize, number: u16) -> bool {
    let local = SocketAddr::new(address::CLIENT.v4.into(), fresh_port());
    let payload: Vec<u8> = (0..bytes).map(|at| b'a' + u8::try_from(at % 23).unwrap()).collect();
    let whole = Packet { dont_fragment: false, identification: number, ..Packet::udp(local, target, &payload) };
    let pieces = if whole.ip_bytes().len() > LINK { whole.cut(LINK - 20) } else { vec![whole] };
    let socket = UdpSocket::bind(local).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    socket.connect(target).unwrap();
    pieces.iter().for_each(|piece| send_raw(piece, address::ROUTER_OUTSIDE.v4.into()).unwrap());
    let mut buffer = vec![0; 2 * bytes];
    socket.recv(&mut buffer).is_ok_and(|length| buffer[..length].ends_with(&payload))
}

#[test]
fn datagrams_that_the_tunnel_does_not_take_arrive_whole_if_they_may_be_cut() {
    let Some((cluster, served)) = overlaid("datagrams that are too big for an overlay network", &[]) else { return };
    let [target, _] = served.node_ports(cluster.world.node(1), Talk::Udp);
    let sent = || cluster.agents[0].packets(abi::HOOK_NIC_INGRESS, abi::REASON_TO_REMOTE);
    // One that is in no pieces before; two full ones and a rest.
    for (number, bytes, pieces) in [(1, LINK - 28, 2), (2, 2 * LINK, 5)] {
        let before = sent();
        assert!(cluster.world.client().enter(|| comes_back(target, bytes, number)), "{bytes} bytes");
        assert_eq!(sent() - before, pieces, "{bytes} bytes");
    }
}

#[test]
fn an_open_connection_by_the_tunnel_does_not_notice_that_the_agent_starts_again() {
    let Some((mut cluster, served)) = overlaid("a restart beside an overlay network", &[]) else { return };
    let open = |target: SocketAddr| LongConnection::open(cluster.world.client(), target, INTERVAL, SOON).unwrap();
    let connections = served.node_ports(cluster.world.node(1), Talk::Tcp).map(open);
    cluster.agents[0].kill();
    cluster.agents[0].start_again(&cluster.world);
    cluster.agents[0].await_ready(&cluster.world);
    for connection in connections {
        let so_far = connection.history().exchanges;
        connection.await_exchanges(so_far + 10, SOON).unwrap();
        assert_eq!(connection.close().error, None);
    }
}

#[test]
fn without_its_tunnels_a_node_has_its_own_address_again() {
    let Some((cluster, served)) = overlaid("an overlay network that goes", &[]) else { return };
    for node in cluster.world.nodes() {
        let peer = cluster.world.node(3 - node.number());
        let mut script = String::new();
        for (family, name) in DEVICES.into_iter().enumerate() {
            let (pods, via) = (address::pod_cidrs(peer.number())[family], peer.address().both()[family]);
            script += &format!("link del {name}\nroute add {pods} via {via}\n");
        }
        node.netns().ip(&script).unwrap();
    }
    await_tunnels(&cluster, false);
    assert_seen_as(&cluster, &served, cluster.world.node(1).address().both());
}
