//! Source ports: in turn, and those that clients' ports keep from one connection to the next (ADR 45).

use weir_abi as abi;

use crate::Model;
use crate::over::Claim;
use crate::packet::{End, Key, Packet, SCTP, TCP};
use crate::place::reply_key;
use crate::tables::{Flow, Reply, Stage};

impl Model {
    /// Stores the entry for a new flow's answers at the port that the client's last connection from the same port had, unless somebody else has it by now;
    /// of a packet in the middle of a connection that no table knows any more, that is its own.
    pub(crate) fn store_snat_again(&mut self, p: &Packet, flow: &Flow, backend: &abi::Backend) -> Option<u16> {
        let port = *self.tables.kept.get(&(p.key(), endpoint_hash(backend)))?;
        if self.control.port_from(port) != Some(port) {
            return None;
        }
        let key = reply_key(p, backend, End { addr: self.source(p.family, flow.tunnel), port });
        if let Some((_, old)) = self.tables.replies.find(&key) {
            let same = old.client == p.source() && old.frontend == p.destination();
            if !same || !self.is_over(&key, &old, Some(port), Claim::Only) {
                return None;
            }
            self.tables.replies.forget_all(&key);
        }
        let reply = Reply { snat: true, kept: true, ..self.reply_of(p, flow, self.asked_at(p)) };
        self.tables.replies.put(Stage::Opening, key, reply);
        Some(port)
    }

    /// The port that was used longest ago; SCTP keeps the client's.
    pub(crate) fn take_port(&mut self, backend: &abi::Backend, client: u16) -> Option<u16> {
        if backend.proto == SCTP {
            return (client != 0).then_some(client);
        }
        let turn = &mut self.tables.turns.entry(turn_slot(backend)).or_default().next;
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is the number")]
        let number = *turn as u16;
        let port = self.control.port_from(number).unwrap_or_default();
        // Past a gap the turn is the port's.
        *turn = if port == number { turn.wrapping_add(1) } else { u32::from(port) + 1 };
        (port != 0).then_some(port)
    }

    /// Gives up the turn of so many numbers: who looks at few in a long run that is in use comes to its end no later for that.
    pub(crate) fn pass_over(&mut self, backend: &abi::Backend, ports: usize) {
        let turn = &mut self.tables.turns.entry(turn_slot(backend)).or_default().next;
        *turn = turn.wrapping_add(u32::try_from(ports).unwrap_or(u32::MAX));
    }

    /// Has a client's port keep the source port of a connection that goes on.
    pub(crate) fn keep_port(&mut self, key: &Key, flow: &Flow) {
        if let Some(port) = flow.snat.filter(|_| key.protocol == TCP) {
            let endpoint = endpoint_hash(&self.control.backend(flow.backend));
            self.tables.kept.insert((*key, endpoint), port);
        }
    }

    /// Whether those who take turns pass over a port, as its endpoint may remember the last connection of who keeps it.
    pub(crate) const fn keeps_port(&self, reply: &Reply) -> bool {
        reply.kept && !self.now.is_idle(reply.last_seen, self.remembered_limit())
    }

    /// Ticks for which an endpoint may remember a connection that is over. The linger is rounded down to whole ticks.
    pub(crate) const fn remembered_limit(&self) -> u32 {
        (self.config.tcp_linger + 1) * abi::TIME_WAIT_LINGERS
    }
}

/// Hash of an endpoint's address and port.
pub(crate) fn endpoint_hash(backend: &abi::Backend) -> u64 {
    let [first, second, third, fourth] = backend.addr.word.map(|word| u64::from(word.raw()));
    let end = u64::from(backend.port.raw()) << 8 | u64::from(backend.proto);
    [first << 32 | second, third << 32 | fourth, end]
        .into_iter()
        .fold(0, |hash: u64, part| (hash ^ hash >> 32).wrapping_add(part).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The slot of the counter that tells an endpoint's turn; endpoints may share one.
pub(crate) fn turn_slot(backend: &abi::Backend) -> u32 {
    u32::try_from((endpoint_hash(backend) >> 32) % abi::SNAT_COUNTERS as u64).unwrap_or_default()
}
