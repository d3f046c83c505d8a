//! Where the kernel compares open flows: the count of the flow tables becomes the base of the datapath's balance.

use weir_abi as abi;

use super::{Port, Tables};
use crate::model::ObjectName;
use crate::ops::MapOp;

impl Tables {
    /// The bases of all backends whose open flows the kernel compares. `base` says what a slot and generation would have begun or
    /// failed without an open flow; None leaves it as it is.
    pub fn bases(&self, base: impl Fn(u32, u32) -> Option<u32>) -> Vec<MapOp> {
        self.bases_of_ports(self.ports.values(), base)
    }

    /// Those of a service that was just written: the kernel may not have compared its flows before.
    pub fn bases_of(&self, service: &ObjectName, base: impl Fn(u32, u32) -> Option<u32>) -> Vec<MapOp> {
        let slots = self.slots.get(service).into_iter().flatten();
        self.bases_of_ports(slots.filter_map(|slot| self.ports.get(slot)), base)
    }

    fn bases_of_ports<'a>(
        &self,
        ports: impl Iterator<Item = &'a Port>,
        base: impl Fn(u32, u32) -> Option<u32>,
    ) -> Vec<MapOp> {
        let compared = ports.filter(|port| port.content.flags & abi::SERVICE_LEAST_CONN != 0);
        let put = |id: &u32| Some(MapOp::PutBase { id: *id, base: base(*id, self.generation(*id))? });
        compared.flat_map(|port| &port.backends).filter_map(put).collect()
    }
}
