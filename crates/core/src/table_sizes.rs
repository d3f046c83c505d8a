//! How large the tables are that the programs fill: a part of the machine's memory, unless somebody says otherwise.

/// Memory of a machine for which it remembers one flow in each family more, in bytes: with all that goes with it less than 2 % of
/// the memory.
///
/// Machines have 2^n or 1.5 x 2^n bytes less a few per cent that the kernel keeps for itself. With this number the sizes change
/// at 1.66 x 2^n, clear of both, so that another kernel or a little memory more or less changes no size.
const MEMORY_FOR_A_FLOW: u64 = 53 << 10;
/// The least, for machines of up to 850 MiB: 8 MB.
const FEWEST_FLOWS: u32 = 8192;
/// The most, for machines of 27 GiB and more: 510 MB. Whoever needs more knows it.
const MOST_FLOWS: u32 = 1 << 19;

/// The most flows that begin, of up to [`FEW_CPUS`]: 65 ms of a million a second. More of them make each first packet dearer, as less of the
/// table is in the processor's caches.
const MOST_OPENINGS: u32 = 1 << 16;
/// Above so many CPUs a flood may be as much faster, and so are there more places, and caches are larger.
const FEW_CPUS: u32 = 8;

/// Katran's bound of new flows in a second on a CPU (`MAX_CONN_RATE` in katran/lib/bpf/balancer_consts.h), and far more than a node serves.
const FLOOD_RATE: u32 = 125_000;
/// Fewer are no flood, however many CPUs there are: some get what is meant for all, as network cards have fewer queues.
const LEAST_FLOOD_RATE: u32 = 16_384;
/// So many times in a second new flows of all CPUs together may take all places of those that begin: a handshake through half the world is done
/// before its place is another's.
const TURNS: u32 = 4;

/// What the kernel has before key and value of an entry of its LRU tables, and for each bucket, of which there are as many as
/// entries, rounded up to a power of two (`struct htab_elem` and `struct bucket` in kernel/bpf/hashtab.c). All of it is taken when
/// the table is made.
const ENTRY_BYTES: u64 = 48;
const BUCKET_BYTES: u64 = 16;

/// Sizes in entries.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TableSizes {
    /// `flows4`, `flows6`, `replies4` and `replies6`, each.
    pub flows: u32,
    /// `openings4`, `openings6`, `awaited4` and `awaited6`, each.
    pub openings: u32,
    /// `socket_peers`.
    pub sockets: u32,
    /// `affinities`.
    pub affinities: u32,
}

impl TableSizes {
    /// Of a machine with so many bytes of memory and CPUs: a power of two of flows, as the kernel has buckets.
    #[must_use]
    pub const fn of_machine(bytes: u64, cpus: u32) -> Self {
        let flows = bytes / MEMORY_FOR_A_FLOW;
        let flows = if flows >= MOST_FLOWS as u64 {
            MOST_FLOWS
        } else if flows <= FEWEST_FLOWS as u64 {
            FEWEST_FLOWS
        } else {
            1 << flows.ilog2()
        };
        Self::beside(flows, cpus)
    }

    /// With so many flows and CPUs, and half as many of the rest: few flows are beginning at a time, of which there is a most, and clients
    /// have several.
    #[must_use]
    pub const fn beside(flows: u32, cpus: u32) -> Self {
        let half = flows.div_ceil(2);
        let openings = match MOST_OPENINGS.saturating_mul(cpus.div_ceil(FEW_CPUS)).checked_next_power_of_two() {
            Some(most) if most < half => most,
            Some(_) | None => half,
        };
        Self { flows, openings, sockets: half, affinities: half }
    }

    /// Kernel memory that the tables take, in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        use weir_abi as abi;
        let Self { flows, openings, sockets, affinities } = self;
        let pair = |entries| {
            let of4 = table::<abi::FlowKey4, abi::Flow>(entries) + table::<abi::FlowKey4, abi::Reply>(entries);
            of4 + table::<abi::FlowKey6, abi::Flow6>(entries) + table::<abi::FlowKey6, abi::Reply>(entries)
        };
        let rest =
            table::<abi::SocketKey, abi::SocketPeer>(sockets) + table::<abi::AffinityKey, abi::Affinity>(affinities);
        pair(flows) + sets(openings) + rest
    }
}

