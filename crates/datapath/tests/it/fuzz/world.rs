//! What a scenario's node serves: few addresses, few endpoints and fewer ports, so that everything meets.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use arbitrary::{Result, Unstructured};
use weir_abi as abi;
use weir_core::model::Family;
use weir_core::ops::{FrontendKey, MapOp, SourceRange};
use weir_core::source_ports::PortSet;
use weir_testbed::address;

use super::odd::Odd;
use super::places::{LOCALHOST, SHARED_IP, of, place};
use super::routes::Devices;
use crate::node::TUNNEL_IP;

/// Endpoints that a service may have.
pub(super) const ENDPOINTS: usize = 8;
/// Slots that a world may use; all others stay as they are.
pub(super) const SERVICES: u32 = 8;
pub(super) const BACKENDS: u32 = 64;
pub(super) const LINES: u32 = 64;
/// The port of all endpoints but SCTP's.
pub(super) const TARGET: u16 = 8080;
/// A slot that never has an endpoint.
const NOBODY: u32 = BACKENDS;

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

/// The source ports that the node may give away.
const PORTS: [u16; 8] = [50000, 50001, 50002, 50003, 50007, 50064, 65535, 1024];

/// An endpoint of one service.
#[derive(Clone, Copy, Debug)]
struct Endpoint {
    /// Where it is: `places::place()`.
    place: usize,
    is_there: bool,
    generation: u32,
    weight: u8,
}

/// Which tiers a class of traffic has.
#[derive(Clone, Copy, Debug)]
struct Class {
    local: bool,
    remote: bool,
    spill: u16,
}

/// A service of one family and protocol.
#[derive(Clone, Debug)]
pub(super) struct Served {
    number: u32,
    pub(super) family: Family,
    pub(super) protocol: u8,
    flags: u32,
    affinity: u32,
    endpoints: [Endpoint; ENDPOINTS],
    classes: [Class; abi::CLASS_COUNT],
    /// Other nodes take clients' packets for it as they are.
    direct: bool,
    /// Its lines are reached by way of another line.
    nested: bool,
    /// Its tiers lead nowhere.
    broken: bool,
}

/// All of it.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) config: abi::Config,
    pub(super) ports: PortSet,
    pub(super) services: Vec<Served>,
    /// One of the node's devices is the tunnel of an overlay network.
    pub(super) has_tunnels: bool,
    /// What else is odd.
    pub(super) odd: Odd,
}

pub(super) fn ports(u: &mut Unstructured<'_>) -> Result<PortSet> {
    let bits: u8 = u.arbitrary()?;
    Ok((0..8).filter(|n| bits >> n & 1 != 0).map(|n| PORTS[n]).collect())
}

pub(super) fn flags(u: &mut Unstructured<'_>) -> Result<u32> {
    let mut flags = 0;
    for (flag, of) in [
        (abi::CONFIG_RESET_STALE, 2),
        (abi::CONFIG_HOLD, 24),
        (abi::CONFIG_BESIDE, 6),
        (abi::CONFIG_MASQUERADE_EXTERNAL, 4),
        (abi::CONFIG_MASQUERADE_ALL, 6),
        (abi::CONFIG_ECHO, 2),
    ] {
        if u.ratio(1, of)? {
            flags |= flag;
        }
    }
    Ok(flags)
}

