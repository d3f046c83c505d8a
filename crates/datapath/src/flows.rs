//! Flows as the control plane sees them: it never writes one, and deletes those that would follow a service that lost
//! its frontend.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use weir_abi as abi;
use weir_core::ops::FrontendKey;

use crate::error::Result;
use crate::keys;
use crate::map::{Pod, Table};

/// Flows that go on, and flows that begin.
const NAMES4: [&str; 2] = ["flows4", "openings4"];
/// The same of IPv6.
const NAMES6: [&str; 2] = ["flows6", "openings6"];

/// All tables of flows, or those of them that are asked for.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    v4: Vec<Table<abi::FlowKey4, abi::Flow>>,
    v6: Vec<Table<abi::FlowKey6, abi::Flow>>,
}

impl Flows {
    /// Those that there is a descriptor of.
    ///
    /// # Errors
    /// As `descriptor`.
    pub(crate) fn open(descriptor: impl Fn(&'static str) -> Result<Option<OwnedFd>>) -> Result<Self> {
        let mut new = Self::default();
        for name in NAMES4 {
            new.v4.extend(descriptor(name)?.map(|fd| Table::new(name, fd)));
        }
        for name in NAMES6 {
            new.v6.extend(descriptor(name)?.map(|fd| Table::new(name, fd)));
        }
        Ok(new)
    }

    /// All flows of IPv4.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub(crate) fn entries4(&self) -> Result<Vec<(abi::FlowKey4, abi::Flow)>> {
        entries(&self.v4)
    }

    /// All flows of IPv6.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub(crate) fn entries6(&self) -> Result<Vec<(abi::FlowKey6, abi::Flow)>> {
        entries(&self.v6)
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
            remove(&self.v4, |key, flow| left(keys::flow_frontend4(key), flow))?;
        }
        if owners.keys().any(|key| key.address.is_ipv6()) {
            remove(&self.v6, |key, flow| left(keys::flow_frontend6(key), flow))?;
        }
        Ok(())
    }
}

fn entries<K: Pod>(tables: &[Table<K, abi::Flow>]) -> Result<Vec<(K, abi::Flow)>> {
    let mut all = Vec::new();
    for table in tables {
        all.append(&mut table.entries()?);
    }
    Ok(all)
}

fn remove<K: Pod>(tables: &[Table<K, abi::Flow>], gone: impl Fn(&K, &abi::Flow) -> bool) -> Result<()> {
    for table in tables {
        let mut gone = table.entries()?.into_iter().filter(|(key, flow)| gone(key, flow));
        gone.try_for_each(|(key, _)| table.remove(&key).map(drop))?;
    }
    Ok(())
}
