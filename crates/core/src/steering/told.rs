//! What peers are told after a tick.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Steered;
use super::facts::Facts;
use crate::load::{ServiceId, ServiceLoad};

/// Flows per second below which a node is not told of them: one flow is that for two seconds.
const WORTH_TELLING: f64 = 0.1;

/// Services whose flows go to other nodes, by node, with new flows per second.
pub type Spilled = BTreeMap<Arc<str>, BTreeMap<ServiceId, f64>>;

/// Put together while a tick visits the ports: to visit thousands once more would cost as much as the tick.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) report: BTreeMap<ServiceId, ServiceLoad>,
    pub(super) spilled: Spilled,
}

impl Told {
    /// Nothing, before the first port.
    pub(super) fn clear(&mut self) {
        self.report.clear();
        self.spilled.clear();
    }

    /// A port as it stands after its turn.
    pub(super) fn add(&mut self, steered: &Steered, facts: &impl Facts) {
        self.add_load(steered, facts);
        for (member, sent) in steered.target.members.iter().zip(&steered.sent).filter(|(_, sent)| **sent > 0.0) {
            let services = match self.spilled.get_mut(&member.node) {
                Some(services) => services,
                None => self.spilled.entry(Arc::clone(&member.node)).or_default(),
            };
            *services.entry(steered.target.id).or_default() += sent;
        }
    }

    fn add_load(&mut self, steered: &Steered, facts: &impl Facts) {
        if !steered.has_local {
            return;
        }
        let id = steered.target.id;
        let Some(spare) = steered.spare(|| facts.inbound(id).spillers) else { return };
        // Both families have the same node: what one of them takes, the other one cannot. The first one knows what
        // comes from other nodes, so it does not take that for background.
        let service = self.report.entry(id).or_insert(ServiceLoad { flows_per_second: 0.0, open_flows: 0, spare });
        service.flows_per_second += steered.rates.local + steered.inbound;
        service.open_flows = service.open_flows.saturating_add(steered.open_local);
    }

    /// After the last port: leaves out what is not worth telling.
    pub(super) fn finish(&mut self) {
        self.spilled.retain(|_, services| {
            services.retain(|_, sent| *sent >= WORTH_TELLING);
            !services.is_empty()
        });
    }
}
