//! From a plan's tiers to lines.
//!
//! Lines that are left must rest before they are written again, so a plan may find no room beside those that it replaces,
//! above all after shares moved apart. Until there is room its tiers have fewer endpoints.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use weir_abi as abi;

use super::replace::Stage;
use super::{NO_SERVICE, Tables, TablesError, roots};
use crate::lines::{self, MAX_ENTRIES, Tree};
use crate::plan::{ServicePlan, TierPlan};

const MAP: &str = "lines";

/// How much room for lines a replacement may ask for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Room {
    /// What the shares in force take.
    #[default]
    Kept,
    /// What the plan takes: traffic classes have more lines in common before their shares move.
    Planned,
    /// What there is.
    Thin,
}

/// Within the tiers the plan's shares, which classes have in common. What leaves the node takes no line.
pub(super) fn keep_spill_alone(tiers: &mut [TierPlan; abi::CLASS_COUNT], plan: &ServicePlan) {
    for (tier, planned) in tiers.iter_mut().zip(&plan.tiers) {
        *tier = TierPlan { spill: tier.spill, ..planned.clone() };
    }
}

impl TablesError {
    /// Whether a service can be written in spite of it, with fewer endpoints in its tiers.
    #[must_use]
    pub fn is_of_lines(&self) -> bool {
        match self {
            Self::Full { map, size: _, option: _ } => *map == MAP,
            Self::TooManySourceRanges { .. } | Self::TooManyEndpoints { .. } => false,
        }
    }
}

impl Tables {
    /// The tiers, and whether one of them is thin.
    pub(super) fn stage_tiers(
        &mut self,
        old: &abi::Service,
        plan: &ServicePlan,
        planned: &[TierPlan; abi::CLASS_COUNT],
        ids: &[u32],
        stage: &mut Stage,
    ) -> Result<([abi::Tiers; abi::CLASS_COUNT], bool), TablesError> {
        let mut built = Vec::new();
        let mut tiers = NO_SERVICE.tiers;
        let mut thin = false;
        for ((new, old_tiers), tier) in tiers.iter_mut().zip(&old.tiers).zip(planned) {
            new.spill = u32::from(tier.spill);
            for (reference, old_reference, entries) in
                [(&mut new.local, old_tiers.local, &tier.local), (&mut new.remote, old_tiers.remote, &tier.remote)]
            {
                let entries: Vec<_> = entries.iter().map(|(index, weight)| (ids[*index], *weight)).collect();
                *reference = match built.iter().find(|(known, _)| *known == entries) {
                    Some((_, root)) => *root,
                    None => {
                        let (root, whole) = self.stage_tree(plan, &entries, (old_reference, old), stage)?;
                        thin |= !whole;
                        built.push((entries, root));
                        root
                    }
                };
            }
        }
        let kept: BTreeSet<_> = built.iter().map(|(_, root)| *root).collect();
        let left: BTreeSet<_> = roots(old).filter(|root| !kept.contains(root)).collect();
        stage.gone_lines.extend(left.iter().filter_map(|root| self.line_slots(*root)).flatten());
        Ok((tiers, thin))
    }

    /// The root of a tree with these entries: an old one that says the same, best that of the same tier, else a new one.
    /// False if it has not all of them.
    fn stage_tree(
        &mut self,
        plan: &ServicePlan,
        entries: &[(u32, u32)],
        (same_tier, old): (u32, &abi::Service),
        stage: &mut Stage,
    ) -> Result<(u32, bool), TablesError> {
        let others: BTreeSet<_> = roots(old).filter(|root| *root != same_tier).collect();
        let mut candidates = std::iter::once(same_tier).chain(others).filter(|root| root & abi::REF_LINE != 0);
        if let Some(root) = candidates.find(|root| self.says_the_same(*root, entries)) {
            return Ok((root, true));
        }
        let endpoints = entries.iter().filter(|(_, weight)| *weight > 0).count();
        if endpoints > MAX_ENTRIES {
            let (service, port_name) = (plan.key.service.clone(), Arc::clone(&plan.key.port_name));
            return Err(TablesError::TooManyEndpoints { service, port_name, endpoints });
        }
        if let Some(root) = self.stage_lines(entries, stage) {
            return Ok((root, true));
        }
        let full = self.lines_are_full();
        let thin = match stage.room {
            Room::Kept | Room::Planned => None,
            Room::Thin => {
                let once = each_once(entries);
                // Of a table all endpoints may find room, each by the number of its slots.
                let whole = if once.len() < entries.len() { self.stage_lines(&once, stage) } else { None };
                whole.or_else(|| self.thin_tree(&once, (same_tier, old), stage))
            }
        };
        let root = thin.ok_or_else(|| full.clone())?;
        stage.thinned = Some(full);
        Ok((root, false))
    }

