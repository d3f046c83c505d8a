//! From a service's plan to what has to be written. It is staged first, so that a full map changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use weir_abi as abi;

use super::frontends::{Changes, Claim};
use super::tiers::{Room, keep_spill_alone};
use super::{NO_SERVICE, Port, Tables, TablesError, Update, endpoint, names, roots, source_ranges};
use crate::last_resort::keeps_endpoints;
use crate::model::ObjectName;
use crate::ops::{FrontendKey, MapOp, SourceRange};
use crate::plan::{BackendPlan, PlanKey, Selector, ServicePlan, Shares, table_tiers};

/// What a replacement is going to write, and the slots that it has taken for that.
#[derive(Debug, Default)]
pub(super) struct Stage {
    /// Kept and new slots with what they will hold.
    pub(super) ports: Vec<(u32, Port)>,
    pub(super) new_ports: BTreeSet<u32>,
    pub(super) gone_ports: Vec<u32>,
    /// New and changed backends. Those that lose a traffic class still have it.
    pub(super) backends: Vec<(u32, abi::Backend)>,
    /// Backends that lose a traffic class: to be written when the tiers no longer name them.
    pub(super) narrowed: Vec<(u32, abi::Backend)>,
    pub(super) new_backends: Vec<u32>,
    pub(super) gone_backends: Vec<u32>,
    pub(super) lines: Vec<(u32, abi::Line)>,
    pub(super) new_lines: Vec<u32>,
    pub(super) gone_lines: Vec<u32>,
    pub(super) new_ranges: Vec<SourceRange>,
    pub(super) gone_ranges: Vec<SourceRange>,
    /// Numbers of nodes counted once more, and whether each is new.
    pub(super) acquired: Vec<(u32, bool)>,
    /// Numbers of nodes to be counted once less.
    pub(super) released: Vec<u32>,
    /// All slots of the service, old and new.
    pub(super) own: BTreeSet<u32>,
    pub(super) old_claims: BTreeSet<FrontendKey>,
    pub(super) frontends: Changes,
    pub(super) room: Room,
    pub(super) thinned: Option<TablesError>,
    pub(super) unnumbered: Option<TablesError>,
}

impl Tables {
    /// Takes a service from what the maps hold to what its plans say; no plan removes it. `now_seconds` (since boot)
    /// becomes the creation time of new ports. A second plan of the same key is ignored.
    ///
    /// A service whose source ranges find no room is written without the addresses that they guard, and goes on being
    /// updated: see [`Update::shortage`]. None is refused for want of lines: shares that moved give way to those of the
    /// plan, and these to fewer endpoints ([`Update::thinned`]). Nor is one that the maps hold refused for want of slots for new endpoints: it goes on
    /// without these, so that what is gone gets no more flows. For want of a number a node has none ([`Update::unnumbered`]).
    ///
    /// # Errors
    /// If another map is full or a tier has too many endpoints. Nothing has changed then.
    pub fn replace(
        &mut self,
        service: &ObjectName,
        plans: &[ServicePlan],
        now_seconds: u32,
    ) -> Result<Update, TablesError> {
        let written =
            source_ranges::check_limit(plans).and_then(|()| self.write_what_fits(service, plans, now_seconds));
        match written {
            Err(shortage) if shortage.is_of_source_ranges() => {
                let update = self.write_what_fits(service, &source_ranges::closed(plans), now_seconds)?;
                Ok(Update { shortage: Some(shortage), ..update })
            }
            Ok(_) | Err(_) => written,
        }
    }

    /// Writes plans, for want of slots without new endpoints if the maps hold the service.
    fn write_what_fits(
        &mut self,
        service: &ObjectName,
        plans: &[ServicePlan],
        now_seconds: u32,
    ) -> Result<Update, TablesError> {
        match self.write_with_lines(service, plans, now_seconds) {
            Err(full) if full.is_of_backends() && self.holds(service) => {
                let update = self.write_with_lines(service, &self.with_slots(service, plans), now_seconds)?;
                Ok(Update { thinned: Some(full), ..update })
            }
            written => written,
        }
    }

