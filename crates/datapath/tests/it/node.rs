//! A node in a network namespace: devices, routes and neighbours that are real, a cluster that is planned by the real
//! code, and the programs run on single packets.
//!
//!     eth0  172.30.0.11  to the client (by the router 172.30.0.1) and to node-2; node-5 is there but has no neighbour entry
//!     eth1  172.31.0.11  to node-3
//!     eth2  172.32.0.11  to node-4; no XDP on it
//!     pod1  the pod 10.244.1.11

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use weir_abi as abi;
use weir_abi::ticks::TickClock;
use weir_core::cluster::{Cluster, Event};
use weir_core::model::{Family, Node as ClusterNode, NodeCapacity, ObjectName, Protocol, Service, ServicePort};
use weir_core::ops::{Capacity, FrontendKey, MapOp};
use weir_core::plan::{self, PlanConfig, ServicePlan, Spread};
use weir_core::tables::{DirectNodes, Tables};
use weir_datapath::{AttachOptions, Attachment, Datapath, FlowEntry, GoingFilter, Hook, MapStore, PinDir, View};
use weir_testbed::Netns;
use weir_testbed::address::{self, Pair};
use weir_testbed::packet::{Mac, Packet};
use weir_testbed::prog_run::{Context, prog_run, prog_run_summed};

use crate::case::{BALANCER_IP, CLUSTER_IP, EXTERNAL_IP, NODE_PORT, PORT, slice};
use crate::network::network;
use crate::outcome::{Counted, Outcome};
use crate::pins::{Pins, SMALL};

pub(crate) const SNAT_PORTS: (u16, u16) = (50000, 50999);
pub(crate) const SEED: u64 = 0x5eed;

pub(crate) const XDP_DROP: u32 = 1;
pub(crate) const XDP_PASS: u32 = 2;
pub(crate) const XDP_TX: u32 = 3;
pub(crate) const XDP_REDIRECT: u32 = 4;
pub(crate) const TC_UNSPEC: u32 = u32::MAX;
pub(crate) const TC_SHOT: u32 = 2;
pub(crate) const TC_REDIRECT: u32 = 7;

/// Of each device of the node. The first one's is whom packets of tests are to, unless they say otherwise.
pub(crate) const ETH0_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
pub(crate) const ETH1_MAC: Mac = Mac([2, 0, 0, 0, 1, 1]);
pub(crate) const ETH2_MAC: Mac = Mac([2, 0, 0, 0, 1, 2]);
/// Of its neighbours.
pub(crate) const ROUTER_MAC: Mac = Mac([2, 0, 0, 0, 2, 1]);
pub(crate) const NODE2_MAC: Mac = Mac([2, 0, 0, 0, 2, 2]);
pub(crate) const NODE3_MAC: Mac = Mac([2, 0, 0, 0, 2, 3]);

/// The address of the tunnel to other nodes, which is the first one of this node's pods, as flannel has it.
pub(crate) const TUNNEL_IP: Pair =
    Pair { v4: Ipv4Addr::new(10, 244, 1, 0), v6: Ipv6Addr::new(0xfd00, 0x244, 1, 0, 0, 0, 0, 0) };

/// A device of the node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Device {
    Eth0,
    Eth1,
    Eth2,
    Pod1,
}

impl Device {
    /// Its index in the calling thread's namespace.
    fn index(self) -> u32 {
        let name = match self {
            Self::Eth0 => "eth0",
            Self::Eth1 => "eth1",
            Self::Eth2 => "eth2",
            Self::Pod1 => "pod1",
        };
        nix::net::if_::if_nametoindex(name).unwrap()
    }
}

/// The node. Fields are dropped in order: programs and maps, then their pins, then the namespaces.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) datapath: Datapath,
    pub(crate) view: View,
    tables: Tables,
    cluster: Cluster,
    config: PlanConfig,
    client_port: Cell<u16>,
    sums: Cell<bool>,
    pins: Pins,
    pub(crate) netns: Netns,
    /// The other ends of its cables, `peer-eth0` and so on.
    pub(crate) peers: Netns,
}

impl Node {
    /// None, with a message, if this machine cannot run the test.
    pub(crate) fn new(what: &str) -> Option<Self> {
        Self::with_capacity(what, SMALL)
    }

