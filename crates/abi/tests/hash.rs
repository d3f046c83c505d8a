//! Which sets of the tables of flows that begin keys are in, and by which tags they are known there.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use weir_abi as abi;

/// Sets of a table of the default size.
const SETS: u32 = 16_384;
/// Ports whose sets follow each other, of those that are as odd.
const NEAR: u16 = 64;
const CLIENTS: [&str; 2] = ["203.0.113.7", "2001:db8:100::7"];
const SERVICES: [&str; 2] = ["10.96.0.16", "fd00:96::10"];

/// Numbers that nobody has chosen, but the same ones each time.
fn seeds() -> impl Iterator<Item = u64> {
    std::iter::successors(Some(0x5eed_u64), |seed| Some(seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1)))
        .map(|seed| seed ^ seed >> 33)
}

/// The hash of a TCP key of either family.
fn hash(ends: [&str; 2], ports: [u16; 2], seed: u64, sets: u32) -> u64 {
    let mut bytes = Vec::new();
    for end in ends {
        match end.parse().unwrap() {
            IpAddr::V4(address) => bytes.extend(address.octets()),
            IpAddr::V6(address) => bytes.extend(address.octets()),
        }
    }
    bytes.extend(ports.map(u16::to_be_bytes).as_flattened());
    bytes.extend([6, 0, 0, 0]);
    let words: Vec<_> = bytes.as_chunks().0.iter().copied().map(u32::from_ne_bytes).collect();
    abi::opening_hash(&words, seed, abi::opening_step(sets))
}

/// What is hashed by a client's port: flows to a service, and their answers, of both families.
fn kinds() -> impl Iterator<Item = impl Fn(u16, u64) -> u64> {
    CLIENTS.into_iter().zip(SERVICES).flat_map(|(client, service)| {
        [false, true].map(|answer| {
            move |port, seed| match answer {
                false => hash([client, service], [port, 80], seed, SETS),
                true => hash([service, client], [80, port], seed, SETS),
            }
        })
    })
}

fn set(hash: u64) -> u32 {
    abi::opening_set(hash, SETS)
}

/// `opening_tag()` in `bpf/lib/sets.h`, but for those that say something else.
fn tag(hash: u64) -> u32 {
    u32::try_from(hash & u64::from(u32::MAX)).unwrap()
}

/// How often the next set is not the one behind the last.
fn breaks(run: &[u32], sets: u32) -> usize {
    run.windows(2).filter(|pair| (pair[0] + 1) % sets != pair[1]).count()
}

#[test]
fn a_clients_next_ports_are_in_the_next_sets_in_both_directions() {
    for seed in seeds().take(50) {
        for (kind, hash) in kinds().enumerate() {
            // As ports of one class begin and somewhere in them, even and odd.
            for (first, most) in [(32_768, 1), (40_065, 1), (65_408, 1), (40_000, 2), (40_101, 2)] {
                let run: Vec<_> = (0..NEAR).map(|number| set(hash(first + 2 * number, seed))).collect();
                // Where both ports together come to a multiple of 128 a run begins anew, and where another class does.
                assert!(breaks(&run, SETS) <= most, "{seed:#x}, {kind}, {first}: {run:?}");
                if first % 128 < 2 {
                    assert_eq!(run.iter().collect::<BTreeSet<_>>().len(), run.len(), "{seed:#x}, {kind}, {first}");
                }
            }
        }
    }
}

#[test]
fn any_number_of_sets_is_in_use_one_behind_the_other() {
    for sets in [1, 2, 3, 7, 63, 1000, 300_000] {
        let of = |port| abi::opening_set(hash([CLIENTS[0], SERVICES[0]], [port, 80], 3, sets), sets);
        let run: Vec<_> = (0..NEAR).map(|number| of(32_768 + 2 * number)).collect();
        assert!(breaks(&run, sets) <= 1, "{sets}: {run:?}");
        let found: BTreeSet<_> = (0..=u16::MAX).map(of).collect();
        assert!(found.iter().all(|set| *set < sets), "{sets}");
        assert!(sets > 100 || found.len() == usize::try_from(sets).unwrap(), "{sets}: {}", found.len());
    }
}

/// What the programs take of a tag in place of all of it: `struct first_syns`, `struct snat_kept`, `struct displaced`.
fn parts(tag: u32) -> [u32; 4] {
    [tag & 0xffff, tag & 0xffff_0000, tag & 0xffff_001f, tag & 0xffff_ff1f]
}

#[test]
fn keys_that_are_moved_alike_differ_in_every_part_of_their_tags() {
    let seed = seeds().next().unwrap();
    for (client, service) in CLIENTS.into_iter().zip(SERVICES) {
        let at = |moved: u16| hash([client, service], [1024 + 2 * moved, 1024 + 2 * (NEAR - 1 - moved)], seed, SETS);
        let hashes: Vec<_> = (0..NEAR).map(at).collect();
        assert_eq!(hashes.iter().map(|hash| set(*hash)).collect::<BTreeSet<_>>().len(), 1, "one set has them all");
        for part in 0..parts(0).len() {
            let different: BTreeSet<_> = hashes.iter().map(|hash| parts(tag(*hash))[part]).collect();
            assert_eq!(different.len(), hashes.len(), "{part}");
        }
    }
}

#[test]
fn clients_of_one_service_and_services_of_one_client_are_far_from_each_other() {
    for seed in seeds().take(5) {
        let of = |ends: [&str; 2]| set(hash(ends, [40_000, 80], seed, SETS));
        let clients = (0..250).map(|last| of([&format!("203.0.113.{last}"), SERVICES[0]]));
        let services = (0..250).map(|last| of([CLIENTS[0], &format!("10.96.0.{last}")]));
        for (name, sets) in [("clients", clients.collect::<BTreeSet<_>>()), ("services", services.collect())] {
            // 250 of 16,384: two meet in 1.9 sets, by chance.
            assert!(sets.len() > 235, "{name}, {seed:#x}: {}", sets.len());
            let near = sets.iter().zip(sets.iter().skip(1)).filter(|(one, next)| *next - *one == 1).count();
            assert!(near < 20, "{name}, {seed:#x}: {near}");
        }
    }
}

#[test]
fn ports_of_one_client_find_a_place_as_often_as_chance_has_it() {
    for seed in seeds().take(100) {
        let mut sets = BTreeMap::<_, u32>::new();
        for port in 16_384..=u16::MAX {
            *sets.entry(set(hash([CLIENTS[0], SERVICES[0]], [port, 80], seed, SETS))).or_default() += 1;
        }
        let ways = u32::try_from(abi::OPENING_WAYS).unwrap();
        let without: u32 = sets.values().map(|keys| keys.saturating_sub(ways)).sum();
        // Three of four places are asked for: 10.7 % find none, were each thrown by itself.
        assert!((2_500..8_000).contains(&without), "{seed:#x}: {without} of 49,152");
    }
}
