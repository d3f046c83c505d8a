//! Which of the node's ports new flows may take as their source: those that the host does not use, or hardly. See
//! docs/adr/0024-source-ports-that-the-host-does-not-use.md.

use std::fmt;
use std::ops::RangeInclusive;

use crate::cluster::Cluster;

/// What the API server gives out as node ports unless told otherwise (`--service-node-port-range`). Any of them may be one a
/// moment from now.
pub const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;

/// Those that new flows may be given at most: the ones below are of the host's services.
pub const UNPRIVILEGED: RangeInclusive<u16> = 1024..=u16::MAX;

/// With fewer, connections to one endpoint of another node soon meet earlier ones of theirs: at some dozens a second, as its server
/// remembers each for a minute after it is over (TIME_WAIT).
pub const FEW: u32 = 4096;

/// Port numbers.
const NUMBERS: usize = 1 << u16::BITS;
const WORDS: usize = NUMBERS / WORD_BITS;
const WORD_BITS: usize = u64::BITS as usize;

/// A set of ports.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PortSet(Box<[u64; WORDS]>);

impl Default for PortSet {
    fn default() -> Self {
        Self(Box::new([0; WORDS]))
    }
}

const fn place(port: u16) -> (usize, u64) {
    (port as usize / WORD_BITS, 1 << (port as usize % WORD_BITS))
}

impl PortSet {
    /// Whether a port is in it.
    #[must_use]
    pub fn contains(&self, port: u16) -> bool {
        let (word, bit) = place(port);
        self.0[word] & bit != 0
    }

    /// Adds a port.
    pub fn insert(&mut self, port: u16) {
        let (word, bit) = place(port);
        self.0[word] |= bit;
    }

    /// Adds all ports of another set.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.words()).for_each(|(word, others)| *word |= others);
    }

    /// The ports that are in another set, too.
    #[must_use]
    pub fn common(&self, other: &Self) -> Self {
        let mut common = self.clone();
        common.0.iter_mut().zip(other.words()).for_each(|(word, others)| *word &= others);
        common
    }

    /// Takes a port out.
    pub fn remove(&mut self, port: u16) {
        let (word, bit) = place(port);
        self.0[word] &= !bit;
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// In ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        (0..=u16::MAX).filter(|port| self.contains(*port))
    }

    /// 64 ports each, in ascending order, the first one in the lowest bit.
    pub fn words(&self) -> impl Iterator<Item = u64> {
        self.0.iter().copied()
    }

    /// For each port number, in ascending order: itself if it is in the set, else the next one that is, around the end. All
    /// zeros if there is none.
    #[must_use]
    pub fn ring(&self) -> Vec<u16> {
        let mut ring = vec![0; NUMBERS];
        let mut next = self.iter().next().unwrap_or_default();
        for (place, port) in ring.iter_mut().zip(0..=u16::MAX).rev() {
            if self.contains(port) {
                next = port;
            }
            *place = next;
        }
        ring
    }
}

/// As `net.ipv4.ip_local_reserved_ports` has it: `8080,9000-9010`.
impl fmt::Display for PortSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ports = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = ports.next() {
            let mut last = first;
            while let Some(next) = ports.next_if(|next| next - 1 == last) {
                last = next;
            }
            write!(f, "{separator}{first}")?;
            if last != first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl Extend<u16> for PortSet {
    fn extend<T: IntoIterator<Item = u16>>(&mut self, ports: T) {
        ports.into_iter().for_each(|port| self.insert(port));
    }
}

impl FromIterator<u16> for PortSet {
    fn from_iter<T: IntoIterator<Item = u16>>(ports: T) -> Self {
        let mut set = Self::default();
        set.extend(ports);
        set
    }
}

/// What the host does with its ports.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostPorts {
    /// Those that the kernel gives to sockets which ask for none: `net.ipv4.ip_local_port_range`.
    pub ephemeral: RangeInclusive<u16>,
    /// Others that are in use, or reserved.
    pub used: PortSet,
}

impl HostPorts {
    /// Whether the kernel gives an ephemeral port to a connection of the host only when half of them are taken towards the same peer: it has the
    /// other parity than the first one (`__inet_hash_connect()` of net/ipv4/inet_hashtables.c, since Linux 4.6).
    fn spares(&self, port: u16) -> bool {
        self.ephemeral.contains(&port) && (port ^ self.ephemeral.start()) & 1 != 0
    }
}

/// Whether a host leaves less than twice [`FEW`] ports that are not ephemeral, so that new flows may share some with it: node ports of Services
/// are not known here.
#[must_use]
pub fn leaves_few(wanted: &RangeInclusive<u16>, host: &HostPorts) -> bool {
    let hosts = |port: &u16| host.ephemeral.contains(port) || host.used.contains(*port) || NODE_PORTS.contains(port);
    wanted.clone().filter(|port| !hosts(port)).count() < 2 * FEW as usize
}

/// Ports that new flows may take: those of `wanted`, but what the host uses, [`NODE_PORTS`], node ports of Services outside of these, and
/// ports at which Services have nodes' addresses, where every node takes what comes to them for clients' packets. Where these are [`FEW`], the ephemeral ones that the host's own connections spare are added: a host with all of its
/// ports ephemeral leaves none else.
#[must_use]
pub fn usable(wanted: &RangeInclusive<u16>, host: &HostPorts, cluster: &Cluster) -> PortSet {
    let mut taken = host.used.clone();
    for service in cluster.services() {
        let ports = service.ports.iter().filter_map(|port| port.node_port);
        taken.extend(ports.chain(service.health_check_port));
        if service.external_ips.iter().chain(&service.load_balancer_ips).any(|ip| cluster.is_node_address(*ip)) {
            taken.extend(service.ports.iter().map(|port| port.port));
        }
    }
    let free = |port: &u16| !taken.contains(*port) && !NODE_PORTS.contains(port);
    let own: PortSet = wanted.clone().filter(|port| free(port) && !host.ephemeral.contains(port)).collect();
    if own.len() >= FEW {
        return own;
    }
    wanted.clone().filter(|port| free(port) && (!host.ephemeral.contains(port) || host.spares(*port))).collect()
}

/// What an agent that takes over from another one lets new flows take while it does not know all node ports: of those that are usable
/// as far as it knows, the ones that were `before`. All, if that leaves less than half: other ports were asked for then.
#[must_use]
pub fn usable_until_listed(usable: PortSet, before: &PortSet) -> PortSet {
    let common = usable.common(before);
    if common.len() < usable.len() / 2 { usable } else { common }
}

/// The ports of `net.ipv4.ip_local_port_range`, which holds for both families: two numbers. `None` if it says something else.
#[must_use]
pub fn local_port_range(text: &str) -> Option<RangeInclusive<u16>> {
    let mut numbers = text.split_whitespace().map(str::parse::<u16>);
    let (first, last) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    (numbers.next().is_none() && first <= last).then_some(first..=last)
}

/// The ports of `net.ipv4.ip_local_reserved_ports`: numbers and ranges with commas in between, such as `8080,9000-9010`.
/// `None` if it says something else.
#[must_use]
pub fn reserved_ports(text: &str) -> Option<PortSet> {
    let mut ports = PortSet::default();
    for item in text.trim().split(',').filter(|item| !item.is_empty()) {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        ports.extend(first.parse::<u16>().ok()?..=last.parse().ok()?);
    }
    Some(ports)
}