    /// The same with tables of another size.
    pub(crate) fn with_capacity(what: &str, capacity: Capacity) -> Option<Self> {
        let mut pins = Pins::new(what)?;
        let (netns, peers) = network().unwrap();
        netns.enter(|| pins.prepare(&capacity));
        let mut datapath = netns.enter(|| pins.open_with(&capacity)).unwrap();
        netns.enter(|| {
            for (name, role) in [("eth0", Attachment::Nic), ("eth1", Attachment::Nic), ("pod1", Attachment::Pod)] {
                let index = nix::net::if_::if_nametoindex(name).unwrap();
                let options =
                    AttachOptions { xdp: role == Attachment::Nic, tcx: true, headerless: false, redirects: true };
                datapath.attach_interface(index, name, role, options).unwrap();
            }
        });
        let mut cluster = Cluster::default();
        let nodes = (1..=5).map(|n| ClusterNode {
            name: format!("node-{n}").into(),
            zone: "".into(),
            addresses: address::node(n).both().to_vec(),
            eligible: true,
            capacity: NodeCapacity::default(),
        });
        cluster.apply(Event::Nodes(nodes.collect()));
        let config = PlanConfig {
            node: "node-1".into(),
            node_port_addresses: address::node(1).both().to_vec(),
            carried_addresses: BTreeSet::new(),
            external_ips: true,
            spread: Spread::LocalFirst,
            clock: TickClock::new(Duration::from_millis(4)),
            handing_over: BTreeSet::new(),
        };
        let view = View::open(pins.dir.clone()).unwrap();
        let (tables, client_port, sums) = (Tables::new(capacity), Cell::new(40000), Cell::new(true));
        let node = Self { datapath, view, tables, cluster, config, client_port, sums, pins, netns, peers };
        node.configure(SNAT_PORTS, true);
        Some(node)
    }

    /// The same with tables of another size, as an agent makes them that starts with other options.
    pub(crate) fn resized(self, capacity: Capacity) -> Self {
        let Self { datapath, view: _, tables, cluster, config, client_port, sums, mut pins, netns, peers } = self;
        pins.keep_from_others();
        // Two cannot have the pins.
        drop(datapath);
        let mut datapath = netns.enter(|| pins.open_with(&capacity)).unwrap();
        datapath.begin_switch().unwrap();
        // An agent's clock may have it so.
        GoingFilter::open(datapath.pins()).unwrap().rebuild().unwrap();
        datapath.finish_switch().unwrap();
        let view = View::open(pins.dir.clone()).unwrap();
        Self { datapath, view, tables, cluster, config, client_port, sums, pins, netns, peers }
    }

    /// Writes the configuration, and lets flows take the ports of a range.
    pub(crate) fn configure(&self, snat: (u16, u16), reset_stale: bool) {
        let config = abi::Config {
            hash_seed: SEED,
            node4: address::node(1).v4.into(),
            node6: address::node(1).v6.into(),
            flags: abi::CONFIG_UNWRAP | if reset_stale { abi::CONFIG_RESET_STALE } else { 0 },
            ..abi::Config::PLAIN
        };
        self.datapath.configure(&config).unwrap();
        self.datapath.set_source_ports(&(snat.0..=snat.1).collect()).unwrap();
    }

    /// Plans as another node of the cluster would, in the same place.
    pub(crate) fn becomes(&mut self, node: &str) {
        self.config.node = node.into();
    }

    pub(crate) fn spread(&mut self, spread: Spread) {
        self.config.spread = spread;
    }

    /// Connections that go on stay where they began for the rest of that tick.
    pub(crate) fn settle(&self) {
        let config = self.datapath.config().unwrap();
        self.datapath.configure(&abi::Config { flags: config.flags | abi::CONFIG_SETTLE, ..config }).unwrap();
    }

    /// Has a device for the tunnel of an overlay network, or none any more.
    pub(crate) fn tunnel(&self, device: Option<Device>) {
        let ifindex = device.map_or(0, |device| self.netns.enter(|| device.index()));
        let [tunnel4, tunnel6] = TUNNEL_IP.both().map(|ip| abi::Tunnel { addr: ip.into(), ifindex, pad: 0 });
        let config = self.datapath.config().unwrap();
        self.datapath.configure(&abi::Config { tunnel4, tunnel6, ..config }).unwrap();
    }

    /// Answers echo requests to addresses of services.
    pub(crate) fn echo_replies(&self) {
        let config = self.datapath.config().unwrap();
        self.datapath.configure(&abi::Config { flags: config.flags | abi::CONFIG_ECHO, ..config }).unwrap();
    }

    /// Serves a service with endpoints given as (node, pod) in both families, in place of what it had.
    pub(crate) fn serve(&mut self, service: Service, endpoints: &[(u8, u8)]) {
        self.serve_draining(service, endpoints, &[]);
    }

