//! A rehearsal: what a program would do with a packet, without any trace of it in what traffic sees.
//!
//! The program is loaded once more, on the agent's own maps and on private copies of those that programs write. It costs the
//! packet path nothing, since that knows nothing of it: docs/adr/0034-rehearsals.md.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use aya::maps::Map;
use aya::programs::{Program, ProgramFd};
use aya::{Ebpf, EbpfLoader};
use aya_obj::generated::bpf_map_type;
use weir_abi as abi;

use crate::attach::{Hook, link_name};
use crate::error::{Error, Result};
use crate::flow_table::FlowTable;
use crate::layout::{MAPS, spec};
use crate::load::{failed, load_program, mapped, objects, table};
use crate::map::{Mapped, Pod, Table};
use crate::pins::PinDir;
use crate::sys;
use crate::view::READ_ONLY;

/// What programs write. `maps.h` says the same, and a test that no other map changes.
const WRITTEN: [&str; 17] = [
    "flows4",
    "flows6",
    "replies4",
    "replies6",
    "openings4",
    "openings6",
    "awaited4",
    "awaited6",
    "affinities",
    "fragments",
    "held_pieces",
    "first_pieces",
    "socket_peers",
    "pod_macs",
    "counters",
    "paces",
    "snat_counters",
];
/// The same, with a slot for each that the agent gives out: their copies have as many.
const WRITTEN_BY_SLOT: [&str; 2] = ["backend_counters", "service_counters"];
/// Entries of private tables: one client's flows are a handful.
const PRIVATE_ENTRIES: u32 = 1024;
/// What a program may add to a packet: the header of a wrapper, or the rest of an ICMP error.
const ROOM: usize = 512;
/// Size of `struct __sk_buff` since Linux 5.18; older kernels accept a longer one whose end is zero.
const SKB_SIZE: usize = 192;
/// Where `ifindex` is in it.
const SKB_IFINDEX_AT: usize = 40;
/// Size of `struct xdp_md`, and where `data`, `data_end` and `ingress_ifindex` are in it.
const MD_SIZE: usize = 24;
const MD_DATA_AT: usize = 0;
const MD_END_AT: usize = 4;
const MD_IFINDEX_AT: usize = 12;

/// What becomes of a packet, as the program says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Action {
    /// It goes on: from XDP to tc, from tc to the host's stack.
    Pass,
    /// It ends here.
    Drop,
    /// It leaves by an interface without the stack.
    Send,
    /// A number that our programs do not return.
    Unknown(u32),
}

impl Action {
    /// As `XDP_*` of linux/bpf.h, or `TC_ACT_*` of linux/pkt_cls.h.
    const fn new(hook: Hook, returned: u32) -> Self {
        match (hook, returned) {
            (Hook::Xdp, 2) => Self::Pass,
            (Hook::Xdp, 1) => Self::Drop,
            (Hook::Xdp, 3 | 4) => Self::Send,
            (Hook::Xdp, other) => Self::Unknown(other),
            (_, u32::MAX | 0) => Self::Pass,
            (_, 2) => Self::Drop,
            (_, 7) => Self::Send,
            (_, other) => Self::Unknown(other),
        }
    }
}

/// What a rehearsal showed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Rehearsed {
    /// What becomes of the packet.
    pub action: Action,
    /// Why, a `REASON_*`.
    pub reason: u32,
    /// The frame as the program leaves it.
    pub frame: Vec<u8>,
}

/// Whose packet it is: what the kernel knows of this client's flows is copied, and of the one that the packet answers; nothing of others.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Client {
    /// Who sends it.
    pub from: SocketAddr,
    /// Where it goes.
    pub to: SocketAddr,
    /// IP protocol number.
    pub protocol: u8,
}

/// One program, ready to be asked.
pub struct Rehearsal {
    hook: Hook,
    client: Client,
    program: ProgramFd,
    counters: Table<u32, abi::Counter>,
    cpus: usize,
    own: Ebpf,
}

impl fmt::Debug for Rehearsal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rehearsal").field("hook", &self.hook).field("client", &self.client).finish_non_exhaustive()
    }
}

