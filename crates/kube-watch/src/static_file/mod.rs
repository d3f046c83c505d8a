//! The static source: Services, endpoints and Nodes from a YAML file, with Kubernetes' words and meaning but without
//! Kubernetes.
//!
//! ```yaml
//! apiVersion: weir.dev/v1alpha1      # may be left out
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
//!     steering: {policy: waterfill, target: 0.7}   # or annotations: {weir.dev/policy: waterfill, ...}
//!     healthCheck:                   # else all endpoints that are `ready` are used
//!       http: {path: /healthz, host: web.example, status: 200-399}   # without it: a TCP connection
//!       port: http                   # or a number; the first TCP port if left out
//!       interval: 2s
//!       timeout: 1s
//!       rise: 2
//!       fall: 3
//!       whenAllFail: use-all         # or refuse
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
mod health_check;
mod schema;
mod values;

use weir_core::cluster::Event;
use weir_core::endpoint_checks::Check;
use weir_core::model::{Node, ObjectName, Service, Slice};

use crate::file::from_yaml;
pub use crate::file::{FileError, FollowError};
pub use follow::follow;

/// The version of the file's form that is read.
pub const API_VERSION: &str = "weir.dev/v1alpha1";

/// What a file says.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Contents {
    /// The machines: this one, peers, and others that endpoints run on.
    pub nodes: Vec<Node>,
    /// The services.
    pub services: Vec<Service>,
    /// Their endpoints, whatever their checks find.
    pub slices: Vec<Slice>,
    /// How those of some services are checked.
    pub checks: Vec<(ObjectName, Check)>,
}

impl Contents {
    /// The whole list of each kind. No file names ServiceCIDRs: that there are none takes those of an agent before out
    /// of force.
    #[must_use]
    pub fn into_events(self) -> [Event; 4] {
        let Self { nodes, services, slices, checks: _ } = self;
        [Event::ServiceCidrs(Vec::new()), Event::Nodes(nodes), Event::Services(services), Event::Slices(slices)]
    }
}

/// Reads the text of a file.
///
/// # Errors
/// The first mistake in the text: not YAML, an unknown field, a bad address or port, a name or an address and port that
/// is used twice, an endpoint that refers to nothing, or a check that cannot be.
pub fn parse(text: &str) -> Result<Contents, FileError> {
    build::contents(&from_yaml(text, "services: []")?)
}
