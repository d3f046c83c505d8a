//! The static source: Services, endpoints and Nodes from a YAML file, with Kubernetes' words and meaning but without
//! Kubernetes.
//!
//! ```yaml
//! nodes:
//!   - name: edge-1
//!     zone: hall-a
//!     addresses: [192.0.2.11]
//! services:
//!   - name: web                      # namespace: default
//!     clusterIPs: [10.96.0.10]
//!     loadBalancerIPs: [198.51.100.1]
//!     loadBalancerSourceRanges: [192.0.2.0/24]
//!     externalTrafficPolicy: Local
//!     sessionAffinity: ClientIP
//!     sessionAffinitySeconds: 600    # 10800 if left out
//!     annotations: {weir.dev/policy: waterfill, weir.dev/target: 0.7}
//!     ports:
//!       - {name: http, port: 80, targetPort: 8080, nodePort: 30080}
//!     endpoints:
//!       - {address: 10.0.1.5, node: edge-1}
//!       - {address: 10.0.2.7, ports: {http: 8081}}
//! ```
//!
//! A mistake in the file is refused with its line and column, and the whole file with it: half of a file is not what
//! its writer wanted.

mod build;
mod follow;
mod schema;

use weir_core::cluster::Event;

use crate::file::from_yaml;
pub use crate::file::{FileError, FollowError};
pub use follow::follow;

/// Reads the text of a file: three events, each with the whole list of its kind.
///
/// # Errors
/// The first mistake in the text: not YAML, an unknown field, a bad address or port, a name or an address and port that
/// is used twice, or an endpoint that refers to nothing.
pub fn parse(text: &str) -> Result<Vec<Event>, FileError> {
    build::events(&from_yaml(text, "services: []")?)
}
