//! When a flow is over, and who may have its place (ADR 29). No program frees an entry of answers but for a flow that takes it.

use weir_abi as abi;

use crate::Model;
use crate::packet::{Key, Packet, SCTP, TCP, UDP};
use crate::path::MOVED_IDLE;
use crate::tables::{Ended, Flow, Reply, Stage};

/// Who asks for the place of a flow.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Claim {
    /// Who can have no other one.
    Only,
    /// A new flow for which the port is the one that was taken longest ago.
    Turn,
    /// The same, after several that were not free.
    Need,
    /// The same, after so many that most are kept, or beside a flood.
    Any,
    /// A connection that is met in its middle.
    Free,
}

/// Whether both sides have closed a connection, or one has reset it.
pub(crate) const fn has_ended(flow: &Flow, reply: &Reply) -> bool {
    flow.ended.is_some() || (flow.closing && reply.closing)
}

/// Whether a packet is the last one of a flow, or of the entry of its answers: the second end was acknowledged, or a reset needs no
/// acknowledgement.
pub(crate) const fn is_last(p: &Packet, ended: Option<Ended>, opening: bool) -> bool {
    let Some(ended) = ended else { return false };
    !opening && (p.reset || (!p.ending && ended.is_last))
}

/// That an entry has ended, as was known before or is known now.
const fn ended(before: Option<Ended>, is_last: bool) -> Option<Ended> {
    Some(Ended { is_last: is_last || matches!(before, Some(Ended { is_last: true })) })
}

impl Model {
    /// Whether nothing has come in either direction for longer than so many ticks.
    pub(crate) const fn is_silent(&self, flow: &Flow, reply: &Reply, limit: u32) -> bool {
        self.now.is_idle(flow.last_seen, limit) && self.now.is_idle(reply.last_seen, limit)
    }

    /// Whether another flow may have the place of this one's reply entry: it has moved on to another backend or port, lost
    /// its endpoint, has ended, never got going, or is idle in both directions.
    pub(crate) fn flow_is_over(
        &self,
        protocol: u8,
        flow: &Flow,
        reply: &Reply,
        port: Option<u16>,
        claim: Claim,
    ) -> bool {
        if flow.backend != reply.backend || flow.source_port() != port || !self.is_alive(flow) {
            return true;
        }
        if has_ended(flow, reply) {
            // The ports behind it are free for longer, unless all have had their turn while its endpoint may remember it.
            let limit = self.remembered_limit();
            return !matches!(claim, Claim::Turn | Claim::Free)
                || self.is_silent(flow, reply, limit)
                || !self.now.is_idle(flow.created, limit);
        }
        // Its turn has come again, and in all that time nobody has answered or its client did not go on. A client that sends
        // datagrams to one who need not answer does. Of a port that was kept the turn says nothing.
        let spoke_once = flow.last_seen == flow.created;
        let done = if flow.is_opening() {
            protocol == TCP || spoke_once
        } else {
            // Two questions at once have their answers.
            protocol == UDP && spoke_once && self.is_silent(flow, reply, abi::ASKED_ONCE_IDLE)
        };
        if !matches!(claim, Claim::Only | Claim::Free) && done && !reply.kept {
            return true;
        }
        let limit = match protocol {
            TCP | SCTP if flow.is_opening() => abi::OPENING_IDLE,
            _ if flow.closing || reply.closing => self.config.tcp_half_closed,
            UDP => self.config.udp_idle,
            _ => self.config.tcp_idle,
        };
        self.is_silent(flow, reply, limit)
    }

