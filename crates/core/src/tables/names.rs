//! Names as the maps hold them, and the numbers that stand for nodes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use weir_abi as abi;

use super::pool::Pool;

/// A name cut to what the maps hold, at a character's end.
pub(super) fn cut(name: &str) -> [u8; abi::NAME_SIZE] {
    let mut bytes = [0; abi::NAME_SIZE];
    let end = name.floor_char_boundary(abi::NAME_SIZE - 1);
    bytes[..end].copy_from_slice(&name.as_bytes()[..end]);
    bytes
}

/// The text of a cut name, if it is one.
pub(super) fn text(bytes: &[u8; abi::NAME_SIZE]) -> Option<&str> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    std::str::from_utf8(&bytes[..end]).ok()
}

#[derive(Debug)]
struct Entry {
    name: Arc<abi::NodeName>,
    backends: u32,
}

/// Numbers of nodes. A number stands for one name and zone as long as a backend uses it, and is never renamed.
#[derive(Debug)]
pub(super) struct NodeNumbers {
    entries: HashMap<u32, Entry>,
    numbers: HashMap<Arc<abi::NodeName>, u32>,
    pool: Pool,
    /// Names that the map has room for. What an agent before has left there may have higher numbers.
    most: u32,
}

impl NodeNumbers {
    /// Numbers of a map with room for so many names, some of which are used.
    pub(super) fn new(most: u32, used: &BTreeSet<u32>) -> Self {
        let pool = Pool::new(1, most.saturating_add(1), used);
        Self { entries: HashMap::new(), numbers: HashMap::new(), pool, most }
    }

    /// Takes in what a map already says; the pool knows the number as used.
    pub(super) fn adopt(&mut self, number: u32, name: abi::NodeName) {
        let name = Arc::new(name);
        self.numbers.entry(Arc::clone(&name)).or_insert(number);
        self.entries.insert(number, Entry { name, backends: 0 });
    }

    /// How many numbers cannot be taken.
    pub(super) fn taken(&self) -> u32 {
        self.pool.taken()
    }

    pub(super) fn contains(&self, number: u32) -> bool {
        self.entries.contains_key(&number)
    }

    pub(super) fn is_called(&self, number: u32, name: &abi::NodeName) -> bool {
        self.entries.get(&number).is_some_and(|entry| *entry.name == *name)
    }

    /// Counts one more backend on a node. The flag tells whether the number is new.
    pub(super) fn acquire(&mut self, name: abi::NodeName) -> Option<(u32, bool)> {
        if let Some(number) = self.numbers.get(&name).copied() {
            self.count(number);
            return Some((number, false));
        }
        if self.entries.len() >= self.most as usize {
            return None;
        }
        let number = self.pool.take()?;
        self.adopt(number, name);
        self.count(number);
        Some((number, true))
    }

    /// Counts one more backend on a node whose number is known.
    pub(super) fn count(&mut self, number: u32) {
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.backends += 1;
        }
    }

    /// Takes back an `acquire` that was never written.
    pub(super) fn unacquire(&mut self, number: u32, new: bool) {
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.backends -= 1;
        }
        if new && self.forget_unused(number) {
            self.pool.untake(number);
        }
    }

    /// Counts one backend less. True if it was the last one: the number is given up.
    pub(super) fn release(&mut self, number: u32) -> bool {
        let Some(entry) = self.entries.get_mut(&number) else { return false };
        entry.backends -= 1;
        self.retire_unused(number)
    }

    /// Gives up all numbers that no backend uses.
    pub(super) fn retire_all_unused(&mut self) -> Vec<u32> {
        let mut numbers: Vec<u32> = self.entries.keys().copied().collect();
        numbers.sort_unstable();
        numbers.retain(|number| self.retire_unused(*number));
        numbers
    }

    /// What a new number is to be called.
    pub(super) fn name(&self, number: u32) -> Option<abi::NodeName> {
        self.entries.get(&number).map(|entry| *entry.name)
    }

    /// Frees numbers given up before the previous call.
    pub(super) fn release_resting(&mut self) {
        self.pool.release();
    }

    fn retire_unused(&mut self, number: u32) -> bool {
        let unused = self.forget_unused(number);
        if unused {
            self.pool.retire(number);
        }
        unused
    }

    fn forget_unused(&mut self, number: u32) -> bool {
        if self.entries.get(&number).is_none_or(|entry| entry.backends > 0) {
            return false;
        }
        if let Some(entry) = self.entries.remove(&number)
            && self.numbers.get(&entry.name) == Some(&number)
        {
            self.numbers.remove(&entry.name);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_between_characters() {
        let name = format!("{}ä", "x".repeat(62));
        assert_eq!(text(&cut(&name)), Some("x".repeat(62).as_str()));
        assert_eq!(text(&cut("web")), Some("web"));
        assert_eq!(text(&[b'x'; abi::NAME_SIZE]), None);
    }
}
