//! The exact share of new flows that the kernel's selection gives to each backend: what `select.h` does with one hash,
//! summed over all hashes. Of services that compare open flows it is the part that is drawn first.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use weir_abi as abi;

/// Size of the range that one step of the selection draws from: 2^16 for the tier, 2^32 within it.
const TIER_RANGE: u64 = 1 << 16;
const WHOLE: u64 = TIER_RANGE << 32;

/// A part of all new flows, in 2^48ths: exact.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Share(u64);

impl Share {
    /// No flows.
    pub(crate) const NOTHING: Self = Self(0);
    /// All flows.
    pub(crate) const ALL: Self = Self(WHOLE);

    /// A part of the whole, 0 to 1. 48 bits fit a double exactly.
    pub(crate) fn fraction(self) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "48 bits fit a double's 52")]
        let (part, whole) = (self.0 as f64, WHOLE as f64);
        part / whole
    }

    /// Per cent with one decimal, which tells little from nothing.
    pub(crate) fn percent(self) -> String {
        let percent = self.fraction() * 100.0;
        match self {
            Self::NOTHING => "0".to_owned(),
            Self::ALL => "100".to_owned(),
            _ if percent < 0.1 => "<0.1".to_owned(),
            _ if percent > 99.9 => ">99.9".to_owned(),
            _ => format!("{percent:.1}"),
        }
    }
}

impl Serialize for Share {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.fraction())
    }
}

/// Where the new flows of one traffic class go.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Spread {
    /// By slot in `backends`.
    pub(crate) backends: BTreeMap<u32, Share>,
    /// To a reference that leads nowhere: a bug, or a map of another writer.
    pub(crate) lost: Share,
}

/// Share of a traffic class that leaves the node. `None` if the class has nothing to select from.
pub(crate) fn spill(tiers: &abi::Tiers) -> Option<Share> {
    let range = match (tiers.local, tiers.remote) {
        (0, 0) => return None,
        (0, _) => TIER_RANGE,
        (_, 0) => 0,
        _ => u64::from(tiers.spill).min(TIER_RANGE),
    };
    Some(Share(range << 32))
}

/// Computes where the new flows of a traffic class go.
pub(crate) fn spread<'a>(tiers: &abi::Tiers, line: &impl Fn(u32) -> Option<&'a abi::Line>) -> Spread {
    let mut spread = Spread::default();
    let Some(Share(remote)) = spill(tiers) else { return spread };
    let remote = remote >> 32;
    for (root, weight) in [(tiers.local, TIER_RANGE - remote), (tiers.remote, remote)] {
        if weight > 0 {
            walk(root, (0, u32::MAX), abi::LINE_DEPTH, line, &mut |reference, numbers| {
                let share = match reference {
                    Some(id) => spread.backends.entry(id).or_default(),
                    None => &mut spread.lost,
                };
                share.0 += weight * numbers;
            });
        }
    }
    spread
}