    /// The same, with endpoints that are on their way out and only keep the flows that they have.
    pub(crate) fn serve_draining(&mut self, service: Service, endpoints: &[(u8, u8)], draining: &[(u8, u8)]) {
        self.serve_changed(service, endpoints, draining, |_| {});
    }

    /// The same, with plans that are changed before they are written.
    pub(crate) fn serve_changed(
        &mut self,
        service: Service,
        endpoints: &[(u8, u8)],
        draining: &[(u8, u8)],
        change: impl Fn(&mut ServicePlan),
    ) {
        let name = service.name.clone();
        let ready = endpoints.iter().map(|one| (*one, true));
        let all: Vec<_> = ready.chain(draining.iter().map(|one| (*one, false))).collect();
        self.cluster.apply(Event::Service(service));
        for family in [Family::V4, Family::V6] {
            self.cluster.apply(Event::Slice(slice(&name, family, &all)));
        }
        let mut plans = plan::plan(&self.cluster, &self.config, &name);
        plans.iter_mut().for_each(change);
        let update = self.tables.replace(&name, &plans, 0).unwrap();
        assert_eq!(update.conflicts, [], "fixtures have no conflicts");
        self.datapath.store().apply(&update.ops).unwrap();
    }

    /// Knows the other nodes, and that these of them take clients' packets as they are.
    pub(crate) fn direct(&mut self, nodes: &[u8]) {
        let nodes = nodes.iter().map(|n| format!("node-{n}").into()).collect();
        let direct = DirectNodes { nodes, families: [Family::V4, Family::V6].into() };
        self.datapath.set_other_nodes(&(2..=5).flat_map(|n| address::node(n).both()).collect()).unwrap();
        self.datapath.store().apply(&self.tables.set_direct(&direct)).unwrap();
    }

    /// The flow of a client's packet.
    #[track_caller]
    pub(crate) fn flow_of(&self, sent: &Packet) -> abi::Flow {
        let (client, frontend) = (sent.source_socket(), sent.destination_socket());
        let is_it = |entry: &FlowEntry| {
            (entry.client.ip(), entry.client_port) == (client.ip(), client.port())
                && (entry.frontend.ip(), entry.frontend_port) == (frontend.ip(), frontend.port())
        };
        self.view.flows().unwrap().into_iter().find(is_it).unwrap_or_else(|| panic!("no flow of {sent:?}")).flow
    }

    /// Serves a service with endpoints that nobody has been sent to: what was counted of either before is past.
    pub(crate) fn serve_anew(&mut self, service: Service, endpoints: &[(u8, u8)]) {
        self.serve(service.clone(), &[]);
        self.release();
        self.release();
        self.serve(service, endpoints);
        let services = self.view.dump().unwrap().services;
        let counted: Vec<_> = services.iter().map(|(id, _)| MapOp::ResetServiceCounters { id: *id }).collect();
        self.datapath.store().apply(&counted).unwrap();
    }

    /// A grace period passes.
    pub(crate) fn release(&mut self) {
        self.tables.release();
    }

    /// Makes another node's pods unreachable.
    pub(crate) fn remove_routes_to(&self, node: u8) {
        for net in address::pod_cidrs(node) {
            self.netns.ip(&format!("route replace unreachable {net}")).unwrap();
        }
    }

    /// Where its maps and programs are pinned.
    pub(crate) const fn pin_dir(&self) -> &PinDir {
        &self.pins.dir
    }

    /// The pin of a map.
    pub(crate) fn pin(&self, map: &str) -> PathBuf {
        self.pins.dir.map(map)
    }

    /// What a frontend leads to.
    pub(crate) fn frontend(&self, to: SocketAddr, protocol: Protocol) -> (FrontendKey, abi::Frontend) {
        let key = FrontendKey { address: to.ip(), port: to.port(), protocol: protocol.number() };
        let frontends = self.view.dump().unwrap().frontends;
        frontends.into_iter().find(|(other, _)| *other == key).unwrap_or_else(|| panic!("there is no {key:?}"))
    }

    /// A client port that was not used yet.
    pub(crate) fn client_port(&self) -> u16 {
        self.client_port.replace(self.client_port.get() + 1)
    }

    /// Runs a program on a frame that is at a device.
    #[track_caller]
    pub(crate) fn run(&self, hook: Hook, device: Device, frame: &[u8]) -> Outcome {
        self.try_run(hook, device, frame).unwrap_or_else(|| panic!("the kernel runs nothing on {frame:02x?}"))
    }

