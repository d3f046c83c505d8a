//! The reference model of the kernel's selection.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use weir_abi as abi;
use weir_core::lines::build;
use weir_core::select::{Pick, Tier, flow_hash, pick};

use crate::build::ip;

fn service(spill: u32, local: u32, remote: u32, endpoints: u32) -> abi::Service {
    let tiers = abi::Tiers { spill, local, remote, pad: 0 };
    abi::Service { tiers: [tiers; abi::CLASS_COUNT], endpoints, flags: abi::SERVICE_USED, affinity: 0, pad: 0 }
}

fn pick_one(service: &abi::Service, hash: u64) -> Pick {
    pick(service, abi::CLASS_INTERNAL, hash, |_| None, |_| 0)
}

#[test]
fn low_bits_below_the_spill_go_to_the_remote_tier() {
    let service = service(0x8000, 1, 2, 2);
    assert_eq!(pick_one(&service, 0x7fff), Pick::Backend { id: 2, tier: Tier::Remote });
    assert_eq!(pick_one(&service, 0x8000), Pick::Backend { id: 1, tier: Tier::Local });
}

#[test]
fn an_empty_tier_passes_its_flows_to_the_other() {
    assert_eq!(pick_one(&service(0, 0, 2, 1), 0), Pick::Backend { id: 2, tier: Tier::Remote });
    assert_eq!(pick_one(&service(0xffff, 1, 0, 1), 0), Pick::Backend { id: 1, tier: Tier::Local });
}

#[test]
fn two_empty_tiers_reject_without_endpoints_and_drop_with_some() {
    assert_eq!(pick_one(&service(0, 0, 0, 0), 0), Pick::NoEndpoints);
    assert_eq!(pick_one(&service(0, 0, 0, 3), 0), Pick::NoneAllowed);
}

