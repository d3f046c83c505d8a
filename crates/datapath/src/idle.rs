//! Flows of datagrams that are over, taken out of the tables of those that go on. Nobody ends such a flow, and for the next one the kernel
//! gives away what was used longest ago, which are the connections that are silent.

use std::collections::HashSet;

use weir_abi as abi;
use weir_core::flow_pressure::is_recent;
use weir_core::model::Protocol;

use crate::error::Result;
use crate::flow_key::{Client, FlowKey};
use crate::flow_table::FlowTable;
use crate::map::{Mapped, Table};
use crate::pins::{PinDir, READ_ONLY};

/// Both families' tables.
#[derive(Debug)]
pub struct IdleFlows {
    config: Mapped<abi::Config>,
    v4: Tables<abi::FlowKey4>,
    v6: Tables<abi::FlowKey6>,
}

#[derive(Debug)]
struct Tables<K: FlowKey> {
    flows: Table<K, K::Flow>,
    openings: FlowTable<K, K::Flow>,
    replies: Table<K, abi::Reply>,
}

impl IdleFlows {
    /// Opens the pinned tables.
    ///
    /// # Errors
    /// No pin there, no right to open it, or another layout.
    pub fn open(pins: &PinDir) -> Result<Self> {
        Ok(Self { config: pins.mapped("config", READ_ONLY)?, v4: Tables::open(pins)?, v6: Tables::open(pins)? })
    }

    /// Takes out the flows of which neither the client nor the endpoint has said anything within [`abi::Config::udp_idle`] before a tick, which
    /// the programs do not go on with, and the entries of their answers. Returns how many entries that were.
    ///
    /// # Errors
    /// When a map cannot be read or written; some may be gone by then.
    pub fn take_out(&self, tick: u32) -> Result<usize> {
        let config = self.config.get(0)?;
        Ok(self.v4.take_out(&config, tick)? + self.v6.take_out(&config, tick)?)
    }
}

impl<K: FlowKey> Tables<K> {
    fn open(pins: &PinDir) -> Result<Self> {
        let ([flows, openings], [replies, _]) = (K::FLOWS, K::REPLIES);
        Ok(Self {
            flows: pins.table(flows, 0)?,
            openings: FlowTable::open(pins, openings, false)?,
            replies: pins.table(replies, 0)?,
        })
    }

    fn take_out(&self, config: &abi::Config, tick: u32) -> Result<usize> {
        let is_over = |ends: &Client, last_seen| {
            ends.protocol == Protocol::Udp.number() && !is_recent(last_seen, config.udp_idle, tick)
        };
        let mut silent = HashSet::new();
        self.flows.visit(|key, flow| {
            if is_over(&key.ends(), flow.as_ref().last_seen) {
                silent.insert(*key);
            }
        })?;
        let mut unanswered = Vec::new();
        self.replies.visit(|key, reply| {
            let flow = K::of(&client_of(reply, key.ends().protocol));
            // What is the host's for now may be its flow's again.
            if is_over(&key.ends(), reply.last_seen) && reply.flags & abi::FLOW_LENT == 0 {
                unanswered.push((*key, flow));
            } else {
                silent.remove(&flow);
            }
        })?;
        let mut taken = silent.len();
        for (key, flow) in unanswered {
            // Of one whose client speaks the next answer may come.
            if silent.contains(&flow) || !self.is_there(&flow, config.hash_seed)? {
                self.replies.remove(&key)?;
                taken += 1;
            }
        }
        silent.iter().try_for_each(|flow| self.flows.remove(flow).map(drop))?;
        Ok(taken)
    }

    fn is_there(&self, flow: &K, seed: u64) -> Result<bool> {
        Ok(self.flows.get(flow)?.is_some() || self.openings.get(flow, seed)?.is_some())
    }
}

/// The client's packets of which an entry awaits the answers.
fn client_of(reply: &abi::Reply, protocol: u8) -> Client {
    let end = |address: abi::Addr, port: abi::Be16| (address.ip(), port.get()).into();
    Client { from: end(reply.client, reply.client_port), to: end(reply.frontend, reply.frontend_port), protocol }
}
