//! Open flows per backend, counted in the flow tables. All of both tables is read for that, so it is for every few
//! seconds. In between, the datapath's balance of connections says what has changed.

use std::collections::HashMap;
use std::error::Error;
use std::time::Instant;

use weir_abi as abi;
use weir_core::flow_pressure::IdleLimits;
use weir_core::steering::OpenCounts;

use crate::source::{Failure, Source};

/// The datapath's flow tables.
pub trait FlowTable {
    /// Why the tables cannot be read.
    type Error: Error + Send + Sync + 'static;

    /// What tick it is, on the clock of [`abi::Flow::last_seen`].
    fn tick(&self) -> u32;

    /// How long the programs take silent flows for open ones.
    ///
    /// # Errors
    /// When it cannot be read.
    fn limits(&self) -> Result<IdleLimits, Self::Error>;

    /// Calls `visit` with the IP protocol number of every flow, and the flow.
    ///
    /// # Errors
    /// When a table cannot be read.
    fn visit(&self, visit: &mut dyn FnMut(u8, &abi::Flow)) -> Result<(), Self::Error>;

    /// Calls `visit` with the slot and the generation of every endpoint, and what has begun there and not ended.
    ///
    /// # Errors
    /// When a table cannot be read.
    fn balances(&self, visit: &mut dyn FnMut((u32, u32), Balance)) -> Result<(), Self::Error>;
}

/// Connections of an endpoint that began, less those that ended. Only changes mean something.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Balance {
    /// [`abi::BackendCounters::balance`].
    pub all: u32,
    /// [`abi::BackendCounters::going`].
    pub going: u32,
    /// [`abi::BackendCounters::begun_or_failed`].
    pub with_failed: u32,
}

impl From<&abi::BackendCounters> for Balance {
    fn from(counters: &abi::BackendCounters) -> Self {
        Self { all: counters.balance, going: counters.going, with_failed: counters.begun_or_failed() }
    }
}

/// Open flows of an endpoint when they were counted. Of one that was not there yet, the default.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Open {
    /// How many.
    pub flows: u32,
    /// Those of them that are no connections whose clients may be forged: they went on after the answer, or are of datagrams.
    pub going: u32,
    /// The balance then.
    pub balance: Balance,
}

impl Open {
    /// Open flows when the balance is this one. Those of UDP stay as they were counted: nobody says when they end.
    #[must_use]
    pub fn at(self, balance: Balance) -> OpenCounts {
        let moved =
            |counted: u32, now: u32, then: u32| counted.saturating_add_signed(now.wrapping_sub(then).cast_signed());
        OpenCounts {
            all: moved(self.flows, balance.all, self.balance.all),
            going: moved(self.going, balance.going, self.balance.going),
        }
    }

    /// The balance without an open flow, with those that failed so far: [`abi::BackendCounters::base`].
    #[must_use]
    pub const fn base(self) -> u32 {
        self.balance.with_failed.wrapping_sub(self.flows)
    }
}

/// By backend slot and generation: flows of an endpoint that is gone have another generation than the slot.
pub type OpenByBackend = HashMap<(u32, u32), Open>;

/// Open flows of all backends.
#[derive(Debug)]
pub struct OpenFlows<T> {
    table: T,
}

impl<T> OpenFlows<T> {
    /// Those of a node's tables.
    pub const fn new(table: T) -> Self {
        Self { table }
    }
}

impl<T: FlowTable> OpenFlows<T> {
    fn count(&self) -> Result<OpenByBackend, T::Error> {
        let (tick, limits) = (self.table.tick(), self.table.limits()?);
        let mut open = OpenByBackend::new();
        // What begins or ends while the table is read may count twice, until it is read again.
        self.table.balances(&mut |backend, balance| {
            open.insert(backend, Open { flows: 0, going: 0, balance });
        })?;
        self.table.visit(&mut |protocol, flow| {
            if limits.keeps_its_place(protocol, flow, tick) {
                let counted = open.entry((flow.backend, flow.generation)).or_default();
                counted.flows += 1;
                counted.going += u32::from(limits.goes_on(protocol, flow, tick));
            }
        })?;
        Ok(open)
    }
}

impl<T: FlowTable> Source for OpenFlows<T> {
    type Value = OpenByBackend;

    fn name(&self) -> &'static str {
        "open-flows"
    }

    fn read(&mut self, _now: Instant) -> Result<Option<OpenByBackend>, Failure> {
        let missing = |cause: T::Error| Failure::Missing { object: "table of flows".to_owned(), cause: cause.into() };
        self.count().map(Some).map_err(missing)
    }
}
