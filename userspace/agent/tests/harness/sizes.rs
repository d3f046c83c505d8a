//! Sizes of an agent's maps in tests.

use weir_core::ops::Capacity;
use weir_core::table_sizes::TableSizes;

/// Few entries: tests have few of anything, and the maps of many nodes are in memory at a time.
pub(super) fn capacity() -> Capacity {
    let TableSizes { flows, openings, sockets: _, affinities } = TableSizes::beside(16_384);
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
