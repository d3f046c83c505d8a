//! Sockets of a pod whose TCP connections are translated when they are made, by real system calls. The pod's namespace leads
//! nowhere: what counts is where a socket was sent to.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::MetadataExt;

use weir_abi as abi;
use weir_core::model::{Protocol, Service};
use weir_core::ops::{FrontendKey, MapOp};
use weir_datapath::{HookedPods, MapStore};
use weir_testbed::address::{self, Pair};
use weir_testbed::cgroup::Cgroup;
use weir_testbed::netns::Netns;

use crate::case::{BALANCER_IP, CLUSTER_IP, Case, EXTERNAL_IP, NODE_PORT, PORT, cases};
use crate::node::{Node, web};
use crate::pins::unique_name;
use crate::sockets::netns_cookie;

const POD: Pair = address::pod(1, 7);

/// A pod on a node with the socket hooks, and one of its containers.
struct Pod {
    node: Node,
    netns: Netns,
    container: Cgroup,
    pod: Cgroup,
    _hooked: Cgroup,
}

impl Pod {
    fn new(what: &str) -> Option<Self> {
        let mut node = Node::new(what)?;
        let netns = Netns::create(&unique_name()).unwrap();
        netns.ip("link set lo up").unwrap();
        let hooked = Cgroup::create(&unique_name()).unwrap();
        node.datapath.attach_cgroup(hooked.path()).unwrap();
        let pod = hooked.below("kubepods/burstable/pod7").unwrap();
        let container = pod.below("main").unwrap();
        let (netns_cookie, config) = (node.netns.enter(netns_cookie), node.datapath.config().unwrap());
        node.datapath.configure(&abi::Config { netns_cookie, ..config }).unwrap();
        let this = Self { node, netns, container, pod, _hooked: hooked };
        this.add_flags(abi::CONFIG_POD_SOCKETS);
        this.hook(Some(abi::HookedPod { addr4: POD.v4.into(), addr6: POD.v6.into() }));
        Some(this)
    }

    fn hook(&self, pod: Option<abi::HookedPod>) {
        let group = self.pod.path().metadata().unwrap().ino();
        let pods: BTreeMap<_, _> = pod.into_iter().map(|pod| (group, pod)).collect();
        HookedPods::open(self.node.datapath.pins()).unwrap().replace(&pods).unwrap();
    }

    fn add_flags(&self, flags: u32) {
        let config = self.node.datapath.config().unwrap();
        self.node.datapath.configure(&abi::Config { flags: config.flags | flags, ..config }).unwrap();
    }

    fn set_flags(&self, flags: u32) {
        let config = self.node.datapath.config().unwrap();
        self.node.datapath.configure(&abi::Config { flags, ..config }).unwrap();
    }

    /// Connects a socket of a process in the container; the error's number.
    fn connect(&self, case: Case, to: SocketAddr) -> Option<i32> {
        let connect = || match case.protocol {
            Protocol::Tcp => TcpStream::connect(to).map(drop),
            Protocol::Udp | Protocol::Sctp => {
                let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap();
                socket.connect(to)
            }
        };
        let (netns, container) = (&self.netns, &self.container);
        let result = netns.enter(|| container.enter(connect)).unwrap();
        result.err().and_then(|error| error.raw_os_error())
    }

    fn counted(&self, reason: u32) -> u64 {
        self.node.view.counters().counter(abi::HOOK_SOCKET as usize, reason as usize).unwrap().packets
    }

    #[track_caller]
    fn assert_translated(&self, case: Case, to: SocketAddr, expected: bool, why: &str) {
        let before = self.counted(abi::REASON_TO_LOCAL);
        self.connect(case, to);
        assert_eq!(self.counted(abi::REASON_TO_LOCAL), before + u64::from(expected), "{case:?} to {to}: {why}");
        assert_eq!(self.node.view.sockets().unwrap(), [], "the places of datagrams' sockets are not for connections");
    }

    #[track_caller]
    fn assert_refused(&self, case: Case, to: SocketAddr, reason: u32, errno: i32) {
        let before = self.counted(reason);
        assert_eq!(self.connect(case, to), Some(errno), "{case:?} to {to}");
        assert_eq!(self.counted(reason), before + 1, "{case:?} to {to}");
    }
}

fn frontends() -> [(Pair, u16); 4] {
    [(CLUSTER_IP, PORT), (address::node(1), NODE_PORT), (EXTERNAL_IP, PORT), (BALANCER_IP, PORT)]
}

#[test]
fn tcp_of_a_pod_is_translated_at_every_kind_of_address_and_its_datagrams_are_not() {
    let Some(mut pod) = Pod::new("sockets of pods") else { return };
    pod.node.serve(web(), &[(1, 1)]);
    for (address, port) in frontends() {
        for case in cases(Protocol::Tcp) {
            pod.assert_translated(case, case.at(address, port), true, "TCP");
        }
        for case in cases(Protocol::Udp) {
            pod.assert_translated(case, case.at(address, port), false, "UDP");
        }
    }
}

