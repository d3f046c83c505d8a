//! What can go wrong with programs, maps and pins, and what to do about it.

use std::io;
use std::path::PathBuf;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the datapath. Its message names the object, the cause and, where there is one, the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pin directory is not on a BPF file system.
    #[error(
        "{path} is not on a BPF file system; mount one with `mount -t bpf bpf /sys/fs/bpf`, or choose another --pin-dir"
    )]
    NoBpffs {
        /// The pin directory.
        path: PathBuf,
    },
    /// Another writer holds the pin directory.
    #[error("{path} is in use by another weir-agent; stop it, or give this one another --pin-dir")]
    Locked {
        /// The pin directory.
        path: PathBuf,
    },
    /// No pins where some were expected.
    #[error("no pinned maps in {path}; is weir-agent set up on this node (--pin-dir)?")]
    NotSetUp {
        /// The directory of the maps.
        path: PathBuf,
    },
    /// The kernel refused for want of a capability.
    #[error("{action}: operation not permitted; weir needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, or root")]
    Capability {
        /// What was tried.
        action: String,
    },
    /// A file operation failed.
    #[error("{action}: {cause}")]
    Io {
        /// What was tried, on which object.
        action: String,
        /// The cause.
        cause: io::Error,
    },
    /// A compiled object could not be loaded.
    #[error("cannot load {object}: {reason}")]
    Object {
        /// Name of the object.
        object: &'static str,
        /// The loader's or the verifier's words.
        reason: String,
    },
    /// A map has another layout than this program.
    #[error("pinned map {path} has another layout ({found}) than this version needs ({expected}); not touching it")]
    Layout {
        /// The pin.
        path: PathBuf,
        /// What is there.
        found: String,
        /// What is needed.
        expected: String,
    },
    /// A map is full.
    #[error("map {map} is full at {size} entries; raise {option} and restart the agent, traffic goes on meanwhile")]
    MapFull {
        /// The map.
        map: &'static str,
        /// Its size.
        size: u32,
        /// The option that sets it.
        option: &'static str,
    },
    /// A slot beyond the end of an array.
    #[error("map {map} has no slot {slot}, its size is {size}")]
    NoSlot {
        /// The map.
        map: &'static str,
        /// The slot.
        slot: u32,
        /// Its size.
        size: u32,
    },
}

impl Error {
    /// Makes an error of a failed system call: what was tried, and the cause.
    pub(crate) fn io(action: impl Into<String>, cause: io::Error) -> Self {
        let action = action.into();
        match cause.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::Capability { action },
            _ => Self::Io { action, cause },
        }
    }
}
