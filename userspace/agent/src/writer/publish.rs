//! What others learn of the writer: metrics, health checks and events.

use std::time::Instant;

use jiff::Timestamp;
use weir_core::interfaces::Attachment;

use super::{Waiting, Writer};
use crate::probes::WriterStatus;

impl Writer {
    /// Tells of changes before they are written: whoever asks learns of a writer that is stuck.
    pub(super) fn queued(&mut self, received: Instant) {
        if self.dirty.is_empty() {
            return;
        }
        let since = *self.pending.since.get_or_insert(received);
        self.kube_proxy.queued(self.pending.new);
        self.pending.new = Waiting::default();
        self.status.send_modify(|status| status.pending_since = Some(since));
    }

    /// Tells that all is written but the services that could not be: those do not make the node unhealthy, since the
    /// others are served. Readiness and events tell of them.
    pub(super) fn settle(&mut self, received: Instant) {
        self.pending.since = None;
        self.last_updated = Some(Timestamp::now());
        self.kube_proxy.synced(received.elapsed());
        self.kube_proxy.no_local(self.no_local.total());
        self.steered.publish_series(&self.cluster);
        self.announce();
        self.publish();
    }

    /// Tells all of it as it is now.
    pub(super) fn publish(&self) {
        self.metrics.attached(self.attached.len(), self.unattached.len());
        let failed = self.complaints.failed();
        self.metrics.unwritten(failed.len());
        self.metrics.last_resort(self.complaints.last_resort());
        let (refused, refusal) = self.complaints.refused();
        self.metrics.refused(refused);
        let unsteered = self.complaints.unsteered();
        self.metrics.unsteered(unsteered.len());
        self.status.send_replace(WriterStatus {
            synced: self.synced,
            nics: self.attached.values().filter(|(_, kind)| *kind == Attachment::Nic).count(),
            pods: self.attached.values().filter(|(_, kind)| *kind == Attachment::Pod).count(),
            unattached: self.unattached.values().next().cloned(),
            failed: self.complaints.without_room(),
            failure: failed
                .iter()
                .max_by_key(|(_, cause)| cause.is_of_room())
                .map(|(name, cause)| format!("{name}: {cause}")),
            refused,
            refusal: refusal.map(str::to_owned),
            unsteered: unsteered.len(),
            unsteered_cause: unsteered.iter().next().map(|(port, cause)| format!("{}: {cause}", port.service)),
            heartbeat: Some(Instant::now()),
            pending_since: self.pending.since,
            last_updated: self.last_updated,
            node_eligible: self.node_eligible(),
            unknown_node: self.unknown_node().map(str::to_owned),
        });
    }
}
