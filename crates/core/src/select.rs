//! The reference model of the selection that the kernel runs: `bpf/lib/select.h` in Rust, bit by bit.

use std::net::IpAddr;

use weir_abi as abi;

/// What a new flow gets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Pick {
    /// A backend.
    Backend {
        /// Slot in `backends`.
        id: u32,
        /// The tier that it was taken from.
        tier: Tier,
    },
    /// The service has no endpoint anywhere: reject.
    NoEndpoints,
    /// Endpoints exist, but this traffic class may use none of them here: drop.
    NoneAllowed,
    /// A reference led nowhere.
    Broken,
}

/// Half of a traffic class.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Tier {
    /// Endpoints of this node.
    Local,
    /// Endpoints of other nodes.
    Remote,
}

/// Hash of a flow. Ports are in host order, `seed` is the configuration's `hash_seed`. A retransmission has the same
/// hash, so it picks the same backend.
#[must_use]
pub fn flow_hash(seed: u64, src: IpAddr, dst: IpAddr, sport: u16, dport: u16, proto: u8) -> u64 {
    let (src_words, dst_words) = (abi::Addr::from(src).word, abi::Addr::from(dst).word);
    // IPv4 lives in the last word alone.
    let first = match (src, dst) {
        (IpAddr::V4(_), IpAddr::V4(_)) => 3,
        (IpAddr::V6(_), _) | (_, IpAddr::V6(_)) => 0,
    };
    let mut hash = seed;
    for (src, dst) in src_words[first..].iter().zip(&dst_words[first..]) {
        hash = mix(hash, u64::from(src.raw()) << 32 | u64::from(dst.raw()));
    }
    let ports = u64::from(abi::Be16::new(sport).raw()) << 32 | u64::from(abi::Be16::new(dport).raw()) << 16;
    hash = mix(hash, ports | u64::from(proto));
    hash ^= hash >> 29;
    hash = hash.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    hash ^ hash >> 32
}

const fn mix(hash: u64, word: u64) -> u64 {
    let hash = (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    hash ^ hash >> 32
}

/// Selects for a new flow of a traffic class (`abi::CLASS_*`). `line` reads a slot of `lines`.
///
/// # Panics
/// If `class` is not below `abi::CLASS_COUNT`.
#[must_use]
pub fn pick(service: &abi::Service, class: usize, hash: u64, line: impl Fn(u32) -> Option<abi::Line>) -> Pick {
    let tiers = &service.tiers[class];
    let first = if hash & 0xffff < u64::from(tiers.spill) { Tier::Remote } else { Tier::Local };
    let (tier, root) = match (first, tiers.local, tiers.remote) {
        (_, 0, 0) if service.endpoints == 0 => return Pick::NoEndpoints,
        (_, 0, 0) => return Pick::NoneAllowed,
        (Tier::Local, 0, remote) => (Tier::Remote, remote),
        (Tier::Local, local, _) => (Tier::Local, local),
        (Tier::Remote, local, 0) => (Tier::Local, local),
        (Tier::Remote, _, remote) => (Tier::Remote, remote),
    };
    let mut reference = root;
    for _ in 0..abi::LINE_DEPTH {
        if reference & abi::REF_LINE == 0 {
            break;
        }
        let Some(line) = line(reference & !abi::REF_LINE) else { return Pick::Broken };
        reference = line.r#ref[index(&line, hash)];
    }
    if reference == 0 || reference & abi::REF_LINE != 0 {
        return Pick::Broken;
    }
    Pick::Backend { id: reference, tier }
}

/// The last bound is never compared: everything above the one before it is the last entry's.
fn index(line: &abi::Line, hash: u64) -> usize {
    let point = hash >> 32;
    line.cumulative[..abi::LINE_ENTRIES - 1].iter().filter(|upper| point > u64::from(**upper)).count()
}