    /// Writes plans with as much room for lines as there is.
    fn write_with_lines(
        &mut self,
        service: &ObjectName,
        plans: &[ServicePlan],
        now_seconds: u32,
    ) -> Result<Update, TablesError> {
        let mut written = self.write(service, plans, now_seconds, Room::Kept);
        for room in [Room::Planned, Room::Thin] {
            match &written {
                Err(cause) if cause.is_of_lines() => written = self.write(service, plans, now_seconds, room),
                Ok(_) | Err(_) => break,
            }
        }
        written
    }

    /// Writes plans, or nothing.
    fn write(
        &mut self,
        service: &ObjectName,
        plans: &[ServicePlan],
        now_seconds: u32,
        room: Room,
    ) -> Result<Update, TablesError> {
        let mut stage = Stage { room, ..Stage::default() };
        match self.stage(service, plans, now_seconds, &mut stage) {
            Ok(()) => Ok(self.commit(service, stage)),
            Err(error) => {
                self.undo(stage);
                Err(error)
            }
        }
    }

    /// Removes a service. That needs no room, so it cannot fail.
    pub(super) fn remove(&mut self, service: &ObjectName) -> Vec<MapOp> {
        let mut stage = Stage::default();
        self.stage_removals(service, &mut stage);
        self.stage_frontends(&BTreeMap::new(), &mut stage);
        self.commit(service, stage).ops
    }

    fn stage(
        &mut self,
        service: &ObjectName,
        plans: &[ServicePlan],
        now_seconds: u32,
        stage: &mut Stage,
    ) -> Result<(), TablesError> {
        let mut claims = BTreeMap::new();
        let mut keys = BTreeSet::new();
        for plan in plans.iter().filter(|plan| keys.insert(&plan.key)) {
            let old = self.find_former(service, plan, plans);
            let slot = self.stage_port(service, plan, old, now_seconds, stage)?;
            for (key, kind) in &plan.frontends {
                claims.entry(*key).or_insert(Claim { slot, kind: *kind });
            }
        }
        self.stage_removals(service, stage);
        self.stage_frontends(&claims, stage);
        self.check_room_for_source_ranges(stage)?;
        self.frontends.check_room(&stage.frontends)
    }

    fn stage_port(
        &mut self,
        service: &ObjectName,
        plan: &ServicePlan,
        old: Option<u32>,
        now_seconds: u32,
        stage: &mut Stage,
    ) -> Result<u32, TablesError> {
        let slot = match old {
            Some(slot) => slot,
            None => {
                let size = self.capacity.services;
                let full = TablesError::Full { map: "services", size, option: "--max-services" };
                let slot = self.port_pool.take().ok_or(full)?;
                stage.new_ports.insert(slot);
                slot
            }
        };
        let old = old.and_then(|slot| self.ports.get(&slot));
        let (old_content, created) = old.map_or((NO_SERVICE, now_seconds), |port| (port.content, port.created));
        let old_backends = old.map_or_else(Box::default, |port| port.backends.clone());
        let old_thin = old.is_some_and(|port| port.thin);

        let (backends, (tiers, thin), endpoints) = if keeps_endpoints(service, old_content.endpoints, plan.endpoints) {
            (old_backends, (old_content.tiers, old_thin), old_content.endpoints)
        } else {
            let (ids, backends) = self.stage_backends((slot, now_seconds), &old_backends, plan, stage)?;
            let tiers = match (plan.selector, plan.shares) {
                (Selector::Maglev, Shares::Planned | Shares::Steered) => &table_tiers(plan),
                (Selector::Weights | Selector::LeastConn, Shares::Planned) => &plan.tiers,
                // A table tells no shares.
                (Selector::Weights | Selector::LeastConn, Shares::Steered)
                    if old_content.flags & abi::SERVICE_MAGLEV != 0 =>
                {
                    &plan.tiers
                }
                (Selector::Weights | Selector::LeastConn, Shares::Steered) => {
                    let mut tiers = self.kept_shares(&old_content, plan, &ids);
                    // What is missing in thin tiers is not what anybody decided.
                    if old_thin || stage.room != Room::Kept {
                        keep_spill_alone(&mut tiers, plan);
                    }
                    &{ tiers }
                }
            };
            (backends, self.stage_tiers(&old_content, plan, tiers, &ids, stage)?, plan.endpoints)
        };
        let source_ranges = self.stage_source_ranges(slot, &plan.source_ranges, stage);
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let port = Port {
            service: service.clone(),
            port_name: Arc::clone(&plan.key.port_name),
            protocol: plan.key.protocol,
            family: plan.key.family,
            port: plan.port,
            created,
            content: abi::Service {
                tiers,
                endpoints,
                flags: abi::SERVICE_USED
                    | flag(!source_ranges.is_empty(), abi::SERVICE_SOURCE_RANGES)
                    | flag(plan.external_local, abi::SERVICE_EXTERNAL_LOCAL)
                    | plan.selector.flag(),
                affinity: plan.affinity,
                pad: 0,
            },
            backends,
            claims: plan.frontends.iter().map(|(key, _)| *key).collect(),
            source_ranges,
            thin,
        };
        stage.ports.push((slot, port));
        Ok(slot)
    }

