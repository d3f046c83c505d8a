//! New shares for endpoints that a plan allows: what the controllers decide, written between two plans.
//!
//! A share that moves is a store: where the same endpoints stay in a tier, only the bounds in its lines change, in place.
//! A packet that reads a line meanwhile finds old and new bounds mixed, and any mixture leads to one of the same
//! endpoints.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use weir_abi as abi;

use super::{Tables, TablesError, roots};
use crate::controller::RAMP_START;
use crate::lines::{self, MAX_ENTRIES, Tree};
use crate::ops::MapOp;
use crate::plan::{ServicePlan, TierPlan};

/// Entries of a tier: slots in `backends` with weights.
type Entries = Vec<(u32, u32)>;
/// Local and remote entries of a class, and where its roots are.
const LOCAL_AND_REMOTE: [bool; 2] = [true, false];

/// Lines that a change of shares writes, and the slots that it has taken.
#[derive(Default)]
struct Redraw {
    lines: Vec<(u32, abi::Line)>,
    taken: Vec<u32>,
}

impl Tables {
    /// Takes classes of a service's port from the shares that the maps hold to others. A tier's indexes are slots in
    /// `backends`. None leaves a class as it is.
    ///
    /// Never wider than the plan: what it does not allow in the class is left out, and a class for which nothing remains
    /// stays as it is. So does everything if there is no such port any more.
    ///
    /// # Errors
    /// If there is no room for lines, or a tier has too many endpoints. Nothing has changed then.
    pub fn steer(
        &mut self,
        slot: u32,
        shares: &[Option<TierPlan>; abi::CLASS_COUNT],
    ) -> Result<Vec<MapOp>, TablesError> {
        let Some(port) = self.ports.get(&slot) else { return Ok(Vec::new()) };
        let old = port.content;
        let own: BTreeSet<u32> = port.backends.iter().copied().collect();
        let mut content = old;
        let mut wanted: Vec<Option<[Entries; 2]>> = Vec::with_capacity(abi::CLASS_COUNT);
        for (class, tier) in shares.iter().enumerate() {
            let allowed = tier.as_ref().and_then(|tier| self.allowed(tier, class, &own));
            if let (Some([local, _]), Some(tier)) = (&allowed, tier) {
                content.tiers[class].spill = u32::from(if local.is_empty() { u16::MAX } else { tier.spill });
            }
            wanted.push(allowed);
        }
        let mut redraw = Redraw::default();
        match self.redraw(slot, &old, &wanted, &mut content, &mut redraw) {
            Ok(()) => {
                // What is missing from now on is missing because somebody decided so.
                let decided = wanted.iter().any(Option::is_some);
                self.ports.get_mut(&slot).into_iter().for_each(|port| port.thin &= !decided);
                Ok(self.commit_shares(slot, &old, content, redraw))
            }
            Err(error) => {
                redraw.taken.into_iter().rev().for_each(|slot| self.line_pool.untake(slot));
                Err(error)
            }
        }
    }

    /// The entries of a class that the plan allows, if any is left.
    fn allowed(&self, tier: &TierPlan, class: usize, own: &BTreeSet<u32>) -> Option<[Entries; 2]> {
        let entries = |entries: &[(usize, u32)], local: bool| -> Entries {
            let slots = entries.iter().filter_map(|(slot, weight)| Some((u32::try_from(*slot).ok()?, *weight)));
            let allows = |slot: u32| {
                let flags = self.backend(slot).flags;
                own.contains(&slot)
                    && flags & (abi::BACKEND_CLASS << class) != 0
                    && (flags & abi::BACKEND_LOCAL != 0) == local
            };
            slots.filter(|(slot, weight)| *weight > 0 && allows(*slot)).collect()
        };
        let both = [entries(&tier.local, true), entries(&tier.remote, false)];
        both.iter().any(|entries| !entries.is_empty()).then_some(both)
    }

