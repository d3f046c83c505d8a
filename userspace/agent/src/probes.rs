//! What health checks are told.

use jiff::Timestamp;
use tokio::sync::watch;
use weir_kube_watch::status::Status;
use weir_telemetry::server::{Component, Probes, ProxyHealth};

/// How the writer fares.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct WriterStatus {
    /// Everything was written once.
    pub(crate) synced: bool,
    /// What an earlier agent wrote is in force.
    pub(crate) adopted: bool,
    /// Interfaces of the node with programs attached.
    pub(crate) nics: usize,
    /// Interfaces of pods with programs attached.
    pub(crate) pods: usize,
    /// An interface that could not be attached to, and why.
    pub(crate) unattached: Option<String>,
    /// Services that could not be written.
    pub(crate) failed: usize,
    /// One of them, and why.
    pub(crate) failure: Option<String>,
}

/// The two statuses that health is made of.
#[derive(Debug)]
pub(crate) struct AgentProbes {
    pub(crate) source: watch::Receiver<Status>,
    pub(crate) writer: watch::Receiver<WriterStatus>,
    /// `api-server` or `static-file`.
    pub(crate) source_name: &'static str,
}

impl Probes for AgentProbes {
    fn components(&self) -> Vec<Component> {
        let source = self.source.borrow();
        let writer = self.writer.borrow();
        let attached = format!("{} interfaces of the node, {} of pods", writer.nics, writer.pods);
        let pending = (!writer.synced).then(|| "waiting for the first sync".to_owned());
        vec![
            Component {
                name: self.source_name,
                ready: source.synced() && source.connected(),
                reason: source.problem(),
            },
            Component {
                name: "maps",
                ready: writer.synced && writer.failed == 0,
                reason: writer.failure.clone().or(pending),
            },
            Component {
                name: "interfaces",
                ready: writer.nics > 0 && writer.unattached.is_none(),
                reason: Some(writer.unattached.clone().unwrap_or(attached)),
            },
        ]
    }

    /// Healthy once something is served, whatever becomes of the API server then: traffic goes on from what is known.
    fn proxy_health(&self) -> ProxyHealth {
        let writer = self.writer.borrow();
        let healthy = writer.synced || writer.adopted;
        ProxyHealth { healthy, node_eligible: true, last_updated: Timestamp::now() }
    }
}
