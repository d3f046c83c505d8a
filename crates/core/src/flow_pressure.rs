//! How full the tables are of flows and of clients' choices that somebody still needs. Entries of connections stay until another takes their place, so a table
//! that is full says nothing: only one that is full of open flows forgets some of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use weir_abi as abi;

/// Parts of a table's room, in per cent: above the first it is short of room, below the second no longer.
const SHORT: u64 = 90;
const ENOUGH: u64 = 80;
/// Between two complaints about the same table.
const REPEAT: Duration = Duration::from_secs(600);

/// IP protocol number of UDP.
const UDP: u8 = 17;

/// Ticks without a packet after which a flow is over, as the programs judge it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IdleLimits {
    /// Of datagrams.
    pub udp: u32,
    /// Of connections and associations.
    pub tcp: u32,
    /// Of those that one side has closed.
    pub half_closed: u32,
}

impl IdleLimits {
    /// Those in force.
    #[must_use]
    pub const fn of(config: &abi::Config) -> Self {
        Self { udp: config.udp_idle, tcp: config.tcp_idle, half_closed: config.tcp_half_closed }
    }

    /// Whether a flow of an IP protocol is open at a tick: nobody has ended it, and its client was not silent for too long. What the host itself
    /// has asked is none: nobody tells when that is over.
    #[must_use]
    pub const fn is_open(&self, protocol: u8, flow: &abi::Flow, tick: u32) -> bool {
        let limit = if protocol == UDP {
            self.udp
        } else if flow.is_opening() {
            abi::OPENING_IDLE
        } else if flow.flags & abi::FLOW_CLOSING != 0 {
            self.half_closed
        } else {
            self.tcp
        };
        flow.flags & (abi::FLOW_ENDED | abi::FLOW_OWN) == 0 && is_recent(flow.last_seen, limit, tick)
    }
}

impl IdleLimits {
    /// Whether an open flow keeps its place from others at a tick: a flood leaves many that begin, of datagrams too, and of those only the latest
    /// are not the first to go.
    #[must_use]
    pub const fn keeps_its_place(&self, protocol: u8, flow: &abi::Flow, tick: u32) -> bool {
        let is_left = flow.is_opening() && !is_recent(flow.last_seen, abi::OPENING_IDLE, tick);
        self.is_open(protocol, flow, tick) && !is_left
    }

    /// Whether a flow that keeps its place is more than a first packet, which may be forged: its client went on after the answer, or it is of datagrams.
    #[must_use]
    pub const fn goes_on(&self, protocol: u8, flow: &abi::Flow, tick: u32) -> bool {
        self.keeps_its_place(protocol, flow, tick) && (protocol == UDP || flow.flags & abi::FLOW_GONE_ON != 0)
    }
}

/// Whether something was seen within so many ticks. Ticks wrap. What was seen after the clock was read is not old.
#[must_use]
pub const fn is_recent(last_seen: u32, limit: u32, tick: u32) -> bool {
    tick.wrapping_sub(last_seen).cast_signed() <= limit.cast_signed()
}

/// Whether a client still keeps its backend at a tick, of a service with an affinity of so many ticks: the backend is the one that it was and
/// takes new flows, and the client's latest one is not too long ago.
#[must_use]
pub const fn is_kept(affinity: &abi::Affinity, backend: &abi::Backend, limit: u32, tick: u32) -> bool {
    let takes_flows = backend.flags & abi::BACKEND_USED != 0 && backend.flags & abi::BACKEND_CLASSES != 0;
    let is_there = takes_flows && backend.generation == affinity.generation;
    is_there && limit != 0 && is_recent(affinity.last_seen, limit, tick)
}

/// Whether a CPU was flooded of late, as the programs judge it at a tick.
#[must_use]
pub const fn was_flooded(pace: &abi::Pace, tick: u32) -> bool {
    pace.flooded != 0 && is_recent(pace.flooded, abi::OPENING_IDLE, tick)
}

/// Entries of a table of flows, or of what clients keep.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TableUse {
    /// Of flows that are open, of clients that keep something.
    pub open: u32,
    /// Of those whose time is over.
    pub over: u32,
    /// How many there may be.
    pub capacity: u32,
}

impl TableUse {
    /// Counts a flow.
    pub const fn count(&mut self, open: bool) {
        if open {
            self.open += 1;
        } else {
            self.over += 1;
        }
    }

    /// Open ones in per cent of the room.
    #[must_use]
    pub fn per_cent(self) -> u64 {
        u64::from(self.open) * 100 / u64::from(self.capacity.max(1))
    }

    /// Whether there is soon no room for another open flow.
    #[must_use]
    pub fn is_short(self) -> bool {
        self.per_cent() >= SHORT
    }
}

/// Says when somebody should hear of a table that is short of room: when it becomes so, and every ten minutes while it is.
#[derive(Debug, Default)]
pub struct Alarm {
    told: BTreeMap<&'static str, Instant>,
}

