//! What the tests of the deployment share: the tools that operators use, run for real, and what they print, made into
//! objects.
//!
//! Tests lie in `tests`, one file for each thing that is installed. Those that take minutes, a browser or a whole cluster
//! are ignored unless named: `make test-deploy` runs them.

pub mod chart;
pub mod generated;
pub mod image;
pub mod machine;
pub mod manifest;
pub mod node;
pub mod page;
pub mod programs;
pub mod server;
pub mod values;
