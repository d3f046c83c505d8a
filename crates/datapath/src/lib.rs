//! The kernel's half from outside: loading programs, adopting and pinning maps and links, writing maps.
//!
//! I/O only. What to write is decided in `weir-core`; [`Datapath`] is for the one writer, [`View`] for readers.

mod attach;
mod capabilities;
mod clsact;
mod counters;
mod error;
mod filter;
mod flow_key;
mod flow_table;
mod flows;
mod former;
mod frontends;
mod going;
mod hooked_pods;
mod in_use;
mod inspect;
mod kept;
mod layout;
mod load;
mod map;
mod objects;
mod openings;
mod other_nodes;
mod pins;
mod programs;
mod rehearsal;
mod replaced;
mod resize;
mod shortcuts;
mod sockets;
mod source_ports;
mod source_ranges;
mod store;
mod sys;
mod view;

pub use attach::AttachOptions;
pub use clsact::detach as detach_clsact;
pub use counters::{Counters, MapUse};
pub use error::{Error, Result};
pub use flow_key::Client;
pub use going::GoingFilter;
pub use hooked_pods::HookedPods;
pub use inspect::{Attached, attached_programs, check_programs, missing_capabilities, program_name, size_option};
pub use load::Datapath;
pub use map::{Mapped, Pod, Table};
pub use objects::objects;
pub use pins::{DEFAULT_PIN_DIR, PinDir};
pub use programs::{ProgramUse, Programs};
pub use rehearsal::{Action, Rehearsal, Rehearsed};
pub use sockets::Sockets;
pub use store::{KernelStore, MapStore, MemoryStore};
pub use view::{FlowEntry, RawEntry, View};
pub use weir_abi::Hook;
pub use weir_core::interfaces::Attachment;
