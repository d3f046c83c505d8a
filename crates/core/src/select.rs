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
    end(mix(hash, ports | u64::from(proto)))
}

/// Hash of a client with session affinity, in place of its flows': they are all one. `seed` is that of the flows.
#[must_use]
pub fn client_hash(seed: u64, client: IpAddr) -> u64 {
    let [a, b, c, d] = abi::Addr::from(client).word.map(|word| u64::from(word.raw()));
    end(mix(mix(seed, a << 32 | b), c << 32 | d))
}

const fn mix(hash: u64, word: u64) -> u64 {
    let hash = (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    hash ^ hash >> 32
}

const fn end(hash: u64) -> u64 {
    let hash = (hash ^ hash >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    hash ^ hash >> 32
}

/// Selects for a new flow of a traffic class (`abi::CLASS_*`). `line` reads a slot of `lines`, `open_flows` says how many
/// flows a backend has open; only services of [`abi::SERVICE_LEAST_CONN`] ask for it.
///
/// # Panics
/// If `class` is not below `abi::CLASS_COUNT`.
#[must_use]
pub fn pick(
    service: &abi::Service,
    class: usize,
    hash: u64,
    line: impl Fn(u32) -> Option<abi::Line>,
    open_flows: impl Fn(u32) -> u32,
) -> Pick {
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
    let Some(one) = draw(root, hash >> 32, &line) else { return Pick::Broken };
    let of_two = service.flags & abi::SERVICE_LEAST_CONN != 0;
    let other = if of_two { draw(root, one.another(hash), &line) } else { None };
    let busy = |drawn: Draw, by: Draw| u64::from(open_flows(drawn.id)) * by.weight();
    match other {
        Some(other) if other.id != one.id && busy(other, one) < busy(one, other) => {
            Pick::Backend { id: other.id, tier }
        }
        Some(_) | None => Pick::Backend { id: one.id, tier },
    }
}

/// A backend drawn by weight.
#[derive(Clone, Copy, Debug)]
struct Draw {
    id: u32,
    /// Its part of the 32-bit range, without the lower bound.
    from: u32,
    to: u32,
}

impl Draw {
    fn part(self) -> u64 {
        u64::from(self.to.wrapping_sub(self.from))
    }

    /// In 65536ths, 1 at least. Parts that are alike differ by a unit of 2^32, and compare as equal.
    fn weight(self) -> u64 {
        ((self.part() + (1 << 15)) >> 16).max(1)
    }

    /// Where a second draw looks: anywhere else.
    fn another(self, hash: u64) -> u64 {
        let others = (1 << 32) - self.part();
        let point = ((mix(hash, abi::SECOND_DRAW.into()) >> 32) * others) >> 32;
        u64::from(self.to).wrapping_add(1).wrapping_add(point) & u64::from(u32::MAX)
    }
}

/// The backend whose part holds a point of the 32-bit range. None if a reference leads nowhere.
fn draw(root: u32, point: u64, line: &impl Fn(u32) -> Option<abi::Line>) -> Option<Draw> {
    let (mut reference, mut from, mut to) = (root, 0, u32::MAX);
    for _ in 0..abi::LINE_DEPTH {
        if reference & abi::REF_LINE == 0 {
            break;
        }
        let line = line(reference & !abi::REF_LINE)?;
        let index = index(&line, point);
        if let Some(below) = index.checked_sub(1) {
            from = line.cumulative[below];
        }
        to = to.min(line.cumulative[index]);
        reference = line.r#ref[index];
    }
    (reference != 0 && reference & abi::REF_LINE == 0).then_some(Draw { id: reference, from, to })
}

/// The last bound is never compared: everything above the one before it is the last entry's.
fn index(line: &abi::Line, point: u64) -> usize {
    line.cumulative[..abi::LINE_ENTRIES - 1].iter().filter(|upper| point > u64::from(**upper)).count()
}
