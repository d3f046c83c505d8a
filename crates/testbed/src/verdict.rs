//! Programs that return one verdict and do nothing else.
//!
//! One of XDP passes every frame, for the far end of a veth pair: veth carries what XDP_TX sends only if the receiving end polls, and since
//! the kernel checks for a *program* there before it starts a poll (`veth_xdp_flush`), GRO alone is not enough: frames would lie in the ring
//! until other traffic comes.
//!
//! One of tc accepts every packet, as CNIs' programs end: no program behind it runs.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::netns::Netns;
use crate::{Error, Result};

// From linux/bpf.h, linux/if_link.h and linux/pkt_cls.h.
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const BPF_TCX_INGRESS: u32 = 46;
const BPF_TCX_EGRESS: u32 = 47;
const BPF_F_BEFORE: u32 = 1 << 3;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
const XDP_PASS: i32 = 2;
const TC_ACT_OK: i32 = 0;

/// Bytes of a program's name, with a zero at the end (`BPF_OBJ_NAME_LEN`).
const NAME: usize = 16;

/// `struct bpf_insn`.
#[repr(C)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// `r0 = verdict; exit`.
const fn returning(verdict: i32) -> [Instruction; 2] {
    [
        Instruction { code: 0xb7, registers: 0, offset: 0, immediate: verdict },
        Instruction { code: 0x95, registers: 0, offset: 0, immediate: 0 },
    ]
}

/// The head of `union bpf_attr` for BPF_PROG_LOAD; the kernel takes the rest as zero.
#[repr(C)]
#[derive(Default)]
struct LoadAttribute {
    program_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; NAME],
}

/// The head of `union bpf_attr` for BPF_LINK_CREATE.
#[repr(C)]
struct LinkAttribute {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// The program that passes frames on an interface, in native mode. Detached on drop.
#[derive(Debug)]
pub(crate) struct Pass {
    /// Closing it detaches the program.
    _link: OwnedFd,
}

impl Pass {
    /// Puts the program on an interface of a namespace.
    pub(crate) fn attach(netns: &Netns, interface: &str) -> Result<Self> {
        let program = load(BPF_PROG_TYPE_XDP, XDP_PASS, "pass");
        let link = program.and_then(|program| link(netns, interface, &program, BPF_XDP, XDP_FLAGS_DRV_MODE));
        let action = format!("attach an XDP program to {interface} in {}", netns.name());
        Ok(Self { _link: link.map_err(Error::io(action))? })
    }
}

/// The program that accepts packets, in both tcx lists of an interface. Detached on drop.
#[derive(Debug)]
pub struct Accept {
    /// Closing them detaches the program.
    _links: [OwnedFd; 2],
}

impl Accept {
    /// What the kernel calls the program.
    pub const PROGRAM: &str = "accept_all";

    /// Puts the program on an interface of a namespace, behind those that are there. Before Linux 6.6, which has no such lists, says so and
    /// returns None: `what` is skipped.
    ///
    /// # Errors
    /// When the kernel refuses it for another reason.
    pub fn last(what: &str, netns: &Netns, interface: &str) -> Result<Option<Self>> {
        Self::attach(what, netns, interface, 0)
    }

    /// The same before those that are there.
    ///
    /// # Errors
    /// See [`Self::last`].
    pub fn first(what: &str, netns: &Netns, interface: &str) -> Result<Option<Self>> {
        Self::attach(what, netns, interface, BPF_F_BEFORE)
    }

    fn attach(what: &str, netns: &Netns, interface: &str, flags: u32) -> Result<Option<Self>> {
        let action = format!("attach a program of tc to {interface} in {}", netns.name());
        // Each list takes a program once.
        let attach = |kind| {
            let program = load(BPF_PROG_TYPE_SCHED_CLS, TC_ACT_OK, Self::PROGRAM)?;
            link(netns, interface, &program, kind, flags)
        };
        match attach(BPF_TCX_INGRESS).and_then(|ingress| Ok([ingress, attach(BPF_TCX_EGRESS)?])) {
            Ok(links) => Ok(Some(Self { _links: links })),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                eprintln!("SKIPPED: {what}: no tcx before Linux 6.6");
                Ok(None)
            }
            Err(error) => Err(Error::io(action)(error)),
        }
    }
}

fn load(program_type: u32, verdict: i32, called: &str) -> io::Result<OwnedFd> {
    let program = returning(verdict);
    let mut name = [0; NAME];
    for (to, from) in name.iter_mut().zip(called.bytes().take(NAME - 1)) {
        *to = from;
    }
    let attribute = LoadAttribute {
        program_type,
        instruction_count: program.len().try_into().unwrap_or(u32::MAX),
        instructions: program.as_ptr() as u64,
        license: c"Dual MIT/GPL".as_ptr() as u64,
        name,
        ..LoadAttribute::default()
    };
    // SAFETY: the attribute starts as `union bpf_attr` does for this command, and what it points to lives as long as the call.
    unsafe { bpf(BPF_PROG_LOAD, &attribute) }
}

fn link(netns: &Netns, interface: &str, program: &OwnedFd, attach_type: u32, flags: u32) -> io::Result<OwnedFd> {
    netns.enter(|| {
        let interface = nix::net::if_::if_nametoindex(interface)?;
        let attribute = LinkAttribute { program: program.as_raw_fd().unsigned_abs(), interface, attach_type, flags };
        // SAFETY: the attribute starts as `union bpf_attr` does for this command, and holds no pointers.
        unsafe { bpf(BPF_LINK_CREATE, &attribute) }
    })
}

/// Makes a `bpf(2)` call that returns a descriptor.
///
/// # Safety
/// `attribute` must be laid out as the command expects, and its pointers must be valid during the call.
unsafe fn bpf<T>(command: libc::c_long, attribute: &T) -> io::Result<OwnedFd> {
    // SAFETY: the caller vouches for the attribute; its size is passed along.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attribute, size_of::<T>()) };
    match RawFd::try_from(result) {
        // SAFETY: the kernel has just given this descriptor to us alone.
        Ok(descriptor) if descriptor >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        Ok(_) | Err(_) => Err(io::Error::last_os_error()),
    }
}