    /// Finds or builds the trees of all classes.
    fn redraw(
        &mut self,
        slot: u32,
        old: &abi::Service,
        wanted: &[Option<[Entries; 2]>],
        content: &mut abi::Service,
        redraw: &mut Redraw,
    ) -> Result<(), TablesError> {
        let mut built: Vec<(&Entries, u32)> = Vec::new();
        for (class, both) in wanted.iter().enumerate() {
            let Some(both) = both else { continue };
            for (entries, local) in both.iter().zip(LOCAL_AND_REMOTE) {
                let known = built.iter().find(|(known, _)| *known == entries).map(|(_, root)| *root);
                let root = match known {
                    Some(root) => root,
                    None => {
                        let root = self.tree_of(slot, (root(old, class, local), old), entries, wanted, redraw)?;
                        built.push((entries, root));
                        root
                    }
                };
                let tiers = &mut content.tiers[class];
                *(if local { &mut tiers.local } else { &mut tiers.remote }) = root;
            }
        }
        Ok(())
    }

    /// The root of a tree with these entries: the old one if it says the same or can be redrawn in place, else a new
    /// one.
    fn tree_of(
        &mut self,
        slot: u32,
        (old_root, old): (u32, &abi::Service),
        entries: &Entries,
        wanted: &[Option<[Entries; 2]>],
        redraw: &mut Redraw,
    ) -> Result<u32, TablesError> {
        if old_root & abi::REF_LINE != 0 {
            if self.says_the_same(old_root, entries) {
                return Ok(old_root);
            }
            if let Some(lines) = self.in_place(old_root, old, entries, wanted) {
                redraw.lines.extend(lines);
                return Ok(old_root);
            }
        }
        if entries.len() > MAX_ENTRIES {
            let port = self.ports.get(&slot);
            let (service, port_name) = port.map_or_else(
                || (crate::model::ObjectName::new("", ""), Arc::from("")),
                |port| (port.service.clone(), Arc::clone(&port.port_name)),
            );
            return Err(TablesError::TooManyEndpoints { service, port_name, endpoints: entries.len() });
        }
        let tree = lines::build(entries, &mut || {
            let slot = self.line_pool.take()?;
            redraw.taken.push(slot);
            Some(slot)
        });
        let Tree { root, lines } = tree.ok_or_else(|| self.lines_are_full())?;
        redraw.lines.extend(lines);
        Ok(root)
    }

