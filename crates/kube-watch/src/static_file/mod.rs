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

pub use follow::{FollowError, follow};

/// What is wrong with a file, and where.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct StaticError {
    /// Line, from 1; 0 if the mistake has no place.
    pub line: u64,
    /// Column in characters, from 1; 0 if the mistake has no place.
    pub column: u64,
    /// What is wrong, with the field's name.
    pub message: String,
}

impl StaticError {
    fn at(location: serde_saphyr::Location, message: impl Into<String>) -> Self {
        Self { line: location.line(), column: location.column(), message: message.into() }
    }
}

/// Reads the text of a file: three events, each with the whole list of its kind.
///
/// # Errors
/// The first mistake in the text: not YAML, an unknown field, a bad address or port, a name or an address and port that
/// is used twice, or an endpoint that refers to nothing.
pub fn parse(text: &str) -> Result<Vec<Event>, StaticError> {
    let says_nothing = |line: &str| matches!(line.trim(), "" | "---") || line.trim().starts_with('#');
    if text.lines().all(says_nothing) {
        // A file that is being written is empty for a moment: that must not take every Service away.
        return Err(StaticError {
            line: 1,
            column: 1,
            message: "the file is empty (write `services: []` for none)".into(),
        });
    }
    let document: schema::Document = serde_saphyr::from_str(text).map_err(|error| syntax(&error))?;
    build::events(&document)
}

fn syntax(error: &serde_saphyr::Error) -> StaticError {
    let location = error.location().unwrap_or(serde_saphyr::Location::UNKNOWN);
    // The line and column stand before the message already; the snippet does not fit into a log line.
    let text = error.without_snippet().to_string();
    let place = format!(" at line {}, column {}", location.line(), location.column());
    StaticError::at(location, text.replace(&place, ""))
}
