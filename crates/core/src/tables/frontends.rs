//! Who owns which frontend. The first service that claims an address and port keeps it; later ones wait in line. Only a
//! cluster IP is taken from whoever names it as an external or load balancer IP: the API server allocates the one, and
//! users may write whatever they like into the other.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use weir_abi as abi;

use super::TablesError;
use crate::model::Family;
use crate::ops::FrontendKey;

/// Stands for the owner of a frontend that no known service claims.
pub(super) const NOBODY: u32 = 0;

/// A service slot's claim of a frontend.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Claim {
    pub(super) slot: u32,
    pub(super) kind: u32,
}

impl Claim {
    /// Whether somebody should know when it is refused. Services of a static file may share a cluster IP, and any may share
    /// others: what becomes of an address as such is the same whoever has it.
    fn matters(self) -> bool {
        !is_of_address(self.kind)
    }

    /// Whether it prevails over another one, whoever came first.
    fn beats(self, other: Self) -> bool {
        match self.kind {
            abi::KIND_CLUSTER_IP => matches!(other.kind, abi::KIND_LOAD_BALANCER | abi::KIND_EXTERNAL_IP),
            abi::KIND_UNUSED_PORT => other.kind == abi::KIND_ADDRESS,
            _ => false,
        }
    }
}

/// Whether a frontend is about an address as such: it has neither port nor protocol.
pub(super) const fn is_of_address(kind: u32) -> bool {
    matches!(kind, abi::KIND_UNUSED_PORT | abi::KIND_ADDRESS)
}

#[derive(Debug)]
pub(super) struct Frontends {
    owners: HashMap<FrontendKey, Claim>,
    /// Only of keys that have an owner, none of which beats it; first come, first served.
    waiting: HashMap<FrontendKey, Vec<Claim>>,
    used4: u32,
    used6: u32,
    size: u32,
}

/// What becomes of the frontends when the claims of one service change.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// New content, new keys included. Those of addresses as such come last: a port that is not there yet would be refused.
    pub(super) puts: Vec<(FrontendKey, Claim)>,
    /// Keys that nobody claims any more. Those of addresses as such come first, as a port that has gone may be another proxy's.
    pub(super) deletes: Vec<FrontendKey>,
    /// Keys that another slot keeps.
    pub(super) refused: Vec<(FrontendKey, Claim)>,
    /// Those of them that were not waiting before, with the slot that keeps them.
    pub(super) newly_refused: Vec<(FrontendKey, u32)>,
    /// Claims of other services that had a key so far and wait from now on.
    pub(super) displaced: Vec<(FrontendKey, Claim)>,
    /// Keys that are another slot's from now on, or nobody's, with the slot that had them.
    pub(super) left: Vec<(FrontendKey, u32)>,
}

impl Frontends {
    pub(super) fn new(size: u32) -> Self {
        Self { owners: HashMap::new(), waiting: HashMap::new(), used4: 0, used6: 0, size }
    }

    /// Takes in what a map already says.
    pub(super) fn adopt(&mut self, key: FrontendKey, claim: Claim) {
        self.insert(key, claim);
    }

    /// How many keys the maps hold: of IPv4, of IPv6.
    pub(super) const fn counts(&self) -> (u32, u32) {
        (self.used4, self.used6)
    }

    /// All conflicts: key, owner, and who waits for it.
    pub(super) fn conflicts(&self) -> impl Iterator<Item = (FrontendKey, u32, &[Claim])> {
        let owned = |key| self.owners.get(key).filter(|claim| claim.matters()).map(|claim| claim.slot);
        self.waiting.iter().filter_map(move |(key, claims)| Some((*key, owned(key)?, claims.as_slice())))
    }