    /// The lines of an old tree with other bounds, if its references stay and everybody who uses it wants the same.
    fn in_place(
        &self,
        root_slot: u32,
        old: &abi::Service,
        entries: &Entries,
        wanted: &[Option<[Entries; 2]>],
    ) -> Option<Vec<(u32, abi::Line)>> {
        for (class, local) in (0..abi::CLASS_COUNT).flat_map(|class| LOCAL_AND_REMOTE.map(|local| (class, local))) {
            let uses = root(old, class, local) == root_slot;
            let wants = || wanted[class].as_ref().map(|[near, far]| if local { near } else { far });
            if uses && wants() != Some(entries) {
                return None;
            }
        }
        let slots = self.line_slots(root_slot)?;
        let mut next = slots.iter().copied();
        let tree = lines::build(entries, &mut || next.next())?;
        let same = |(slot, line): &(u32, abi::Line)| self.lines.get(slot).is_some_and(|held| held.r#ref == line.r#ref);
        (tree.root == root_slot && next.next().is_none() && tree.lines.iter().all(same)).then_some(tree.lines)
    }

    fn commit_shares(&mut self, slot: u32, old: &abi::Service, content: abi::Service, redraw: Redraw) -> Vec<MapOp> {
        let kept: BTreeSet<u32> = roots(&content).collect();
        let left: BTreeSet<u32> = roots(old).filter(|root| !kept.contains(root)).collect();
        let gone: Vec<u32> = left.iter().filter_map(|root| self.line_slots(*root)).flatten().collect();
        let mut ops = Vec::with_capacity(redraw.lines.len() + 1);
        for (id, line) in redraw.lines {
            self.lines.insert(id, Box::new(line));
            ops.push(MapOp::PutLine { id, line: Box::new(line) });
        }
        if content != *old {
            if let Some(port) = self.ports.get_mut(&slot) {
                port.content = content;
            }
            ops.push(MapOp::PutService { id: slot, service: content });
        }
        for id in gone {
            self.lines.remove(&id);
            self.line_pool.retire(id);
        }
        ops
    }

    /// The slot of a plan's port, and those of its backends in the plan's order. None if the maps hold something else,
    /// as of a service that keeps its last endpoints.
    #[must_use]
    pub fn slots_of(&self, plan: &ServicePlan) -> Option<(u32, Vec<u32>)> {
        let slot = self.find_port(&plan.key.service, plan)?;
        let port = self.ports.get(&slot)?;
        if port.backends.len() != plan.backends.len() {
            return None;
        }
        let held: HashMap<_, u32> = port.backends.iter().map(|id| (super::endpoint(&self.backend(*id)), *id)).collect();
        let key = |backend: &crate::plan::BackendPlan| (abi::Addr::from(backend.address).octets(), backend.port);
        let ids: Option<Vec<u32>> = plan.backends.iter().map(|backend| held.get(&key(backend)).copied()).collect();
        Some((slot, ids?))
    }

    /// By class, the part of new flows that leaves the node although it has endpoints, in 65536ths.
    #[must_use]
    pub fn held_spill(&self, slot: u32) -> [u16; abi::CLASS_COUNT] {
        let spill =
            |tiers: abi::Tiers| if tiers.local == 0 { 0 } else { u16::try_from(tiers.spill).unwrap_or(u16::MAX) };
        self.ports.get(&slot).map_or_else(Default::default, |port| port.content.tiers.map(spill))
    }

    /// What a backend's slot is called as long as its endpoint has it.
    #[must_use]
    pub fn generation(&self, backend: u32) -> u32 {
        self.backend(backend).generation
    }

    /// The plan's tiers with the shares that the maps hold. Endpoints that are new begin with a part of what the others
    /// have, the first ones of this node with a part of what the plan gives them; those that had none still have none. Where that leaves nobody, or nothing is held, it is as planned.
    pub(super) fn kept_shares(
        &self,
        old: &abi::Service,
        plan: &ServicePlan,
        ids: &[u32],
    ) -> [TierPlan; abi::CLASS_COUNT] {
        std::array::from_fn(|class| {
            let planned = &plan.tiers[class];
            let held = |local: bool| {
                let get = |slot| self.lines.get(&slot).map(Box::as_ref);
                lines::parts(root(old, class, local), &get).unwrap_or_default()
            };
            let (near, far) = (held(true), held(false));
            if near.is_empty() && far.is_empty() {
                return planned.clone();
            }
            let keep = |local: bool, entries: &[(usize, u32)], held: &[(u32, u32)]| -> Vec<(usize, u32)> {
                let known: HashMap<u32, u32> = held.iter().copied().collect();
                let mean = (1_u64 << 32) / (known.len().max(1) as u64);
                let newcomer = beginning(mean);
                let weigh = |(index, _): &(usize, u32)| {
                    let id = ids[*index];
                    let before = self.backend(id).flags;
                    let side = before & abi::BACKEND_LOCAL != 0;
                    let was_there = before & (abi::BACKEND_CLASS << class) != 0 && side == local;
                    match known.get(&id) {
                        Some(weight) => Some((*index, *weight)),
                        None if was_there => None,
                        None => Some((*index, newcomer)),
                    }
                };
                entries.iter().filter_map(weigh).collect()
            };
            let (local, remote) = (keep(true, &planned.local, &near), keep(false, &planned.remote, &far));
            let spill = match (local.is_empty(), near.is_empty()) {
                (true, _) if remote.is_empty() => return planned.clone(),
                (true, _) => u16::MAX,
                (false, true) if remote.is_empty() => planned.spill,
                (false, true) => first_local(planned.spill),
                (false, false) => u16::try_from(old.tiers[class].spill).unwrap_or(u16::MAX),
            };
            TierPlan { spill, local, remote }
        })
    }
}

/// What an endpoint begins with where the others have so much.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "2^32 at most"
)]
fn beginning(mean: u64) -> u32 {
    ((mean as f64 * RAMP_START) as u32).max(1)
}

/// What still leaves the node when it gets its first endpoints, until the next decision: as a controller that begins
/// with them would say.
fn first_local(planned: u16) -> u16 {
    let stays = 0x1_0000 - u64::from(planned);
    u16::try_from(0x1_0000 - u64::from(beginning(stays))).unwrap_or(u16::MAX)
}

fn root(service: &abi::Service, class: usize, local: bool) -> u32 {
    let tiers = &service.tiers[class];
    if local { tiers.local } else { tiers.remote }
}
