//! Weighted lines: how the endpoints of a tier and their weights become the tree that the kernel searches.

use weir_abi as abi;

/// The most entries with a weight that one tier can hold.
pub const MAX_ENTRIES: usize = abi::LINE_ENTRIES.pow(4);
const _: () = assert!(abi::LINE_DEPTH == 4, "MAX_ENTRIES is LINE_ENTRIES to the power of LINE_DEPTH");

/// A tier ready to be written.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Tree {
    /// Where selection starts: a backend, a line with `REF_LINE`, or 0 if there is nothing to select.
    pub root: u32,
    /// The lines by slot, each one after those that it refers to.
    pub lines: Vec<(u32, abi::Line)>,
}

/// An entry with the inclusive upper bound of its part of the 32-bit range.
#[derive(Clone, Copy)]
struct Bound {
    id: u32,
    upper: u32,
}

/// Builds the tree for (backend id, weight) entries. Each entry's part of the 32-bit range is its share of the weights
/// within one unit. `alloc` gives slots for lines. None if it runs out of them, or if more than [`MAX_ENTRIES`] entries
/// have a weight; slots taken until then are the caller's to give back.
pub fn build(entries: &[(u32, u32)], alloc: &mut impl FnMut() -> Option<u32>) -> Option<Tree> {
    let bounds = bounds(entries);
    if bounds.len() > MAX_ENTRIES {
        return None;
    }
    let mut lines = Vec::new();
    let root = match bounds.as_slice() {
        [] => 0,
        bounds => subtree(bounds, &mut lines, alloc)?,
    };
    Some(Tree { root, lines })
}

/// Calls `visit` with every line below a reference, each one after those that it refers to: the order in which `build`
/// asks for slots. False if a line is missing or lies deeper than the kernel looks.
pub(crate) fn walk<'a>(
    reference: u32,
    get: &impl Fn(u32) -> Option<&'a abi::Line>,
    visit: &mut impl FnMut(u32, &abi::Line),
) -> bool {
    walk_levels(reference, abi::LINE_DEPTH, get, visit)
}

fn walk_levels<'a>(
    reference: u32,
    levels: usize,
    get: &impl Fn(u32) -> Option<&'a abi::Line>,
    visit: &mut impl FnMut(u32, &abi::Line),
) -> bool {
    if reference & abi::REF_LINE == 0 {
        return true;
    }
    let id = reference & !abi::REF_LINE;
    let Some(line) = get(id).filter(|_| levels > 0) else { return false };
    let complete = line.r#ref.iter().all(|next| walk_levels(*next, levels - 1, get, visit));
    visit(id, line);
    complete
}

/// Absolute upper bounds. Entries whose part is smaller than a unit may end up with none; they are left out, so
/// bounds rise strictly and only the last one is 2^32-1.
fn bounds(entries: &[(u32, u32)]) -> Vec<Bound> {
    let total: u128 = entries.iter().map(|(_, weight)| u128::from(*weight)).sum();
    let mut sum: u128 = 0;
    let mut below: u64 = 0;
    let mut bounds = Vec::with_capacity(entries.len());
    for (id, weight) in entries.iter().filter(|(_, weight)| *weight > 0) {
        sum += u128::from(*weight);
        // r is below the exact bound exactly when it is below the bound rounded up.
        let end = end_of(sum, total);
        if end > below {
            let upper = u32::try_from(end - 1).unwrap_or(u32::MAX);
            bounds.push(Bound { id: *id, upper });
            below = end;
        }
    }
    bounds
}

/// 2^32 * sum / total, rounded up. Small numbers, the usual ones, avoid the slow wide division.
fn end_of(sum: u128, total: u128) -> u64 {
    match (u32::try_from(sum), u32::try_from(total)) {
        (Ok(sum), Ok(total)) => (u64::from(sum) << 32).div_ceil(u64::from(total)),
        _ => u64::try_from((sum << 32).div_ceil(total)).unwrap_or(1 << 32),
    }
}

/// At least one bound, at most [`MAX_ENTRIES`]. The parts of a level differ by one entry at most.
fn subtree(
    bounds: &[Bound],
    lines: &mut Vec<(u32, abi::Line)>,
    alloc: &mut impl FnMut() -> Option<u32>,
) -> Option<u32> {
    if let [only] = bounds {
        return Some(only.id);
    }
    let mut below = 1;
    while below * abi::LINE_ENTRIES < bounds.len() {
        below *= abi::LINE_ENTRIES;
    }
    let parts = bounds.len().div_ceil(below);
    let mut line = abi::Line { cumulative: [u32::MAX; abi::LINE_ENTRIES], r#ref: [0; abi::LINE_ENTRIES] };
    for part in 0..parts {
        let range = part * bounds.len() / parts..(part + 1) * bounds.len() / parts;
        if part + 1 < parts {
            line.cumulative[part] = bounds[range.end - 1].upper;
        }
        line.r#ref[part] = subtree(&bounds[range], lines, alloc)?;
    }
    let id = alloc()?;
    lines.push((id, line));
    Some(id | abi::REF_LINE)
}

/// What a reference leads to: each backend with its part of the 32-bit range, in the tree's order. None if a line is
/// missing or lies deeper than the kernel looks. Building these parts again makes the same tree.
pub(crate) fn parts<'a>(reference: u32, get: &impl Fn(u32) -> Option<&'a abi::Line>) -> Option<Vec<(u32, u32)>> {
    let mut bounds = Vec::new();
    if reference != 0 {
        collect(Bound { id: reference, upper: u32::MAX }, abi::LINE_DEPTH, get, &mut bounds)?;
    }
    let mut below = 0_u64;
    let part = |bound: &Bound| {
        let end = u64::from(bound.upper) + 1;
        let part = end.saturating_sub(below);
        below = end;
        // A backend alone has 2^32, and no weight to share with anybody.
        (bound.id, u32::try_from(part).unwrap_or(u32::MAX))
    };
    Some(bounds.iter().map(part).collect())
}

fn collect<'a>(
    bound: Bound,
    levels: usize,
    get: &impl Fn(u32) -> Option<&'a abi::Line>,
    bounds: &mut Vec<Bound>,
) -> Option<()> {
    if bound.id & abi::REF_LINE == 0 {
        bounds.push(bound);
        return Some(());
    }
    let line = get(bound.id & !abi::REF_LINE).filter(|_| levels > 0)?;
    for (id, upper) in line.r#ref.iter().zip(&line.cumulative) {
        // The last one of a line goes up to where the line itself ends.
        let last = *upper == u32::MAX;
        collect(Bound { id: *id, upper: if last { bound.upper } else { *upper } }, levels - 1, get, bounds)?;
        if last {
            return Some(());
        }
    }
    Some(())
}