impl World {
    pub(super) fn decode(u: &mut Unstructured<'_>) -> Result<Self> {
        let mut service_network = [abi::Network::UNSET; abi::SERVICE_NETWORKS];
        for (network, net) in service_network.iter_mut().zip(address::cluster_ips()) {
            *network = abi::Network::new(net.addr(), net.prefix_len());
        }
        let node = |u: &mut Unstructured<'_>, ip: IpAddr| {
            Ok(if u.ratio(1, 12)? { abi::Addr::UNSET } else { abi::Addr::from(ip) })
        };
        let hash_seed: u64 = u.arbitrary()?;
        // Entries of the corpus have no bytes for these.
        let settle = if hash_seed.is_multiple_of(2) { 0 } else { abi::CONFIG_SETTLE };
        let has_tunnels = hash_seed & 2 != 0;
        let bypass = if hash_seed & 48 == 48 { abi::CONFIG_HOST_BYPASS } else { 0 };
        let config = abi::Config {
            hash_seed,
            held_until: if hash_seed & 12 == 12 { 0 } else { u64::MAX },
            node4: node(u, address::node(1).v4.into())?,
            node6: node(u, address::node(1).v6.into())?,
            flags: flags(u)? | settle | bypass | abi::CONFIG_UNWRAP,
            service_networks: u.int_in_range(0..=2)?,
            flood: if u.ratio(1, 4)? { u.int_in_range(1..=3)? } else { 0 },
            tcp_half_closed: 60,
            tcp_linger: 5,
            service_network,
            // All sources' pieces wait in the same places.
            held_pieces: if hash_seed & 64 == 0 { 0 } else { abi::HELD_REGION },
            ..abi::Config::PLAIN
        };
        let ports = ports(u)?;
        let count = u.int_in_range(1..=4)?;
        let services = (0..count).map(|number| Served::decode(u, number)).collect::<Result<_>>()?;
        Ok(Self { config, ports, services, has_tunnels, odd: Odd::default() })
    }

    /// The configuration on a node that has this device for a tunnel.
    pub(super) fn config_with_tunnel(&self, device: u32) -> abi::Config {
        let tunnel = |family| match self.has_tunnels {
            true => abi::Tunnel { addr: of(family, TUNNEL_IP).into(), ifindex: device, pad: 0 },
            false => abi::Tunnel::NONE,
        };
        abi::Config { tunnel4: tunnel(Family::V4), tunnel6: tunnel(Family::V6), ..self.config }
    }

    /// By which devices packets may go past the host, where that is asked for: outside by some, and to the pod mostly.
    pub(super) fn shortcuts(&self, devices: &Devices) -> HashMap<u32, u32> {
        let outside = devices.eth[..2].iter().map(|device| (*device, abi::SHORTCUT_NEIGHBOUR));
        let pod = (self.config.hash_seed & 384 != 0).then_some((devices.pod, abi::SHORTCUT_PEER));
        outside.chain(pod).collect()
    }

    /// Those that take clients' packets as they are, and answer them.
    pub(super) fn other_nodes(&self) -> BTreeSet<IpAddr> {
        (2..=5).flat_map(|n| address::node(n).both()).collect()
    }

    /// Everything that the control plane writes for it.
    pub(super) fn ops(&self) -> Vec<MapOp> {
        self.services.iter().flat_map(Served::ops).collect()
    }
}

impl Served {
    fn decode(u: &mut Unstructured<'_>, number: u32) -> Result<Self> {
        let family = *u.choose(&[Family::V4, Family::V6])?;
        let protocol = *u.choose(&[TCP, TCP, TCP, UDP, UDP, SCTP])?;
        let mut flags = abi::SERVICE_USED;
        for flag in
            [abi::SERVICE_SOURCE_RANGES, abi::SERVICE_EXTERNAL_LOCAL, abi::SERVICE_LEAST_CONN, abi::SERVICE_MAGLEV]
        {
            if u.ratio(1, 4)? {
                flags |= flag;
            }
        }
        let there: u8 = if u.ratio(1, 10)? { 0 } else { u.arbitrary()? };
        let weight = u.int_in_range(1..=4)?;
        let endpoint = |n: usize| Endpoint {
            place: n,
            is_there: there >> n & 1 != 0,
            generation: 1,
            weight: 1 + u8::try_from(n).unwrap() % weight,
        };
        let endpoints = std::array::from_fn(endpoint);
        let mut class = || {
            let (local, remote) =
                *u.choose(&[(true, true), (true, true), (true, false), (false, true), (false, false)])?;
            Ok(Class { local, remote, spill: *u.choose(&[0, u16::MAX, 30000])? })
        };
        let classes = [class()?, class()?, class()?];
        let affinity = if u.ratio(1, 4)? { 10 } else { 0 };
        let (direct, nested, broken) = (u.ratio(1, 3)?, u.ratio(1, 4)?, u.ratio(1, 24)?);
        Ok(Self { number, family, protocol, flags, affinity, endpoints, classes, direct, nested, broken })
    }

    const fn slot(&self) -> u32 {
        self.number + 1
    }

    fn backend_slot(&self, endpoint: usize) -> u32 {
        self.number * 8 + u32::try_from(endpoint).unwrap() + 1
    }

