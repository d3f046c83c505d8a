//! Which slots of a map are free.

use std::collections::BTreeSet;

/// Slots of one map. A slot that is given up rests for two releases: a packet on its way may still hold it.
#[derive(Debug)]
pub(super) struct Pool {
    start: u32,
    /// All slots from here on were never taken.
    next: u32,
    end: u32,
    free: Vec<u32>,
    /// Retired since the last release.
    resting: Vec<u32>,
    /// Retired before the last release.
    rested: Vec<u32>,
}

impl Pool {
    /// Slots from `start` to `end`, `end` excluded, all free but the used ones.
    pub(super) fn new(start: u32, end: u32, used: &BTreeSet<u32>) -> Self {
        let next = used.last().map_or(start, |last| last.saturating_add(1).max(start));
        let free = (start..next).rev().filter(|slot| !used.contains(slot)).collect();
        Self { start, next, end, free, resting: Vec::new(), rested: Vec::new() }
    }

    /// How many slots cannot be taken: those that are, and those that rest.
    pub(super) fn taken(&self) -> u32 {
        (self.next - self.start).saturating_sub(u32::try_from(self.free.len()).unwrap_or(u32::MAX))
    }

    /// How many slots can be taken now.
    pub(super) fn free(&self) -> u32 {
        self.end.saturating_sub(self.next).saturating_add(u32::try_from(self.free.len()).unwrap_or(u32::MAX))
    }

    /// A slot that nothing refers to.
    pub(super) fn take(&mut self) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let slot = self.next;
        (slot < self.end).then(|| {
            self.next += 1;
            slot
        })
    }

    /// Takes back a slot that was never written.
    pub(super) fn untake(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Takes back a slot that may still be referred to.
    pub(super) fn retire(&mut self, slot: u32) {
        self.resting.push(slot);
    }

    /// Frees what was retired before the previous call.
    pub(super) fn release(&mut self) {
        self.free.append(&mut self.rested);
        std::mem::swap(&mut self.rested, &mut self.resting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retired_slot_is_taken_again_only_after_two_releases() {
        let mut pool = Pool::new(1, 2, &BTreeSet::new());
        assert_eq!(pool.take(), Some(1));
        pool.retire(1);
        assert_eq!(pool.take(), None);
        pool.release();
        assert_eq!(pool.take(), None);
        pool.release();
        assert_eq!(pool.take(), Some(1));
    }

    #[test]
    fn used_slots_are_skipped_and_the_gaps_between_them_are_taken() {
        let mut pool = Pool::new(1, 6, &BTreeSet::from([2, 4]));
        let taken: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(taken, [1, 3, 5]);
    }

    #[test]
    fn a_slot_is_taken_until_it_has_rested() {
        let mut pool = Pool::new(1, 6, &BTreeSet::from([2, 4]));
        assert_eq!(pool.taken(), 2);
        assert_eq!((pool.take(), pool.taken()), (Some(1), 3));
        pool.retire(1);
        pool.release();
        assert_eq!(pool.taken(), 3);
        pool.release();
        assert_eq!(pool.taken(), 2);
        assert_eq!((pool.take(), pool.take(), pool.take(), pool.taken()), (Some(1), Some(3), Some(5), 5));
    }
}
