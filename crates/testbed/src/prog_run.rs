//! Runs a loaded program on one packet, by `BPF_PROG_TEST_RUN`.

use std::fs;
use std::io;
use std::mem::{offset_of, size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::LazyLock;
use std::time::Duration;

use aya_obj::generated::{bpf_attr, bpf_cmd, bpf_prog_info};

use crate::{Error, Result};

/// Room for what a program adds to a packet.
const HEADROOM: usize = 512;
/// `BPF_F_TEST_SKB_CHECKSUM_COMPLETE`, which bindings leave out.
const CHECKSUM_COMPLETE: u32 = 1 << 2;
/// Whether the kernel runs anything with it. Were it asked for no more on a kernel that should know it, nobody would notice.
static KNOWS_SUMS: LazyLock<bool> = LazyLock::new(|| {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
    numbers.next().zip(numbers.next()) >= Some((6_u32, 16_u32))
});
/// Size of `struct __sk_buff` since Linux 5.18; older kernels accept a longer one whose end is zero.
const SKB_SIZE: usize = 192;

/// Where the packet is said to come from. The device is looked up in the network namespace of the calling thread.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Context {
    /// For an XDP program.
    Xdp {
        /// The device that received the packet.
        ifindex: u32,
    },
    /// For a tc program. A VLAN tag can only be given in the frame; the kernel refuses one next to it.
    Skb {
        /// The device that the packet is at.
        ifindex: u32,
    },
    /// For a tc program on the way out: a packet that the node forwards.
    Forwarded {
        /// The device that the packet is at.
        ifindex: u32,
        /// The device that it came in by.
        came_by: u32,
    },
    /// For a tc program: a packet of several segments, which the card will cut.
    Segments {
        /// The device that the packet is at.
        ifindex: u32,
        /// Bytes of data in a segment.
        size: u32,
    },
}

/// What a run left behind.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Run {
    /// The program's return value: `XDP_*`, or `TC_ACT_*` (`TC_ACT_UNSPEC` is `u32::MAX`).
    pub retval: u32,
    /// The frame, without XDP metadata.
    pub packet: Vec<u8>,
    /// Bytes of metadata in front of the frame. XDP with a [`Context`] only.
    pub metadata: Vec<u8>,
    /// Mean time of one run.
    pub duration: Duration,
}

/// As the kernel has it; written here because bindings leave it out.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct XdpMd {
    data: u32,
    data_end: u32,
    data_meta: u32,
    ingress_ifindex: u32,
    rx_queue_index: u32,
    egress_ifindex: u32,
}

/// Offset of `gso_size` in `struct __sk_buff`.
const GSO_SIZE_AT: usize = 176;

