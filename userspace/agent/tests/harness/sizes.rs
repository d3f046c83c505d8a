//! Sizes of an agent's maps in tests.

use weir_core::ops::Capacity;
use weir_core::table_sizes::TableSizes;

/// Few entries: tests have few of anything, and the maps of many nodes are in memory at a time.
fn capacity() -> Capacity {
    with_flows(16_384)
}

fn with_flows(flows: u32) -> Capacity {
    let TableSizes { flows, openings, sockets: _, affinities } = TableSizes::beside(flows, 1);
    Capacity {
        services: 4096,
        backends: 16_384,
        lines: 8192,
        frontends: 16_384,
        flows,
        openings,
        sockets: 4096,
        affinities,
        ..Capacity::DEFAULT
    }
}

/// Those of an agent with these options beside [`options`]. None where they say more of its maps than how many flows it has.
pub(super) fn of(options: &[&str]) -> Option<Capacity> {
    let mut sizes = options.iter().filter(|option| option.starts_with("--max-"));
    match (sizes.next(), sizes.next()) {
        (None, _) => Some(capacity()),
        (Some(one), None) => Some(with_flows(one.strip_prefix("--max-flows=")?.parse().ok()?)),
        (Some(_), Some(_)) => None,
    }
}

/// Those of the sizes that do not follow from others, as options of an agent.
pub(super) fn options() -> [String; 6] {
    let Capacity { services, backends, lines, frontends, flows, sockets, .. } = capacity();
    [
        format!("--max-services={services}"),
        format!("--max-backends={backends}"),
        format!("--max-lines={lines}"),
        format!("--max-frontends={frontends}"),
        format!("--max-flows={flows}"),
        format!("--max-sockets={sockets}"),
    ]
}
