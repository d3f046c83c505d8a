//! kube-proxy's virtual servers of IPVS: what they serve, which connections they carry, and how they go. Read are the kernel's own
//! `/proc/net/ip_vs` and `/proc/net/ip_vs_conn`, written is what `ipvsadm --restore` takes.

mod sets;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub use sets::Sets;
use weir_core::model::Family;

use crate::served::{Frontend, Place, Served, protocol_name, protocol_number};

/// The device that carries the addresses of Services.
pub const DEVICE: &str = "kube-ipvs0";

/// Ends of connections of TCP and SCTP: what comes after them is nobody's loss.
const OVER: [&str; 4] = ["TIME_WAIT", "CLOSE", "CLOSED", "REJECTED"];

const UDP: u8 = 17;

/// The text cannot be read.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("line {line} of /proc/net/{file} cannot be read: {text:?}")]
pub struct Unreadable {
    file: &'static str,
    line: usize,
    text: String,
}

/// An address, port and protocol that IPVS translates at.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct At {
    /// Address and port.
    pub socket: SocketAddr,
    /// IP protocol number.
    pub protocol: u8,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Frontend { place: Place::Address(self.socket.ip()), port: self.socket.port(), protocol: self.protocol }.fmt(f)
    }
}

/// Virtual servers, each with the real servers that new connections may get. Those of a firewall mark are not among them.
pub type Servers = BTreeMap<At, BTreeSet<SocketAddr>>;

/// Reads `/proc/net/ip_vs`. Real servers of weight 0 only end what they have begun.
///
/// # Errors
/// The first line that is none of its.
pub fn servers(text: &str) -> Result<Servers, Unreadable> {
    let mut servers = Servers::new();
    let mut current = None;
    // Three lines of headings.
    for (number, line) in text.lines().enumerate().skip(3) {
        let unreadable = || Unreadable { file: "ip_vs", line: number + 1, text: line.to_owned() };
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        match words.as_slice() {
            ["FWM", ..] => current = None,
            ["->", real, _forward, weight, ..] => {
                let real = socket(real).ok_or_else(unreadable)?;
                let weight: u32 = weight.parse().ok().ok_or_else(unreadable)?;
                if let Some(known) = current.and_then(|at| servers.get_mut(&at)).filter(|_| weight > 0) {
                    known.insert(real);
                }
            }
            [protocol, at, ..] => {
                let socket = socket(at).ok_or_else(unreadable)?;
                let protocol = protocol_number(&protocol.to_ascii_lowercase()).ok_or_else(unreadable)?;
                let at = At { socket, protocol };
                servers.entry(at).or_default();
                current = Some(at);
            }
            _ => return Err(unreadable()),
        }
    }
    Ok(servers)
}

/// `0A600001:0050`, `[fd00:0096:…:0001]:0050`.
fn socket(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.rsplit_once(':')?;
    let ip = ip.strip_prefix('[').map_or(Some(ip), |inner| inner.strip_suffix(']'))?;
    Some(SocketAddr::new(address(ip)?, u16::from_str_radix(port, 16).ok()?))
}

fn address(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return Some(IpAddr::V6(text.parse::<Ipv6Addr>().ok()?));
    }
    Some(IpAddr::V4(Ipv4Addr::from_bits(u32::from_str_radix(text, 16).ok()?)))
}

/// What tells kube-proxy's virtual servers from those of others.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    /// Addresses on [`DEVICE`].
    pub device: BTreeSet<IpAddr>,
    /// Addresses on the node's other interfaces.
    pub node: BTreeSet<IpAddr>,
    /// Its sets; `None` if nothing can list them.
    pub sets: Option<Sets>,
}

impl Marks {
    /// Where a virtual server serves, if it is kube-proxy's. At the node's own addresses others may have some, too: its sets tell
    /// which ports are its own; unknown, all are.
    fn place(&self, at: At) -> Option<Place> {
        let ip = at.socket.ip();
        let family = Family::of(ip);
        if self.device.contains(&ip) || self.sets.as_ref().is_some_and(|sets| sets.has_address(at)) {
            return Some(Place::Address(ip));
        }
        let is_port = self.sets.as_ref().is_none_or(|sets| sets.has_node_port(at));
        (self.node.contains(&ip) && is_port).then_some(Place::Node(family))
    }

    /// kube-proxy's virtual servers.
    #[must_use]
    pub fn own(&self, mut servers: Servers) -> Servers {
        servers.retain(|at, _| self.place(*at).is_some());
        servers
    }

    /// What kube-proxy serves by them.
    #[must_use]
    pub fn served(&self, servers: &Servers) -> Served {
        let mut served = Served::new();
        for (at, real) in servers {
            if let Some(place) = self.place(*at) {
                let frontend = Frontend { place, port: at.socket.port(), protocol: at.protocol };
                served.entry(frontend).or_default().extend(real);
            }
        }
        served
    }

    /// Whether an address is one that processes of the node have.
    fn is_local(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.device.contains(&ip) || self.node.contains(&ip)
    }
}

/// A connection that IPVS carries.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Connection {
    /// Who has begun it.
    pub client: SocketAddr,
    /// The virtual server.
    pub at: At,
}

/// Connections in `/proc/net/ip_vs_conn` that would break if these virtual servers went: the kernel drops packets of those whose
/// server has gone.
///
/// Datagrams of anybody but the node's own processes are Weir's as soon as it serves; a connected socket of such a process keeps
/// its way. Those without a client's port only remember which real server a client had.
///
/// # Errors
/// The first line that is none of its.
pub fn carried(text: &str, servers: &Servers, marks: &Marks) -> Result<Vec<Connection>, Unreadable> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate().skip(1) {
        let unreadable = || Unreadable { file: "ip_vs_conn", line: number + 1, text: line.to_owned() };
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let [protocol, from, from_port, to, to_port, _, _, state, ..] = words.as_slice() else {
            return Err(unreadable());
        };
        let Some(protocol) = protocol_number(&protocol.to_ascii_lowercase()) else { continue };
        let end = |ip: &str, port: &str| Some(SocketAddr::new(address(ip)?, u16::from_str_radix(port, 16).ok()?));
        let client = end(from, from_port).ok_or_else(unreadable)?;
        let at = At { socket: end(to, to_port).ok_or_else(unreadable)?, protocol };
        let goes_on = if protocol == UDP { marks.is_local(client.ip()) } else { !OVER.contains(state) };
        if goes_on && client.port() != 0 && servers.contains_key(&at) {
            found.push(Connection { client, at });
        }
    }
    Ok(found)
}

/// Connections by virtual server, those with the most first: `10.96.0.10:80/TCP (12)`.
#[must_use]
pub fn by_server(connections: &[Connection]) -> Vec<String> {
    let mut counts: BTreeMap<At, usize> = BTreeMap::new();
    connections.iter().for_each(|one| *counts.entry(one.at).or_default() += 1);
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(at, count)| (std::cmp::Reverse(*count), *at));
    counts.into_iter().map(|(at, count)| format!("{at} ({count})")).collect()
}

/// What takes virtual servers away, one in each line.
#[must_use]
pub fn removal(servers: &Servers) -> String {
    let line = |at: &At| {
        let option = match protocol_name(at.protocol) {
            Some("udp") => "-u",
            Some("sctp") => "--sctp-service",
            _ => "-t",
        };
        format!("-D {option} {}\n", at.socket)
    };
    servers.keys().map(line).collect()
}

#[cfg(test)]
mod tests;
