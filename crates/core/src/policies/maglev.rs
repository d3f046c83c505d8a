//! `maglev`: consistent hashing's table (Eisenbud et al., Maglev, NSDI 2016, section 3.4), for nodes behind ECMP.
//!
//! As far as weights go, each endpoint gets the share of slots that the table gives it. That flows find the same
//! endpoint at any node needs more of the datapath: one hash seed for the cluster instead of one per boot, a table map
//! (or lines in the table's order), and no tiers, since a spill of its own would send a flow elsewhere on another node.

use std::net::SocketAddr;

use super::{Decision, Inputs, Policy, Reason};

/// Slots of a table for shares: a prime, at least 100 for each of 160 endpoints (section 3.4: then shares differ by at
/// most a hundredth). The size that kernel load balancers have by default.
pub const SLOTS: u32 = 16_381;

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
            self.slots = slots(&self.addresses);
        }
        let of = self.slots.len();
        Decision::in_proportion(self.slots.clone(), vec![Reason::Ranked { by: "slots of the table", chosen: of, of }])
    }
}

/// How many slots each endpoint has. The order of the turns is part of the table: that of the addresses is the same
/// everywhere.
fn slots(addresses: &[SocketAddr]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..addresses.len()).collect();
    order.sort_by_key(|endpoint| addresses[*endpoint]);
    let permutations: Vec<_> = order.iter().map(|endpoint| Permutation::of(addresses[*endpoint], SLOTS)).collect();
    let mut slots = vec![0.0; addresses.len()];
    for backend in table(&permutations, SLOTS) {
        slots[order[backend]] += 1.0;
    }
    slots
}
