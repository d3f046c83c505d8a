//! Flows that are known: what a packet is to its flow, when one is over, and what becomes of those whose backend is silent.

use weir_abi as abi;

use crate::control::is_here;
use crate::over::has_ended;
use crate::packet::{End, Key, Packet, Piece, TCP, UDP};
use crate::path::MOVED_IDLE;
use crate::place::reply_key;
use crate::tables::{Flow, Reply, Stage};
use crate::{Model, Reason};

/// A SYN that is back sooner was not sent again, but doubled on its way: 100 ms in units of delay.
pub(crate) const SYN_AGAIN: u32 = 100_000_000 >> abi::DELAY_SHIFT;
/// The same of a flow that was answered once: a backend that is there says so at least every half a second.
const SYN_AGAIN_GOING: u32 = 900_000_000 >> abi::DELAY_SHIFT;
/// Ticks after a backend's last packet in which no SYN asks whether it is there: it may limit what it says.
const SPOKEN_LATELY: u32 = 1;
/// Ticks between two packets of a client that speaks all the time.
const SPEAKS_ALL_THE_TIME: u32 = 1;
/// Of a set so many may have settled.
const SETTLED: usize = abi::OPENING_WAYS / 2;
/// Backends that are tried after the first one.
pub(crate) const RETRIES: u16 = abi::FLOW_RETRIES / abi::FLOW_RETRY;

/// What a client's packet is to the flow that is known of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Step {
    /// It goes on with it.
    On,
    /// It begins another one.
    Over,
    /// It begins another one at another backend, as this one does not answer.
    Elsewhere,
    /// There were enough of those.
    GiveUp,
}

/// What becomes of a flow whose backend did not answer a SYN.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Silence {
    /// There is no other: it is asked once more.
    Stays,
    /// Another one has it: what this one still says is dropped.
    Left,
    /// The other one could not have it: as if nothing had been.
    Back,
}

impl Model {
    /// The flow of a client's packet. When the client goes on after an answer, a flow that begins does: neither a SYN again
    /// nor an end shows that it heard of one.
    pub(crate) fn known_flow(&mut self, p: &Packet) -> Option<(Stage, Flow)> {
        let key = p.key();
        let (stage, mut flow) = self.tables.flows.find(&key)?;
        if stage == Stage::Opening && flow.ended.is_some() && flow.closing && !p.ending && p.protocol == TCP {
            self.revive(p, &mut flow);
        }
        let goes_on = flow.replied && flow.ended.is_none() && !p.syn && !p.ending;
        let stays = flow.settled && self.is_young(&flow);
        if stage == Stage::Opening && goes_on && !stays {
            return Some(self.let_go_on(p, flow));
        }
        Some((stage, flow))
    }

    /// Has a flow that begins go on with a client's packet, if it was answered and its client has heard of that.
    pub(crate) fn let_go_on(&mut self, p: &Packet, flow: Flow) -> (Stage, Flow) {
        let key = p.key();
        let (stage, mut known) = if self.settle(&key, &flow, p.heard) {
            (Stage::Opening, Flow { settled: true, replied: true, ..flow })
        } else if self.promote(&key, &flow, p)
            && let Some(going) = self.tables.flows.at(Stage::Going, &key)
        {
            (Stage::Going, going)
        } else {
            return (Stage::Opening, flow);
        };
        // One that had settled moves later, and one that seemed to have ended comes back.
        if !flow.gone_on {
            known.gone_on = true;
            self.tables.flows.put(stage, key, known);
            self.count_gone_on(p, &flow);
            self.keep_backend(p, &flow);
        }
        (stage, known)
    }

    /// Whether the endpoint of a flow is still the one that was chosen.
    pub(crate) fn is_alive(&self, flow: &Flow) -> bool {
        self.control.backend(flow.backend).generation == flow.generation
    }

    /// Whom the backend of a flow with this key sees.
    fn source_of(&self, key: &Key, flow: &Flow) -> End {
        match (flow.snat, flow.other_port) {
            (Some(port), _) => End { addr: self.source(key.family, flow.tunnel), port },
            (None, Some(port)) => End { addr: key.from.addr, port },
            (None, None) => key.from,
        }
    }

