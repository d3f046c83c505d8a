//! Where connections go of which a flood has left no flow: ADR 55. Tables are never full here, so that it is those alone whose SYN was one of the
//! flood.

use weir_abi as abi;

use crate::Model;
use crate::choose::{Choice, Request};
use crate::packet::{Packet, TCP};
use crate::tables::Flow;

impl Model {
    /// Remembers where a connection goes, without an entry for its flow.
    pub(crate) fn displace(&mut self, p: &Packet, flow: &Flow) {
        if p.protocol == TCP {
            self.tables.displaced.insert(p.key(), (flow.backend, self.now.ticks));
        }
    }

    /// The backend of a connection in whose middle a packet is, of which no table knows more, and when it began.
    pub(crate) fn goes_on_there(&mut self, p: &Packet, request: &Request) -> Option<(Choice, u32)> {
        let (slot, then) = *self.tables.displaced.get(&p.key())?;
        let backend = self.control.backend(slot);
        let is_its = backend.service == request.frontend.service && backend.proto == TCP && self.is_used(slot);
        if p.syn || self.now.is_idle(then, abi::OPENING_IDLE) || !is_its || !self.is_in_ranges(request) {
            return None;
        }
        // It was counted when it began.
        Some((Choice { backend: slot, generation: backend.generation }, then))
    }
}