#[test]
fn a_pod_that_nobody_named_is_left_to_its_packets_and_so_are_all_without_the_flag() {
    let Some(mut pod) = Pod::new("pods that are not hooked") else { return };
    pod.node.serve(web(), &[(1, 1)]);
    for case in cases(Protocol::Tcp) {
        let to = case.at(CLUSTER_IP, PORT);
        let unset = abi::Addr::UNSET;
        for (entry, v4) in [
            (abi::HookedPod { addr4: POD.v4.into(), addr6: unset }, true),
            (abi::HookedPod { addr4: unset, addr6: POD.v6.into() }, false),
        ] {
            pod.hook(Some(entry));
            pod.assert_translated(case, to, v4 == to.is_ipv4(), "a pod of one family");
        }
        pod.hook(None);
        pod.assert_translated(case, to, false, "no pod");
        pod.hook(Some(abi::HookedPod { addr4: POD.v4.into(), addr6: POD.v6.into() }));
        pod.assert_translated(case, to, true, "a pod again");
    }
    pod.set_flags(0);
    for case in cases(Protocol::Tcp) {
        pod.assert_translated(case, case.at(CLUSTER_IP, PORT), false, "without the flag");
    }
}

#[test]
fn a_container_may_divide_itself_and_one_within_it_is_left_to_its_packets() {
    let Some(mut pod) = Pod::new("containers in a container") else { return };
    pod.node.serve(web(), &[(1, 1)]);
    for case in cases(Protocol::Tcp) {
        for (below, translated) in [("init.scope", true), ("docker/inner", false), ("kubepods/pod1/inner", false)] {
            pod.container = pod.pod.below(&format!("other/{below}")).unwrap();
            pod.assert_translated(case, case.at(CLUSTER_IP, PORT), translated, below);
        }
    }
}

#[test]
fn where_a_pods_packets_would_get_the_nodes_address_they_do() {
    let Some(mut pod) = Pod::new("masquerading and sockets of pods") else { return };
    pod.node.serve(web(), &[(1, 1)]);
    let external = abi::CONFIG_MASQUERADE_EXTERNAL;
    for (flags, cluster_ip) in [(external, true), (external | abi::CONFIG_MASQUERADE_ALL, false)] {
        pod.add_flags(flags);
        for case in cases(Protocol::Tcp) {
            for (address, port) in frontends() {
                let expected = address == CLUSTER_IP && cluster_ip;
                pod.assert_translated(case, case.at(address, port), expected, "masquerading");
            }
        }
    }
}

#[test]
fn a_pods_loopback_is_its_own_whatever_the_nodes_serves() {
    let Some(mut pod) = Pod::new("loopback addresses of pods") else { return };
    pod.node.serve(web(), &[(1, 1)]);
    let loopback = Pair { v4: std::net::Ipv4Addr::LOCALHOST, v6: std::net::Ipv6Addr::LOCALHOST };
    for case in cases(Protocol::Tcp) {
        let to = case.at(loopback, PORT);
        let (_, frontend) = pod.node.frontend(case.at(CLUSTER_IP, PORT), case.protocol);
        let key = FrontendKey { address: to.ip(), port: PORT, protocol: case.protocol.number() };
        pod.node.datapath.store().apply(&[MapOp::PutFrontend { key, frontend }]).unwrap();
        pod.assert_translated(case, to, false, "loopback");
        assert_eq!(pod.connect(case, to), Some(libc::ECONNREFUSED), "nothing listens in the pod");
    }
}

#[test]
fn the_pod_is_the_client_of_affinity_and_source_ranges() {
    let Some(mut pod) = Pod::new("the client of sockets of pods") else { return };
    let ranged = |ranges: [String; 2]| Service {
        source_ranges: ranges.map(|net| net.parse().unwrap()).to_vec(),
        affinity: Some(600),
        ..web()
    };
    pod.node.serve(ranged([format!("{}/32", POD.v4), format!("{}/128", POD.v6)]), &[(1, 1)]);
    for case in cases(Protocol::Tcp) {
        pod.assert_translated(case, case.at(BALANCER_IP, PORT), true, "admitted");
    }
    let mut clients: Vec<_> = pod.node.view.affinities().unwrap().iter().map(|(key, _)| key.client.ip()).collect();
    clients.sort_unstable();
    assert_eq!(clients, POD.both());
    pod.node.serve(ranged(["172.30.0.0/24".into(), "fd00:30::/64".into()]), &[(1, 1)]);
    for case in cases(Protocol::Tcp) {
        pod.assert_refused(case, case.at(BALANCER_IP, PORT), abi::REASON_SOURCE_RANGE, libc::EHOSTUNREACH);
    }
}

#[test]
fn a_service_without_endpoints_and_an_unused_port_refuse_at_once() {
    let Some(mut pod) = Pod::new("refusals of sockets of pods") else { return };
    pod.node.serve(web(), &[]);
    for case in cases(Protocol::Tcp) {
        pod.assert_refused(case, case.at(CLUSTER_IP, PORT), abi::REASON_NO_ENDPOINTS, libc::ECONNREFUSED);
        pod.assert_refused(case, case.at(CLUSTER_IP, PORT + 1), abi::REASON_UNUSED_PORT, libc::ECONNREFUSED);
    }
}
