//! How many flows begin in a tick, whether there is a flood, and how many errors are told.

use weir_abi as abi;

use crate::Model;

/// What was done in a tick.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    pub(crate) tick: u32,
    /// New flows.
    pub(crate) flows: u32,
    /// ICMP errors, but for those that say how big packets may be.
    pub(crate) told: u32,
    /// Those.
    pub(crate) too_big: u32,
    /// Flows of others than TCP that have moved to those that go on, less as many as may in each tick since.
    pub(crate) moved: u32,
    /// The last tick of a flood.
    pub(crate) flooded: Option<u32>,
}

/// So many of these may at once in any case.
const MOVED_LEAST: u32 = 8;

impl Model {
    /// Whether there were more new flows in this tick than anybody's clients make.
    pub(crate) fn is_flood(&self) -> bool {
        let Pace { tick, flows, .. } = self.tables.pace;
        let bound = self.config.flood;
        bound != 0 && !self.has(abi::CONFIG_BESIDE) && tick == self.now.ticks && flows >= bound
    }

    /// Counts a new flow of this tick.
    pub(crate) fn count_pace(&mut self) {
        let pace = self.pace_now();
        pace.flows = pace.flows.wrapping_add(1);
        if self.is_flood() {
            self.tables.pace.flooded = Some(self.now.ticks);
        }
    }

    /// Whether there was one of late: of a SYN that nobody has answered it is not known whose fault that is.
    pub(crate) fn was_flooded(&self) -> bool {
        self.tables.pace.flooded.is_some_and(|tick| !self.now.is_idle(tick, abi::OPENING_IDLE))
    }

    /// Whether one more ICMP error may be told, one that says how big packets may be or another. Counts it.
    pub(crate) fn may_tell(&mut self, too_big: bool) -> bool {
        let most = if too_big { abi::ERRORS_TOLD } else { self.errors_told };
        let pace = self.pace_now();
        let told = if too_big { &mut pace.too_big } else { &mut pace.told };
        let may = *told < most;
        *told += u32::from(may);
        may
    }

    /// Whether one more flow of datagrams, or an association, may move to those that go on, or one of the host's own begin there. Counts it.
    pub(crate) fn may_move_beside_tcp(&mut self, hosts: bool) -> bool {
        let most = self.moved_each_tick().max(MOVED_LEAST) << u32::from(hosts);
        let pace = self.pace_now();
        let may = pace.moved < most;
        pace.moved += u32::from(may);
        may
    }

    /// As many fill the room that they have until they are idle.
    fn moved_each_tick(&self) -> u32 {
        (self.room_beside_tcp / (self.config.udp_idle + abi::IDLE_TAKEN_OUT)).max(1)
    }

    /// The numbers of this tick.
    fn pace_now(&mut self) -> &mut Pace {
        let each_tick = u64::from(self.moved_each_tick());
        let (pace, tick) = (&mut self.tables.pace, self.now.ticks);
        if pace.tick != tick {
            let past = u64::from(tick.wrapping_sub(pace.tick)) * each_tick;
            let moved = u64::from(pace.moved).saturating_sub(past);
            let moved = u32::try_from(moved).unwrap_or(u32::MAX);
            *pace = Pace { tick, flooded: pace.flooded, moved, ..Pace::default() };
        }
        pace
    }
}
