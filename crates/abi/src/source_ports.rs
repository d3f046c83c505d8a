//! The node's source ports: whose turn it is, where answers arrive, and which ones clients' ports had.

use crate::{SNAT_KEPT_WAYS, SNAT_NEXT_BITS};

/// See `struct snat_counter` in `bpf/abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SnatCounter {
    /// Wraps: its lower half is the first port number that the next flow may get.
    pub next: u32,
    /// In ticks: when a flow that had only just begun lost its port to the next one.
    pub pressed: u32,
    /// In ticks: when a search for a port was long.
    pub long_search: u32,
    /// Zero.
    pub pad: u32,
}

/// The node's source ports in a ring; see `struct snat_next` in `bpf/abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SnatNext {
    /// Each number itself if new flows may take that port, else the next one that they may; 0: there is none.
    pub port: [u16; 1 << SNAT_NEXT_BITS],
}

/// What arrives at the node's ports; see `struct snat_ports` in `bpf/abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SnatPorts {
    /// Ports that new flows may take or once could, the first one in the lowest bit.
    pub answers: u64,
    /// Those among them that no new flow may take.
    pub left: u64,
}

/// Source ports that clients' ports had; see `struct snat_kept` in `bpf/abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SnatKept {
    /// Bits 16 to 31 of a hash, and below them the port; 0: none.
    pub entry: [u32; SNAT_KEPT_WAYS],
}
