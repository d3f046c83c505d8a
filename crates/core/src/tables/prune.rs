//! Removal of what no service claims any more.

use weir_abi as abi;

use super::commit::may_have_endless_flows;
use super::{NO_SERVICE, Orphans, Tables};
use crate::model::ObjectName;
use crate::ops::MapOp;

impl Tables {
    /// Removes every service that `keep` does not name, and whatever an earlier writer left behind. To be called once
    /// the whole cluster is known and planned: before that, what is missing is not known to be gone.
    pub fn prune(&mut self, keep: impl Fn(&ObjectName) -> bool) -> Vec<MapOp> {
        let mut gone: Vec<_> = self.slots.keys().filter(|service| !keep(service)).cloned().collect();
        gone.sort_unstable();
        let mut ops: Vec<_> = gone.iter().flat_map(|service| self.remove(service)).collect();
        ops.extend(self.prune_orphans());
        ops
    }

    fn prune_orphans(&mut self) -> Vec<MapOp> {
        let Orphans { services, names, backends, lines, source_ranges } = std::mem::take(&mut self.orphans);
        let (mut ops, mut gone_nodes) = (Vec::new(), Vec::new());
        let frontends = self.frontends.take_orphans();
        ops.extend(frontends.iter().map(|key| MapOp::DeleteFrontend { key: *key }));
        let endless = frontends.into_iter().filter(may_have_endless_flows);
        ops.extend(endless.map(|key| MapOp::ForgetFlows { key }));
        ops.extend(names.into_iter().map(|id| MapOp::DeleteServiceName { id }));
        for id in services {
            ops.push(MapOp::PutService { id, service: NO_SERVICE });
            self.port_pool.retire(id);
        }
        self.delete_source_ranges(source_ranges, &mut ops);
        lines.into_iter().for_each(|slot| self.line_pool.retire(slot));
        for slot in backends {
            let backend = self.backend(slot);
            ops.push(self.vacate_backend(slot));
            if backend.flags & abi::BACKEND_USED != 0 && self.nodes.release(backend.node) {
                gone_nodes.push(MapOp::DeleteNodeName { id: backend.node });
            }
        }
        ops.append(&mut gone_nodes);
        ops.extend(self.nodes.retire_all_unused().into_iter().map(|id| MapOp::DeleteNodeName { id }));
        ops
    }
}
