//! From services to the maps: planned, written, tried again.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::Result;
use tracing::info;
use weir_core::health::health_checks;
use weir_core::model::{ObjectName, Service};
use weir_core::ops::MapOp;
use weir_core::plan::{Selector, Shares, plan, refusals};

use super::Writer;
use crate::channel::publish;
use crate::health_checks::HealthChecks;
use crate::{host, node_ports};

impl Writer {
    /// Plans and writes services; those that are gone first, to make room and to free their addresses.
    pub(super) fn write_services(&mut self, services: &BTreeSet<ObjectName>) -> Result<()> {
        let (present, gone): (Vec<_>, Vec<_>) = services.iter().partition(|name| self.cluster.service(name).is_some());
        let mut left = Vec::new();
        let written = gone.into_iter().chain(present).try_for_each(|name| {
            if self.concerns_us(name) {
                return self.write_service(name, &mut left);
            }
            self.forget(name);
            Ok(())
        });
        // All tables of flows are read for that: once for all of them.
        let forgotten = self.apply(&left);
        written.and(forgotten)?;
        // Only now it is known which ones last: an address may have moved from one service to another.
        self.complaints.conflicts(self.tables.conflicts());
        self.update_health_checks(services);
        Ok(())
    }

    /// A service of another proxy that was never ours takes no room.
    fn concerns_us(&self, name: &ObjectName) -> bool {
        self.cluster.service(name).is_none_or(|service| self.cluster.serves(service) || self.tables.holds(name))
    }

    fn forget(&mut self, name: &ObjectName) {
        self.complaints.forget(name);
        self.no_local.replace(name, &[]);
        self.steered.publish(&self.tables, &self.settings.plan.node, name, &[], None);
        self.pending.take_triggers(name);
    }

    /// Writes a service, but for its flows that are to be forgotten: these are `left`.
    fn write_service(&mut self, name: &ObjectName, left: &mut Vec<MapOp>) -> Result<()> {
        let mut plans = plan(&self.cluster, &self.settings.plan, name);
        let served = self.cluster.service(name).filter(|service| self.cluster.serves(service));
        let settings = served.and_then(|service| self.steered.settings_of(service));
        if let Some(settings) = &settings {
            let selector = settings.policy.selector();
            plans.iter_mut().for_each(|plan| (plan.selector, plan.shares) = (selector, Shares::Steered));
        }
        let departing = self.tables.departing(name, &plans);
        self.departures.keep(name, &mut plans, departing, Instant::now());
        let mut update = match self.tables.replace(name, &plans, host::uptime_seconds()) {
            Ok(update) => update,
            Err(cause) => {
                self.complaints.not_written(name, cause);
                return Ok(());
            }
        };
        left.extend(update.ops.extract_if(.., |op| matches!(op, MapOp::ForgetFlows { .. })));
        self.apply(&update.ops)?;
        self.write_bases_of(name)?;
        if update.thinned.is_some() {
            // What steers knows of endpoints that have slots.
            plans = self.tables.held(name, &plans);
        }
        let has_table = plans.iter().any(|plan| plan.selector == Selector::Maglev);
        match (update.shortage, update.thinned) {
            // Tried again like a service that was not written at all.
            (Some(cause), _) => self.complaints.closed(name, cause),
            (None, Some(cause)) if has_table && cause.is_of_lines() => self.complaints.without_table(name, cause),
            (None, Some(cause)) => self.complaints.thinned(name, cause),
            (None, None) => self.complaints.written(name),
        }
        self.complaints.unnumbered(name, update.unnumbered);
        self.complaints.refusals(name, &refusals(&self.cluster, &self.settings.plan, name));
        self.no_local.replace(name, &plans);
        self.complaints.at_last_resort(name, plans.iter().filter(|plan| plan.last_resort).count());
        self.steered.publish(&self.tables, &self.settings.plan.node, name, &plans, settings.as_ref());
        self.complaints.keep_unsteered(name, |port| self.steered.is_published(port));
        for trigger in self.pending.take_triggers(name) {
            self.kube_proxy.programmed(trigger.family, trigger.at);
        }
        Ok(())
    }

    /// Tries again what found no room, since slots may have come free, and lets go of what another proxy has taken over.
    /// Nothing before the first sync: without the slices that are still to come, all that was adopted would be lost.
    pub(super) fn retry(&mut self) -> Result<()> {
        if !self.synced {
            return Ok(());
        }
        self.steered.not_written(self.complaints.unsteered().keys());
        let now = Instant::now();
        let handed_over = self.handovers.take_due(now);
        if !handed_over.is_empty() {
            self.settings.plan.handing_over = self.handovers.names();
            info!(services = handed_over.len(), "left to another proxy; connections that began here go on");
        }
        let departed = self.departures.due(now).cloned();
        let services: BTreeSet<_> =
            self.complaints.failed().keys().cloned().chain(handed_over).chain(departed).collect();
        if services.is_empty() {
            return Ok(());
        }
        self.write_services(&services)?;
        self.settle(now);
        Ok(())
    }

    /// Tells the servers of health-check node ports what changed with services that were just written.
    fn update_health_checks(&self, written: &BTreeSet<ObjectName>) {
        let has_port = |service: &Service| service.health_check_port.is_some();
        let concerned = {
            let known = self.health_checks.borrow();
            let concerned =
                |name| known.services.contains_key(name) || self.cluster.service(name).is_some_and(has_port);
            written.iter().any(concerned)
        };
        if !concerned {
            return;
        }
        let addresses =
            node_ports::listening(&self.settings.nodeport_addresses, &self.settings.plan.node_port_addresses);
        let mut now = HealthChecks { addresses, services: health_checks(&self.cluster, &self.settings.plan.node) };
        // A balancer must not send its clients to addresses that this node does not serve, or has no endpoint here for.
        let not_served = |name: &&ObjectName| !self.tables.has_local(name) || self.complaints.is_closed(name);
        let unserved = self.complaints.failed().keys().filter(not_served);
        unserved.for_each(|name| now.withhold(name));
        publish(&self.health_checks, now);
    }
}