impl Rehearsal {
    /// Loads the program of a hook and copies what the kernel knows of the client.
    ///
    /// # Errors
    /// No pins, a missing right, or a kernel that refuses the program.
    pub fn open(pins: &PinDir, hook: Hook, client: Client) -> Result<Self> {
        let wanted = if hook == Hook::Xdp { "xdp.bpf.o" } else { "tc.bpf.o" };
        let (object, bytes) = objects().into_iter().find(|(name, _)| *name == wanted).expect("both are built in");
        let mut loader = EbpfLoader::new();
        loader.btf(None);
        let (_, sets) = pins.open_map(&spec("openings4"), READ_ONLY)?;
        loader.override_global("opening_sets", &sets, false);
        for spec in MAPS {
            let (_, entries) = pins.open_map(&spec, READ_ONLY)?;
            match (WRITTEN.contains(&spec.name), WRITTEN_BY_SLOT.contains(&spec.name)) {
                (true, _) if spec.kind == bpf_map_type::BPF_MAP_TYPE_LRU_HASH => {
                    loader.map_max_entries(spec.name, PRIVATE_ENTRIES)
                }
                (true, _) | (_, true) => loader.map_max_entries(spec.name, entries),
                (false, false) => loader.map_pin_path(spec.name, pins.map(spec.name)),
            };
        }
        let mut own = loader.load(bytes).map_err(|e| failed(object, &e))?;
        let program = program(object, &mut own, &hook.program())?;
        let counters = Table::new("counters", descriptor(&own, "counters")?);
        let cpus = aya::util::nr_cpus().unwrap_or(1);
        let rehearsal = Self { hook, client, program, counters, cpus, own };
        rehearsal.bring_along(pins)?;
        Ok(rehearsal)
    }

    /// Runs the program on a frame that is at an interface of the caller's network namespace.
    ///
    /// # Errors
    /// When the kernel does not run it: no such interface, or too short a frame.
    pub fn run(&self, ifindex: u32, frame: &[u8]) -> Result<Rehearsed> {
        let before = self.counts()?;
        let mut context = context(self.hook, ifindex, frame.len());
        let (returned, mut out) = sys::test_run(self.program.as_fd(), &mut context, frame, ROOM)
            .map_err(|e| Error::io(format!("cannot run {} at interface {ifindex}", self.hook.program()), e))?;
        if self.hook == Hook::Xdp {
            // The kernel says how much metadata is in front.
            let metadata: [u8; 4] = std::array::from_fn(|byte| context[MD_DATA_AT + byte]);
            out = out.split_off((u32::from_ne_bytes(metadata) as usize).min(out.len()));
        }
        let moved = before.iter().zip(self.counts()?).position(|(before, after)| *before != after);
        let reason = moved.and_then(|reason| u32::try_from(reason).ok()).unwrap_or(abi::REASON_NONE);
        Ok(Rehearsed { action: Action::new(self.hook, returned), reason, frame: out })
    }

