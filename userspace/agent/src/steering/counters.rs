//! The datapath's counters as the controllers read them: memory, no system calls.

use std::sync::Arc;

use weir_abi as abi;
use weir_core::steering::{BackendCounts, ServiceCounts};
use weir_datapath::View;
use weir_signals::open_flows::Balance;

/// The pinned counters.
#[derive(Clone, Debug)]
pub(super) struct DatapathCounters(Arc<View>);

impl DatapathCounters {
    pub(super) fn new(view: View) -> Self {
        Self(Arc::new(view))
    }

    /// What was counted of a backend's slot; nothing of one that does not exist.
    pub(super) fn counts(&self, slot: u32) -> BackendCounts {
        let Ok(counters) = self.0.backend_counters(slot) else { return BackendCounts::default() };
        let abi::BackendCounters { flows, answered, refused, gone_on, unanswered, failed_over, .. } = counters;
        BackendCounts { flows, gone_on, answered, refused, unanswered, failed_over }
    }

    /// The balance of a backend's connections; 0 of a slot that does not exist.
    pub(super) fn balance(&self, slot: u32) -> Balance {
        Balance::from(&self.0.backend_counters(slot).unwrap_or_default())
    }

    /// What was counted of a service's slot.
    pub(super) fn service(&self, slot: u32) -> ServiceCounts {
        let Ok(counters) = self.0.service_counters(slot) else { return ServiceCounts::default() };
        let abi::ServiceCounters { local, remote, local_gone_on, remote_gone_on, rejected: _, dropped: _, pad: _ } =
            counters;
        ServiceCounts { begun: local.wrapping_add(remote), local: local_gone_on, remote: remote_gone_on }
    }
}
