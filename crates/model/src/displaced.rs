//! Where connections go of which a flood has left no flow: ADR 55. Tables are never full here, so that it is those alone whose SYN was one of the
//! flood.

use weir_abi as abi;

use crate::Model;
use crate::choose::{Choice, Request};
use crate::packet::{Packet, TCP};
use crate::place::reply_key;
use crate::tables::{Flow, Stage};

impl Model {
    /// Remembers where a connection goes, without an entry for its flow.
    pub(crate) fn displace(&mut self, p: &Packet, flow: &Flow) {
        if p.protocol == TCP {
            self.tables.displaced.insert(p.key(), (flow.backend, self.now.ticks));
        }
    }

    /// The backend of a connection in whose middle a packet is, of which no table knows more, and when it began.
    pub(crate) fn goes_on_there(&self, p: &Packet, request: &Request) -> Option<(Choice, u32)> {
        let (slot, then) = *self.tables.displaced.get(&p.key())?;
        let backend = self.control.backend(slot);
        let is_its = backend.service == request.frontend.service && backend.proto == TCP && self.is_used(slot);
        if self.now.is_idle(then, abi::OPENING_IDLE) || !is_its || !self.is_in_ranges(request) {
            return None;
        }
        if p.syn {
            let asks = request.avoid.is_none() && self.was_flooded() && self.is_awaited_from(slot, &backend, p);
            return asks.then(|| (self.choice(slot), self.now.ticks));
        }
        Some((self.choice(slot), then))
    }

    /// Whether a backend's answer to an earlier SYN between the same ports is still awaited.
    fn is_awaited_from(&self, slot: u32, backend: &abi::Backend, p: &Packet) -> bool {
        let reply = self.tables.replies.at(Stage::Opening, &reply_key(p, backend, p.source()));
        reply.is_some_and(|reply| {
            let is_its = (reply.backend, reply.generation, reply.frontend, reply.client)
                == (slot, backend.generation, p.destination(), p.source());
            is_its
                && reply.asked.is_some()
                && !reply.replied
                && !reply.moved
                && !self.now.is_idle(reply.last_seen, abi::OPENING_IDLE)
        })
    }
}