    /// The port of its endpoints: SCTP cannot change it.
    const fn target(&self) -> u16 {
        if self.protocol == SCTP { 80 } else { TARGET }
    }

    fn place(&self, endpoint: usize) -> (IpAddr, u8) {
        place(self.family, self.endpoints[endpoint].place)
    }

    fn backend(&self, endpoint: usize) -> abi::Backend {
        let Endpoint { is_there, generation, .. } = self.endpoints[endpoint];
        let (ip, place) = self.place(endpoint);
        let mut flags = if is_there { abi::BACKEND_USED | place } else { 0 };
        if is_there && self.direct && place & abi::BACKEND_LOCAL == 0 {
            flags |= abi::BACKEND_DIRECT;
        }
        for (number, class) in self.classes.iter().enumerate() {
            let has = if place & abi::BACKEND_LOCAL != 0 { class.local } else { class.remote };
            if is_there && has {
                flags |= abi::BACKEND_CLASS << number;
            }
        }
        abi::Backend {
            addr: ip.into(),
            port: abi::Be16::new(self.target()),
            proto: self.protocol,
            flags,
            generation,
            service: self.slot(),
            node: 0,
        }
    }

    /// A reference to a tier, and the lines that it needs.
    fn tier(&self, class: usize, local: bool, ops: &mut Vec<MapOp>) -> u32 {
        let wanted = |n: &usize| self.endpoints[*n].is_there && (self.place(*n).1 & abi::BACKEND_LOCAL != 0) == local;
        let members: Vec<_> =
            (0..ENDPOINTS).filter(wanted).map(|n| (self.backend_slot(n), self.endpoints[n].weight)).collect();
        let direct = match members.as_slice() {
            [] => return 0,
            [(one, _)] => *one,
            all => {
                let id = self.number * 6 + u32::try_from(class).unwrap() * 2 + u32::from(local) + 1;
                ops.push(MapOp::PutLine { id, line: Box::new(line(all)) });
                id | abi::REF_LINE
            }
        };
        if !self.nested {
            return direct;
        }
        let id = 32 + self.number * 6 + u32::try_from(class).unwrap() * 2 + u32::from(local) + 1;
        ops.push(MapOp::PutLine { id, line: Box::new(line(&[(direct, 1)])) });
        id | abi::REF_LINE
    }

    /// Its endpoints and how they are chosen.
    fn choice_ops(&self) -> Vec<MapOp> {
        let mut ops: Vec<_> =
            (0..ENDPOINTS).map(|n| MapOp::PutBackend { id: self.backend_slot(n), backend: self.backend(n) }).collect();
        let mut tiers = [abi::Tiers { spill: 0, local: 0, remote: 0, pad: 0 }; abi::CLASS_COUNT];
        for (number, class) in self.classes.iter().enumerate() {
            tiers[number].spill = class.spill.into();
            tiers[number].local = if class.local { self.tier(number, true, &mut ops) } else { 0 };
            tiers[number].remote = if class.remote { self.tier(number, false, &mut ops) } else { 0 };
            if self.broken {
                (tiers[number].local, tiers[number].remote) = (0, NOBODY);
            }
        }
        let endpoints = self.endpoints.iter().filter(|endpoint| endpoint.is_there).count();
        let service = abi::Service {
            tiers,
            endpoints: u32::try_from(endpoints).unwrap(),
            flags: self.flags,
            affinity: self.affinity,
            pad: 0,
        };
        ops.push(MapOp::PutService { id: self.slot(), service });
        ops
    }

