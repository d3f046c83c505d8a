//! Sockets of processes on the host, and the TCP of pods that the agent names: a connection is translated when it is made,
//! datagrams one by one (`bpf/sock.bpf.c`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use weir_abi as abi;
use weir_abi::Addr;
use weir_core::model::Family;

use crate::choose::Request;
use crate::control::is_local;
use crate::packet::{End, TCP, UDP, is_loopback, is_set};
use crate::{Model, Reason};

/// Levels of cgroups below the root at which a pod's may be.
const POD_LEVELS: usize = 8;
/// Levels of cgroups below a pod's at which its processes may be.
const CONTAINER_LEVELS: usize = 2;

/// A socket, and the process that uses it.
#[derive(Clone, Debug)]
pub struct Socket {
    /// Number of the socket.
    pub cookie: u64,
    /// IP protocol number.
    pub protocol: u8,
    /// Number of its network namespace.
    pub netns: u64,
    /// Cgroups of the process by number: the one below the root first, its own last.
    pub groups: Vec<u64>,
}

/// What a process wants of an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wish {
    /// That the socket is connected to it.
    Connect,
    /// That it gets a datagram of a socket that is not connected.
    Send,
}

/// The error that a process gets instead.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// `ECONNREFUSED`.
    Refused,
    /// `EHOSTUNREACH`.
    Unreachable,
}

/// What a hook made of a call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Called {
    /// What was counted; none where the hook had no say.
    pub reason: Option<Reason>,
    /// The address that the kernel goes on with.
    pub result: Result<SocketAddr, Refusal>,
}

/// Who asks for a service.
#[derive(Clone, Copy, Debug)]
struct Caller {
    client: Addr,
    is_pod: bool,
}

impl Socket {
    fn key(&self, end: End) -> abi::SocketKey {
        let port = abi::Be16::new(end.port);
        abi::SocketKey { cookie: self.cookie, addr: end.addr, port, proto: self.protocol, pad: [0; 5] }
    }
}

impl Model {
    /// A process connects a socket, or sends by one. An IPv4 address may be given as a v4-mapped one. `drawn`: the backend slots whose counts
    /// of new flows moved in the kernel, which draws for connections.
    pub fn call(&mut self, socket: &Socket, wish: Wish, to: SocketAddr, drawn: &[u32]) -> Called {
        let family = Family::of(to.ip().to_canonical());
        let end = End { addr: any_to_loopback(to.ip()).into(), port: to.port() };
        match self.caller(socket, wish, family, end) {
            Some(caller) => {
                let called = self.translate(socket, caller, (family, end), drawn);
                // What goes to an IPv4 address by a socket of IPv6 may be what one sends that is connected there.
                let may_be_connected = wish == Wish::Send && to.is_ipv6() && family == Family::V4;
                if called.reason == Some(abi::REASON_NO_FRONTEND) && !may_be_connected {
                    self.forget(socket, end);
                }
                called
            }
            None => Called { reason: None, result: Ok(canonical(end)) },
        }
    }

    /// The address that a process is shown, where the kernel has `from` for the other end of its socket, or as the source of a
    /// datagram.
    #[must_use]
    pub fn shown(&self, socket: &Socket, from: SocketAddr) -> Called {
        let end = End { addr: from.ip().into(), port: from.port() };
        let known = if socket.protocol == TCP {
            let peer = self.tables.connections.get(&socket.cookie);
            let peer = peer.filter(|peer| (peer.backend, peer.backend_port.get()) == (end.addr, end.port));
            peer.map(|peer| End { addr: peer.frontend, port: peer.frontend_port.get() })
        } else {
            let peer = self.tables.sockets.get(&socket.key(end));
            peer.map(|peer| End { addr: peer.addr, port: peer.port.get() })
        };
        Called { reason: known.map(|_| abi::REASON_BACK), result: Ok(canonical(known.unwrap_or(end))) }
    }

    /// Who asks, if it is the hook's to answer: otherwise packets are translated, if anything is.
    fn caller(&self, socket: &Socket, wish: Wish, family: Family, to: End) -> Option<Caller> {
        if !matches!(socket.protocol, TCP | UDP) {
            return None;
        }
        if socket.netns == self.config.netns_cookie {
            return Some(Caller { client: self.node(family), is_pod: false });
        }
        // A pod's datagrams need no hook, and its loopback is not the node's.
        let is_connection = wish == Wish::Connect && socket.protocol == TCP;
        if !is_connection || !self.has(abi::CONFIG_POD_SOCKETS) || is_loopback(family, to.addr) {
            return None;
        }
        let any_port = End { port: 0, ..to };
        if !self.control.may_be_frontend(to, TCP) && !self.control.may_be_frontend(any_port, 0) {
            return None;
        }
        let pods = socket.groups.iter().take(POD_LEVELS).map(|group| self.hooked_pods.get(group));
        let (level, pod) = pods.enumerate().find_map(|(level, pod)| Some((level, pod?)))?;
        // A container in a container may have a network of its own.
        if socket.groups.len() > level + 1 + CONTAINER_LEVELS {
            return None;
        }
        let client = match family {
            Family::V4 => pod.addr4,
            Family::V6 => pod.addr6,
        };
        is_set(client).then_some(Caller { client, is_pod: true })
    }