    /// The same; none if the kernel refuses to run anything on such a frame.
    #[track_caller]
    pub(crate) fn try_run(&self, hook: Hook, device: Device, frame: &[u8]) -> Option<Outcome> {
        self.run_counted(hook, device, frame, 0).map(|ran| Outcome::of(hook, frame, ran))
    }

    /// Runs the program on the way out of a device on a packet that the node has got by one, and forwards.
    #[track_caller]
    pub(crate) fn forward(&self, came_by: Device, device: Device, packet: &Packet) -> Outcome {
        let frame = packet.to_bytes();
        let context = || Context::Forwarded { ifindex: device.index(), came_by: came_by.index() };
        let ran = self.run_in(Hook::NicOut, &frame, context).expect("the kernel runs whole packets");
        Outcome::of(Hook::NicOut, &frame, ran)
    }

    /// Runs a program on a frame, of segments of so many bytes unless that is 0. Returns with it by how much the hook's counters
    /// moved, also for what comes by at the device meanwhile.
    #[track_caller]
    pub(crate) fn run_counted(&self, hook: Hook, device: Device, frame: &[u8], segment: u32) -> Option<Counted> {
        self.run_in(hook, frame, || {
            let ifindex = device.index();
            match (hook, segment) {
                (Hook::Xdp, _) => Context::Xdp { ifindex },
                (_, 0) => Context::Skb { ifindex },
                (_, size) => Context::Segments { ifindex, size },
            }
        })
    }

    /// The same in a context that is made in the node's namespace.
    #[track_caller]
    fn run_in(&self, hook: Hook, frame: &[u8], context: impl FnOnce() -> Context + Send) -> Option<Counted> {
        let name = format!("weir_{hook}");
        let program = self.datapath.program(&name).unwrap();
        let before = self.counters(hook);
        let sums = self.sums.get();
        let run = self.netns.enter(|| match context() {
            context if sums => prog_run_summed(program.as_fd(), frame, context),
            context => prog_run(program.as_fd(), frame, Some(context), 1),
        });
        let run = match run {
            Err(error) if error.io_kind() == Some(ErrorKind::InvalidInput) => return None,
            run => run.unwrap(),
        };
        let after = self.counters(hook);
        let difference = |(reason, (old, new)): (u32, (&abi::Counter, &abi::Counter))| {
            (reason, abi::Counter { packets: new.packets - old.packets, bytes: new.bytes - old.bytes })
        };
        let moved = (0..).zip(before.iter().zip(&after)).map(difference).filter(|(_, moved)| moved.packets > 0);
        Some((run, moved.collect()))
    }

    /// From here on packets are refused: they come without a sum, as what has been cut for the answer has none.
    pub(crate) fn refuses(&self) {
        self.sums.set(false);
    }

    /// Runs a program on a packet.
    #[track_caller]
    pub(crate) fn send(&self, hook: Hook, device: Device, packet: &Packet) -> Outcome {
        self.run(hook, device, &packet.to_bytes())
    }

    /// The same of one that begins a flow, as a client does: it comes again if it has to.
    #[track_caller]
    pub(crate) fn insist(&self, hook: Hook, device: Device, first: &Packet) -> Outcome {
        let outcome = self.send(hook, device, first);
        if outcome.reason == abi::REASON_FIRST_SYN { self.send(hook, device, first) } else { outcome }
    }

    pub(crate) fn counters(&self, hook: Hook) -> Vec<abi::Counter> {
        let hook = match hook {
            Hook::Xdp => abi::HOOK_XDP,
            Hook::NicIn => abi::HOOK_NIC_INGRESS,
            Hook::NicOut => abi::HOOK_NIC_EGRESS,
            Hook::PodIn => abi::HOOK_POD_INGRESS,
            Hook::PodOut => abi::HOOK_POD_EGRESS,
        };
        (0..abi::REASON_COUNT).map(|reason| self.view.counters().counter(hook as usize, reason).unwrap()).collect()
    }
}

/// The service of most fixtures: TCP and UDP, at addresses of every kind.
pub(crate) fn web() -> Service {
    let port =
        |name: &str, protocol| ServicePort { name: name.into(), protocol, port: PORT, node_port: Some(NODE_PORT) };
    Service {
        cluster_ips: CLUSTER_IP.both().to_vec(),
        external_ips: EXTERNAL_IP.both().to_vec(),
        load_balancer_ips: BALANCER_IP.both().to_vec(),
        ports: vec![port("tcp", Protocol::Tcp), port("udp", Protocol::Udp)],
        ..Service::new(ObjectName::new("shop", "web"))
    }
}
