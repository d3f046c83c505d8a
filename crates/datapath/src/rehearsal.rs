//! A rehearsal: what a program would do with a packet, without any trace of it in what traffic sees.
//!
//! The program is loaded once more, on the agent's own maps and on private copies of those that programs write, and of the configuration. It costs the
//! packet path nothing, since that knows nothing of it: docs/adr/0034-rehearsals.md.

mod private;

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use aya::programs::ProgramFd;
use private::Private;
use weir_abi::{self as abi, Hook};

use crate::attach::link_name;
use crate::error::{Error, Result};
use crate::flow_key::{Client, FlowKey};
use crate::map::Table;
use crate::pins::PinDir;
use crate::sys;

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

/// One program, ready to be asked.
pub struct Rehearsal {
    hook: Hook,
    client: Client,
    program: ProgramFd,
    counters: Table<u32, abi::Counter>,
    cpus: usize,
    own: Private,
}

impl fmt::Debug for Rehearsal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rehearsal").field("hook", &self.hook).field("client", &self.client).finish_non_exhaustive()
    }
}

impl Rehearsal {
    /// Loads the program of a hook and copies what the kernel knows of the client's flows, and of the one that its packet
    /// answers; nothing of others.
    ///
    /// # Errors
    /// No pins, a missing right, or a kernel that refuses the program.
    pub fn open(pins: &PinDir, hook: Hook, client: Client) -> Result<Self> {
        let (own, program) = Private::load(pins, hook)?;
        own.bring_along(pins, client)?;
        let counters = own.table("counters")?;
        let cpus = aya::util::nr_cpus().unwrap_or(1);
        Ok(Self { hook, client, program, counters, cpus, own })
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
        match (self.client.from, self.client.to) {
            (SocketAddr::V4(_), SocketAddr::V4(_)) => self.own.flow(&abi::FlowKey4::of(&self.client)),
            _ => self.own.flow(&abi::FlowKey6::of(&self.client)),
        }
    }

    /// The backend that session affinity keeps for the client at a service: its slot and generation.
    ///
    /// # Errors
    /// When the private map cannot be read.
    pub fn affinity(&self, service: u32) -> Result<Option<abi::Affinity>> {
        let table = self.own.table::<abi::AffinityKey, abi::Affinity>("affinities")?;
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
    fn what_a_program_returns_has_a_meaning_at_each_hook() {
        let actions = [1, 2, 3, 4, 0].map(|returned| Action::new(Hook::Xdp, returned));
        assert_eq!(actions, [Action::Drop, Action::Pass, Action::Send, Action::Send, Action::Unknown(0)]);
        let actions = [2, u32::MAX, 7, 1].map(|returned| Action::new(Hook::PodIn, returned));
        assert_eq!(actions, [Action::Drop, Action::Pass, Action::Send, Action::Unknown(1)]);
    }
}