    /// Whether a packet that looks like an answer belongs to another connection between the same ports, which began after ours
    /// was over. The entry goes, so that the rest of that connection finds none, unless its port is but lent.
    pub(crate) fn is_anothers(&mut self, p: &Packet) -> bool {
        let key = p.key();
        let Some((stage, reply)) = self.tables.replies.find(&key) else { return false };
        let begins = p.syn_ack || p.protocol == UDP;
        let done = reply.closing
            && (p.reset || reply.is_opening())
            && self.now.is_idle(reply.last_seen, self.config.tcp_linger);
        if !begins && !done {
            return false;
        }
        if self.is_lent(&reply) {
            return true;
        }
        let reply = Reply { lent: None, ..reply };
        self.tables.replies.put(stage, key, reply);
        let port = reply.source_port(p.dport);
        let flow = self.tables.flows.find(&reply.flow_key(&key)).map(|(_, flow)| flow);
        // It may answer what its client has just said.
        let is_heard = |flow: &Flow| !self.now.is_idle(flow.last_seen, self.config.tcp_linger);
        if !begins && flow.as_ref().is_some_and(is_heard) {
            return false;
        }
        // Its flow may have lost its place in a flood while it awaits that answer.
        let awaits = reply.opening && !reply.replied && reply.ended.is_none();
        if p.syn_ack && flow.is_none() && awaits && !self.now.is_idle(reply.last_seen, abi::OPENING_IDLE) {
            return false;
        }
        // To a SYN that has gone to another backend in a flood, or there from another port, where nothing was left to note that at.
        let left = |flow: &Flow| flow.backend != reply.backend || flow.source_port() != port;
        let elsewhere = !reply.snat && flow.as_ref().is_some_and(left);
        let is_late = p.syn_ack && reply.opening && !reply.replied && !self.now.is_idle(reply.last_seen, MOVED_IDLE);
        if elsewhere && is_late {
            self.tables.replies.put(stage, key, Reply { moved: true, ..reply });
            return false;
        }
        // Datagrams were under way when their endpoint left, or their flow was forgotten.
        let awaited = match &flow {
            Some(flow) if flow.backend == reply.backend && flow.source_port() == port => {
                !self.is_silent(flow, &reply, abi::ANSWER_IDLE)
            }
            Some(_) => false,
            None => !self.now.is_idle(reply.last_seen, abi::ANSWER_IDLE),
        };
        let over = match &flow {
            Some(flow) => self.flow_is_over(p.protocol, flow, &reply, port, Claim::Only),
            // Of a full table an entry may be missing whose flow goes on.
            None => {
                let is_late = p.protocol == UDP && self.now.is_idle(reply.last_seen, self.config.udp_idle);
                port.is_some() || reply.ended.is_some() || is_late
            }
        };
        let theirs = over && !(p.protocol == UDP && awaited);
        if theirs {
            self.tables.replies.forget_all(&key);
        }
        theirs
    }

    /// Notes an end that a client has sent.
    pub(crate) fn client_ends(&mut self, flow: &mut Flow, p: &Packet) {
        let at = self.reply_key_of(p, flow);
        let own = |reply: &Reply| !flow.direct && reply.is_of(&p.key(), flow);
        let found = self.tables.replies.find(&at).filter(|(_, reply)| own(reply));
        // Somebody in its name, who does not know its numbers.
        let far =
            |reply: &Reply| p.heard.wrapping_sub(reply.heard).wrapping_add(1) & abi::HEARD_MASK > abi::HEARD_FAR + 1;
        let known = |reply: &Reply| p.protocol == TCP && reply.heard != 0 && !reply.is_opening();
        if found.as_ref().is_some_and(|(_, reply)| known(reply) && far(reply)) {
            return;
        }
        // Who begins resets what is for an earlier connection between the same ports, and goes on asking.
        let before_syn_ack = found.as_ref().is_some_and(|(_, reply)| reply.heard == 0);
        if p.reset && p.protocol == TCP && flow.is_opening() && (flow.source_port().is_some() || before_syn_ack) {
            return;
        }
        flow.closing = true;
        // Whose answers do not come by here is believed to have closed its direction.
        if p.reset || flow.direct || found.is_some_and(|(_, reply)| reply.closing) {
            // The answer to the second end is the other side's.
            if let Some((stage, reply)) = found {
                let ended = ended(reply.ended, flow.ended.is_none());
                self.tables.replies.put(stage, at, Reply { ended, ..reply });
            }
            self.end(flow, p.reset || flow.direct);
        }
    }

    /// Has a connection go on whose client has reset it and sends all the same: somebody else may have sent the reset. A SYN soon after it
    /// is for the backend to judge.
    pub(crate) fn revive(&mut self, p: &Packet, flow: &mut Flow) {
        if p.syn && self.now.is_idle(flow.last_seen, self.config.tcp_linger) {
            return;
        }
        if flow.direct {
            // What its backend still sends nobody here knows: who goes on has closed one direction.
            if p.syn || flow.last_seen == self.now.ticks {
                return;
            }
            flow.ended = None;
        } else {
            let at = self.reply_key_of(p, flow);
            let Some((stage, reply)) = self.tables.replies.find(&at) else { return };
            if !reply.is_of(&p.key(), flow) || reply.closing {
                return;
            }
            self.tables.replies.put(stage, at, Reply { ended: None, ..reply });
            (flow.ended, flow.closing) = (None, false);
        }
        if self.is_alive(flow) {
            let counters = self.tables.backend_counters(flow.backend);
            counters.balance = counters.balance.wrapping_add(1);
            counters.going = counters.going.wrapping_add(flow.gone_on.into());
        }
        self.tables.flows.put(Stage::Opening, p.key(), *flow);
    }

    /// Whether a reset answers an acknowledgement of nothing, which somebody may have sent in the name of a client whose SYN is yet to be
    /// answered, or was.
    pub(crate) const fn is_reset_of_nothing(p: &Packet, reply: &Reply) -> bool {
        p.protocol == TCP && p.reset && !p.refuses && reply.is_opening() && (reply.asked.is_some() || reply.heard != 0)
    }

