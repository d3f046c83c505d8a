//! Open flows per backend, counted in the flow tables. All of both tables is read for that, so it is for every few
//! seconds. In between, the datapath's balance of connections says what has changed.

use std::collections::HashMap;
use std::error::Error;
use std::time::Instant;

use weir_abi as abi;

use crate::source::{Failure, Source};

/// The datapath's flow tables.
pub trait FlowTable {
    /// Why the tables cannot be read.
    type Error: Error + Send + Sync + 'static;

    /// What tick it is, on the clock of [`abi::Flow::last_seen`].
    fn tick(&self) -> u32;

    /// Calls `visit` with every flow.
    ///
    /// # Errors
    /// When a table cannot be read.
    fn visit(&self, visit: &mut dyn FnMut(&abi::Flow)) -> Result<(), Self::Error>;

    /// Calls `visit` with the slot, the generation and the [`abi::BackendCounters::balance`] of every endpoint.
    ///
    /// # Errors
    /// When a table cannot be read.
    fn balances(&self, visit: &mut dyn FnMut(u32, u32, u32)) -> Result<(), Self::Error>;
}

/// Open flows of an endpoint when they were counted. Of one that was not there yet, the default.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Open {
    /// How many.
    pub flows: u32,
    /// [`abi::BackendCounters::balance`] then.
    pub balance: u32,
}

impl Open {
    /// Open flows when the balance is this one. Those of UDP stay as they were counted: nobody says when they end.
    #[must_use]
    pub fn at(self, balance: u32) -> u32 {
        self.flows.saturating_add_signed(balance.wrapping_sub(self.balance).cast_signed())
    }

    /// The balance without an open flow: [`abi::BackendCounters::base`].
    #[must_use]
    pub const fn base(self) -> u32 {
        self.balance.wrapping_sub(self.flows)
    }
}

/// By backend slot and generation: flows of an endpoint that is gone have another generation than the slot.
pub type OpenByBackend = HashMap<(u32, u32), Open>;

/// Open flows of all backends.
#[derive(Debug)]
pub struct OpenFlows<T> {
    table: T,
    idle: u32,
}

impl<T> OpenFlows<T> {
    /// A flow is open until it has ended, or until it was idle for so many ticks: entries stay for long after.
    pub const fn new(table: T, idle: u32) -> Self {
        Self { table, idle }
    }
}

impl<T: FlowTable> Source for OpenFlows<T> {
    type Value = OpenByBackend;

    fn name(&self) -> &'static str {
        "open-flows"
    }

    fn read(&mut self, _now: Instant) -> Result<Option<OpenByBackend>, Failure> {
        let (tick, idle) = (self.table.tick(), self.idle);
        let mut open = OpenByBackend::new();
        // What begins or ends while the table is read may count twice, until it is read again.
        let balances = self.table.balances(&mut |slot, generation, balance| {
            open.insert((slot, generation), Open { flows: 0, balance });
        });
        let visited = self.table.visit(&mut |flow| {
            // A flood leaves many that begin.
            let idle = if flow.is_opening() { idle.min(abi::OPENING_IDLE) } else { idle };
            if flow.flags & abi::FLOW_ENDED == 0 && age(flow.last_seen, tick) <= idle {
                open.entry((flow.backend, flow.generation)).or_default().flows += 1;
            }
        });
        let object = || "table of flows".to_owned();
        balances.and(visited).map_err(|cause| Failure::Missing { object: object(), cause: cause.into() })?;
        Ok(Some(open))
    }
}

/// Ticks wrap. A flow seen after the clock was read is not old.
fn age(seen: u32, tick: u32) -> u32 {
    let age = tick.wrapping_sub(seen);
    if age > u32::MAX / 2 { 0 } else { age }
}