    /// How the answers to a flow's packets are keyed.
    pub(crate) fn reply_key_of(&self, p: &Packet, flow: &Flow) -> Key {
        reply_key(p, &self.control.backend(flow.backend), self.source_of(&p.key(), flow))
    }

    pub(crate) fn step(&mut self, p: &Packet, flow: &Flow) -> Step {
        // What came wrapped ends here.
        if p.endpoint.is_some() && flow.direct {
            return Step::Over;
        }
        if p.protocol == UDP && self.now.is_idle(flow.last_seen, self.config.udp_idle) && !self.is_told(p, flow) {
            return Step::Over;
        }
        if p.syn && (flow.ended.is_some() || flow.direct && flow.closing) {
            return Step::Over;
        }
        // Of a direct flow nobody here knows what was answered. SYNs ask each time, and so does what goes on with a connection that
        // begins: a flood may have taken the place of what is known of its answers. Other packets ask now and then.
        let may_lose_answers = p.protocol != UDP && flow.is_opening() && flow.ended.is_none();
        if flow.direct || !(p.syn || may_lose_answers || self.looks_after(p, flow)) {
            return Step::On;
        }
        self.check_reply(p, flow)
    }

    /// Whether a packet looks after the entry for its flow's answers: the first one of a tick does, but of a connection that goes on and whose
    /// client speaks all the time the first one of some ticks, counted from its beginning.
    fn looks_after(&self, p: &Packet, flow: &Flow) -> bool {
        let speaks = !self.now.is_idle(flow.last_seen, SPEAKS_ALL_THE_TIME);
        let goes_on = p.protocol == TCP && !flow.opening && !flow.closing && flow.ended.is_none() && speaks;
        let turn = |tick: u32| tick.wrapping_sub(flow.created) >> if goes_on { abi::ANSWERS_SHIFT } else { 0 };
        turn(self.now.ticks) != turn(flow.last_seen)
    }

    /// Whether a backend still sends to a client that has been silent: datagrams of one side are enough.
    fn is_told(&self, p: &Packet, flow: &Flow) -> bool {
        let reply = self.tables.replies.find(&self.reply_key_of(p, flow)).map(|(_, reply)| reply);
        let of_now = |reply: Reply| reply.replied && !self.now.is_idle(reply.last_seen, self.config.udp_idle);
        !flow.direct && reply.is_some_and(|reply| reply.is_of(&p.key(), flow) && of_now(reply))
    }

    /// What the backend answers must find its way back: an entry that a full table has lost is written anew; if another flow
    /// has it by now, this one is over.
    fn check_reply(&mut self, p: &Packet, flow: &Flow) -> Step {
        let key = self.reply_key_of(p, flow);
        let known = self.tables.replies.find(&key);
        if let Some((stage, reply)) = known
            && reply.is_of(&p.key(), flow)
        {
            // Whoever asks last is answered.
            // Its entry is in use for as long as its client sends.
            let is_sent_to = p.protocol == UDP && !reply.replied;
            let last_seen = if is_sent_to { self.now.ticks } else { reply.last_seen };
            self.tables.replies.put(stage, key, Reply { lent: None, last_seen, ..reply });
            return if p.asks() { self.step_of_syn(flow, (stage, &key), &reply) } else { Step::On };
        }
        // It has nothing left to go on with.
        if p.syn && flow.closing {
            return Step::Over;
        }
        if known.is_some() {
            // Of two of datagrams to a process on the node the one that speaks has it.
            if p.protocol != UDP || !is_here(&self.control.backend(flow.backend)) {
                return Step::Over;
            }
            self.tables.replies.forget_all(&key);
        }
        self.tables.lost += u64::from(known.is_none() && !flow.opening);
        let stage = if flow.opening { Stage::Opening } else { Stage::Going };
        let reply = self.reply_of(p, flow, p.asks().then_some(self.now.delay));
        self.tables.replies.put(stage, key, reply);
        Step::On
    }