fn sk_buff(ifindex: u32, ingress_ifindex: u32, gso_size: u32) -> Vec<u8> {
    let mut bytes = vec![0; SKB_SIZE];
    let fields = [
        (offset_of!(SkBuffStart, ifindex), ifindex),
        (offset_of!(SkBuffStart, ingress_ifindex), ingress_ifindex),
        (GSO_SIZE_AT, gso_size),
    ];
    for (at, value) in fields {
        bytes[at..at + size_of::<u32>()].copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

/// The members of `struct __sk_buff` up to the last of those that are set.
#[repr(C)]
struct SkBuffStart {
    len: u32,
    pkt_type: u32,
    mark: u32,
    queue_mapping: u32,
    protocol: u32,
    vlan_present: u32,
    vlan_tci: u32,
    vlan_proto: u32,
    priority: u32,
    ingress_ifindex: u32,
    ifindex: u32,
}

impl Context {
    fn to_bytes(self, packet: u32) -> Vec<u8> {
        match self {
            Self::Xdp { ifindex } => {
                let context = XdpMd { data_end: packet, ingress_ifindex: ifindex, ..XdpMd::default() };
                let XdpMd { data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex } = context;
                [data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex]
                    .into_iter()
                    .flat_map(u32::to_ne_bytes)
                    .collect()
            }
            Self::Skb { ifindex } => sk_buff(ifindex, 0, 0),
            Self::Forwarded { ifindex, came_by } => sk_buff(ifindex, came_by, 0),
            Self::Segments { ifindex, size } => sk_buff(ifindex, 0, size),
        }
    }

    /// Bytes of metadata in front of the packet, from the context that the kernel handed back.
    fn metadata(self, bytes: &[u8]) -> usize {
        match self {
            Self::Xdp { .. } => {
                let at = offset_of!(XdpMd, data);
                u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize
            }
            Self::Skb { .. } | Self::Forwarded { .. } | Self::Segments { .. } => 0,
        }
    }
}

/// Runs the program `repeat` times on the packet (at least 14 bytes); each run sees what the one before left. Without a
/// context the device is the namespace's loopback.
///
/// # Errors
/// [`Error::Io`] that names the program, for example `EINVAL` for a packet that the kernel finds too short.
pub fn prog_run(program: BorrowedFd<'_>, packet: &[u8], context: Option<Context>, repeat: u32) -> Result<Run> {
    run(program, packet, context, repeat, 0)
}

/// Runs the program once on a packet of which a card has taken the sum (`CHECKSUM_COMPLETE`). The kernel holds what it is told of changes
/// against the packet that the program leaves. For XDP there is no sum, of several segments neither, nor before Linux 6.16, some
/// of which do not know the flag: nothing is held against anything then.
///
/// # Errors
/// As [`prog_run`], and `EBADMSG` if the sum is another one afterwards. That is no mistake of a program that has cut the packet: the kernel
/// forgets the sum then.
pub fn prog_run_summed(program: BorrowedFd<'_>, packet: &[u8], context: Context) -> Result<Run> {
    let flags = match context {
        Context::Skb { .. } | Context::Forwarded { .. } if *KNOWS_SUMS => CHECKSUM_COMPLETE,
        Context::Skb { .. } | Context::Forwarded { .. } | Context::Xdp { .. } | Context::Segments { .. } => 0,
    };
    run(program, packet, Some(context), 1, flags)
}

fn run(program: BorrowedFd<'_>, packet: &[u8], context: Option<Context>, repeat: u32, flags: u32) -> Result<Run> {
    let length = to_u32(packet.len());
    let context_in = context.map(|context| context.to_bytes(length)).unwrap_or_default();
    let mut context_out = vec![0u8; context_in.len()];
    let mut out = vec![0u8; packet.len() + HEADROOM];
    let mut attr = unset();
    attr.test.prog_fd = program.as_raw_fd().unsigned_abs();
    attr.test.data_in = packet.as_ptr() as u64;
    attr.test.data_size_in = length;
    attr.test.data_out = out.as_mut_ptr() as u64;
    attr.test.data_size_out = to_u32(out.len());
    attr.test.repeat = repeat;
    if context.is_some() {
        attr.test.ctx_in = context_in.as_ptr() as u64;
        attr.test.ctx_size_in = to_u32(context_in.len());
        attr.test.ctx_out = context_out.as_mut_ptr() as u64;
        attr.test.ctx_size_out = to_u32(context_out.len());
    }
    attr.test.flags = flags;
    bpf(bpf_cmd::BPF_PROG_TEST_RUN, &mut attr).map_err(|source| Error::Io {
        action: format!("run program {} on a packet of {length} bytes", name(program)),
        source,
    })?;
    // SAFETY: the kernel wrote its answer into the same member that was set above.
    let test = unsafe { attr.test };
    out.truncate(test.data_size_out as usize);
    let metadata = context.map_or(0, |context| context.metadata(&context_out)).min(out.len());
    let packet = out.split_off(metadata);
    Ok(Run { retval: test.retval, packet, metadata: out, duration: Duration::from_nanos(test.duration.into()) })
}

/// The system call. Returns a new descriptor where the command makes one.
pub(crate) fn bpf(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<i32> {
    // SAFETY: attr is a live, fully initialised bpf_attr; the pointers in it were set from live buffers by the caller.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command as libc::c_uint, attr, size_of::<bpf_attr>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(i32::try_from(result).unwrap_or(i32::MAX)) }
}

/// What a system call says of nothing.
pub(crate) fn unset() -> bpf_attr {
    // SAFETY: bpf_attr is a union of plain integers; all zeroes is what the kernel calls unset.
    unsafe { zeroed() }
}

/// What the kernel tells of an object: `T` is its info structure of that kind.
pub(crate) fn info<T>(object: BorrowedFd<'_>) -> io::Result<T> {
    // SAFETY: these structures are plain integers, for which zero is unset.
    let mut info: T = unsafe { zeroed() };
    let mut attr = unset();
    attr.info.bpf_fd = object.as_raw_fd().unsigned_abs();
    attr.info.info_len = to_u32(size_of::<T>());
    attr.info.info = &raw mut info as u64;
    bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr)?;
    Ok(info)
}

/// The program's name, as far as the kernel keeps it; for messages.
fn name(program: BorrowedFd<'_>) -> String {
    match info::<bpf_prog_info>(program) {
        Ok(info) => info.name.iter().take_while(|c| **c != 0).map(|c| char::from(c.to_ne_bytes()[0])).collect(),
        Err(_) => format!("of descriptor {}", program.as_raw_fd()),
    }
}

fn to_u32(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
