//! An XDP program that passes every frame, for the far end of a veth pair.
//!
//! veth carries what XDP_TX sends only if the receiving end polls, and since the kernel checks for a *program* there before
//! it starts a poll (`veth_xdp_flush`), GRO alone is not enough: frames would lie in the ring until other traffic comes.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::netns::Netns;
use crate::{Error, Result};

// From linux/bpf.h and linux/if_link.h.
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// Instructions of the program.
const LENGTH: u32 = 2;

/// `r0 = XDP_PASS; exit`, as native-endian instructions of opcode, registers, offset and immediate value.
const PASS: [Instruction; LENGTH as usize] = [
    Instruction { code: 0xb7, registers: 0, offset: 0, immediate: 2 },
    Instruction { code: 0x95, registers: 0, offset: 0, immediate: 0 },
];

/// `struct bpf_insn`.
#[repr(C)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// The head of `union bpf_attr` for BPF_PROG_LOAD; the kernel takes the rest as zero.
#[repr(C)]
struct LoadAttribute {
    program_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
}

/// The head of `union bpf_attr` for BPF_LINK_CREATE.
#[repr(C)]
struct LinkAttribute {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// The program on an interface, in native mode. Detached on drop.
#[derive(Debug)]
pub(crate) struct Pass {
    /// Closing it detaches the program.
    _link: OwnedFd,
}

impl Pass {
    /// Puts the program on an interface of a namespace.
    pub(crate) fn attach(netns: &Netns, interface: &str) -> Result<Self> {
        let link = netns.enter(|| {
            let interface = nix::net::if_::if_nametoindex(interface)?;
            let program = load()?;
            link(&program, interface)
        });
        let action = format!("attach an XDP program to {interface} in {}", netns.name());
        Ok(Self { _link: link.map_err(Error::io(action))? })
    }
}

fn load() -> io::Result<OwnedFd> {
    let attribute = LoadAttribute {
        program_type: BPF_PROG_TYPE_XDP,
        instruction_count: LENGTH,
        instructions: PASS.as_ptr() as u64,
        license: c"Dual MIT/GPL".as_ptr() as u64,
    };
    // SAFETY: the attribute starts as `union bpf_attr` does for this command, and what it points to is static.
    unsafe { bpf(BPF_PROG_LOAD, &attribute) }
}

fn link(program: &OwnedFd, interface: u32) -> io::Result<OwnedFd> {
    let attribute = LinkAttribute {
        program: program.as_raw_fd().unsigned_abs(),
        interface,
        attach_type: BPF_XDP,
        flags: XDP_FLAGS_DRV_MODE,
    };
    // SAFETY: the attribute starts as `union bpf_attr` does for this command, and holds no pointers.
    unsafe { bpf(BPF_LINK_CREATE, &attribute) }
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