    fn step_of_syn(&mut self, flow: &Flow, at: (Stage, &Key), reply: &Reply) -> Step {
        // At rest after its backend has closed, its client has begun anew. Else the backend tells whether it still knows of it; that it says
        // nothing proves nothing.
        let at_rest = reply.closing && self.is_silent(flow, reply, self.config.tcp_linger);
        if has_ended(flow, reply) || at_rest {
            return Step::Over;
        }
        if !flow.is_opening() {
            return Step::On;
        }
        if self.is_silent(flow, reply, MOVED_IDLE) {
            return Step::Over;
        }
        let Some(asked) = reply.asked else {
            if !self.now.is_idle(reply.last_seen, SPOKEN_LATELY) {
                return Step::On;
            }
            let again = Reply { asked: Some(self.now.delay), asked_again: true, ..*reply };
            self.tables.replies.put(at.0, *at.1, again);
            return Step::On;
        };
        let limit = if reply.asked_again { SYN_AGAIN_GOING } else { SYN_AGAIN };
        if self.now.delay.wrapping_sub(asked) < limit {
            Step::On
        } else if flow.retries >= RETRIES && !self.was_flooded() {
            Step::GiveUp
        } else {
            Step::Elsewhere
        }
    }

    /// Whether a connection may be over soon: it has begun in this tick, and its client has said little.
    const fn is_young(&self, flow: &Flow) -> bool {
        flow.created == self.now.ticks && flow.bytes < abi::SETTLED_BYTES
    }

    /// Lets a connection that goes on in the tick that it began in stay where it is, if few others of its sets have settled. Returns whether
    /// it does.
    fn settle(&mut self, key: &Key, flow: &Flow, heard: u16) -> bool {
        let may = self.is_young(flow) && !flow.settled && !flow.direct;
        if !self.has(abi::CONFIG_SETTLE) || key.protocol != TCP || !may {
            return false;
        }
        let at = self.answers_to(key, flow);
        let Some(reply) = self.tables.replies.at(Stage::Opening, &at) else { return false };
        let is_over = reply.closing || reply.ended.is_some();
        if !reply.replied || is_over || !reply.is_of(key, flow) || !reply.was_heard(heard) {
            return false;
        }
        let (flow_set, reply_set) = (self.set_of(key), self.set_of(&at));
        let flows = self.tables.flows.entries(Stage::Opening).iter();
        let flows = flows.filter(|(other, flow)| flow.settled && self.set_of(other) == flow_set);
        let replies = self.tables.replies.entries(Stage::Opening).iter();
        let replies = replies.filter(|(other, reply)| reply.settled && self.set_of(other) == reply_set);
        if flows.count() >= SETTLED || replies.count() >= SETTLED {
            return false;
        }
        let reply = self.count_failover(reply);
        self.tables.replies.put(Stage::Opening, at, Reply { settled: true, heard: 0, ..reply });
        self.tables.flows.put(Stage::Opening, *key, Flow { settled: true, replied: true, ..*flow });
        self.keep_port(key, flow);
        true
    }

    /// Moves a flow that was answered, and whose client has heard of it, to the tables of those that go on. Returns whether it
    /// did.
    pub(crate) fn promote(&mut self, key: &Key, flow: &Flow, p: &Packet) -> bool {
        if flow.direct {
            // A packet that made it may come to this twice, and what comes behind a first piece is no other packet.
            if flow.bytes == 0 || p.piece == Piece::Later || key.protocol != TCP && !self.may_move_beside_tcp(false) {
                return false;
            }
            let left = if flow.names_left() { flow.held } else { 0 };
            self.failed_over(left);
            self.tables.flows.forget(Stage::Opening, key);
            self.tables.flows.put(Stage::Going, *key, Flow { opening: false, held: flow.held - left, ..*flow });
            return true;
        }
        let at = self.answers_to(key, flow);
        let Some(reply) = self.tables.replies.at(Stage::Opening, &at) else { return false };
        if !reply.replied
            || reply.ended.is_some()
            || self.is_lent(&reply)
            || !reply.is_of(key, flow)
            || !(flow.settled || reply.was_heard(p.heard))
        {
            return false;
        }
        if key.protocol != TCP && !self.may_move_beside_tcp(false) {
            return false;
        }
        let reply = self.count_failover(reply);
        self.tables.replies.forget(Stage::Opening, &at);
        self.tables.flows.forget(Stage::Opening, key);
        // Of what has settled it is the client's numbers that are known, and will be of the others.
        let heard = if flow.settled { reply.heard } else { 0 };
        self.tables.replies.put(Stage::Going, at, Reply { opening: false, settled: false, lent: None, heard, ..reply });
        self.tables.flows.put(Stage::Going, *key, Flow { opening: false, settled: false, replied: true, ..*flow });
        self.keep_port(key, flow);
        true
    }

