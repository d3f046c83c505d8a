//! How many flows begin in a tick: whether there is a flood.

use weir_abi as abi;

use crate::Model;

impl Model {
    /// Whether there were more new flows in this tick than anybody's clients make.
    pub(crate) fn is_flood(&self) -> bool {
        let (tick, flows) = self.tables.pace;
        let bound = self.config.flood;
        bound != 0 && !self.has(abi::CONFIG_BESIDE) && tick == self.now.ticks && flows >= bound
    }

    /// Counts a new flow of this tick.
    pub(crate) fn count_pace(&mut self) {
        let (tick, flows) = self.tables.pace;
        let before = if tick == self.now.ticks { flows } else { 0 };
        self.tables.pace = (self.now.ticks, before.wrapping_add(1));
    }
}