#[test]
fn a_reference_that_leads_nowhere_is_broken() {
    let looping = abi::Line { cumulative: [u32::MAX; 16], r#ref: [abi::REF_LINE; 16] };
    let empty = abi::Line { r#ref: [0; 16], ..looping };
    let service = service(0, abi::REF_LINE, 0, 1);
    assert_eq!(pick(&service, 0, 0, |_| None, |_| 0), Pick::Broken);
    assert_eq!(pick(&service, 0, 0, |_| Some(looping), |_| 0), Pick::Broken);
    assert_eq!(pick(&service, 0, 0, |_| Some(empty), |_| 0), Pick::Broken);
}

#[test]
fn the_high_half_of_the_hash_meets_inclusive_bounds() {
    let tree = build(&[(1, 1), (2, 1)], &mut || Some(0)).unwrap();
    let service = service(0, tree.root, 0, 2);
    let at = |point: u64| pick(&service, 0, point << 32, |_| Some(tree.lines[0].1), |_| 0);
    assert_eq!(at(0x7fff_ffff), Pick::Backend { id: 1, tier: Tier::Local });
    assert_eq!(at(0x8000_0000), Pick::Backend { id: 2, tier: Tier::Local });
    assert_eq!(at(0xffff_ffff), Pick::Backend { id: 2, tier: Tier::Local });
}

/// The definition spelled out again from bytes in memory order, as the kernel reads them.
fn hash_of_words(seed: u64, words: &[u64]) -> u64 {
    let mut h = seed;
    for word in words {
        h = (h ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        h ^= h >> 32;
    }
    h ^= h >> 29;
    h = h.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    h ^ (h >> 32)
}

#[test]
fn the_hash_reads_packets_as_they_lie_in_memory() {
    let word = |a: [u8; 4], b: [u8; 4]| u64::from(u32::from_ne_bytes(a)) << 32 | u64::from(u32::from_ne_bytes(b));
    let port = |port: u16| u64::from(u16::from_ne_bytes(port.to_be_bytes()));
    let ports = port(40000) << 32 | port(80) << 16 | 6;
    let hash = flow_hash(9, ip("10.1.2.3"), ip("10.96.0.1"), 40000, 80, 6);
    assert_eq!(hash, hash_of_words(9, &[word([10, 1, 2, 3], [10, 96, 0, 1]), ports]));

    let (src, dst) = (Ipv6Addr::from([7_u8; 16]), Ipv6Addr::from([9_u8; 16]));
    let pair = word([7; 4], [9; 4]);
    let hash = flow_hash(9, IpAddr::V6(src), IpAddr::V6(dst), 40000, 80, 6);
    assert_eq!(hash, hash_of_words(9, &[pair, pair, pair, pair, ports]));
}

/// Chi-square of one byte of the hash over sequential source ports, the least random part of real traffic.
fn chi_square(byte: usize, src: IpAddr, dst: IpAddr) -> f64 {
    let mut counts = [0_u32; 256];
    let flows = 32_768..=60_999_u16;
    let expected = flows.len() as f64 / 256.0;
    for sport in flows {
        counts[usize::from(flow_hash(0x5eed, src, dst, sport, 80, 6).to_le_bytes()[byte])] += 1;
    }
    counts.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum()
}

#[test]
fn sequential_ports_spread_evenly_over_both_parts_of_the_hash() {
    let families = [(ip("10.0.0.7"), ip("10.96.0.1")), (ip("fd00::7"), ip("fd00:96::1"))];
    for (src, dst) in families {
        for byte in [0, 1, 4, 7] {
            // 255 degrees of freedom: the mean is 255, and 400 is more than six standard deviations away.
            let chi = chi_square(byte, src, dst);
            assert!((100.0..400.0).contains(&chi), "{src} -> {dst}: chi-square {chi} of byte {byte}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn picks_are_entries_and_follow_the_weights(
        weights in prop::collection::vec(0..20_u32, 1..60),
        spill in any::<u16>(),
        seed in any::<u64>(),
        src in any::<u32>(),
    ) {
        let mut slots = 0..;
        let entries: Vec<(u32, u32)> = (1..).zip(weights).collect();
        let tree = build(&entries, &mut || slots.next()).unwrap();
        let lines: HashMap<u32, abi::Line> = tree.lines.into_iter().collect();
        let service = service(spill.into(), tree.root, tree.root, 1);
        let total: u32 = entries.iter().map(|(_, weight)| weight).sum();
        let (mut counts, mut remote) = (HashMap::<u32, u32>::new(), 0_u32);
        let flows = 20_000_u16;
        for sport in 0..flows {
            let (src, dst) = (Ipv4Addr::from(src), Ipv4Addr::new(10, 96, 0, 1));
            let hash = flow_hash(seed, src.into(), dst.into(), sport, 80, 6);
            match pick(&service, 0, hash, |id| lines.get(&id).copied(), |_| 0) {
                Pick::Backend { id, tier } => {
                    *counts.entry(id).or_default() += 1;
                    remote += u32::from(tier == Tier::Remote);
                }
                other => {
                    prop_assert_eq!(total, 0);
                    prop_assert_eq!(other, Pick::NoneAllowed);
                    return Ok(());
                }
            }
        }
        // Eight standard deviations of a binomial share, and a few more for the tail of very small ones.
        let near = |count: u32, share: f64| {
            let mean = f64::from(flows) * share;
            (f64::from(count) - mean).abs() <= 8.0 * (mean * (1.0 - share)).sqrt() + 4.0
        };
        prop_assert!(near(remote, f64::from(spill) / 65_536.0), "{} remote at spill {}", remote, spill);
        for (id, weight) in entries {
            let count = counts.remove(&id).unwrap_or_default();
            prop_assert!(near(count, f64::from(weight) / f64::from(total)), "{}: {} of {}/{}", id, count, weight, total);
        }
        prop_assert!(counts.is_empty(), "picked what is no entry: {:?}", counts);
    }
}
