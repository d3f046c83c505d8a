//! What is wrong with services: told once per cause, in the log and as a Kubernetes event on the Service.

use std::collections::{BTreeMap, BTreeSet};

use tracing::{error, info, warn};
use weir_core::model::ObjectName;
use weir_core::plan::Refusal;
use weir_core::tables::FrontendConflict;
use weir_kube_watch::events::{Events, Regarding};

/// What was told and still holds.
pub(super) struct Complaints {
    events: Events,
    /// Services that could not be written, and why; what the maps held before stays.
    failed: BTreeMap<ObjectName, String>,
    conflicts: BTreeSet<FrontendConflict>,
    /// By service: what of it cannot be served. Of one cause the numbers may change without being told again.
    refusals: BTreeMap<ObjectName, BTreeSet<Cause>>,
}

/// What a refusal is about, without the numbers in it.
type Cause = (&'static str, String);

impl Complaints {
    /// Nothing is wrong yet.
    pub(super) const fn new(events: Events) -> Self {
        Self { events, failed: BTreeMap::new(), conflicts: BTreeSet::new(), refusals: BTreeMap::new() }
    }

    /// A service could not be written.
    pub(super) fn not_written(&mut self, name: &ObjectName, cause: String) {
        if self.failed.get(name) != Some(&cause) {
            error!(service = %name, %cause, "service not written, its old state stays in force");
            let note = format!("not written, what was served before goes on: {cause}");
            self.events.warn(Regarding::service(name.clone()), "ServiceNotWritten", note);
            self.failed.insert(name.clone(), cause);
        }
    }

    /// A service was written.
    pub(super) fn written(&mut self, name: &ObjectName) {
        if self.failed.remove(name).is_some() {
            info!(service = %name, "written after all");
        }
    }

    /// A service is none of ours any more.
    pub(super) fn forget(&mut self, name: &ObjectName) {
        self.failed.remove(name);
        self.refusals.remove(name);
    }

    /// Services that could not be written, and why.
    pub(super) const fn failed(&self) -> &BTreeMap<ObjectName, String> {
        &self.failed
    }

    /// All addresses that two services claim now.
    pub(super) fn conflicts(&mut self, now: Vec<FrontendConflict>) {
        // An address whose unused ports two services claim is the same conflict as that of a port, or none at all.
        let now: BTreeSet<_> = now.into_iter().filter(|conflict| conflict.key.port != 0).collect();
        for FrontendConflict { key, kept_by, refused } in now.difference(&self.conflicts) {
            let (address, port) = (key.address, key.port);
            warn!(%address, port, %kept_by, %refused, "two services claim one address; the first keeps it");
            let note = format!(
                "{address} port {port} is not served: Service {kept_by} claimed it first and keeps it; give one of the \
                 two another address or port"
            );
            self.events.warn(Regarding::service(refused.clone()), "AddressTaken", note);
        }
        self.conflicts = now;
    }

    /// All that cannot be served of a service now.
    pub(super) fn refusals(&mut self, name: &ObjectName, now: &[Refusal]) {
        let told = self.refusals.remove(name).unwrap_or_default();
        for refusal in now.iter().filter(|refusal| !told.contains(&cause(refusal))) {
            warn!(service = %name, "{refusal}");
            self.events.warn(Regarding::service(name.clone()), refusal.reason(), refusal.to_string());
        }
        if !now.is_empty() {
            self.refusals.insert(name.clone(), now.iter().map(cause).collect());
        }
    }
}

fn cause(refusal: &Refusal) -> Cause {
    match refusal {
        Refusal::SctpEndpoints { port_name, .. } | Refusal::SctpNodePort { port_name, .. } => {
            (refusal.reason(), port_name.to_string())
        }
    }
}
