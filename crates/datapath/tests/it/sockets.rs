//! Sockets of the node's own processes, by real system calls: the kernel runs these programs in no other way.

use std::io;
use std::mem::size_of;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use weir_abi as abi;
use weir_core::model::{Family, Protocol, Service};
use weir_core::ops::{FrontendKey, MapOp};
use weir_datapath::MapStore;
use weir_testbed::address;
use weir_testbed::cgroup::Cgroup;

use crate::case::{BALANCER_IP, CASES, CLUSTER_IP, Case, PORT, TARGET_PORT, cases};
use crate::node::{Node, web};
use crate::pins::{SMALL, unique_name};

/// A node whose processes are in a cgroup with the socket hooks.
struct Host {
    node: Node,
    cgroup: Cgroup,
}

/// Of the calling thread's namespace.
pub(crate) fn netns_cookie() -> u64 {
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut cookie = 0u64;
    let mut size = libc::socklen_t::try_from(size_of::<u64>()).unwrap();
    // SAFETY: the kernel writes eight bytes into cookie.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE, (&raw mut cookie).cast(), &raw mut size)
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    cookie
}

impl Host {
    fn new(what: &str) -> Option<Self> {
        let mut node = Node::new(what)?;
        node.netns.ip("link set lo up").unwrap();
        let cgroup = Cgroup::create(&unique_name()).unwrap();
        node.datapath.attach_cgroup(cgroup.path()).unwrap();
        let netns_cookie = node.netns.enter(netns_cookie);
        let config = node.datapath.config().unwrap();
        node.datapath.configure(&abi::Config { netns_cookie, ..config }).unwrap();
        Some(Self { node, cgroup })
    }

    /// Serves a Service by endpoints whose addresses are the host's own.
    fn serve_itself(&mut self, pods: &[(u8, u8)]) {
        for ip in pods.iter().flat_map(|(node, pod)| address::pod(*node, *pod).both()) {
            let how = if ip.is_ipv4() { "/32 dev lo" } else { "/128 dev lo nodad" };
            self.node.netns.ip(&format!("addr add {ip}{how}")).unwrap();
            if ip.is_ipv6() {
                self.node.netns.await_own(ip, Duration::from_secs(2)).unwrap();
            }
        }
        self.node.serve(web(), pods);
    }

    fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let (netns, cgroup) = (&self.node.netns, &self.cgroup);
        netns.enter(|| cgroup.enter(work)).unwrap()
    }

    /// Connects a socket; what it is refused with.
    fn connect(&self, case: Case, to: SocketAddr) -> io::Result<()> {
        self.enter(|| match case.protocol {
            Protocol::Tcp => TcpStream::connect(to).map(drop),
            Protocol::Udp | Protocol::Sctp => udp(to).connect(to),
        })
    }

    /// Endpoints that connected UDP sockets were sent to, in no order.
    fn endpoints(&self, frontend: SocketAddr) -> Vec<IpAddr> {
        let there =
            |(key, peer): (abi::SocketKey, abi::SocketPeer)| (key.addr.ip() == frontend.ip()).then(|| peer.addr.ip());
        self.node.view.sockets().unwrap().into_iter().filter_map(there).collect()
    }

    fn counted(&self, reason: u32) -> u64 {
        self.node.view.counters().counter(abi::HOOK_SOCKET as usize, reason as usize).unwrap().packets
    }
}

fn udp(to: SocketAddr) -> UdpSocket {
    UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap()
}

#[track_caller]
fn is_refused(host: &Host, case: Case, to: SocketAddr, reason: u32, errno: i32) {
    let before = host.counted(reason);
    let error = host.connect(case, to).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(errno), "{case:?} to {to}: {error}");
    assert_eq!(host.counted(reason), before + 1, "{case:?} to {to}");
}

#[test]
fn an_unused_port_of_a_cluster_ip_refuses_and_those_of_other_addresses_are_left_alone() {
    let Some(mut host) = Host::new("sockets to unused ports") else { return };
    host.node.serve(web(), &[(1, 1)]);
    for case in CASES {
        is_refused(&host, case, case.at(CLUSTER_IP, PORT + 1), abi::REASON_UNUSED_PORT, libc::ECONNREFUSED);
    }
    for case in cases(Protocol::Udp) {
        let before = host.counted(abi::REASON_NO_FRONTEND);
        host.connect(case, case.at(BALANCER_IP, PORT + 1)).unwrap();
        assert_eq!(host.counted(abi::REASON_NO_FRONTEND), before + 1);
    }
}

