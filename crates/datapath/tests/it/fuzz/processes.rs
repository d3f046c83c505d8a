//! Processes in namespaces and cgroups, with sockets of their own, and the servers that they talk to.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::SockRef;
use weir_core::model::Family;
use weir_testbed::cgroup::Cgroup;
use weir_testbed::{Netns, wait};

use super::places::place;
use super::world::{ENDPOINTS, TARGET};
use crate::sockets::netns_cookie;

/// For what has been sent on the same machine.
const SOON: Duration = Duration::from_secs(2);

/// Who answers at the endpoints' addresses of a namespace.
pub(super) struct Servers {
    tcp: HashMap<SocketAddr, TcpListener>,
    pub(super) udp: HashMap<SocketAddr, UdpSocket>,
}

impl Servers {
    /// Gives the namespace the addresses that it does not have.
    pub(super) fn new(netns: &Netns, has: &[IpAddr]) -> Self {
        let ips: Vec<_> =
            [Family::V4, Family::V6].into_iter().flat_map(|f| (0..ENDPOINTS).map(move |n| place(f, n).0)).collect();
        for ip in ips.iter().filter(|ip| !has.contains(ip)) {
            let how = if ip.is_ipv4() { "/32 dev lo" } else { "/128 dev lo nodad" };
            netns.ip(&format!("addr add {ip}{how}")).unwrap();
        }
        for ip in ips.iter().filter(|ip| ip.is_ipv6()) {
            netns.await_own(*ip, SOON).unwrap();
        }
        let all = || ips.iter().map(|ip| SocketAddr::new(*ip, TARGET));
        netns.enter(|| {
            let tcp = all().map(|at| {
                let listener = TcpListener::bind(at).unwrap();
                listener.set_nonblocking(true).unwrap();
                (at, listener)
            });
            let udp = all().map(|at| {
                let socket = UdpSocket::bind(at).unwrap();
                socket.set_read_timeout(Some(SOON)).unwrap();
                (at, socket)
            });
            Self { tcp: tcp.collect(), udp: udp.collect() }
        })
    }

    /// Leaves nothing of a scenario that was given up.
    pub(super) fn forget(&self) {
        self.tcp.values().for_each(|listener| while listener.accept().is_ok() {});
        for socket in self.udp.values() {
            socket.set_nonblocking(true).unwrap();
            while socket.recv(&mut []).is_ok() {}
            socket.set_nonblocking(false).unwrap();
        }
    }

    /// Whose connection is next.
    pub(super) fn accepts(&self, there: SocketAddr) -> Result<SocketAddr, String> {
        let accept = || self.tcp[&there].accept().map(|(_, from)| from).map_err(|error| error.to_string());
        wait::until_some(&format!("{there} to be connected to"), SOON, accept).map_err(|error| error.to_string())
    }

    /// Whose datagram is next.
    pub(super) fn hears(&self, there: SocketAddr) -> Result<SocketAddr, String> {
        let heard = self.udp[&there].recv_from(&mut [0; 16]);
        heard.map(|(_, from)| from).map_err(|error| format!("{there} hears nothing: {error}"))
    }
}

type Order = Box<dyn FnOnce() + Send>;

/// A process: a thread in a namespace and a cgroup, which does what it is told.
pub(super) struct Process {
    orders: Option<mpsc::Sender<Order>>,
    thread: Option<JoinHandle<()>>,
    pub(super) netns: u64,
    groups: Vec<u64>,
    pub(super) servers: Servers,
}

impl Process {
    pub(super) fn new(netns: &Netns, cgroup: Cgroup, groups: Vec<u64>, servers: Servers) -> Self {
        let (orders, received) = mpsc::channel::<Order>();
        let work = move || cgroup.enter(|| received.into_iter().for_each(|order| order())).unwrap();
        let thread = netns.spawn("process", work).unwrap();
        Self { orders: Some(orders), thread: Some(thread), netns: netns.enter(netns_cookie), groups, servers }
    }

    pub(super) fn ask<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, told) = mpsc::channel();
        let order = Box::new(move || drop(tell.send(work())));
        self.orders.as_ref().unwrap().send(order).unwrap();
        told.recv().expect("the thread lives")
    }

    /// Two sockets for datagrams, of IPv4 and of IPv6.
    pub(super) fn senders(&self) -> [UdpSocket; 2] {
        self.ask(|| {
            ["0.0.0.0:0", "[::]:0"].map(|any| {
                let socket = UdpSocket::bind(any).unwrap();
                socket.set_read_timeout(Some(SOON)).unwrap();
                socket
            })
        })
    }

    /// What the model knows of a socket.
    pub(super) fn known(&self, socket: &impl AsFd, protocol: u8) -> weir_model::Socket {
        let cookie = SockRef::from(socket).cookie().unwrap();
        weir_model::Socket { cookie, protocol, netns: self.netns, groups: self.groups.clone() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.orders.take());
        self.thread.take().map(JoinHandle::join);
    }
}
