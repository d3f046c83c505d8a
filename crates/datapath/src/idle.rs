//! Flows of datagrams that are over, and connections of the host's own from frontends' ports, taken out of the tables of those that go on. Nobody ends
//! such a flow, and for the next one the kernel gives away what was used longest ago, which are the connections that are silent.

use std::collections::HashSet;

use weir_abi as abi;
use weir_core::flow_pressure::is_recent;
use weir_core::model::Protocol;

use crate::error::Result;
use crate::flow_key::{Client, FlowKey};
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
    replies: Table<K, abi::Reply>,
}

/// Ticks after which nobody asks any more who was not answered: at least as long as the kernel waits after its last SYN but one (`tcp_syn_retries`).
const ASKED_IN_VAIN: u32 = 130;

/// What is over by the time of its last packet.
#[derive(Clone, Copy)]
struct Limit {
    tick: u32,
    udp_idle: u32,
    tcp_idle: u32,
}

impl Limit {
    const fn is_over(self, last_seen: u32) -> bool {
        !is_recent(last_seen, self.udp_idle, self.tick)
    }

    /// The same of a connection of the host's own.
    const fn is_own_over(self, flow: &abi::Flow) -> bool {
        let idle = if flow.flags & abi::FLOW_REPLIED == 0 { ASKED_IN_VAIN } else { self.tcp_idle };
        flow.flags & abi::FLOW_OWN != 0 && !is_recent(flow.last_seen, idle, self.tick)
    }
}

impl IdleFlows {
    /// Opens the pinned tables.
    ///
    /// # Errors
    /// No pin there, no right to open it, or another layout.
    pub fn open(pins: &PinDir) -> Result<Self> {
        Ok(Self { config: pins.mapped("config", READ_ONLY)?, v4: Tables::open(pins)?, v6: Tables::open(pins)? })
    }

    /// Takes out the flows of which neither the client nor the endpoint has said anything within [`abi::Config::udp_idle`] before a tick, and the
    /// entries of their answers: what comes later begins a flow anew. And the host's own connections that nobody has answered, or not within
    /// [`abi::Config::tcp_idle`]. Returns how many entries that were.
    ///
    /// # Errors
    /// When a map cannot be read or written; some may be gone by then.
    pub fn take_out(&self, tick: u32) -> Result<usize> {
        let abi::Config { udp_idle, tcp_idle, .. } = self.config.get(0)?;
        let limit = Limit { tick, udp_idle, tcp_idle };
        Ok(self.v4.take_out(limit)? + self.v6.take_out(limit)?)
    }
}

impl<K: FlowKey> Tables<K> {
    fn open(pins: &PinDir) -> Result<Self> {
        let ([flows, _], [replies, _]) = (K::FLOWS, K::REPLIES);
        Ok(Self { flows: pins.table(flows, 0)?, replies: pins.table(replies, 0)? })
    }

    fn take_out(&self, limit: Limit) -> Result<usize> {
        let (mut silent, mut own) = (HashSet::new(), Vec::new());
        self.flows.visit(|key, flow| {
            if is_udp(key) && limit.is_over(flow.as_ref().last_seen) {
                silent.insert(*key);
            } else if !is_udp(key) && limit.is_own_over(flow.as_ref()) {
                own.push(*key);
            }
        })?;
        let mut unanswered = Vec::new();
        self.replies.visit(|key, reply| {
            if !is_udp(key) {
                return;
            }
            if limit.is_over(reply.last_seen) {
                unanswered.push(*key);
            } else {
                silent.remove(&flow_of(reply));
            }
        })?;
        let mut taken = 0;
        for key in unanswered {
            // Somebody may have spoken since it was looked at.
            let Some(reply) = self.replies.get(&key)?.filter(|reply| limit.is_over(reply.last_seen)) else { continue };
            // Of one whose client speaks the next answer may come.
            if silent.contains(&flow_of(&reply)) || !self.is_answered_here(&key, &reply)? {
                taken += usize::from(self.replies.remove(&key)?);
            }
        }
        for key in silent {
            if self.flows.get(&key)?.is_some_and(|flow| limit.is_over(flow.as_ref().last_seen)) {
                taken += usize::from(self.flows.remove(&key)?);
            }
        }
        for key in own {
            if self.flows.get(&key)?.is_some_and(|flow| limit.is_own_over(flow.as_ref())) {
                taken += usize::from(self.flows.remove(&key)?);
            }
        }
        Ok(taken)
    }

    /// Whether an entry is what the answers to the flow that it names have to look like: that may be lost, or have another endpoint or port by now.
    fn is_answered_here(&self, key: &K, reply: &abi::Reply) -> Result<bool> {
        let Some(flow) = self.flows.get(&flow_of(reply))? else { return Ok(false) };
        let flow = flow.as_ref();
        let port = abi::Be16::new(key.ends().to.port());
        let has_port = if flow.snat_port == abi::Be16::default() { reply.client_port } else { flow.snat_port } == port;
        Ok(has_port && (flow.backend, flow.generation) == (reply.backend, reply.generation))
    }
}

fn is_udp<K: FlowKey>(key: &K) -> bool {
    key.ends().protocol == Protocol::Udp.number()
}

/// The flow of datagrams of which an entry awaits the answers.
fn flow_of<K: FlowKey>(reply: &abi::Reply) -> K {
    let end = |address: abi::Addr, port: abi::Be16| (address.ip(), port.get()).into();
    K::of(&Client {
        from: end(reply.client, reply.client_port),
        to: end(reply.frontend, reply.frontend_port),
        protocol: Protocol::Udp.number(),
    })
}