    /// Works out what changes when the slots in `own` (all of one service, old and new) claim `new` instead of `old`.
    pub(super) fn resolve<'a>(
        &self,
        own: &BTreeSet<u32>,
        old: impl Iterator<Item = &'a FrontendKey>,
        new: &BTreeMap<FrontendKey, Claim>,
    ) -> Changes {
        let mut changes = Changes::default();
        for (key, claim) in new {
            let owner = self.owners.get(key).copied();
            let others = owner.filter(|owner| owner.slot != NOBODY && !own.contains(&owner.slot));
            let rival = others.or_else(|| self.next(key, own).filter(|next| next.beats(*claim)));
            match rival {
                Some(rival) if !claim.beats(rival) => {
                    changes.refused.push((*key, *claim));
                    if claim.matters() && !self.waits(key, own) {
                        changes.newly_refused.push((*key, rival.slot));
                    }
                    changes.puts.extend((owner != Some(rival)).then_some((*key, rival)));
                }
                Some(rival) => {
                    changes.displaced.push((*key, rival));
                    changes.puts.push((*key, *claim));
                }
                None => changes.puts.extend((owner != Some(*claim)).then_some((*key, *claim))),
            }
        }
        for key in old.filter(|key| !new.contains_key(key)) {
            if self.owners.get(key).is_some_and(|owner| own.contains(&owner.slot)) {
                match self.next(key, own) {
                    Some(next) => changes.puts.push((*key, next)),
                    None => changes.deletes.push(*key),
                }
            }
        }
        changes.puts.sort_by_key(|(_, claim)| is_of_address(claim.kind));
        changes.deletes.sort_by_key(|key| self.owners.get(key).is_some_and(|claim| !is_of_address(claim.kind)));
        changes.left = self.left(&changes);
        changes
    }

    /// Who of the others gets a key when `own` lets go: the first in line that none behind it beats.
    fn next(&self, key: &FrontendKey, own: &BTreeSet<u32>) -> Option<Claim> {
        let others = self.waiting.get(key)?.iter().filter(|claim| !own.contains(&claim.slot));
        others.copied().reduce(|first, later| if later.beats(first) { later } else { first })
    }

    fn left(&self, changes: &Changes) -> Vec<(FrontendKey, u32)> {
        let owner = |key: &FrontendKey| self.owners.get(key).map(|owner| owner.slot);
        let given = changes.puts.iter().filter_map(|(key, claim)| Some((*key, owner(key)?, Some(claim.slot))));
        let deleted = changes.deletes.iter().filter_map(|key| Some((*key, owner(key)?, None)));
        let moved = given.chain(deleted).filter(|(_, from, to)| Some(*from) != *to);
        moved.map(|(key, from, _)| (key, from)).collect()
    }

    /// Whether the maps have room for the new keys: they are written before the old ones are deleted.
    pub(super) fn check_room(&self, changes: &Changes) -> Result<(), TablesError> {
        let new = changes.puts.iter().map(|(key, _)| key).filter(|key| !self.owners.contains_key(key));
        let (new4, new6): (Vec<&FrontendKey>, Vec<_>) = new.partition(|key| Family::of(key.address) == Family::V4);
        for (new, used, map) in [(new4, self.used4, "frontends4"), (new6, self.used6, "frontends6")] {
            if new.len() > self.size.saturating_sub(used) as usize {
                return Err(TablesError::Full { map, size: self.size, option: "--max-frontends" });
            }
        }
        Ok(())
    }

    /// Records what `resolve` worked out; `old` are the keys that the service claimed before.
    pub(super) fn commit<'a>(
        &mut self,
        own: &BTreeSet<u32>,
        old: impl Iterator<Item = &'a FrontendKey>,
        changes: &Changes,
    ) {
        let Changes { puts, deletes, refused, newly_refused: _, displaced, left: _ } = changes;
        let refused: BTreeMap<_, _> = refused.iter().copied().collect();
        for key in old.filter(|key| !refused.contains_key(key)) {
            self.leave(key, own);
        }
        for (key, claim) in &refused {
            let line = self.waiting.entry(*key).or_default();
            match line.iter_mut().find(|other| own.contains(&other.slot)) {
                Some(place) => *place = *claim,
                None => line.push(*claim),
            }
        }
        for (key, claim) in puts {
            self.insert(*key, *claim);
            self.leave(key, &BTreeSet::from([claim.slot]));
        }
        for (key, claim) in displaced {
            // It was there before all that wait.
            self.waiting.entry(*key).or_default().insert(0, *claim);
        }
        for key in deletes {
            self.remove(key);
        }
    }

    /// Forgets the frontends that no known service claims, and names them.
    pub(super) fn take_orphans(&mut self) -> Vec<FrontendKey> {
        let orphans = self.owners.iter().filter(|(_, claim)| claim.slot == NOBODY);
        let mut orphans: Vec<_> = orphans.map(|(key, claim)| (!is_of_address(claim.kind), *key)).collect();
        orphans.sort_unstable();
        let keys: Vec<_> = orphans.into_iter().map(|(_, key)| key).collect();
        keys.iter().for_each(|key| self.remove(key));
        keys
    }

    fn waits(&self, key: &FrontendKey, slots: &BTreeSet<u32>) -> bool {
        self.waiting.get(key).is_some_and(|line| line.iter().any(|claim| slots.contains(&claim.slot)))
    }

    fn leave(&mut self, key: &FrontendKey, slots: &BTreeSet<u32>) {
        if let Some(line) = self.waiting.get_mut(key) {
            line.retain(|claim| !slots.contains(&claim.slot));
            if line.is_empty() {
                self.waiting.remove(key);
            }
        }
    }

    fn used(&mut self, key: &FrontendKey) -> &mut u32 {
        match Family::of(key.address) {
            Family::V4 => &mut self.used4,
            Family::V6 => &mut self.used6,
        }
    }

    fn insert(&mut self, key: FrontendKey, claim: Claim) {
        if self.owners.insert(key, claim).is_none() {
            *self.used(&key) += 1;
        }
    }

    fn remove(&mut self, key: &FrontendKey) {
        if self.owners.remove(key).is_some() {
            *self.used(key) -= 1;
        }
    }
}