    fn cluster_ip(&self) -> IpAddr {
        let host = u8::try_from(self.number).unwrap() / 2 + 1;
        match self.family {
            Family::V4 => Ipv4Addr::new(10, 96, 0, host).into(),
            Family::V6 => Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, host.into()).into(),
        }
    }

    /// Where clients may send to; the last ones are no frontends, or odd ones.
    pub(super) fn destinations(&self) -> [SocketAddr; 9] {
        let port = 80 + u16::try_from(self.number).unwrap();
        let cluster = self.cluster_ip();
        let node_port = 30080 + u16::try_from(self.number).unwrap();
        [
            SocketAddr::new(cluster, 80),
            SocketAddr::new(of(self.family, address::node(1)), node_port),
            SocketAddr::new(of(self.family, crate::case::BALANCER_IP), port),
            SocketAddr::new(of(self.family, SHARED_IP), port),
            SocketAddr::new(of(self.family, LOCALHOST), node_port),
            SocketAddr::new(cluster, 9999),
            SocketAddr::new(of(self.family, SHARED_IP), 9999),
            SocketAddr::new(place(self.family, 0).0, self.target()),
            SocketAddr::new(of(self.family, address::node(1)), 50000),
        ]
    }

    fn key(&self, to: SocketAddr) -> FrontendKey {
        FrontendKey { address: to.ip(), port: to.port(), protocol: self.protocol }
    }

    /// Puts or takes away one of its frontends.
    pub(super) fn frontend_op(&self, number: usize, there: bool) -> MapOp {
        let kinds = [
            abi::KIND_CLUSTER_IP,
            abi::KIND_NODE_PORT,
            abi::KIND_LOAD_BALANCER,
            abi::KIND_EXTERNAL_IP,
            abi::KIND_NODE_PORT,
        ];
        let number = number % kinds.len();
        let key = self.key(self.destinations()[number]);
        if there {
            MapOp::PutFrontend { key, frontend: abi::Frontend { service: self.slot(), kind: kinds[number] } }
        } else {
            MapOp::DeleteFrontend { key }
        }
    }

    fn ops(&self) -> Vec<MapOp> {
        let mut ops = self.choice_ops();
        for pair in [address::CLIENT, address::pod(1, 1)] {
            let net = of(self.family, pair).into();
            ops.push(MapOp::PutSourceRange { range: SourceRange { service: self.slot(), net } });
        }
        ops.extend((0..5).map(|number| self.frontend_op(number, true)));
        let others = [
            (self.cluster_ip(), abi::KIND_UNUSED_PORT),
            (of(self.family, crate::case::BALANCER_IP), abi::KIND_ADDRESS),
            (of(self.family, address::node(1)), abi::KIND_ADDRESS),
        ];
        for (address, kind) in others {
            let key = FrontendKey { address, port: 0, protocol: 0 };
            ops.push(MapOp::PutFrontend { key, frontend: abi::Frontend { service: 0, kind } });
        }
        ops
    }

    /// An endpoint goes away, or comes back as another one, which may be elsewhere: where none is.
    pub(super) fn turn_over(&mut self, endpoint: usize, moves: bool) -> Vec<MapOp> {
        let taken: BTreeSet<_> =
            self.endpoints.iter().filter(|other| other.is_there).map(|other| other.place).collect();
        let endpoint = &mut self.endpoints[endpoint % ENDPOINTS];
        if endpoint.is_there {
            endpoint.generation += 1;
        } else if moves || taken.contains(&endpoint.place) {
            let next = (1..=ENDPOINTS).map(|further| (endpoint.place + further) % ENDPOINTS);
            endpoint.place = next.into_iter().find(|place| !taken.contains(place)).unwrap_or(endpoint.place);
        }
        endpoint.is_there = !endpoint.is_there;
        self.choice_ops()
    }

    /// Its endpoints get other weights, its classes other tiers, and other nodes may take more or less.
    pub(super) fn steer(&mut self, weight: u8, spill: u16) -> Vec<MapOp> {
        for (endpoint, n) in self.endpoints.iter_mut().zip(0u8..) {
            endpoint.weight = 1 + (n ^ weight) % 7;
        }
        self.classes.iter_mut().for_each(|class| class.spill = spill);
        self.direct = weight & 1 != 0;
        self.choice_ops()
    }
}

/// A line of backends or lines by weight.
fn line(entries: &[(u32, u8)]) -> abi::Line {
    let total: u64 = entries.iter().map(|(_, weight)| u64::from(*weight)).sum();
    let mut line = abi::Line { cumulative: [u32::MAX; abi::LINE_ENTRIES], r#ref: [0; abi::LINE_ENTRIES] };
    let mut sum = 0;
    for (n, (reference, weight)) in entries.iter().enumerate() {
        sum += u64::from(*weight);
        line.cumulative[n] = u32::try_from((sum << 32) / total - 1).unwrap();
        line.r#ref[n] = *reference;
    }
    line
}