    /// The flow of the client: before a run the one that the kernel knows, after it the one that the program has left.
    ///
    /// # Errors
    /// When a private map cannot be read.
    pub fn flow(&self) -> Result<Option<abi::Flow>> {
        let Client { from, to, protocol } = self.client;
        let ports = (abi::Be16::new(from.port()), abi::Be16::new(to.port()));
        let (sport, dport) = ports;
        let found = match (from.ip(), to.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let (src, dst) = (abi::Be32::new(src.into()), abi::Be32::new(dst.into()));
                let key = abi::FlowKey4 { src, dst, sport, dport, proto: protocol, pad: [0; 3] };
                self.first("flows4", "openings4", &key)?
            }
            (src, dst) => {
                let (src, dst) = (abi::Addr::from(src).word, abi::Addr::from(dst).word);
                let key = abi::FlowKey6 { src, dst, sport, dport, proto: protocol, pad: [0; 3] };
                self.first("flows6", "openings6", &key)?
            }
        };
        Ok(found)
    }

    /// The backend that session affinity keeps for the client at a service: its slot and generation.
    ///
    /// # Errors
    /// When the private map cannot be read.
    pub fn affinity(&self, service: u32) -> Result<Option<abi::Affinity>> {
        let table = self.private::<abi::AffinityKey, abi::Affinity>("affinities")?;
        let found = table.entries()?.into_iter().find(|(key, _)| key.service == service);
        Ok(found.map(|(_, kept)| kept))
    }

    /// Whether the program at an interface is this very one, by the hash of its instructions; `None` where no link is pinned,
    /// or the kernel does not let us look.
    ///
    /// # Errors
    /// When the link or its program cannot be inspected.
    pub fn is_attached(&self, pins: &PinDir, ifindex: u32) -> Result<Option<bool>> {
        let path = pins.links().join(link_name(self.hook, ifindex));
        let link = match sys::obj_get(&path, 0) {
            Ok(link) => link,
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            Err(e) => return Err(Error::io(format!("cannot open {}", path.display()), e)),
        };
        let inspect = |e| Error::io(format!("cannot inspect {}", path.display()), e);
        let id = sys::link_info(link.as_fd()).map_err(inspect)?.prog_id;
        let attached = match sys::program_by_id(id).and_then(|fd| sys::program_info(fd.as_fd())) {
            Ok(attached) => attached,
            // An agent's container has no CAP_SYS_ADMIN, and gets an answer to all else.
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => return Ok(None),
            Err(e) => return Err(inspect(e)),
        };
        Ok(Some(attached.tag == sys::program_info(self.program.as_fd()).map_err(inspect)?.tag))
    }

    fn bring_along(&self, pins: &PinDir) -> Result<()> {
        let Client { from, to, protocol: _ } = self.client;
        let (ip, port, dport) = (from.ip(), abi::Be16::new(from.port()), abi::Be16::new(to.port()));
        let (client, other) = (abi::Addr::from(ip), abi::Addr::from(to.ip()));
        let is_answer = move |reply: &abi::Reply| reply.client == client && reply.client_port == port;
        match ip {
            IpAddr::V4(ip) => {
                let ip = abi::Be32::new(ip.into());
                // The packet may be an answer itself.
                let is_it =
                    |key: &abi::FlowKey4| (key.src, key.sport, key.dst, key.dport) == (ip, port, other.word[3], dport);
                for name in ["flows4", "openings4"] {
                    self.bring_flows(pins, name, |key: &abi::FlowKey4, _: &abi::Flow| {
                        key.src == ip && key.sport == port
                    })?;
                }
                for name in ["replies4", "awaited4"] {
                    self.bring_flows(pins, name, |key: &abi::FlowKey4, reply: &abi::Reply| {
                        is_it(key) || is_answer(reply)
                    })?;
                }
            }
            IpAddr::V6(_) => {
                let is_ours = |key: &abi::FlowKey6| key.src == client.word && key.sport == port;
                let is_it = |key: &abi::FlowKey6| is_ours(key) && (key.dst, key.dport) == (other.word, dport);
                for name in ["flows6", "openings6"] {
                    self.bring_flows(pins, name, |key: &abi::FlowKey6, _: &abi::Flow| is_ours(key))?;
                }
                for name in ["replies6", "awaited6"] {
                    self.bring_flows(pins, name, |key: &abi::FlowKey6, reply: &abi::Reply| {
                        is_it(key) || is_answer(reply)
                    })?;
                }
            }
        }
        self.bring(pins, "affinities", |key: &abi::AffinityKey, _: &abi::Affinity| key.client == client)?;
        self.bring(pins, "pod_macs", |_: &u64, _: &u32| true)?;
        // Open flows decide where least-conn is the policy; source ports go in turns.
        self.bring_array::<abi::BackendCounters>(pins, "backend_counters")?;
        self.bring_array::<abi::SnatCounter>(pins, "snat_counters")
    }

    fn bring<K: Pod, V: Pod>(&self, pins: &PinDir, name: &'static str, ours: impl Fn(&K, &V) -> bool) -> Result<()> {
        let mut found = Vec::new();
        table(pins, name, READ_ONLY)?.visit(|key: &K, value: &V| {
            if ours(key, value) {
                found.push((*key, *value));
            }
        })?;
        let own = self.private(name)?;
        found.iter().try_for_each(|(key, value)| own.put(key, value, 0))
    }

    fn bring_flows<K: Pod + Eq, V: Pod>(
        &self,
        pins: &PinDir,
        name: &'static str,
        ours: impl Fn(&K, &V) -> bool,
    ) -> Result<()>
    where
        abi::OpeningSet<K, V>: Pod,
    {
        let mut found = Vec::new();
        FlowTable::open(pins, name, false)?.visit(|key: &K, value: &V| {
            if ours(key, value) {
                found.push((*key, *value));
            }
        })?;
        let own = self.flows(name)?;
        let seed = mapped::<abi::Config>(pins, "config", READ_ONLY)?.get(0)?.hash_seed;
        found.iter().try_for_each(|(key, value)| own.put(key, value, seed))
    }

    fn bring_array<T: Pod>(&self, pins: &PinDir, name: &'static str) -> Result<()> {
        let from = mapped::<T>(pins, name, READ_ONLY)?;
        let to = Mapped::new(name, &descriptor(&self.own, name)?, from.len(), true)?;
        (0..from.len()).try_for_each(|slot| to.set(slot, &from.get(slot)?))
    }

    fn first<K: Pod + Eq>(&self, going: &'static str, opening: &'static str, key: &K) -> Result<Option<abi::Flow>>
    where
        abi::OpeningSet<K, abi::Flow>: Pod,
    {
        let mut found = None;
        for name in [opening, going] {
            self.flows(name)?.visit(|known: &K, flow: &abi::Flow| {
                if known == key {
                    found = Some(*flow);
                }
            })?;
        }
        Ok(found)
    }

    fn flows<K: Pod + Eq, V: Pod>(&self, name: &'static str) -> Result<FlowTable<K, V>>
    where
        abi::OpeningSet<K, V>: Pod,
    {
        FlowTable::new(name, descriptor(&self.own, name)?, true)
    }

    fn private<K: Pod, V: Pod>(&self, name: &'static str) -> Result<Table<K, V>> {
        Ok(Table::new(name, descriptor(&self.own, name)?))
    }

    /// Packets by reason at this hook.
    fn counts(&self) -> Result<Vec<u64>> {
        let hook = self.hook.number() as usize;
        let count = |reason| {
            let slot = u32::try_from(hook * abi::REASON_COUNT + reason).unwrap_or(u32::MAX);
            let cpus = self.counters.get_per_cpu(&slot, self.cpus)?.unwrap_or_default();
            Ok(cpus.iter().map(|one| one.packets).sum())
        };
        (0..abi::REASON_COUNT).map(count).collect()
    }
}

