//! One copy of each name, however many objects repeat it: thousands of endpoints run on a handful of nodes.

use std::collections::HashSet;
use std::sync::Arc;

/// Fewer names than this are never swept.
const SWEEP_FLOOR: usize = 1024;

/// A set of shared strings. Names that nobody else holds any more are dropped when the set has doubled.
#[derive(Debug)]
pub(crate) struct Interner {
    names: HashSet<Arc<str>>,
    sweep_at: usize,
}

impl Default for Interner {
    fn default() -> Self {
        Self { names: HashSet::new(), sweep_at: SWEEP_FLOOR }
    }
}

impl Interner {
    /// Replaces a string by the shared copy of it.
    pub(crate) fn share(&mut self, name: &mut Arc<str>) {
        if let Some(shared) = self.names.get(name) {
            *name = Arc::clone(shared);
            return;
        }
        if self.names.len() >= self.sweep_at {
            self.names.retain(|name| Arc::strong_count(name) > 1);
            self.sweep_at = SWEEP_FLOOR.max(2 * self.names.len());
        }
        self.names.insert(Arc::clone(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_share_one_allocation() {
        let mut interner = Interner::default();
        let (mut a, mut b): (Arc<str>, Arc<str>) = ("edge-1".into(), "edge-1".into());
        interner.share(&mut a);
        interner.share(&mut b);
        assert!(Arc::ptr_eq(&a, &b));
    }

    #[test]
    fn names_that_nobody_holds_are_swept() {
        let mut interner = Interner::default();
        let mut held: Arc<str> = "held".into();
        interner.share(&mut held);
        for n in 0..10 * SWEEP_FLOOR {
            interner.share(&mut format!("passing-{n}").into());
        }
        assert!(interner.names.len() <= SWEEP_FLOOR);
        assert!(interner.names.contains("held"));
    }
}