/// Calls `visit` with every backend, or `None` where a reference leads nowhere, and how many of the 32-bit numbers from
/// `low` to `high` lead to it.
fn walk<'a>(
    reference: u32,
    (low, high): (u32, u32),
    levels: usize,
    line: &impl Fn(u32) -> Option<&'a abi::Line>,
    visit: &mut impl FnMut(Option<u32>, u64),
) {
    let numbers = u64::from(high) - u64::from(low) + 1;
    if reference & abi::REF_LINE == 0 {
        visit((reference != 0).then_some(reference), numbers);
        return;
    }
    let Some(line_here) = line(reference & !abi::REF_LINE).filter(|_| levels > 0) else {
        visit(None, numbers);
        return;
    };
    let mut from = u64::from(low);
    for (index, next) in line_here.r#ref.iter().enumerate() {
        // The last bound is never compared: everything above the one before it is the last entry's.
        let bound = if index + 1 == abi::LINE_ENTRIES { u32::MAX } else { line_here.cumulative[index] };
        let to = bound.min(high);
        if let Ok(start) = u32::try_from(from)
            && start <= to
        {
            walk(*next, (start, to), levels - 1, line, visit);
            from = u64::from(to) + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_core::lines::build;
    use weir_core::select::{Pick, pick};

    use super::*;

    fn tree(entries: &[(u32, u32)], first: u32) -> (u32, Vec<(u32, abi::Line)>) {
        let mut next = first;
        let tree = build(entries, &mut || {
            next += 1;
            Some(next - 1)
        });
        let tree = tree.unwrap();
        (tree.root, tree.lines)
    }

    const fn tiers(spill: u32, local: u32, remote: u32) -> abi::Tiers {
        abi::Tiers { spill, local, remote, pad: 0 }
    }

    fn spread_of(tiers: &abi::Tiers, lines: &[(u32, abi::Line)]) -> Spread {
        spread(tiers, &|id| lines.iter().find(|(slot, _)| *slot == id).map(|(_, line)| line))
    }

    #[test]
    fn a_lone_backend_gets_everything() {
        let spread = spread_of(&tiers(0, 7, 0), &[]);
        assert_eq!(spread.backends, BTreeMap::from([(7, Share::ALL)]));
    }

    #[test]
    fn spill_divides_between_the_tiers_and_an_empty_tier_passes_everything_on() {
        let spread = spread_of(&tiers(16_384, 1, 2), &[]);
        assert_eq!(spread.backends[&1].fraction(), 0.75);
        assert_eq!(spread.backends[&2].fraction(), 0.25);
        assert_eq!(spread_of(&tiers(0, 0, 2), &[]).backends, BTreeMap::from([(2, Share::ALL)]));
        assert_eq!(spread_of(&tiers(65_535, 1, 0), &[]).backends, BTreeMap::from([(1, Share::ALL)]));
        assert_eq!((spill(&tiers(0, 0, 2)), spill(&tiers(9, 0, 0))), (Some(Share::ALL), None));
    }

    #[test]
    fn weights_come_out_of_deep_trees_as_they_went_in() {
        let entries: Vec<(u32, u32)> = (1..=300).map(|id| (id, id)).collect();
        let total: u32 = entries.iter().map(|(_, weight)| weight).sum();
        let (root, lines) = tree(&entries, 0);
        let spread = spread_of(&tiers(0, root, 0), &lines);
        assert_eq!(spread.backends.values().map(|share| share.0).sum::<u64>(), WHOLE);
        assert_eq!(spread.lost, Share::NOTHING);
        for (id, weight) in entries {
            let expected = f64::from(weight) / f64::from(total);
            assert!((spread.backends[&id].fraction() - expected).abs() < 1e-9, "backend {id}");
        }
    }

    #[test]
    fn shares_agree_with_the_reference_model_of_the_selection_at_every_bound() {
        let (local, mut lines) = tree(&[(1, 3), (2, 5), (3, 1)], 0);
        let (remote, more) = tree(&(10..60).map(|id| (id, 1 + id % 7)).collect::<Vec<_>>(), 100);
        lines.extend(more);
        let tiers = tiers(20_000, local, remote);
        let service = abi::Service { tiers: [tiers; abi::CLASS_COUNT], endpoints: 53, flags: 1, affinity: 0, pad: 0 };
        let get = |id| lines.iter().find(|(slot, _)| *slot == id).map(|(_, line)| *line);
        let mut counted: BTreeMap<u32, u64> = BTreeMap::new();
        // Numbers between two neighbouring bounds all lead to one backend.
        let mut bounds: Vec<u32> = lines.iter().flat_map(|(_, line)| line.cumulative).collect();
        bounds.sort_unstable();
        bounds.dedup();
        for (low16, weight) in [(0, 20_000), (20_000, 45_536)] {
            let mut from = 0;
            for bound in &bounds {
                let picked = pick(&service, 0, u64::from(*bound) << 32 | low16, get, |_| 0);
                let Pick::Backend { id, .. } = picked else { panic!("{picked:?}") };
                *counted.entry(id).or_default() += weight * (u64::from(*bound) + 1 - from);
                from = u64::from(*bound) + 1;
            }
        }
        let expected: BTreeMap<_, _> = counted.into_iter().map(|(id, share)| (id, Share(share))).collect();
        assert_eq!(spread_of(&tiers, &lines).backends, expected);
    }

    #[test]
    fn what_leads_nowhere_is_told() {
        let (root, lines) = tree(&[(1, 1), (abi::REF_LINE | 77, 1)], 0);
        let spread = spread_of(&tiers(0, root, 0), &lines);
        assert_eq!((spread.backends[&1].fraction(), spread.lost.fraction()), (0.5, 0.5));
    }

    #[test]
    fn little_is_told_from_nothing_and_almost_all_from_all() {
        let texts = [0, 1, WHOLE / 3, WHOLE - 1, WHOLE].map(|part| Share(part).percent());
        assert_eq!(texts, ["0", "<0.1", "33.3", ">99.9", "100"]);
    }
}