#[test]
fn a_socket_whose_connection_was_refused_may_get_another_endpoint_when_it_is_connected_again() {
    let Some(mut host) = Host::new("sockets that are connected again") else { return };
    // Nobody listens there.
    host.serve_itself(&[(1, 7), (1, 8)]);
    let flows = |slot| host.node.view.backend_counters(slot).unwrap().flows;
    for (case, asked) in cases(Protocol::Tcp).zip([2, 4]) {
        let to = case.at(CLUSTER_IP, PORT);
        host.enter(|| {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap();
            for _ in 0..64 {
                let error = socket.connect(&to.into()).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED), "{error}");
            }
        });
        assert_eq!((0..SMALL.backends).filter(|slot| flows(*slot) > 0).count(), asked, "{case:?}");
    }
}

#[test]
fn however_many_connections_there_are_a_datagrams_socket_and_a_connection_see_their_service() {
    let Some(mut host) = Host::new("sockets beside many connections") else { return };
    host.serve_itself(&[(1, 7)]);
    for case in cases(Protocol::Tcp) {
        let to = case.at(CLUSTER_IP, PORT);
        host.enter(|| {
            let listener = TcpListener::bind(case.at(address::pod(1, 7), TARGET_PORT)).unwrap();
            let (datagrams, connection) = (udp(to), TcpStream::connect(to).unwrap());
            datagrams.connect(to).unwrap();
            let _other_end = listener.accept().unwrap();
            drop(listener);
            for _ in 0..2 * SMALL.sockets {
                TcpStream::connect(to).unwrap_err();
            }
            assert_eq!((datagrams.peer_addr().unwrap(), connection.peer_addr().unwrap()), (to, to));
        });
    }
}

#[test]
fn a_connection_to_an_endpoint_itself_is_shown_that_one() {
    let Some(mut host) = Host::new("connections by a frontend and without") else { return };
    host.serve_itself(&[(1, 7)]);
    for case in cases(Protocol::Tcp) {
        let (frontend, endpoint) = (case.at(CLUSTER_IP, PORT), case.at(address::pod(1, 7), TARGET_PORT));
        host.enter(|| {
            let socket = Socket::new(Domain::for_address(frontend), Type::STREAM, None).unwrap();
            socket.connect(&frontend.into()).unwrap_err();
            let _listener = TcpListener::bind(endpoint).unwrap();
            socket.connect(&endpoint.into()).unwrap();
            assert_eq!(socket.peer_addr().unwrap().as_socket(), Some(endpoint));
        });
    }
}

/// The kernel has what such a socket sends looked at each time, with the endpoint's address.
#[test]
fn a_socket_of_ipv6_that_is_connected_by_ipv4_sees_whom_it_was_connected_to_whatever_it_sends() {
    let Some(mut host) = Host::new("mapped sockets that send") else { return };
    host.node.serve(web(), &[(1, 1)]);
    for case in cases(Protocol::Udp).filter(|case| case.family == Family::V4) {
        let IpAddr::V4(ip) = case.ip(CLUSTER_IP) else { panic!("{case:?}") };
        let to = SocketAddr::new(ip.to_ipv6_mapped().into(), PORT);
        host.enter(|| {
            let socket = udp(to);
            socket.connect(to).unwrap();
            for _ in 0..2 {
                socket.send(b"query").unwrap();
                assert_eq!(socket.peer_addr().unwrap(), to);
            }
        });
    }
}

#[test]
fn a_socket_whose_owner_goes_on_to_an_endpoint_itself_is_shown_that_one() {
    let Some(mut host) = Host::new("sockets by a frontend and without") else { return };
    host.node.serve(web(), &[(1, 1)]);
    for case in cases(Protocol::Udp) {
        let (frontend, endpoint) = (case.at(CLUSTER_IP, PORT), case.at(address::pod(1, 1), TARGET_PORT));
        host.enter(|| {
            let socket = udp(frontend);
            for to in [frontend, endpoint, frontend, endpoint] {
                socket.connect(to).unwrap();
                assert_eq!(socket.peer_addr().unwrap(), to);
            }
        });
    }
}

#[test]
fn the_node_is_the_client_that_source_ranges_ask_for() {
    let Some(mut host) = Host::new("sockets and source ranges") else { return };
    let ranged =
        |ranges: [&str; 2]| Service { source_ranges: ranges.map(|net| net.parse().unwrap()).to_vec(), ..web() };
    host.node.serve(ranged(["192.0.2.0/24", "2001:db8:9::/48"]), &[(1, 1)]);
    for case in CASES {
        is_refused(&host, case, case.at(BALANCER_IP, PORT), abi::REASON_SOURCE_RANGE, libc::EHOSTUNREACH);
    }
    for case in cases(Protocol::Udp) {
        host.connect(case, case.at(CLUSTER_IP, PORT)).unwrap();
    }
    host.node.serve(ranged(["172.30.0.0/24", "fd00:30::/64"]), &[(1, 1)]);
    for case in cases(Protocol::Udp) {
        host.connect(case, case.at(BALANCER_IP, PORT)).unwrap();
    }
}