    /// Whether building the entries into the slots of an old tree would write what they hold already.
    pub(super) fn says_the_same(&self, root: u32, entries: &[(u32, u32)]) -> bool {
        let Some(slots) = self.line_slots(root) else { return false };
        let mut slots = slots.into_iter();
        let Some(tree) = lines::build(entries, &mut || slots.next()) else { return false };
        let holds = |(slot, line): &(u32, abi::Line)| self.lines.get(slot).is_some_and(|held| **held == *line);
        tree.root == root && slots.next().is_none() && tree.lines.iter().all(holds)
    }

    pub(super) const fn lines_are_full(&self) -> TablesError {
        TablesError::Full { map: MAP, size: self.capacity.lines, option: "--max-lines" }
    }

    /// The root of a new tree; None if there is no room for it, and nothing is taken then.
    pub(super) fn stage_lines(&mut self, entries: &[(u32, u32)], stage: &mut Stage) -> Option<u32> {
        let mut taken = Vec::new();
        let tree = lines::build(entries, &mut || {
            let slot = self.line_pool.take()?;
            taken.push(slot);
            Some(slot)
        });
        let Some(Tree { root, lines }) = tree else {
            taken.into_iter().rev().for_each(|slot| self.line_pool.untake(slot));
            return None;
        };
        stage.new_lines.extend(taken);
        stage.lines.extend(lines);
        Some(root)
    }

    /// The root of a tree with some of these entries: an old one as it is if all that it leads to is still wanted, or one
    /// new line, whichever has more; else one endpoint alone, which takes no line. None if there is no entry.
    pub(super) fn thin_tree(
        &mut self,
        entries: &[(u32, u32)],
        (same_tier, old): (u32, &abi::Service),
        stage: &mut Stage,
    ) -> Option<u32> {
        let wanted: Vec<_> = entries.iter().copied().filter(|(_, weight)| *weight > 0).collect();
        let kept = self.largest_kept(&wanted, (same_tier, old));
        let line = &wanted[..wanted.len().min(abi::LINE_ENTRIES)];
        if let Some((_, root)) = kept.filter(|(endpoints, _)| *endpoints >= line.len()) {
            return Some(root);
        }
        let new = self.stage_lines(line, stage).or(kept.map(|(_, root)| root));
        new.or_else(|| self.stage_lines(wanted.get(..1)?, stage))
    }

    /// The old tree with the most endpoints of those that are all wanted, best that of the same tier; with their number.
    fn largest_kept(&self, wanted: &[(u32, u32)], (same_tier, old): (u32, &abi::Service)) -> Option<(usize, u32)> {
        let wanted: BTreeSet<u32> = wanted.iter().map(|(id, _)| *id).collect();
        let get = |slot| self.lines.get(&slot).map(Box::as_ref);
        let endpoints = |root: u32| {
            let parts = lines::parts(root, &get)?;
            parts.iter().all(|(id, _)| wanted.contains(id)).then_some((each_once(&parts).len(), root))
        };
        let roots = roots(old).chain([same_tier]).filter(|root| *root != 0);
        // The last of those that are equal.
        roots.filter_map(endpoints).max_by_key(|(endpoints, _)| *endpoints)
    }
}

/// The entries with what each backend has in all, in the order in which they first come. Only tables name one more than once.
fn each_once(entries: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let mut places: HashMap<u32, usize> = HashMap::with_capacity(entries.len());
    let mut once: Vec<(u32, u32)> = Vec::with_capacity(entries.len());
    for (id, weight) in entries {
        match places.entry(*id) {
            Entry::Occupied(place) => once[*place.get()].1 = once[*place.get()].1.saturating_add(*weight),
            Entry::Vacant(place) => {
                place.insert(once.len());
                once.push((*id, *weight));
            }
        }
    }
    once
}