    pub(super) fn find_port(&self, service: &ObjectName, plan: &ServicePlan) -> Option<u32> {
        self.find(service, |port| port.is_of(&plan.key))
    }

    /// The same, or the slot of the port that has another name now: none of the service's plans has the one that it had, and one has its number.
    pub(super) fn find_former(&self, service: &ObjectName, plan: &ServicePlan, plans: &[ServicePlan]) -> Option<u32> {
        let is_renamed = |port: &Port| {
            (port.protocol, port.family, port.port) == (plan.key.protocol, plan.key.family, plan.port)
                && !plans.iter().any(|other| port.is_of(&other.key))
        };
        self.find_port(service, plan).or_else(|| self.find(service, is_renamed))
    }

    fn find(&self, service: &ObjectName, is_it: impl Fn(&Port) -> bool) -> Option<u32> {
        self.slots.get(service)?.iter().copied().find(|slot| self.ports.get(slot).is_some_and(&is_it))
    }

    /// The slots of the plan's backends, in the plan's order and sorted by endpoint. Both lists are sorted, so old and
    /// new are matched in one pass.
    fn stage_backends(
        &mut self,
        (slot, now_seconds): (u32, u32),
        old: &[u32],
        plan: &ServicePlan,
        stage: &mut Stage,
    ) -> Result<(Vec<u32>, Box<[u32]>), TablesError> {
        let mut wanted = Vec::with_capacity(plan.backends.len());
        let classes = classes(plan);
        for (index, (backend, classes)) in plan.backends.iter().zip(classes).enumerate() {
            wanted.push((content(backend, classes, plan.key.protocol.number(), slot), index));
        }
        wanted.sort_by_key(|(backend, _)| endpoint(backend));

        let mut ids = vec![0; wanted.len()];
        let mut old = old.iter().copied().peekable();
        for (backend, index) in &wanted {
            let key = endpoint(backend);
            while let Some(gone) = old.next_if(|id| endpoint(&self.backend(*id)) < key) {
                stage.gone_backends.push(gone);
            }
            let known = old.next_if(|id| endpoint(&self.backend(*id)) == key);
            ids[*index] = self.stage_backend((known, now_seconds), *backend, &plan.backends[*index], stage)?;
        }
        stage.gone_backends.extend(old);
        let sorted = wanted.iter().map(|(_, index)| ids[*index]).collect();
        Ok((ids, sorted))
    }

    fn stage_backend(
        &mut self,
        (known, now_seconds): (Option<u32>, u32),
        backend: abi::Backend,
        plan: &BackendPlan,
        stage: &mut Stage,
    ) -> Result<u32, TablesError> {
        let full = TablesError::Full { map: "backends", size: self.capacity.backends, option: "--max-backends" };
        let (id, generation, old_node) = match known {
            Some(id) => (id, self.backend(id).generation, self.backend(id).node),
            None => {
                let id = self.backend_pool.take().ok_or(full)?;
                stage.new_backends.push(id);
                (id, next_generation(self.backend(id).generation, now_seconds), 0)
            }
        };
        let node = self.stage_node(old_node, plan, stage);
        let backend = self.directed(abi::Backend { generation, node, ..backend }, plan.node.as_deref());
        let old_classes = if known.is_some() { self.backend(id).flags & CLASSES } else { 0 };
        let widened = abi::Backend { flags: backend.flags | old_classes, ..backend };
        if known.is_none() || widened != self.backend(id) {
            stage.backends.push((id, widened));
        }
        if widened != backend {
            stage.narrowed.push((id, backend));
        }
        Ok(id)
    }

