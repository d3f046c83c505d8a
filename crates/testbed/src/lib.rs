//! A small real world for tests, benchmarks and the demo: nodes, pods and an outside client as network namespaces, links
//! with delay, HTTP and echo servers, load, cgroups, and a real API server.
//!
//! Nothing here knows Weir: the same world carries kube-proxy or no proxy at all, which is what comparisons need. Almost
//! everything needs root; tests ask [`require_root`] first and return when it says no.

pub mod address;
pub mod apiserver;
pub mod ask;
pub mod audit;
pub mod bpffs;
pub mod bulk;
pub mod capture;
pub mod cgroup;
pub mod connection;
pub mod delay;
mod entrance;
mod error;
pub mod figures;
mod frames;
mod ip;
pub mod kube_proxy;
pub mod load;
pub mod loopback;
pub mod machine;
pub mod netns;
pub mod node;
pub mod objects;
pub mod paced;
pub mod packet;
pub mod pristine;
pub mod process;
pub mod prog_run;
pub mod role;
pub mod serve;
mod tap;
pub mod told;
mod transmit;
mod udp;
mod verdict;
pub mod wait;
pub mod world;

pub use apiserver::{Admission, ApiServer};
pub use capture::Capture;
pub use cgroup::Cgroup;
pub use error::{Error, Result};
pub use kube_proxy::KubeProxy;
pub use machine::Machine;
pub use netns::Netns;
pub use node::{Node, Pod};
pub use pristine::Pristine;
pub use process::Process;
pub use transmit::transmit;
pub use verdict::Accept;
pub use world::World;

/// True when this process is root. Otherwise says on stderr that `what` is skipped, and why, and returns false.
#[must_use]
pub fn require_root(what: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: {what}: network namespaces need root; run it with sudo");
    }
    root
}
