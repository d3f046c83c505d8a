//! Clients that choose their own address and port: what follows the client's address is seen with many addresses, and
//! what follows a flow with a port that comes again.

use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, sendto, socket};
use socket2::{Domain, Protocol, Socket, Type};
use weir_testbed::address::{self, Pair};
use weir_testbed::ask::{Answer, PATIENCE};
use weir_testbed::packet::Packet;

use super::callers::Caller;
use super::echo::Talk;
use super::{Cluster, HTTP, TCP, UDP};

/// Ports of these clients: clear of the kernel's own choices, of node ports and of forwarded flows.
const PORTS: std::ops::Range<u16> = 2000..16_000;

/// A port that no other client of this process has had: its first packet begins a flow. None of the pods' own.
pub(crate) fn fresh_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(PORTS.start);
    let served = [HTTP, TCP, UDP];
    let mut ports = std::iter::repeat_with(|| NEXT.fetch_add(1, Ordering::Relaxed));
    let port = ports.find(|port| !served.contains(port)).unwrap_or(PORTS.end);
    assert!(PORTS.contains(&port), "this process has used up its clients' ports");
    port
}

/// Any address of the family of `target`, with a port.
pub(crate) fn any(target: SocketAddr, port: u16) -> SocketAddr {
    match target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, port).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, port).into(),
    }
}

/// Asks once from a local address, in the calling thread's namespace.
pub(crate) fn ask_from(local: SocketAddr, talk: Talk, target: SocketAddr) -> io::Result<Answer> {
    ask_from_within(local, talk, target, PATIENCE)
}

/// [`ask_from`] with another limit for connecting and for the answer.
pub(crate) fn ask_from_within(
    local: SocketAddr,
    talk: Talk,
    target: SocketAddr,
    limit: Duration,
) -> io::Result<Answer> {
    let (kind, words): (Type, &[u8]) = match talk {
        Talk::Http => (Type::STREAM, b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"),
        Talk::Tcp => (Type::STREAM, b"who\n"),
        Talk::Udp => (Type::DGRAM, b"who"),
    };
    let mut socket = Socket::new(Domain::for_address(target), kind, None)?;
    socket.set_read_timeout(Some(limit))?;
    socket.set_write_timeout(Some(limit))?;
    // A process that is just being started holds all sockets for a moment, also those that are closed here.
    socket.set_reuse_address(kind == Type::DGRAM)?;
    socket.bind(&local.into())?;
    socket.connect(&target.into())?;
    socket.send(words)?;
    // The servers write an answer at once.
    let mut buffer = [0; 1024];
    let length = socket.read(&mut buffer)?;
    let text = String::from_utf8_lossy(&buffer[..length]);
    let line = text.rsplit_once("\r\n\r\n").map_or(&*text, |(_, body)| body);
    line.parse().map_err(|()| io::Error::other(format!("{text:?} is no answer")))
}

/// Sends an IP packet as it is from the calling thread's namespace to a neighbour, which need not be its destination.
pub(crate) fn send_raw(packet: &Packet, neighbour: IpAddr) -> io::Result<()> {
    let target = SocketAddr::new(neighbour, 0);
    // IPPROTO_RAW: whoever sends brings the header along.
    let socket = Socket::new(Domain::for_address(target), Type::RAW, Some(Protocol::from(255)))?;
    socket.send_to(&packet.ip_bytes(), &target.into()).map(drop)
}

/// The link layer's address of an interface of the calling thread's namespace.
pub(crate) fn link_of(interface: &str) -> nix::Result<LinkAddr> {
    let mut all = getifaddrs()?.filter(|one| one.interface_name == interface);
    all.find_map(|one| one.address?.as_link_addr().copied()).ok_or(nix::Error::ENODEV)
}

/// Sends a frame as it is out of an interface of the calling thread's namespace.
pub(crate) fn send_frame(interface: &str, frame: &[u8]) -> nix::Result<()> {
    let link = link_of(interface)?;
    let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)?;
    sendto(socket.as_raw_fd(), frame, &link, MsgFlags::empty()).map(drop)
}

impl Cluster {
    /// Gives the client outside more addresses, numbers `first` and on, which must be the test's own.
    pub(crate) fn more_clients(&self, first: u8, count: u8) -> Vec<Pair> {
        let Pair { v4, v6 } = address::CLIENT;
        let [a, b, c, _] = v4.octets();
        let prefix = v6.segments();
        let pairs: Vec<_> = (first..first + count)
            .map(|number| {
                let mut segments = prefix;
                segments[7] = number.into();
                Pair { v4: Ipv4Addr::new(a, b, c, number), v6: segments.into() }
            })
            .collect();
        // Sockets that do not ask for one of them must not get it.
        let lines = pairs.iter().map(|Pair { v4, v6 }| {
            format!("addr replace {v4}/32 dev eth0\naddr replace {v6}/128 dev eth0 nodad preferred_lft 0\n")
        });
        self.world.client().ip(&lines.collect::<String>()).unwrap();
        pairs
    }

    /// The names of those who answer so many new connections of a caller, each from a fresh port.
    pub(crate) fn names(&self, caller: &Caller, talk: Talk, target: SocketAddr, count: usize) -> Vec<String> {
        let ask = || ask_from(any(target, fresh_port()), talk, target);
        let answers = self.run_as(caller, || (0..count).map(|_| ask()).collect::<io::Result<Vec<_>>>());
        let answers = answers.unwrap_or_else(|e| panic!("{caller} at {talk:?} {target}: {e}"));
        answers.into_iter().map(|answer| answer.name).collect()
    }

    /// Who answers the client outside when it asks from one of its addresses.
    pub(crate) fn name_seen_from(&self, local: IpAddr, talk: Talk, target: SocketAddr) -> String {
        let answer = self.world.client().enter(|| ask_from((local, fresh_port()).into(), talk, target));
        answer.unwrap_or_else(|e| panic!("{local} at {talk:?} {target}: {e}")).name
    }
}