impl Alarm {
    /// Whether a table is to be told of now.
    pub fn is_due(&mut self, table: &'static str, used: TableUse, now: Instant) -> bool {
        if used.per_cent() < ENOUGH {
            self.told.remove(table);
        }
        let is_old = |told: &Instant| now.duration_since(*told) >= REPEAT;
        let due = used.is_short() && self.told.get(table).is_none_or(is_old);
        if due {
            self.told.insert(table, now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: IdleLimits = IdleLimits { udp: 100, tcp: 8000, half_closed: 3000 };
    const TCP: u8 = 6;

    fn flow(flags: u16, last_seen: u32) -> abi::Flow {
        abi::Flow {
            backend: 1,
            generation: 1,
            service: 1,
            flags,
            snat_port: abi::Be16::new(0),
            created: 0,
            last_seen,
            bytes: 0,
            held: 0,
        }
    }

    #[test]
    fn a_flow_is_open_until_it_has_ended_or_was_silent_for_as_long_as_the_programs_wait() {
        for (protocol, flags, limit) in [
            (UDP, 0, 100),
            (UDP, abi::FLOW_OPENING, 100),
            (TCP, 0, 8000),
            (TCP, abi::FLOW_CLOSING, 3000),
            (TCP, abi::FLOW_OPENING, abi::OPENING_IDLE),
            (TCP, abi::FLOW_OPENING | abi::FLOW_SETTLED, 8000),
        ] {
            // Ticks wrap.
            for seen in [5, u32::MAX - 5] {
                let is_open = |age: u32| LIMITS.is_open(protocol, &flow(flags, seen), seen.wrapping_add(age));
                assert!(is_open(0) && is_open(limit) && !is_open(limit + 1), "{protocol} {flags} {seen}");
            }
        }
        assert!(!LIMITS.is_open(TCP, &flow(abi::FLOW_ENDED | abi::FLOW_CLOSING, 5), 5));
        assert!(LIMITS.is_open(TCP, &flow(0, 6), 5), "seen after the clock was read");
    }

    #[test]
    fn a_client_keeps_its_endpoint_for_as_long_as_the_service_says_after_its_last_new_flow() {
        let affinity = abi::Affinity { backend: 1, generation: 7, last_seen: u32::MAX - 5 };
        let backend = |flags, generation| abi::Backend {
            addr: std::net::IpAddr::from([10, 244, 1, 11]).into(),
            port: abi::Be16::new(80),
            proto: TCP,
            flags,
            generation,
            service: 1,
            node: 0,
        };
        let kept = |backend, limit, age| is_kept(&affinity, &backend, limit, affinity.last_seen.wrapping_add(age));
        let flags = abi::BACKEND_USED | abi::BACKEND_CLASS << abi::CLASS_EXTERNAL;
        let same = backend(flags, 7);
        assert!(kept(same, 10, 0) && kept(same, 10, 10) && !kept(same, 10, 11));
        assert!(!kept(same, 0, 0), "a service that has no affinity any more");
        assert!(!kept(backend(flags, 8), 10, 0), "another endpoint has the slot");
        assert!(!kept(backend(abi::BACKEND_USED, 7), 10, 0), "the endpoint takes no new flows");
        assert!(!kept(backend(flags & !abi::BACKEND_USED, 7), 10, 0), "the endpoint is gone");
    }

    #[test]
    fn a_cpu_was_flooded_of_late_for_as_long_as_the_programs_remember_it() {
        let was = |flooded, tick| {
            let pace = abi::Pace { tick: 0, flows: 0, told: 0, moved: 0, flooded, too_big: 0, lost: 0, adopted: 0 };
            was_flooded(&pace, tick)
        };
        assert!(was(7, 7) && was(7, 7 + abi::OPENING_IDLE) && !was(7, 8 + abi::OPENING_IDLE));
        assert!(was(7, 6), "since the clock was read");
        assert!(!was(0, 0) && !was(0, 1), "never");
    }

    fn full(open: u32) -> TableUse {
        TableUse { open, over: 100 - open, capacity: 100 }
    }

    #[test]
    fn a_table_full_of_flows_that_are_over_is_not_short_of_room() {
        let mut used = TableUse { capacity: 4, ..TableUse::default() };
        [true, false, false, false].into_iter().for_each(|open| used.count(open));
        assert_eq!((used, used.per_cent()), (TableUse { open: 1, over: 3, capacity: 4 }, 25));
        assert!(!Alarm::default().is_due("flows4", used, Instant::now()));
    }

    #[test]
    fn a_table_is_told_of_when_it_becomes_short_of_room_and_again_after_a_while() {
        let mut alarm = Alarm::default();
        let start = Instant::now();
        let mut due = |open, seconds| alarm.is_due("flows4", full(open), start + Duration::from_secs(seconds));
        assert!(!due(89, 0) && due(90, 1) && !due(95, 2) && !due(85, 3) && !due(99, 600));
        assert!(due(99, 601), "ten minutes are over");
        assert!(!due(79, 602) && due(90, 603), "there was room in between");
    }

    #[test]
    fn tables_are_told_of_one_by_one() {
        let (mut alarm, now) = (Alarm::default(), Instant::now());
        assert!(["flows4", "flows6"].into_iter().all(|table| alarm.is_due(table, full(100), now)));
    }
}
