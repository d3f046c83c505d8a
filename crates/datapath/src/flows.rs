//! Flows as the control plane sees them: it never writes one, and deletes those that would follow a service that lost
//! its frontend.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use weir_abi as abi;
use weir_core::ops::FrontendKey;

use crate::error::Result;
use crate::flow_table::FlowTable;
use crate::keys;
use crate::pins::PinDir;

/// Flows that go on, and flows that begin.
const NAMES4: [&str; 2] = ["flows4", "openings4"];
/// The same of IPv6.
const NAMES6: [&str; 2] = ["flows6", "openings6"];

/// All tables of flows, or those of them that are asked for.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    v4: Vec<FlowTable<abi::FlowKey4, abi::Flow>>,
    v6: Vec<FlowTable<abi::FlowKey6, abi::Flow>>,
}

impl Flows {
    /// Those that there is a descriptor of.
    ///
    /// # Errors
    /// As `descriptor`, and when a table's memory cannot be mapped.
    pub(crate) fn open(descriptor: impl Fn(&'static str) -> Result<Option<OwnedFd>>, writable: bool) -> Result<Self> {
        let mut new = Self::default();
        for name in NAMES4 {
            new.v4.extend(descriptor(name)?.map(|fd| FlowTable::new(name, fd, writable)).transpose()?);
        }
        for name in NAMES6 {
            new.v6.extend(descriptor(name)?.map(|fd| FlowTable::new(name, fd, writable)).transpose()?);
        }
        Ok(new)
    }

    /// All of them, pinned.
    ///
    /// # Errors
    /// No pins there, no right to open them, or another layout.
    pub(crate) fn open_pinned(pins: &PinDir, writable: bool) -> Result<Self> {
        let open4 = |name| FlowTable::open(pins, name, writable);
        let open6 = |name| FlowTable::open(pins, name, writable);
        Ok(Self {
            v4: NAMES4.into_iter().map(open4).collect::<Result<_>>()?,
            v6: NAMES6.into_iter().map(open6).collect::<Result<_>>()?,
        })
    }

    /// All flows of IPv4.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub(crate) fn entries4(&self) -> Result<Vec<(abi::FlowKey4, abi::Flow)>> {
        let mut all = Vec::new();
        self.v4.iter().try_for_each(|table| table.visit(|key, flow| all.push((*key, *flow))))?;
        Ok(all)
    }

    /// All flows of IPv6.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub(crate) fn entries6(&self) -> Result<Vec<(abi::FlowKey6, abi::Flow)>> {
        let mut all = Vec::new();
        self.v6.iter().try_for_each(|table| table.visit(|key, flow| all.push((*key, *flow))))?;
        Ok(all)
    }

    /// Shows all flows to `visit`.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub(crate) fn visit(&self, mut visit: impl FnMut(&abi::Flow)) -> Result<()> {
        self.v4.iter().try_for_each(|table| table.visit(|_, flow| visit(flow)))?;
        self.v6.iter().try_for_each(|table| table.visit(|_, flow| visit(flow)))
    }

    /// The same with the name of their table and their IP protocol.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub(crate) fn visit_tables(&self, mut visit: impl FnMut(&'static str, u8, &abi::Flow)) -> Result<()> {
        self.v4.iter().try_for_each(|table| table.visit(|key, flow| visit(table.name(), key.proto, flow)))?;
        self.v6.iter().try_for_each(|table| table.visit(|key, flow| visit(table.name(), key.proto, flow)))
    }

    /// Names of the tables.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        NAMES4.into_iter().chain(NAMES6)
    }

    /// Deletes the flows to these frontends that are another service's than the one given, `None` standing for nobody.
    /// Reads each of the maps once, if a frontend is of its family.
    ///
    /// # Errors
    /// When a map cannot be read or written; flows that were found before are deleted then.
    pub(crate) fn forget(&self, owners: &HashMap<FrontendKey, Option<u32>>) -> Result<()> {
        let left = |key: FrontendKey, flow: &abi::Flow| owners.get(&key).is_some_and(|now| *now != Some(flow.service));
        if owners.keys().any(|key| key.address.is_ipv4()) {
            self.v4.iter().try_for_each(|table| table.remove(|key, flow| left(keys::flow_frontend4(key), flow)))?;
        }
        if owners.keys().any(|key| key.address.is_ipv6()) {
            self.v6.iter().try_for_each(|table| table.remove(|key, flow| left(keys::flow_frontend6(key), flow)))?;
        }
        Ok(())
    }
}
