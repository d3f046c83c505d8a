//! What health checks are told.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::watch;
use weir_kube_watch::status::Status;
use weir_telemetry::server::{Component, Probes, ProxyHealth};

/// For so long a change may wait until it is written: twice kube-proxy's sync period, as there.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(60);

/// How the writer fares.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct WriterStatus {
    /// Everything was written once.
    pub(crate) synced: bool,
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
    /// Since when something that is known of the cluster waits to be written.
    pub(crate) pending_since: Option<Instant>,
    /// When everything that was known was last written.
    pub(crate) last_updated: Option<Timestamp>,
    /// Load balancers outside should send traffic to this node.
    pub(crate) node_eligible: bool,
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

    /// Whatever becomes of the API server: traffic goes on from what is known.
    fn proxy_health(&self) -> ProxyHealth {
        let WriterStatus { pending_since, last_updated, node_eligible, .. } = *self.writer.borrow();
        ProxyHealth { healthy: is_healthy(pending_since, Instant::now()), node_eligible, last_updated }
    }
}

/// As kube-proxy: nothing waits, or not for too long. It is healthy while it starts, since nothing waits then.
fn is_healthy(pending_since: Option<Instant>, now: Instant) -> bool {
    pending_since.is_none_or(|since| now.saturating_duration_since(since) < HEALTH_TIMEOUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_has_waited_for_a_minute_is_unhealthy() {
        let now = Instant::now();
        let after = |seconds| is_healthy(Some(now), now + Duration::from_secs(seconds));
        assert_eq!([after(0), after(59), after(60)], [true, true, false]);
    }

    #[test]
    fn who_has_nothing_to_do_is_healthy() {
        assert!(is_healthy(None, Instant::now()));
    }
}