    /// Notes an end that a backend has sent, whose reply entry says so already. Its client may have gone on to another flow.
    pub(crate) fn backend_ends(&mut self, key: &Key, reply: &mut Reply, p: &Packet) {
        let flow_key = reply.flow_key(key);
        let Some((stage, mut flow)) = self.tables.flows.find(&flow_key) else { return };
        let is_of = (flow.backend, flow.generation) == (reply.backend, reply.generation);
        if !is_of || flow.source_port() != reply.source_port(p.dport) || !(p.reset || flow.closing) {
            return;
        }
        reply.ended = ended(reply.ended, p.reset && flow.ended.is_none());
        self.end(&mut flow, true);
        self.tables.flows.put(stage, flow_key, flow);
    }

    /// Moves a flow that has ended back to the tables of those that begin: it never costs one that goes on its place.
    pub(crate) fn retire(&mut self, key: &Key, flow: &Flow) {
        let at = self.answers_to(key, flow);
        if flow.settled {
            // It is there.
            self.tables.flows.put(Stage::Opening, *key, Flow { settled: false, ..*flow });
            if let Some((stage, reply)) = self.tables.replies.find(&at).filter(|(_, reply)| reply.is_of(key, flow)) {
                self.tables.replies.put(stage, at, Reply { settled: false, heard: 0, ..reply });
            }
            return;
        }
        let reply = self.tables.replies.at(Stage::Going, &at).filter(|reply| !flow.direct && reply.is_of(key, flow));
        if let Some(reply) = reply {
            self.tables.replies.forget(Stage::Going, &at);
            // Its client has heard of the SYN-ACK long ago.
            self.tables.replies.put(Stage::Opening, at, Reply { opening: true, heard: 0, ..reply });
        }
        self.tables.flows.forget(Stage::Going, key);
        self.tables.flows.put(Stage::Opening, *key, Flow { opening: true, retries: 0, ..*flow });
    }

    /// The same after a packet of the backend's. Its client may have gone on to another flow.
    pub(crate) fn retire_answered(&mut self, p: &Packet, stage: Stage) {
        let key = p.key();
        let Some(reply) =
            self.tables.replies.at(stage, &key).filter(|reply| is_last(p, reply.ended, reply.is_opening()))
        else {
            return;
        };
        let flow_key = reply.flow_key(&key);
        let is_of = |flow: &Flow| {
            (flow.backend, flow.generation, flow.settled) == (reply.backend, reply.generation, reply.settled)
        };
        let stage = if reply.settled { Stage::Opening } else { Stage::Going };
        if let Some(flow) = self.tables.flows.at(stage, &flow_key).filter(|flow| flow.ended.is_some() && is_of(flow)) {
            self.retire(&flow_key, &flow);
        }
    }

    /// Notes that a flow has ended, and takes it out of the balance of its backend, whose slot may be another's by now.
    fn end(&mut self, flow: &mut Flow, is_last: bool) {
        let again = flow.ended.is_some();
        flow.ended = ended(flow.ended, is_last && !again);
        if !again && self.is_alive(flow) {
            let counters = self.tables.backend_counters(flow.backend);
            counters.balance = counters.balance.wrapping_sub(1);
            counters.going = counters.going.wrapping_sub(flow.gone_on.into());
        }
    }

    /// Whether the answer to a SYN may go back: its client has not gone on to another backend or port. A flow that begins and
    /// is gone is written anew, as the client's next packet would be hashed to another backend or get another port.
    pub(crate) fn restore_asked(&mut self, p: &Packet, reply: &Reply) -> bool {
        if !p.syn_ack || !reply.is_opening() || reply.closing || reply.ended.is_some() || reply.moved || reply.by_hash {
            return true;
        }
        let (key, port) = (reply.flow_key(&p.key()), reply.source_port(p.dport));
        if let Some((_, flow)) = self.tables.flows.find(&key) {
            return (flow.backend, flow.generation, flow.source_port()) == (reply.backend, reply.generation, port);
        }
        let frontend = self.control.frontend_at(key.family, reply.frontend, key.protocol);
        let backend = self.control.backend(reply.backend);
        if backend.generation == reply.generation && frontend.is_some_and(|to| to.service == backend.service) {
            let &Reply { tunnel, retries, last_seen, .. } = reply;
            let (snat, other_port) = if reply.snat { (port, None) } else { (None, port) };
            let flow = self.new_flow(reply.backend, backend.service);
            self.tables.flows.put(
                Stage::Opening,
                key,
                Flow { snat, other_port, tunnel, retries, replied: true, created: last_seen, last_seen, ..flow },
            );
        }
        true
    }

    /// Tells a flow that begins that it was answered.
    pub(crate) fn note_answer(&mut self, key: &Key, reply: &Reply) {
        if let Some(flow) = self.tables.flows.get_mut(Stage::Opening, &reply.flow_key(key)) {
            flow.replied = true;
        }
    }
}
