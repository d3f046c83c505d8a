//! What packets leave behind at their flow and at their backend.

use weir_abi as abi;

use crate::Model;
use crate::packet::{Key, Packet, TCP, UDP};
use crate::tables::{Flow, Reply, Stage};

/// Of a connection so many bytes are held back at most.
const HELD: u32 = 1 << 20;
/// Of datagrams this part of the flow's bytes, as a power of two.
const HELD_PART: u32 = 4;

/// Counts a packet. Returns the bytes that the backend's counters get now: all that were held, or none yet.
fn hold(bytes: &mut u32, held: &mut u32, p: &Packet, all: bool) -> Option<u32> {
    let first = *bytes == 0;
    *bytes = bytes.wrapping_add(p.frame);
    *held = held.wrapping_add(p.frame);
    let most = if p.protocol == UDP { *bytes >> HELD_PART } else { HELD };
    (all || first || *held > most).then(|| std::mem::take(held))
}

/// The same where something else is held: the backend that was left.
const fn apart(bytes: &mut u32, p: &Packet) -> Option<u32> {
    *bytes = bytes.wrapping_add(p.frame);
    Some(p.frame)
}

impl Model {
    /// Notes a client's packet that was sent to its flow's backend.
    pub(crate) fn count_to(&mut self, flow: &mut Flow, p: &Packet) {
        let fresh = flow.last_seen != self.now.ticks;
        flow.last_seen = self.now.ticks;
        if p.ending {
            self.client_ends(flow, p);
        }
        let all = fresh || flow.closing;
        let bytes =
            if flow.names_left() { apart(&mut flow.bytes, p) } else { hold(&mut flow.bytes, &mut flow.held, p, all) };
        if let Some(bytes) = bytes {
            self.tables.backend_counters(flow.backend).bytes_to += u64::from(bytes);
        }
    }

    /// Notes a backend's packet to its client.
    pub(crate) fn count_back(&mut self, stage: Stage, key: &Key, p: &Packet) {
        let Some(mut reply) = self.tables.replies.at(stage, key) else { return };
        let fresh = reply.last_seen != self.now.ticks;
        let all = fresh || p.ending || reply.closing || reply.asked.is_some();
        let of_nothing = Self::is_reset_of_nothing(p, &reply);
        if reply.opening && !reply.replied && !of_nothing {
            self.note_answer(key, &reply);
        }
        reply.last_seen = self.now.ticks;
        reply.replied |= !of_nothing;
        // Who agrees has closed nothing: that was the end of an earlier connection.
        reply.closing &= !(p.syn_ack && reply.is_opening() && reply.ended.is_none());
        reply.closing |= p.ending && !of_nothing;
        reply.heard = match (reply.is_opening(), p.syn_ack) {
            (true, true) => p.heard,
            (false, true) => 0,
            (false, false) if !p.ending && p.heard != 0 => p.heard,
            (true | false, false) => reply.heard,
        };
        if p.ending && !of_nothing {
            self.backend_ends(key, &mut reply, p);
        }
        let bytes = if reply.retries > 0 {
            apart(&mut reply.bytes, p)
        } else {
            hold(&mut reply.bytes, &mut reply.held, p, all)
        };
        // The slot may be another's by now.
        if let Some(bytes) = bytes
            && self.control.backend(reply.backend).generation == reply.generation
        {
            let counters = self.tables.backend_counters(reply.backend);
            counters.bytes_from += u64::from(bytes);
            if reply.asked.is_some() && !reply.moved && !p.syn_ack && !of_nothing {
                count_answer(counters, &mut reply, p);
            }
        }
        self.tables.replies.put(stage, *key, reply);
    }

    /// Counts that another backend has a connection in place of one which did not answer; 0: it is not known which.
    pub(crate) fn failed_over(&mut self, left: u32) {
        if left != 0 {
            self.tables.backend_counters(left).failed_over += 1;
        }
    }

    /// Counts it of a connection whose client has heard of an answer. From here on bytes are held in that place.
    pub(crate) fn count_failover(&mut self, reply: Reply) -> Reply {
        if reply.retries == 0 {
            return reply;
        }
        // What TCP says before it agrees it may say to somebody else.
        if self.control.backend(reply.backend).proto != TCP || reply.heard != 0 {
            self.failed_over(reply.held);
        }
        Reply { retries: 0, held: 0, ..reply }
    }

    /// Takes the answer to a SYN, the first of which is counted.
    pub(crate) fn take_answer(&mut self, stage: Stage, p: &Packet) {
        let Some(reply) = self.tables.replies.get_mut(stage, &p.key()) else { return };
        if !p.syn_ack || reply.asked.is_none() {
            return;
        }
        if self.control.backend(reply.backend).generation == reply.generation {
            count_answer(self.tables.backend_counters.entry(reply.backend).or_default(), reply, p);
        }
        reply.asked = None;
    }
}

/// Counts the first answer to a flow. TCP may say other things before, of an earlier connection. The delay is the clock's matter.
fn count_answer(counters: &mut abi::BackendCounters, reply: &mut Reply, p: &Packet) {
    reply.asked = None;
    if std::mem::take(&mut reply.asked_again) {
        return;
    }
    match (p.protocol == UDP || p.syn_ack, p.refuses) {
        (true, _) => counters.answered += 1,
        (false, true) => counters.refused += 1,
        (false, false) => {}
    }
}
