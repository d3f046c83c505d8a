//! `maglev`: consistent hashing's table (Eisenbud et al., Maglev, NSDI 2016, section 3.4), for nodes behind ECMP.
//!
//! The table itself is written with the plan ([`crate::plan::Selector::Maglev`]), as it must be the same on all nodes: from
//! the endpoints alone, whatever a node measures. The policy's shares say what each endpoint gets by it.

use std::net::SocketAddr;

use super::{Decision, Inputs, Policy, Reason};

/// Slots of the table of up to [`FEW`] endpoints, a prime: they become 273 lines at most, 34 KiB.
const SLOTS_OF_FEW: u32 = 4093;
/// Slots of the table of more, a prime: what one tier can hold.
const SLOTS_OF_MANY: u32 = 65_521;
const _: () = assert!(SLOTS_OF_MANY as usize <= crate::lines::MAX_ENTRIES, "a tier holds the table");
/// Endpoints that have 25 slots each of the small table. Endpoints differ by one slot at most: by a 25th.
pub const FEW: usize = 160;

/// Slots of the table of so many endpoints. Nodes that know the same endpoints have the same table.
#[must_use]
pub const fn slots(endpoints: usize) -> u32 {
    if endpoints <= FEW { SLOTS_OF_FEW } else { SLOTS_OF_MANY }
}

/// Seeds that make two hashes of one, for a backend's offset and its skip.
const OFFSET_SEED: u64 = 0x9E37_79B9_7F4A_7C15;
const SKIP_SEED: u64 = 0xC2B2_AE3D_27D4_EB4F;

/// The order in which a backend wants slots: `offset`, and `skip` more each time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Permutation {
    /// First slot, below the number of slots.
    pub offset: u32,
    /// Distance to the next, from 1 to below the number of slots.
    pub skip: u32,
}

impl Permutation {
    /// That of an endpoint, the same on every node.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "remainders of 32-bit numbers")]
    pub fn of(address: SocketAddr, slots: u32) -> Self {
        let words = match address {
            SocketAddr::V4(v4) => [0, u64::from(v4.ip().to_bits())],
            SocketAddr::V6(v6) => [(v6.ip().to_bits() >> 64) as u64, v6.ip().to_bits() as u64],
        };
        let hash = |seed: u64| [words[0], words[1], u64::from(address.port())].into_iter().fold(seed, mix);
        let skips = u64::from(slots.saturating_sub(1).max(1));
        Self { offset: (hash(OFFSET_SEED) % u64::from(slots)) as u32, skip: (hash(SKIP_SEED) % skips) as u32 + 1 }
    }
}

/// The final steps of splitmix64, on a word more.
const fn mix(hash: u64, word: u64) -> u64 {
    let hash = (hash ^ word).wrapping_add(OFFSET_SEED);
    let hash = (hash ^ hash >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let hash = (hash ^ hash >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    hash ^ hash >> 31
}

/// The lookup table: for each of `slots`, a prime, the index of a backend. Each backend in turn takes the next free
/// slot of its permutation. Empty if there are no backends.
#[must_use]
pub fn table(backends: &[Permutation], slots: u32) -> Vec<usize> {
    if backends.is_empty() {
        return Vec::new();
    }
    let mut table = vec![usize::MAX; slots as usize];
    let mut next: Vec<u32> = backends.iter().map(|backend| backend.offset % slots).collect();
    for turn in 0..slots as usize {
        let backend = turn % backends.len();
        // With a prime number of slots every skip visits all of them, so a free one is found.
        while table[next[backend] as usize] != usize::MAX {
            next[backend] = step(next[backend], backends[backend].skip, slots);
        }
        table[next[backend] as usize] = backend;
    }
    table
}

#[expect(clippy::cast_possible_truncation, reason = "a remainder of a 32-bit number")]
fn step(slot: u32, skip: u32, slots: u32) -> u32 {
    ((u64::from(slot) + u64::from(skip)) % u64::from(slots)) as u32
}

/// The table of these endpoints as runs: an endpoint's index, and how many slots in a row are its. Addresses make the table:
/// it is the same for the same ones, in whatever order they come.
#[must_use]
pub fn runs(addresses: &[SocketAddr]) -> Vec<(usize, u32)> {
    // The order of the turns is part of the table.
    let mut order: Vec<usize> = (0..addresses.len()).collect();
    order.sort_by_key(|endpoint| addresses[*endpoint]);
    let slots = slots(addresses.len());
    let permutations: Vec<_> = order.iter().map(|endpoint| Permutation::of(addresses[*endpoint], slots)).collect();
    let mut runs: Vec<(usize, u32)> = Vec::new();
    for endpoint in table(&permutations, slots).into_iter().map(|turn| order[turn]) {
        match runs.last_mut() {
            Some((last, length)) if *last == endpoint => *length += 1,
            Some(_) | None => runs.push((endpoint, 1)),
        }
    }
    runs
}

/// The policy `maglev`. It makes a new table only if the endpoints change.
#[derive(Clone, Debug, Default)]
pub struct Maglev {
    addresses: Vec<SocketAddr>,
    slots: Vec<f64>,
}

impl Policy for Maglev {
    fn decide(&mut self, inputs: &Inputs<'_>) -> Decision {
        let addresses = inputs.endpoints.iter().map(|endpoint| endpoint.address);
        if !addresses.clone().eq(self.addresses.iter().copied()) {
            self.addresses = addresses.collect();
            self.slots = vec![0.0; self.addresses.len()];
            for (endpoint, length) in runs(&self.addresses) {
                self.slots[endpoint] += f64::from(length);
            }
        }
        let of = self.slots.len();
        Decision::in_proportion(self.slots.clone(), vec![Reason::Ranked { by: "slots of the table", chosen: of, of }])
    }
}