/// New flows in a second on each of so many CPUs above which they are a flood, where so many flows may begin at a time: less where
/// CPUs are many or places few, but never so few that some CPUs' clients may make them.
#[must_use]
pub fn flood_rate(openings: u32, cpus: u32) -> u32 {
    (openings.saturating_mul(TURNS) / cpus.max(1)).clamp(LEAST_FLOOD_RATE, FLOOD_RATE)
}

/// Bytes of the tables of flows that begin, each an array of sets.
fn sets(entries: u32) -> u64 {
    use weir_abi as abi;
    let set = size_of::<abi::OpeningSet4>() + size_of::<abi::OpeningSet6>();
    let answers = size_of::<abi::AwaitedSet4>() + size_of::<abi::AwaitedSet6>();
    let memories = size_of::<abi::FirstSyns>() + size_of::<abi::SnatKept>() + size_of::<abi::Displaced>();
    let all = set + answers + memories;
    (entries as usize).div_ceil(abi::OPENING_WAYS) as u64 * all as u64
}

/// Bytes of an LRU table: the kernel pads keys and values to eight of them.
fn table<K, V>(entries: u32) -> u64 {
    let padded = |size: usize| size.next_multiple_of(8) as u64;
    let entry = ENTRY_BYTES + padded(size_of::<K>()) + padded(size_of::<V>());
    u64::from(entries) * entry + u64::from(entries).next_power_of_two() * BUCKET_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    /// What machines have, in quarters of a GiB.
    const USUAL: [u64; 12] = [4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];

    #[test]
    fn a_small_machine_gives_few_megabytes_and_a_large_one_has_room_for_half_a_million_flows() {
        let flows = |gib| TableSizes::of_machine(gib * GIB, 2).flows;
        assert_eq!(
            [1, 2, 4, 8, 16, 32, 64, 1024].map(flows),
            [16_384, 32_768, 65_536, 131_072, 262_144, 524_288, 524_288, 524_288]
        );
        assert_eq!(TableSizes::of_machine(GIB / 4, 2).flows, FEWEST_FLOWS);
        assert!(TableSizes::of_machine(GIB / 4, 2).bytes() < 8_400_000);
        assert!(TableSizes::of_machine(GIB, 2).bytes() < 17_000_000);
    }

    #[test]
    fn never_more_than_two_per_cent_of_a_usual_machine_is_taken() {
        for quarters in USUAL {
            let memory = quarters * GIB / 4;
            assert!(TableSizes::of_machine(memory, 1024).bytes() * 50 < memory, "{quarters} quarters of a GiB");
        }
    }

    #[test]
    fn what_the_kernel_keeps_for_itself_changes_no_size() {
        for quarters in USUAL {
            let memory = quarters * GIB / 4;
            let sizes = TableSizes::of_machine(memory, 2);
            for per_cent in 88..=105 {
                assert_eq!(
                    TableSizes::of_machine(memory / 100 * per_cent, 2),
                    sizes,
                    "{per_cent} % of {quarters} quarters"
                );
            }
        }
    }

    #[test]
    fn however_many_flows_there_are_few_begin_at_a_time_for_each_cpu() {
        assert_eq!(
            TableSizes::beside(1 << 19, 2),
            TableSizes { flows: 1 << 19, openings: 1 << 16, sockets: 1 << 18, affinities: 1 << 18 }
        );
        let openings = |cpus| TableSizes::beside(1 << 19, cpus).openings;
        assert_eq!([1, 8, 9, 16, 24, 64, u32::MAX].map(openings), [16, 16, 17, 17, 18, 18, 18].map(|bits| 1 << bits));
    }

    #[test]
    fn the_more_cpus_and_the_fewer_places_the_fewer_flows_are_a_flood_on_one_of_them() {
        let least = LEAST_FLOOD_RATE;
        assert_eq!(
            [1, 2, 4, 8, 64].map(|cpus| flood_rate(1 << 16, cpus)),
            [FLOOD_RATE, FLOOD_RATE, 65_536, 32_768, least]
        );
        assert_eq!([1, 4].map(|cpus| flood_rate(1 << 13, cpus)), [32_768, least]);
        let of_large = |cpus| flood_rate(TableSizes::beside(1 << 19, cpus).openings, cpus);
        assert_eq!([8, 16, 32, 64].map(of_large), [32_768, 32_768, 32_768, least]);
    }

    #[test]
    fn what_was_said_of_flows_holds_for_the_rest() {
        let expected = TableSizes { flows: 1001, openings: 501, sockets: 501, affinities: 501 };
        assert_eq!(TableSizes::beside(1001, 2), expected);
    }
}
