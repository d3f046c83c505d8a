//! From what was staged to operations, in the order in which every prefix serves correctly.

use weir_abi as abi;

use super::frontends::Claim;
use super::replace::Stage;
use super::{FrontendConflict, NO_SERVICE, Port, Tables, Update, names};
use crate::model::{ObjectName, Protocol};
use crate::ops::{FrontendKey, MapOp};

impl Tables {
    /// Gives back what was taken for a stage that cannot be committed.
    pub(super) fn undo(&mut self, stage: Stage) {
        stage.acquired.into_iter().rev().for_each(|(number, new)| self.nodes.unacquire(number, new));
        stage.new_lines.into_iter().rev().for_each(|slot| self.line_pool.untake(slot));
        stage.new_backends.into_iter().rev().for_each(|slot| self.backend_pool.untake(slot));
        stage.new_ports.into_iter().rev().for_each(|slot| self.port_pool.untake(slot));
    }

    /// Records the stage and answers with its operations.
    pub(super) fn commit(&mut self, service: &ObjectName, mut stage: Stage) -> Update {
        self.frontends.commit(&stage.own, stage.old_claims.iter(), &stage.frontends);
        let mut ops = Vec::new();
        self.commit_nodes(&mut stage, &mut ops);
        self.commit_backends(&mut stage, &mut ops);
        for (id, line) in stage.lines.drain(..) {
            self.lines.insert(id, Box::new(line));
            ops.push(MapOp::PutLine { id, line: Box::new(line) });
        }
        self.put_source_ranges(std::mem::take(&mut stage.new_ranges), &mut ops);
        commit_lost_frontends(&mut stage, &mut ops);
        self.commit_ports(service, &mut stage, &mut ops);
        ops.extend(stage.frontends.puts.drain(..).map(|(key, claim)| put_frontend(key, claim)));
        forget_flows(&stage, &mut ops);
        let conflicts = self.new_conflicts(service, &stage);
        let (thinned, unnumbered) = (stage.thinned.take(), stage.unnumbered.take());
        self.commit_removals(stage, &mut ops);
        Update { ops, conflicts, shortage: None, thinned, unnumbered }
    }

    fn new_conflicts(&self, service: &ObjectName, stage: &Stage) -> Vec<FrontendConflict> {
        let name = |slot| self.ports.get(&slot).map(|port: &Port| port.service.clone());
        let refused = stage.frontends.newly_refused.iter().filter_map(|(key, owner)| {
            Some(FrontendConflict { key: *key, kept_by: name(*owner)?, refused: service.clone() })
        });
        let displaced = stage.frontends.displaced.iter().filter_map(|(key, claim)| {
            Some(FrontendConflict { key: *key, kept_by: service.clone(), refused: name(claim.slot)? })
        });
        refused.chain(displaced).collect()
    }

    fn commit_nodes(&mut self, stage: &mut Stage, ops: &mut Vec<MapOp>) {
        for (id, _) in stage.acquired.drain(..).filter(|(_, new)| *new) {
            if let Some(name) = self.nodes.name(id) {
                ops.push(MapOp::PutNodeName { id, name: Box::new(name) });
            }
        }
    }

    fn commit_backends(&mut self, stage: &mut Stage, ops: &mut Vec<MapOp>) {
        for id in stage.new_backends.drain(..) {
            // The counters of a slot that was never used are zero.
            if self.backend(id).generation != 0 {
                ops.push(MapOp::ResetBackendCounters { id });
            }
        }
        for (id, backend) in stage.backends.drain(..) {
            self.set_backend(id, backend);
            ops.push(MapOp::PutBackend { id, backend });
        }
    }

    fn commit_ports(&mut self, service: &ObjectName, stage: &mut Stage, ops: &mut Vec<MapOp>) {
        let mut slots = Vec::with_capacity(stage.ports.len());
        let mut names = Vec::new();
        for (id, port) in stage.ports.drain(..) {
            let old = self.ports.get(&id);
            if old.is_none() {
                ops.push(MapOp::ResetServiceCounters { id });
            }
            if old.is_none_or(|old| old.content != port.content) {
                ops.push(MapOp::PutService { id, service: port.content });
            }
            if old.is_none_or(|old| (old.port, &old.port_name) != (port.port, &port.port_name)) {
                names.push(MapOp::PutServiceName { id, name: Box::new(port.name()) });
            }
            slots.push(id);
            self.ports.insert(id, port);
        }
        ops.append(&mut names);
        if slots.is_empty() {
            self.slots.remove(service);
        } else {
            self.slots.insert(service.clone(), slots);
        }
    }

    fn commit_removals(&mut self, stage: Stage, ops: &mut Vec<MapOp>) {
        ops.extend(stage.gone_ports.iter().map(|id| MapOp::DeleteServiceName { id: *id }));
        for id in stage.gone_ports {
            self.ports.remove(&id);
            self.port_pool.retire(id);
            ops.push(MapOp::PutService { id, service: NO_SERVICE });
        }
        self.delete_source_ranges(stage.gone_ranges, ops);
        for (id, backend) in stage.narrowed {
            self.set_backend(id, backend);
            ops.push(MapOp::PutBackend { id, backend });
        }
        for id in stage.gone_lines {
            self.lines.remove(&id);
            self.line_pool.retire(id);
        }
        let mut nodes = stage.released;
        for id in stage.gone_backends {
            nodes.push(self.backend(id).node);
            ops.push(self.vacate_backend(id));
        }
        for id in nodes {
            if self.nodes.release(id) {
                ops.push(MapOp::DeleteNodeName { id });
            }
        }
    }
}

/// Frontends that the service has no longer. They go before the service changes: without its source ranges they would
/// be open to all, and without its endpoints they would refuse clients that another proxy takes over.
fn commit_lost_frontends(stage: &mut Stage, ops: &mut Vec<MapOp>) {
    ops.extend(stage.frontends.deletes.drain(..).map(|key| MapOp::DeleteFrontend { key }));
    let own = &stage.own;
    let taken_over = stage.frontends.puts.extract_if(.., |(_, claim)| !own.contains(&claim.slot));
    ops.extend(taken_over.map(|(key, claim)| put_frontend(key, claim)));
}

/// A service that is gone as a whole takes its flows along: they are stale without its backends.
fn forget_flows(stage: &Stage, ops: &mut Vec<MapOp>) {
    let lives_on = |slot: &u32| !stage.gone_ports.contains(slot);
    let left = stage.frontends.left.iter().filter(|(key, slot)| may_have_endless_flows(key) && lives_on(slot));
    ops.extend(left.map(|(key, _)| MapOp::ForgetFlows { key: *key }));
}

/// Whether flows to a frontend may outlive its move to another service for ever.
pub(super) fn may_have_endless_flows(key: &FrontendKey) -> bool {
    key.protocol == Protocol::Udp.number()
}

fn put_frontend(key: FrontendKey, claim: Claim) -> MapOp {
    MapOp::PutFrontend { key, frontend: abi::Frontend { service: claim.slot, kind: claim.kind } }
}

impl Port {
    /// What `service_names` says about it.
    fn name(&self) -> abi::ServiceName {
        abi::ServiceName {
            namespace: names::cut(&self.service.namespace),
            name: names::cut(&self.service.name),
            port_name: names::cut(&self.port_name),
            port: self.port,
            proto: self.protocol.number(),
            family: self.family.number(),
            created: self.created,
        }
    }
}