    fn translate(&mut self, socket: &Socket, caller: Caller, (family, to): (Family, End), drawn: &[u32]) -> Called {
        let untouched = |reason| Called { reason, result: Ok(canonical(to)) };
        let Some(frontend) = self.control.frontend_at(family, to, socket.protocol) else {
            if self.control.is_cluster_ip(family, to.addr) {
                return refused(abi::REASON_UNUSED_PORT);
            }
            return untouched(Some(abi::REASON_NO_FRONTEND));
        };
        let known = if socket.protocol == UDP { self.known_backend(&socket.key(to), frontend) } else { None };
        let slot = match known {
            Some(slot) => slot,
            // A socket keeps its pod's address; a packet can be given the node's.
            None if caller.is_pod && self.masquerades(family, frontend, false) => return untouched(None),
            None => match self.choose_for(socket, caller.client, (family, to), frontend, drawn) {
                Ok(slot) => slot,
                Err(reason) => return refused(reason),
            },
        };
        self.remember(socket, to, slot, known.is_none());
        let backend = self.control.backend(slot);
        let reason = if is_local(&backend) { abi::REASON_TO_LOCAL } else { abi::REASON_TO_REMOTE };
        Called { reason: Some(reason), result: Ok(SocketAddr::new(backend.addr.ip(), backend.port.get())) }
    }

    /// The backend of a socket's earlier datagrams to a frontend, unless it is gone, or the frontend is another service's by now.
    fn known_backend(&self, key: &abi::SocketKey, frontend: abi::Frontend) -> Option<u32> {
        let peer = self.tables.sockets.get(key)?;
        let backend = self.control.backend(peer.backend);
        let is_same = (backend.generation, backend.service) == (peer.generation, frontend.service);
        is_same.then_some(peer.backend)
    }

    /// Chooses for a socket.
    fn choose_for(
        &mut self,
        socket: &Socket,
        client: Addr,
        (family, to): (Family, End),
        frontend: abi::Frontend,
        drawn: &[u32],
    ) -> Result<u32, Reason> {
        let request =
            Request::of_socket(self.config.hash_seed, socket.cookie, (family, socket.protocol, to), client, frontend);
        let choice = self.choose(request, drawn).inspect_err(|reason| self.count_refusal(frontend.service, *reason))?;
        self.count_selection(frontend.service, choice.backend, true);
        self.count_flow(choice.backend, true);
        Ok(choice.backend)
    }

    /// Forgets what was noted of an address that a socket's owner now talks to itself.
    fn forget(&mut self, socket: &Socket, end: End) {
        if socket.protocol == TCP {
            self.tables.connections.remove(&socket.cookie);
        } else {
            self.tables.sockets.remove(&socket.key(end));
        }
    }

    /// Remembers which address a socket's owner believes to talk to, and where its datagrams go, if that is new.
    fn remember(&mut self, socket: &Socket, to: End, slot: u32, is_new: bool) {
        let backend = self.control.backend(slot);
        if socket.protocol == TCP {
            let (frontend, frontend_port) = (to.addr, abi::Be16::new(to.port));
            let (backend, backend_port) = (backend.addr, backend.port);
            let peer = abi::ConnectionPeer { frontend, backend, frontend_port, backend_port };
            self.tables.connections.insert(socket.cookie, peer);
            return;
        }
        let peer = |addr, port| abi::SocketPeer { addr, port, pad: 0, backend: slot, generation: backend.generation };
        let back = socket.key(End { addr: backend.addr, port: backend.port.get() });
        self.tables.sockets.insert(back, peer(to.addr, abi::Be16::new(to.port)));
        if is_new {
            self.tables.sockets.insert(socket.key(to), peer(backend.addr, backend.port));
        }
    }
}

/// Whom who asks for nobody's address gets: itself.
fn any_to_loopback(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        known => known,
    }
}

const fn refused(reason: Reason) -> Called {
    let refusal = match reason {
        abi::REASON_NO_ENDPOINTS | abi::REASON_UNUSED_PORT => Refusal::Refused,
        _ => Refusal::Unreachable,
    };
    Called { reason: Some(reason), result: Err(refusal) }
}

fn canonical(end: End) -> SocketAddr {
    SocketAddr::new(end.addr.ip(), end.port)
}
