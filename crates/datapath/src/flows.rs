//! Flows as the control plane sees them: it never writes one, and deletes those that would follow a service that lost
//! its frontend.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;

use weir_abi as abi;
use weir_core::model::Protocol;
use weir_core::ops::FrontendKey;

use crate::error::Result;
use crate::flow_key::{Client, FlowKey, Kept};
use crate::flow_table::FlowTable;
use crate::pins::PinDir;

/// All tables of flows, or those of them that are asked for.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    v4: Tables<abi::FlowKey4>,
    v6: Tables<abi::FlowKey6>,
}

type Tables<K> = Vec<FlowTable<K, <K as FlowKey>::Flow>>;

impl Flows {
    /// Those that there is a descriptor of.
    ///
    /// # Errors
    /// As `descriptor`, and when a table's memory cannot be mapped.
    pub(crate) fn open(descriptor: impl Fn(&'static str) -> Result<Option<OwnedFd>>, writable: bool) -> Result<Self> {
        Ok(Self { v4: tables(&descriptor, writable)?, v6: tables(&descriptor, writable)? })
    }

    /// All of them, pinned.
    ///
    /// # Errors
    /// No pins there, no right to open them, or another layout.
    pub(crate) fn open_pinned(pins: &PinDir, writable: bool) -> Result<Self> {
        let (v4, v6) = (FlowTable::open_both(pins, writable)?, FlowTable::open_both(pins, writable)?);
        Ok(Self { v4: v4.into(), v6: v6.into() })
    }

    /// Shows all flows to `visit`, in no order, with the name of their table and the ends of their client's packets.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub(crate) fn visit(&self, mut visit: impl FnMut(&'static str, Client, &abi::Flow)) -> Result<()> {
        visit_all(&self.v4, &mut visit)?;
        visit_all(&self.v6, &mut visit)
    }

    /// How many entries of each table of flows that begin have lost their place soon after their last packet.
    ///
    /// # Errors
    /// Never in practice; the slots exist.
    pub(crate) fn displaced(&self) -> Result<BTreeMap<&'static str, u64>> {
        let mut all = displaced(&self.v4)?;
        all.append(&mut displaced(&self.v6)?);
        Ok(all)
    }

    /// Names of the tables.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        abi::FlowKey4::FLOWS.into_iter().chain(abi::FlowKey6::FLOWS)
    }

    /// Deletes the flows to these frontends that are another service's than the one given, `None` standing for nobody.
    /// Reads each of the maps once, if a frontend is of its family.
    ///
    /// # Errors
    /// When a map cannot be read or written; flows that were found before are deleted then.
    pub(crate) fn forget(&self, owners: &HashMap<FrontendKey, Option<u32>>) -> Result<()> {
        let is_left =
            |key: &FrontendKey, flow: &abi::Flow| owners.get(key).is_some_and(|now| *now != Some(flow.service));
        if owners.keys().any(|key| key.address.is_ipv4()) {
            forget_all(&self.v4, &is_left)?;
        }
        if owners.keys().any(|key| key.address.is_ipv6()) {
            forget_all(&self.v6, &is_left)?;
        }
        Ok(())
    }

    /// Deletes the flows of datagrams that are to no frontend, or to one that is another service's by now. `owner` is whose a frontend is.
    ///
    /// # Errors
    /// As [`Flows::forget`].
    pub(crate) fn forget_strange(&self, owner: impl Fn(&FrontendKey) -> Option<u32>) -> Result<()> {
        let is_strange = |key: &FrontendKey, flow: &abi::Flow| {
            key.protocol == Protocol::Udp.number() && owner(key) != Some(flow.service)
        };
        forget_all(&self.v4, &is_strange).and(forget_all(&self.v6, &is_strange))
    }
}

fn tables<K: FlowKey>(
    descriptor: &impl Fn(&'static str) -> Result<Option<OwnedFd>>,
    writable: bool,
) -> Result<Tables<K>> {
    let table = |name| descriptor(name)?.map(|fd| FlowTable::new(name, fd, writable)).transpose();
    K::FLOWS.into_iter().filter_map(|name| table(name).transpose()).collect()
}

fn visit_all<K: FlowKey>(
    tables: &[FlowTable<K, K::Flow>],
    visit: &mut impl FnMut(&'static str, Client, &abi::Flow),
) -> Result<()> {
    // What moves meanwhile is written among those that go on before it is gone from those that begin: in this order none is missed.
    tables.iter().rev().try_for_each(|table| table.visit(|key, flow| visit(table.name(), key.ends(), flow.as_ref())))
}

pub(crate) fn displaced<K: FlowKey, V: Kept>(tables: &[FlowTable<K, V>]) -> Result<BTreeMap<&'static str, u64>> {
    let of = |table: &FlowTable<K, V>| Ok(table.displaced()?.map(|count| (table.name(), count)));
    tables.iter().filter_map(|table| of(table).transpose()).collect()
}

/// Deletes flows, in the order of [`visit_all`]. A program may have found a frontend that is gone by now, and have yet to write its flow: it will
/// have done so when the others are read.
fn forget_all<K: FlowKey>(
    tables: &[FlowTable<K, K::Flow>],
    is_left: &impl Fn(&FrontendKey, &abi::Flow) -> bool,
) -> Result<()> {
    let order = tables.iter().rev().chain(tables.last());
    // What the host asks from a frontend's port is the host's, whosever the frontend is.
    let is_clients = |flow: &abi::Flow| flow.flags & abi::FLOW_OWN == 0;
    order.into_iter().try_for_each(|table| {
        table.remove(|key, flow| is_clients(flow.as_ref()) && is_left(&key.ends().frontend(), flow.as_ref()))
    })
}
