//! The reference model of the packet path: what the programs in `bpf/` must do with a packet, written as rules rather than for
//! speed. Frame in; reason, verdict, frame out; tables before and after; and the same of calls about sockets. The kernel is compared
//! with it, packet by packet and call by call, by the fuzzer in `crates/datapath/tests`.
//!
//! Its sources are ARCHITECTURE.md, the decisions in `docs/adr` and the comments of `bpf/abi.h`. What it does not have: a clock
//! (it is told), routes ([`Network`]), tables that are full, and random draws (it judges the one that the kernel made).
#![forbid(unsafe_code)]

mod answer;
mod begin;
mod bypass;
mod choose;
mod control;
mod count;
mod cut;
mod displaced;
mod edit;
mod first_syn;
mod going;
mod hooks;
mod icmp;
mod kept;
mod over;
mod pace;
mod packet;
mod path;
mod pieces;
mod place;
mod socket;
mod tables;
mod tunnel;
mod unwrap;
mod ways;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use weir_abi as abi;
use weir_core::ops::MapOp;
use weir_core::source_ports::PortSet;

pub use control::{UNUSED_BACKEND, UNUSED_LINE, UNUSED_SERVICE};
pub use hooks::is_answered;
pub use packet::{End, Key};
pub use socket::{Called, Refusal, Socket, Wish};
pub use tables::{Ended, Flow, Fragment, FragmentKey, HeldPiece, Now, Reply, Stage, Staged, Tables, Turn};
pub use weir_abi::Hook;

/// A number of `enum reason` in `bpf/abi.h`.
pub type Reason = u32;

/// The ends of the packet in a frame and the offset of its IP header, if it has ends: a later piece has no ports. None if it is
/// no packet of TCP, UDP or SCTP.
#[must_use]
pub fn ends_of(frame: &[u8]) -> Option<(Key, usize)> {
    let (packet, read) = packet::parse(frame).ok()?;
    read.ok().map(|()| (packet.key(), packet.l3))
}

/// What becomes of the frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// On its way, by the stack.
    Pass,
    /// Nowhere.
    Drop,
    /// Out of the interface that it came from; of XDP alone.
    SendBack,
    /// Out of an interface.
    Redirect,
}

/// What tc does with a packet that XDP has translated.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HandOver {
    /// It leaves it alone: its new destination may be a frontend itself.
    Done,
    /// It sends it on to the pod, past the host's stack.
    ToPod,
}

/// What a program did.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Outcome {
    /// Why it left.
    pub reason: Reason,
    /// How it left.
    pub verdict: Verdict,
    /// The frame, which means nothing after [`Verdict::Drop`].
    pub frame: Vec<u8>,
    /// XDP told tc what to do with it.
    pub hand_over: Option<HandOver>,
    /// What comes again, in this order: of a packet that was cut what is behind its front piece, of a first piece those that waited for it.
    pub again: Vec<Again>,
}

/// A frame that comes again.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Again {
    /// Index of the device: by which it came.
    pub device: u32,
    /// The frame.
    pub frame: Vec<u8>,
}

/// The way to an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Route {
    /// Index of the device.
    pub device: u32,
    /// Largest IP packet, in bytes.
    pub mtu: u32,
    /// Address of the next hop, if the kernel knows it.
    pub neighbour: Option<[u8; 6]>,
    /// Address of the device.
    pub mac: [u8; 6],
    /// XDP may redirect to the device.
    pub has_xdp: bool,
    /// The device is one of the node's interfaces, where other nodes look into what arrives.
    pub is_nic: bool,
}

/// The node's routes.
pub trait Network {
    /// The way to an address; none for what the node keeps or must not forward.
    fn route(&self, to: IpAddr) -> Option<Route>;

    /// Address of a device.
    fn mac(&self, device: u32) -> [u8; 6];
}

/// Where a packet is, and what only the kernel knows.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The program.
    pub hook: Hook,
    /// Index of the device.
    pub device: u32,
    /// Index of the device that the packet came in by; 0: of none.
    pub came_by: u32,
    /// The routes.
    pub network: &'a dyn Network,
    /// The backend slots whose counts of new flows moved in the kernel. They decide where the kernel draws at random.
    pub drawn: &'a [u32],
}

impl Place<'_> {
    pub(crate) fn is_xdp(&self) -> bool {
        self.hook == Hook::Xdp
    }
}

/// A node: what the control plane wrote, what the programs remember, and the time.
#[derive(Clone, Debug)]
pub struct Model {
    /// As the agent wrote it.
    pub config: abi::Config,
    /// What the programs remember.
    pub tables: Tables,
    /// Addresses of the other nodes of the cluster.
    pub other_nodes: HashSet<abi::Addr>,
    /// Pods whose TCP sockets are translated, by the numbers of their cgroups.
    pub hooked_pods: HashMap<u64, abi::HookedPod>,
    /// By which devices packets may go past the host, and what is behind them: `SHORTCUT_NEIGHBOUR` or `SHORTCUT_PEER`.
    pub shortcuts: HashMap<u32, u32>,
    /// The time. Only its differences mean something.
    pub now: Now,
    /// What the kernel's clock of ticks shows when this one shows `now`: a hash depends on it.
    pub kernel_tick: u32,
    /// Sets of each table of flows that begin, which is where held SYNs are noted.
    pub opening_sets: u32,
    /// Entries among those that go on that others than TCP may fill until they are idle.
    pub room_beside_tcp: u32,
    /// ICMP errors that are told in a tick, but for those that say how big packets may be.
    pub errors_told: u32,
    control: control::Control,
}

/// What depends on how large tables are, and on the number of CPUs.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// [`Model::opening_sets`].
    pub opening_sets: u32,
    /// [`Model::room_beside_tcp`].
    pub room_beside_tcp: u32,
    /// [`Model::errors_told`].
    pub errors_told: u32,
}

impl Model {
    /// A node of whose services nothing is known.
    #[must_use]
    pub fn new(config: abi::Config, now: Now, sizes: Sizes) -> Self {
        let Sizes { opening_sets, room_beside_tcp, errors_told } = sizes;
        let (tables, control) = (Tables::default(), control::Control::default());
        let (other_nodes, hooked_pods, shortcuts) = (HashSet::new(), HashMap::new(), HashMap::new());
        Self {
            config,
            tables,
            other_nodes,
            hooked_pods,
            shortcuts,
            now,
            kernel_tick: now.ticks,
            opening_sets,
            room_beside_tcp,
            errors_told,
            control,
        }
    }

    /// Applies writes of the control plane, in order. Names are left out, and so is [`MapOp::ForgetFlows`]: whoever forgets
    /// flows changes [`Model::tables`] himself.
    pub fn apply(&mut self, ops: &[MapOp]) {
        for op in ops {
            match op {
                MapOp::ResetBackendCounters { id } => drop(self.tables.backend_counters.remove(id)),
                MapOp::ResetServiceCounters { id } => drop(self.tables.service_counters.remove(id)),
                MapOp::PutBase { id, base } => self.tables.backend_counters(*id).base = *base,
                other => self.control.apply(other),
            }
        }
    }

    /// Lets new flows take these source ports and no others. Answers to those of before still arrive.
    pub fn set_source_ports(&mut self, usable: &PortSet) {
        self.control.set_source_ports(usable);
    }

    /// As if no flow had begun in this tick, and no error had been told.
    pub fn calm(&mut self) {
        self.tables.pace = pace::Pace { flooded: self.tables.pace.flooded, ..pace::Pace::default() };
    }
}
