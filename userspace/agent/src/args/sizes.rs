//! How large the maps are.

use clap::Args;
use weir_core::ops::Capacity;
use weir_core::table_sizes::TableSizes;

const SIZES: Capacity = Capacity::DEFAULT;

/// Map sizes, in entries. A change takes effect at the next start; connections survive it.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Sizes")]
pub(crate) struct SizeOptions {
    /// Service ports, each family counted
    #[arg(long, value_name = "N", default_value_t = SIZES.services, value_parser = size())]
    max_services: u32,
    /// Endpoints of service ports
    #[arg(long, value_name = "N", default_value_t = SIZES.backends, value_parser = size())]
    max_backends: u32,
    /// Lines of 16 weighted endpoints
    #[arg(long, value_name = "N", default_value_t = SIZES.lines, value_parser = size())]
    max_lines: u32,
    /// Addresses and ports that clients connect to, in each family
    #[arg(long, value_name = "N", default_value_t = SIZES.frontends, value_parser = size())]
    max_frontends: u32,
    /// Nodes of the cluster
    #[arg(long, value_name = "N", default_value_t = SIZES.nodes, value_parser = size())]
    max_nodes: u32,
    /// Flows in each family; beyond it the least recently used are forgotten. A kilobyte of kernel memory each, with the tables
    /// below [default: by the machine's memory, 16384 for 1 GiB, 131072 for 8 GiB, 524288 from 32 GiB on]
    #[arg(long, value_name = "N", value_parser = size())]
    max_flows: Option<u32>,
    /// Flows in each family that begin, short connections, and what has ended: a flood of SYNs fills these alone
    /// [default: half of --max-flows, at most 65536 for 8 CPUs and fewer]
    #[arg(long, value_name = "N", value_parser = size())]
    max_openings: Option<u32>,
    /// Entries for sockets of processes on the host that send datagrams, two for each socket and Service [default: half
    /// of --max-flows]
    #[arg(long, value_name = "N", value_parser = size())]
    max_sockets: Option<u32>,
    /// Clients that session affinity remembers; beyond it the least recently used are forgotten [default: half of
    /// --max-flows]
    #[arg(long, value_name = "N", value_parser = size())]
    max_affinities: Option<u32>,
    /// Ranges of spec.loadBalancerSourceRanges, counted for each service port
    #[arg(long, value_name = "N", default_value_t = SIZES.source_ranges, value_parser = size())]
    max_source_ranges: u32,
    /// Pieces of datagrams that wait for the first one, which has the ports: 1.6 kB each, 64 of them for the pieces of one
    /// source. Below 64 none waits: what comes before the first one is lost
    #[arg(long, value_name = "N", default_value_t = SIZES.held_pieces, value_parser = clap::value_parser!(u32).range(..=1 << 20))]
    max_held_pieces: u32,
}

/// From one to what the kernel can number with a bit to spare.
fn size() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(16..=1 << 26)
}

impl SizeOptions {
    /// All sizes, on a machine with so many bytes of memory and CPUs.
    pub(crate) fn capacity(self, memory: u64, cpus: u32) -> Capacity {
        let Self {
            max_services: services,
            max_backends: backends,
            max_lines: lines,
            max_frontends: frontends,
            max_nodes: nodes,
            max_flows: flows,
            max_openings: openings,
            max_sockets: sockets,
            max_affinities: affinities,
            max_source_ranges: source_ranges,
            max_held_pieces: held_pieces,
        } = self;
        let default = match flows {
            Some(flows) => TableSizes::beside(flows, cpus),
            None => TableSizes::of_machine(memory, cpus),
        };
        Capacity {
            services,
            backends,
            lines,
            frontends,
            nodes,
            flows: default.flows,
            openings: openings.unwrap_or(default.openings),
            sockets: sockets.unwrap_or(default.sockets),
            affinities: affinities.unwrap_or(default.affinities),
            source_ranges,
            held_pieces,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Options;

    #[test]
    fn tables_follow_the_machines_memory_and_what_was_said_of_flows() {
        let sizes = |options: &[&str]| {
            let words = [&["weir-agent"], options].concat();
            let Capacity { flows, openings, sockets, affinities, .. } =
                Options::try_parse_from(words).unwrap().sizes.capacity(1 << 30, 2);
            [flows, openings, sockets, affinities]
        };
        assert_eq!(sizes(&[]), [16_384, 8192, 8192, 8192]);
        assert_eq!(sizes(&["--max-flows=1000", "--max-sockets=16"]), [1000, 500, 16, 500]);
        assert_eq!(sizes(&["--max-openings=20", "--max-affinities=30"]), [16_384, 20, 8192, 30]);
    }
}
