//! The peer mesh: agents probe each other over UDP. One exchange measures the round-trip time and carries the load
//! reports of both nodes.
//!
//! [`Mesh`] is the protocol without sockets and clocks: datagrams and times go in, datagrams and reports come out.
//! [`Link`] runs it on [`Socket`]s. Who may be asked, what is told and what is done with the answers is decided
//! elsewhere.
//!
//! Every packet is authenticated with a key that the cluster shares ([`KeyRing`]); nothing is encrypted, load is no
//! secret.
#![forbid(unsafe_code)]

mod body;
mod budget;
mod config;
mod counters;
mod key_file;
mod keys;
mod link;
mod mesh;
mod packet;
mod peers;
mod remotes;
mod replay;
mod schedule;
mod services;
mod socket;
mod wire;

pub use body::{Body, Report};
pub use budget::{Budget, size_on_wire};
pub use config::{Config, ConfigError};
pub use counters::{Counters, Refusal};
pub use key_file::{KeyFile, KeyFileError};
pub use keys::{KeyError, KeyRing};
pub use link::{Link, LinkError, now};
pub use mesh::{Arrival, Mesh, Now, Question, Transmit};
pub use packet::{Header, Kind, MAX_PACKET, MIN_PACKET, NodeId, Opened, open, seal};
pub use peers::PeerState;
pub use replay::{Order, Window};
pub use schedule::Schedule;
pub use services::{Cursor, Published};
pub use socket::{Socket, SocketError};