#[test]
fn a_socket_that_goes_back_to_an_earlier_frontend_of_the_same_endpoint_sees_that_one_again() {
    let Some(mut host) = Host::new("sockets by two frontends") else { return };
    host.node.serve(web(), &[(1, 1)]);
    for case in cases(Protocol::Udp) {
        let [one, other] = [CLUSTER_IP, BALANCER_IP].map(|ip| case.at(ip, PORT));
        host.enter(|| {
            let socket = udp(one);
            for to in [one, other, one, one, other] {
                socket.connect(to).unwrap();
                assert_eq!(socket.peer_addr().unwrap(), to);
            }
        });
    }
}

#[test]
fn all_sockets_of_the_node_are_one_client_that_keeps_its_backend() {
    let Some(mut host) = Host::new("sockets with affinity") else { return };
    let endpoints: Vec<_> = (1..=20).map(|pod| (1, pod)).collect();
    for affinity in [None, Some(600)] {
        host.node.serve(Service { affinity, ..web() }, &endpoints);
        for case in cases(Protocol::Udp) {
            crate::entries::evict(&host.node, "socket_peers");
            let to = case.at(CLUSTER_IP, PORT);
            (0..20).for_each(|_| host.connect(case, to).unwrap());
            let mut seen = host.endpoints(to);
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len() == 1, affinity.is_some(), "{case:?}: {seen:?}");
        }
    }
    let clients: Vec<_> = host.node.view.affinities().unwrap().iter().map(|(key, _)| key.client.ip()).collect();
    assert!(clients.iter().all(|client| address::node(1).both().contains(client)), "{clients:?}");
}

#[test]
fn a_node_without_an_address_has_no_affinity() {
    let Some(mut host) = Host::new("sockets of a node without an address") else { return };
    host.node.serve(Service { affinity: Some(600), ..web() }, &[(1, 1)]);
    let config = host.node.datapath.config().unwrap();
    let config = abi::Config { node4: abi::Addr::UNSET, node6: abi::Addr::UNSET, ..config };
    host.node.datapath.configure(&config).unwrap();
    for case in cases(Protocol::Udp) {
        host.connect(case, case.at(CLUSTER_IP, PORT)).unwrap();
    }
    assert_eq!(host.node.view.affinities().unwrap(), []);
}

#[test]
fn a_node_port_at_a_loopback_address_is_for_sockets() {
    let Some(mut host) = Host::new("sockets to loopback addresses") else { return };
    host.node.serve(web(), &[(1, 1)]);
    let loopback = address::Pair { v4: std::net::Ipv4Addr::LOCALHOST, v6: std::net::Ipv6Addr::LOCALHOST };
    for case in cases(Protocol::Udp) {
        let to = case.at(loopback, PORT);
        let (_, frontend) = host.node.frontend(case.at(CLUSTER_IP, PORT), case.protocol);
        let key = FrontendKey { address: to.ip(), port: PORT, protocol: case.protocol.number() };
        host.node.datapath.store().apply(&[MapOp::PutFrontend { key, frontend }]).unwrap();
        host.connect(case, to).unwrap();
        assert_eq!(host.endpoints(to), [case.ip(address::pod(1, 1))]);
    }
}

#[test]
fn what_a_process_connects_to_is_told_as_a_new_flow_that_goes_on_and_nothing_else() {
    let Some(mut host) = Host::new("signals of sockets") else { return };
    host.node.serve(web(), &[(1, 1)]);
    for case in cases(Protocol::Udp) {
        host.connect(case, case.at(CLUSTER_IP, PORT)).unwrap();
        let (_, frontend) = host.node.frontend(case.at(CLUSTER_IP, PORT), case.protocol);
        let backends = host.node.view.dump().unwrap().backends;
        let (slot, _) = backends.iter().find(|(_, backend)| backend.service == frontend.service).unwrap();
        let expected = abi::BackendCounters { flows: 1, gone_on: 1, ..abi::BackendCounters::default() };
        assert_eq!(host.node.view.backend_counters(*slot).unwrap(), expected, "{case:?}");
    }
}
