//! The tree of weighted lines.

use std::collections::HashMap;

use proptest::prelude::*;
use weir_abi as abi;
use weir_core::lines::{MAX_ENTRIES, Tree, build};

fn build_all(entries: &[(u32, u32)]) -> Tree {
    let mut next = 0;
    build(entries, &mut || {
        next += 1;
        Some(next - 1)
    })
    .unwrap()
}

/// The part of the 32-bit range that each backend gets, by following every path as the kernel does.
fn parts(tree: &Tree) -> HashMap<u32, u64> {
    let lines: HashMap<_, _> = tree.lines.iter().copied().collect();
    assert_eq!(lines.len(), tree.lines.len(), "a slot is used twice");
    let mut parts = HashMap::new();
    if tree.root != 0 {
        collect(tree.root, 0, 1 << 32, 0, &lines, &mut parts);
    }
    parts
}

fn collect(
    reference: u32,
    from: u64,
    to: u64,
    depth: usize,
    lines: &HashMap<u32, abi::Line>,
    parts: &mut HashMap<u32, u64>,
) {
    if reference & abi::REF_LINE == 0 {
        assert_ne!(reference, 0, "a path leads nowhere");
        *parts.entry(reference).or_default() += to - from;
        return;
    }
    assert!(depth < abi::LINE_DEPTH, "deeper than the kernel looks");
    let line = &lines[&(reference & !abi::REF_LINE)];
    let mut below = from;
    for (upper, next) in line.cumulative.iter().zip(line.r#ref) {
        let end = (u64::from(*upper) + 1).min(to);
        if end > below {
            collect(next, below, end, depth + 1, lines, parts);
            below = end;
        }
    }
    assert_eq!(below, to, "a part of the range leads nowhere");
}

fn assert_shares(entries: &[(u32, u32)]) {
    let parts = parts(&build_all(entries));
    let total: u128 = entries.iter().map(|(_, weight)| u128::from(*weight)).sum();
    let weights: HashMap<u32, u128> =
        entries.iter().filter(|(_, weight)| *weight > 0).map(|(id, weight)| (*id, u128::from(*weight))).collect();
    for (id, weight) in &weights {
        let part = u128::from(parts.get(id).copied().unwrap_or_default());
        // |part - 2^32 * weight / total| <= 1, without a rounding of its own.
        assert!((part * total).abs_diff(weight << 32) <= total, "{id} has {part} of {weight}/{total}");
    }
    assert!(parts.keys().all(|id| weights.contains_key(id)));
    assert_eq!(parts.values().sum::<u64>(), if weights.is_empty() { 0 } else { 1 << 32 });
}

#[test]
fn nothing_to_select_is_the_empty_reference() {
    assert_eq!(build_all(&[]), Tree { root: 0, lines: vec![] });
    assert_eq!(build_all(&[(7, 0)]), Tree { root: 0, lines: vec![] });
}

#[test]
fn a_single_weighted_entry_needs_no_line() {
    assert_eq!(build_all(&[(5, 0), (7, 3)]), Tree { root: 7, lines: vec![] });
}

#[test]
fn up_to_sixteen_entries_make_one_line_and_unused_bounds_hold_the_maximum() {
    let tree = build_all(&[(5, 1), (6, 1), (7, 2)]);
    let [(0, line)] = tree.lines[..] else { panic!("{tree:?}") };
    assert_eq!(tree.root, abi::REF_LINE);
    assert_eq!(line.cumulative[..3], [0x3fff_ffff, 0x7fff_ffff, u32::MAX]);
    assert!(line.cumulative[3..].iter().all(|upper| *upper == u32::MAX));
    assert_eq!(line.r#ref[..4], [5, 6, 7, 0]);
    assert_eq!(build_all(&(1..=16).map(|id| (id, 1)).collect::<Vec<_>>()).lines.len(), 1);
}

#[test]
fn bounds_of_lower_lines_are_absolute_too() {
    let tree = build_all(&(1..=32).map(|id| (id, 1)).collect::<Vec<_>>());
    assert_eq!(tree.lines.len(), 3);
    let (_, second) = tree.lines[1];
    assert_eq!(second.cumulative[0], (17_u32 << 27) - 1);
    assert_eq!(second.cumulative[15], u32::MAX);
    let (slot, top) = tree.lines[2];
    assert_eq!((tree.root, top.cumulative[0]), (slot | abi::REF_LINE, 0x7fff_ffff));
    assert_eq!(top.r#ref[..3], [abi::REF_LINE, abi::REF_LINE | 1, 0]);
}

#[test]
fn shares_are_exact_at_every_change_of_depth() {
    for count in [2, 16, 17, 256, 257, 4096, 4097] {
        assert_shares(&(1..=count).map(|id| (id, 1 + id % 7)).collect::<Vec<_>>());
    }
}

#[test]
fn as_many_entries_as_the_depth_allows_can_be_selected_and_no_more() {
    let count = u32::try_from(MAX_ENTRIES).unwrap();
    let entries: Vec<_> = (1..=count + 1).map(|id| (id, 1)).collect();
    assert_shares(&entries[..MAX_ENTRIES]);
    assert_eq!(build(&entries, &mut || Some(0)), None);
}

#[test]
fn tiny_weights_beside_huge_ones_stay_within_one_unit() {
    let mut entries = vec![(1, 1), (2, u32::MAX), (3, 1), (4, 2), (5, u32::MAX), (6, 1), (7, 1)];
    assert_shares(&entries);
    entries.extend((8..100).map(|id| (id, 1)));
    entries.insert(0, (100, u32::MAX));
    assert_shares(&entries);
}

#[test]
fn it_gives_up_when_slots_run_out() {
    let entries: Vec<_> = (1..=32).map(|id| (id, 1)).collect();
    let mut slots = 0..2;
    assert_eq!(build(&entries, &mut || slots.next()), None);
}

proptest! {
    #[test]
    fn every_share_is_the_weight_within_one_unit(
        weights in prop::collection::vec(prop_oneof![Just(0), 1..10_u32, any::<u32>()], 0..400),
    ) {
        assert_shares(&(1..).zip(weights).collect::<Vec<_>>());
    }
}