    /// The number of a backend's node, or 0; counted if it is not the one that it had.
    fn stage_node(&mut self, old: u32, plan: &BackendPlan, stage: &mut Stage) -> u32 {
        let mut number = 0;
        if let Some(node) = &plan.node {
            let name = abi::NodeName { name: names::cut(node), zone: names::cut(&plan.zone) };
            if old != 0 && self.nodes.is_called(old, &name) {
                return old;
            }
            if let Some(acquired) = self.nodes.acquire(name) {
                stage.acquired.push(acquired);
                number = acquired.0;
            } else {
                let size = self.capacity.nodes;
                stage.unnumbered = Some(TablesError::Full { map: "node_names", size, option: "--max-nodes" });
            }
        }
        if old != 0 {
            stage.released.push(old);
        }
        number
    }

    /// Everything of the service that the stage does not keep.
    fn stage_removals(&mut self, service: &ObjectName, stage: &mut Stage) {
        let old = self.slots.get(service).cloned().unwrap_or_default();
        stage.own = stage.ports.iter().map(|(slot, _)| *slot).chain(old.iter().copied()).collect();
        for slot in old {
            let Some(port) = self.ports.get(&slot) else { continue };
            stage.old_claims.extend(&port.claims);
            if stage.ports.iter().any(|(kept, _)| *kept == slot) {
                continue;
            }
            stage.gone_ports.push(slot);
            stage.gone_backends.extend(&port.backends);
            stage.gone_ranges.extend(port.source_ranges.iter().map(|net| SourceRange { service: slot, net: *net }));
            let trees: BTreeSet<_> = roots(&port.content).collect();
            stage.gone_lines.extend(trees.iter().filter_map(|root| self.line_slots(*root)).flatten());
        }
    }

    fn stage_frontends(&mut self, claims: &BTreeMap<FrontendKey, Claim>, stage: &mut Stage) {
        stage.frontends = self.frontends.resolve(&stage.own, stage.old_claims.iter(), claims);
    }
}

impl Port {
    fn is_of(&self, key: &PlanKey) -> bool {
        (&self.port_name, self.protocol, self.family) == (&key.port_name, key.protocol, key.family)
    }
}

/// The generation of a slot's next endpoint. A slot that seems to have had none may have had some before the map became smaller and grew again: flows and
/// clients remember those. Their generations began with an earlier second since boot, and each endpoint adds one.
fn next_generation(last: u32, now_seconds: u32) -> u32 {
    if last == 0 { now_seconds.max(1) } else { last.wrapping_add(1) }
}

/// All bits of traffic classes in the flags of a backend.
const CLASSES: u8 = abi::BACKEND_CLASS * ((1 << abi::CLASS_COUNT) - 1);

/// By backend of the plan, the bits of the traffic classes whose tiers name it.
fn classes(plan: &ServicePlan) -> Vec<u8> {
    let mut classes = vec![0; plan.backends.len()];
    for (class, tier) in plan.tiers.iter().enumerate() {
        for (index, _) in tier.local.iter().chain(&tier.remote) {
            classes[*index] |= abi::BACKEND_CLASS << class;
        }
    }
    classes
}

/// A backend as the map holds it, without generation and node.
fn content(plan: &BackendPlan, classes: u8, proto: u8, service: u32) -> abi::Backend {
    let BackendPlan { address, port, node: _, zone: _, local, host_network, pod: _ } = plan;
    let flag = |set: &bool, flag: u8| if *set { flag } else { 0 };
    let place = flag(local, abi::BACKEND_LOCAL) | flag(host_network, abi::BACKEND_HOST_NETWORK);
    abi::Backend {
        addr: (*address).into(),
        port: abi::Be16::new(*port),
        proto,
        flags: abi::BACKEND_USED | place | classes,
        generation: 0,
        service,
        node: 0,
    }
}