    /// How the answers to a flow of this key are keyed.
    pub(crate) fn answers_to(&self, key: &Key, flow: &Flow) -> Key {
        let peer = self.source_of(key, flow);
        let from = crate::control::backend_end(&self.control.backend(flow.backend));
        Key { family: key.family, protocol: key.protocol, from, to: peer }
    }

    /// What a backend's packet answers. The second datagram back of a flow that begins lets it go on: a client may ask once
    /// for many.
    pub(crate) fn reply_to(&mut self, p: &Packet) -> Option<(Stage, Reply)> {
        let key = p.key();
        let (stage, reply) = self.tables.replies.find(&key)?;
        if p.protocol == UDP && p.piece != Piece::Later && reply.opening && reply.replied {
            let flow_key = reply.flow_key(&key);
            if let Some(flow) = self.tables.flows.at(Stage::Opening, &flow_key)
                && self.promote(&flow_key, &flow, p)
            {
                return self.tables.replies.find(&key);
            }
        }
        Some((stage, reply))
    }

    /// A SYN that no backend has answered. The next one begins anew.
    pub(crate) fn give_up(&mut self, p: &Packet, is_xdp: bool) -> Reason {
        // XDP leaves it to tc.
        if !is_xdp {
            self.note_silence(p, Silence::Left);
            self.tables.flows.forget_all(&p.key());
        }
        abi::REASON_UNANSWERED
    }

    /// Notes of a flow that has just begun which backend it has left, until its client is heard of: at the entry of its answers, if they come
    /// by here.
    pub(crate) fn note_left(&mut self, p: &Packet, flow: &Flow, left: u32) {
        if flow.direct {
            if let Some(stored) = self.tables.flows.get_mut(Stage::Opening, &p.key()) {
                stored.held = left;
            }
            return;
        }
        let (key, at) = (p.key(), self.reply_key_of(p, flow));
        let Some((stage, found)) = self.tables.replies.find(&at) else { return };
        if found.is_of(&key, flow)
            && found.retries > 0
            && !found.replied
            && let Some(reply) = self.tables.replies.get_mut(stage, &at)
        {
            reply.held = left;
        }
    }

    /// Notes it at the flow that is known of a client's packet, and at its backend.
    pub(crate) fn note_silence(&mut self, p: &Packet, silence: Silence) {
        let (key, now) = (p.key(), self.now.delay);
        let Some((_, flow)) = self.tables.flows.find(&key) else { return };
        let at = self.reply_key_of(p, &flow);
        let Some((stage, found)) = self.tables.replies.find(&at) else { return };
        if !found.is_of(&key, &flow) {
            return;
        }
        let Some(reply) = self.tables.replies.get_mut(stage, &at) else { return };
        let counters = self.tables.backend_counters.entry(flow.backend).or_default();
        match silence {
            Silence::Stays | Silence::Left => {
                reply.asked = Some(now);
                counters.unanswered += 1;
            }
            Silence::Back => {}
        }
        match silence {
            Silence::Left => {
                (reply.moved, reply.alone) = (true, false);
                counters.balance = counters.balance.wrapping_sub(1);
                counters.going = counters.going.wrapping_sub(flow.gone_on.into());
            }
            Silence::Back => {
                reply.moved = false;
                counters.balance = counters.balance.wrapping_add(1);
                counters.going = counters.going.wrapping_add(flow.gone_on.into());
            }
            Silence::Stays => reply.alone = true,
        }
    }
}
