//! Endpoints that the maps hold and a plan lacks.

use std::collections::HashSet;
use std::sync::Arc;

use weir_abi as abi;

use super::{Tables, endpoint, names};
use crate::last_resort::keeps_endpoints;
use crate::model::{ObjectName, Protocol};
use crate::plan::{BackendPlan, ServicePlan};

/// One of them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Departing {
    /// Of which of the plans, by its index.
    pub plan: usize,
    /// Its slot in `backends`.
    pub slot: u32,
    /// Of the slot.
    pub generation: u32,
    /// What it would be in the plan.
    pub backend: BackendPlan,
}

impl Tables {
    /// The endpoints of connections that a service's ports have, and that its new plans lack. Flows of datagrams are to select anew at once, as
    /// kube-proxy has conntrack forget them.
    #[must_use]
    pub fn departing(&self, service: &ObjectName, plans: &[ServicePlan]) -> Vec<Departing> {
        let of_connections = plans.iter().enumerate().filter(|(_, plan)| plan.key.protocol != Protocol::Udp);
        of_connections.flat_map(|(index, plan)| self.departing_from(service, plans, (index, plan))).collect()
    }

    fn departing_from(
        &self,
        service: &ObjectName,
        plans: &[ServicePlan],
        (index, plan): (usize, &ServicePlan),
    ) -> Vec<Departing> {
        let port = self.find_former(service, plan, plans).and_then(|slot| self.ports.get(&slot));
        let Some(port) = port.filter(|port| !keeps_endpoints(service, port.content.endpoints, plan.endpoints)) else {
            return Vec::new();
        };
        let key = |backend: &BackendPlan| (abi::Addr::from(backend.address).octets(), backend.port);
        let planned: HashSet<_> = plan.backends.iter().map(key).collect();
        let missing = port.backends.iter().filter(|slot| !planned.contains(&endpoint(&self.backend(**slot))));
        let departing = |slot: &u32| {
            let backend = self.backend(*slot);
            Departing { plan: index, slot: *slot, generation: backend.generation, backend: self.planned(&backend) }
        };
        missing.map(departing).collect()
    }

    /// The plan of a backend that the maps hold.
    fn planned(&self, backend: &abi::Backend) -> BackendPlan {
        let abi::Backend { addr, port, proto: _, flags, generation: _, service: _, node } = *backend;
        let known = self.nodes.name(node);
        let text = |name: &[u8; abi::NAME_SIZE]| names::text(name).map(Arc::from);
        BackendPlan {
            address: addr.ip(),
            port: port.get(),
            node: known.and_then(|known| text(&known.name)),
            zone: known.and_then(|known| text(&known.zone)).unwrap_or_default(),
            local: flags & abi::BACKEND_LOCAL != 0,
            host_network: flags & abi::BACKEND_HOST_NETWORK != 0,
            pod: None,
        }
    }
}