fn program(object: &'static str, own: &mut Ebpf, name: &str) -> Result<ProgramFd> {
    let missing = || Error::Object { object, reason: format!("there is no program {name}") };
    let program: &mut Program = own.program_mut(name).ok_or_else(missing)?;
    load_program(object, program)?;
    let fd = program.fd().map_err(|e| failed(object, &e))?.try_clone();
    fd.map_err(|e| Error::io(format!("cannot keep program {name}"), e))
}

/// A private map.
fn descriptor(own: &Ebpf, name: &'static str) -> Result<OwnedFd> {
    let data = match own.map(name) {
        Some(Map::Array(data) | Map::LruHashMap(data) | Map::PerCpuArray(data)) => data,
        Some(_) | None => {
            let reason = format!("map {} is not of a kind that programs write", spec(name).name);
            return Err(Error::Object { object: "the rehearsal", reason });
        }
    };
    data.fd().as_fd().try_clone_to_owned().map_err(|e| Error::io(format!("cannot keep map {name}"), e))
}

/// The context that the kernel accepts: the interface, and of XDP the packet's length.
fn context(hook: Hook, ifindex: u32, length: usize) -> Vec<u8> {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    let (size, fields): (usize, &[(usize, u32)]) = match hook {
        Hook::Xdp => (MD_SIZE, &[(MD_END_AT, length), (MD_IFINDEX_AT, ifindex)]),
        Hook::NicIn | Hook::NicOut | Hook::PodIn | Hook::PodOut => (SKB_SIZE, &[(SKB_IFINDEX_AT, ifindex)]),
    };
    let mut bytes = vec![0; size];
    for (at, value) in fields {
        bytes[*at..*at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_map_that_programs_write_is_one_of_ours_and_no_other_kind_is_written() {
        for name in WRITTEN.into_iter().chain(WRITTEN_BY_SLOT) {
            assert!(MAPS.iter().any(|spec| spec.name == name), "{name}");
        }
        for spec in MAPS.iter().filter(|spec| spec.kind == bpf_map_type::BPF_MAP_TYPE_LRU_HASH) {
            assert!(WRITTEN.contains(&spec.name), "{}: what the kernel evicts from is the programs' own", spec.name);
        }
    }

    #[test]
    fn what_a_program_returns_has_a_meaning_at_each_hook() {
        let actions = [1, 2, 3, 4, 0].map(|returned| Action::new(Hook::Xdp, returned));
        assert_eq!(actions, [Action::Drop, Action::Pass, Action::Send, Action::Send, Action::Unknown(0)]);
        let actions = [2, u32::MAX, 7, 1].map(|returned| Action::new(Hook::PodIn, returned));
        assert_eq!(actions, [Action::Drop, Action::Pass, Action::Send, Action::Unknown(1)]);
    }
}
