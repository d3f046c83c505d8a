//! The index of this node's endpoints by service and address, as packets need it that another node has wrapped: a mirror of
//! the backends.

use std::collections::{BTreeSet, HashMap};

use weir_abi as abi;

/// What the index holds. Of endpoints at several ports of one address, which only people make, it names the first slot.
#[derive(Clone, Debug, Default)]
pub struct LocalEndpoints {
    slots: HashMap<abi::LocalKey, BTreeSet<u32>>,
}

impl LocalEndpoints {
    /// A slot of `backends` changes. Answers with the entries that change with it: their slot, None for those that go.
    pub fn change(
        &mut self,
        slot: u32,
        before: &abi::Backend,
        after: &abi::Backend,
    ) -> Vec<(abi::LocalKey, Option<u32>)> {
        let (before, after) = (key(before), key(after));
        let mut changed = Vec::new();
        if before == after {
            return changed;
        }
        if let Some(key) = before {
            let slots = self.slots.entry(key).or_default();
            slots.remove(&slot);
            changed.push((key, slots.first().copied()));
            if slots.is_empty() {
                self.slots.remove(&key);
            }
        }
        if let Some(key) = after {
            let slots = self.slots.entry(key).or_default();
            slots.insert(slot);
            changed.push((key, slots.first().copied()));
        }
        changed
    }

    /// All entries, in no order.
    pub fn entries(&self) -> impl Iterator<Item = (abi::LocalKey, u32)> {
        self.slots.iter().filter_map(|(key, slots)| Some((*key, *slots.first()?)))
    }
}

/// Where a backend is in the index, if it is.
fn key(backend: &abi::Backend) -> Option<abi::LocalKey> {
    const HERE: u8 = abi::BACKEND_USED | abi::BACKEND_LOCAL;
    (backend.flags & HERE == HERE).then_some(abi::LocalKey { addr: backend.addr, service: backend.service, pad: 0 })
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    const LOCAL: u8 = abi::BACKEND_USED | abi::BACKEND_LOCAL;

    fn backend(address: [u8; 4], port: u16, flags: u8) -> abi::Backend {
        let addr = IpAddr::from(address).into();
        abi::Backend { addr, port: abi::Be16::new(port), proto: 6, flags, generation: 1, service: 3, node: 0 }
    }

    fn at(address: [u8; 4]) -> abi::LocalKey {
        abi::LocalKey { addr: IpAddr::from(address).into(), service: 3, pad: 0 }
    }

    #[test]
    fn an_endpoint_is_in_the_index_for_as_long_as_it_is_here() {
        let mut index = LocalEndpoints::default();
        let (free, here) = (backend([10, 1, 0, 1], 80, 0), backend([10, 1, 0, 1], 80, LOCAL));
        assert_eq!(index.change(7, &free, &here), [(at([10, 1, 0, 1]), Some(7))]);
        assert_eq!(index.change(7, &here, &here), []);
        assert_eq!(index.entries().collect::<Vec<_>>(), [(at([10, 1, 0, 1]), 7)]);
        let elsewhere = backend([10, 1, 0, 1], 80, abi::BACKEND_USED);
        assert_eq!(index.change(7, &here, &elsewhere), [(at([10, 1, 0, 1]), None)]);
        assert_eq!(index.entries().next(), None);
    }

    #[test]
    fn a_slot_that_another_endpoint_takes_leaves_the_former_one() {
        let mut index = LocalEndpoints::default();
        let (free, one) = (backend([10, 1, 0, 1], 80, 0), backend([10, 1, 0, 1], 80, LOCAL));
        index.change(7, &free, &one);
        let two = backend([10, 1, 0, 2], 80, LOCAL);
        assert_eq!(index.change(7, &one, &two), [(at([10, 1, 0, 1]), None), (at([10, 1, 0, 2]), Some(7))]);
    }

    #[test]
    fn of_two_ports_at_one_address_the_other_one_stays() {
        let mut index = LocalEndpoints::default();
        let free = backend([10, 1, 0, 1], 80, 0);
        let (one, two) = (backend([10, 1, 0, 1], 80, LOCAL), backend([10, 1, 0, 1], 81, LOCAL));
        index.change(7, &free, &one);
        assert_eq!(index.change(8, &free, &two), [(at([10, 1, 0, 1]), Some(7))]);
        assert_eq!(index.change(7, &one, &free), [(at([10, 1, 0, 1]), Some(8))]);
    }
}
