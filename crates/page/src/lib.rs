//! The page that an agent serves: the nodes as basins with their level, the flows between them, a service's endpoints with
//! their shares and the reasons, the last ten minutes as charts.
//!
//! Once a [`PERIOD`] the [`Recorder`] asks a [`Source`] for a [`Sample`], and puts it into the [`history`], which is bounded
//! whatever the cluster's size. What browsers get is in [`view`], how in [`server`]. The page itself is in `assets/`.
#![forbid(unsafe_code)]

mod assets;
mod guard;
pub mod history;
mod recorder;
pub mod sample;
pub mod server;
mod stream;
pub mod view;

pub use recorder::{PERIOD, Page, Recorder};
pub use sample::{NodeSample, NodeState, Sample, ServiceSample, Source};
