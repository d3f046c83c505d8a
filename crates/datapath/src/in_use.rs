//! How small tables may become: a Service, an endpoint or a line keeps its slot for as long as it lives, so that a table ends behind
//! the last one that is in use; and what has no room in a smaller table of names or addresses would be lost.

use std::collections::HashSet;

use tracing::warn;
use weir_abi as abi;
use weir_core::ops::Capacity;

use crate::map::Pod;
use crate::pins::{PinDir, READ_ONLY};

/// The sizes that are wanted, or larger ones where what is pinned needs these.
pub(crate) fn at_least(pins: &PinDir, wanted: &Capacity) -> Capacity {
    let is_backend = |backend: &abi::Backend| backend.flags & abi::BACKEND_USED != 0;
    let frontends =
        entries::<abi::FrontendKey4, abi::Frontend>(pins, "frontends4", "--max-frontends", wanted.frontends);
    Capacity {
        services: end(pins, "services", "--max-services", wanted.services, is_service),
        backends: end(pins, "backends", "--max-backends", wanted.backends, is_backend),
        lines: lines_end(pins, wanted.lines),
        frontends: entries::<abi::FrontendKey6, abi::Frontend>(pins, "frontends6", "--max-frontends", frontends),
        source_ranges: entries::<abi::SourceRangeKey, abi::SourceRange>(
            pins,
            "source_ranges",
            "--max-source-ranges",
            wanted.source_ranges,
        ),
        nodes: entries::<u32, abi::NodeName>(pins, "node_names", "--max-nodes", wanted.nodes),
        ..*wanted
    }
}

fn is_service(service: &abi::Service) -> bool {
    service.flags & abi::SERVICE_USED != 0
}

/// The size that is wanted, or the number of slots up to the last one that is used. A map of another layout is not adopted.
fn end<T: Pod>(pins: &PinDir, map: &'static str, option: &str, wanted: u32, is_used: impl Fn(&T) -> bool) -> u32 {
    let Ok(slots) = pins.mapped::<T>(map, READ_ONLY) else { return wanted };
    let last = (wanted..slots.len()).rev().find(|slot| slots.get(*slot).is_ok_and(|value| is_used(&value)));
    larger(map, option, wanted, last.map_or(0, |last| last + 1))
}

/// The same of lines: those in use are what Services lead to. What was given up says what it said before.
fn lines_end(pins: &PinDir, wanted: u32) -> u32 {
    let services = pins.mapped::<abi::Service>("services", READ_ONLY);
    let lines = pins.mapped::<abi::Line>("lines", READ_ONLY);
    let (Ok(services), Ok(lines)) = (services, lines) else { return wanted };
    if lines.len() <= wanted {
        return wanted;
    }
    let used = (0..services.len()).filter_map(|slot| services.get(slot).ok().filter(is_service));
    let mut open: Vec<u32> =
        used.flat_map(|service| service.tiers).flat_map(|tier| [tier.local, tier.remote]).collect();
    let mut seen = HashSet::new();
    while let Some(reference) = open.pop() {
        let slot = reference & !abi::REF_LINE;
        if reference & abi::REF_LINE != 0 && seen.insert(slot) {
            open.extend(lines.get(slot).iter().flat_map(|line| line.r#ref));
        }
    }
    larger("lines", "--max-lines", wanted, seen.into_iter().max().map_or(0, |last| last.saturating_add(1)))
}

/// The size that is wanted, or the number of entries that there are.
fn entries<K: Pod, V: Pod>(pins: &PinDir, map: &'static str, option: &str, wanted: u32) -> u32 {
    let mut count: u32 = 0;
    let counted =
        pins.table::<K, V>(map, READ_ONLY).and_then(|table| table.visit(|_, _| count = count.saturating_add(1)));
    if counted.is_ok() { larger(map, option, wanted, count) } else { wanted }
}

fn larger(map: &'static str, option: &str, wanted: u32, used: u32) -> u32 {
    if used > wanted {
        warn!(
            map,
            wanted,
            kept = used,
            "{option} is less than what is in use; the table becomes smaller when that is free"
        );
    }
    wanted.max(used)
}
