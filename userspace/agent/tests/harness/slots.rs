//! What the maps say of a Service's ports: changes that nobody can connect to are awaited here.

use weir_abi as abi;
use weir_testbed::wait;

use super::{Agent, Cluster, SOON, text};

impl Agent {
    /// The slots of all ports of a Service, in both families.
    pub(crate) fn slots(&self, service: &str) -> Vec<abi::Service> {
        let dump = self.view().dump().unwrap();
        let named =
            |id: u32| dump.service_names.iter().any(|(known, name)| *known == id && text(&name.name) == service);
        dump.services.iter().filter(|(id, _)| named(*id)).map(|(_, slot)| *slot).collect()
    }
}

impl Cluster {
    /// Waits until every agent has all slots of a Service in some state.
    pub(crate) fn await_slots(&self, service: &str, what: &str, right: impl Fn(&abi::Service) -> bool) {
        for agent in &self.agents {
            let look = || {
                let slots = agent.slots(service);
                if !slots.is_empty() && slots.iter().all(&right) { Ok(()) } else { Err(format!("{slots:?}")) }
            };
            let what = format!("{service} with {what} in {}", agent.pins.display());
            wait::until_some(&what, SOON, look).unwrap_or_else(|e| panic!("{e}\n{}", agent.log()));
        }
    }
}
