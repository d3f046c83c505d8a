//! The place of a new flow's answers: with the client's own address and port, or with a source port of the node's.

use weir_abi as abi;
use weir_core::select;

use crate::Model;
use crate::control::backend_end;
use crate::going::SYN_AGAIN;
use crate::kept::turn_slot;
use crate::over::Claim;
use crate::packet::{End, Key, Packet, SCTP, TCP, ip_of};
use crate::tables::{Flow, Reply, Stage};

/// Source ports that are tried for a flow.
const PROBES: usize = 512;
/// The same soon after a long search.
const PROBES_SHORT: usize = 128;
/// The same while a flood takes them.
const PROBES_PRESSED: usize = 32;
/// After so many one is taken that another client's port keeps.
const PROBES_KEPT: usize = 256;
/// The first so many are not taken from flows that have ended only just now.
const CHOICE: usize = 16;
/// Ports that are tried for a flow that keeps its client's address alone; after so many also those of flows that begin.
const OTHER_PORTS: usize = 64;
const OTHER_PORTS_FREE: usize = 56;
/// The least of them.
const FIRST_OTHER_PORT: u64 = 1024;

/// What became of the entry for a new flow's answers.
pub(crate) enum Stored {
    Written,
    /// It is there: of the flow, which a flood has left no entry of, the backend has answered.
    Answered,
    /// The backend knows the client's address and port through another frontend.
    Taken,
    /// The SYN came again, of which a flood had left no flow.
    Again,
}

/// Whether an entry is that of the connection which a packet goes on with: of a flood only this was written, and it was answered.
pub(crate) fn is_answered_already(old: &Reply, p: &Packet, reply: &Reply) -> bool {
    let is_same = (old.backend, old.generation, old.frontend, old.client)
        == (reply.backend, reply.generation, reply.frontend, reply.client);
    !p.syn && old.opening && old.replied && !old.moved && is_same
}

impl Model {
    /// Whether an entry awaits the answer to the same SYN, which a flood has left no flow of. Of one that came wrapped somebody else
    /// chooses the endpoint, and one whose way ends here asks nobody.
    pub(crate) fn is_unanswered(&self, old: &Reply, p: &Packet, flow: &Flow) -> bool {
        let is_same = (old.backend, old.generation) == (flow.backend, flow.generation);
        let is_its_clients = (old.frontend, old.client) == (p.destination(), p.source());
        let is_it = is_same && is_its_clients && p.endpoint.is_none();
        let is_of_now = !old.replied && !old.moved && !self.now.is_idle(old.last_seen, abi::OPENING_IDLE);
        let waited = |asked| self.now.delay.wrapping_sub(asked).cast_signed() >= SYN_AGAIN.cast_signed();
        is_it && is_of_now && old.asked.is_some_and(waited)
    }

    /// The entry of a flow that keeps its client's address.
    pub(crate) fn store_direct(&mut self, p: &Packet, flow: &Flow, backend: &abi::Backend, flood: bool) -> Stored {
        let key = reply_key(p, backend, p.source());
        let reply = Reply { by_hash: flood, ..self.reply_of(p, flow, self.asked_at(p)) };
        let same = |old: &Reply| (old.frontend, old.client) == (reply.frontend, reply.client);
        let port = |old: &Reply| old.source_port(p.sport);
        if let Some(old) = self.tables.replies.at(Stage::Going, &key) {
            if !same(&old) && !self.is_over(&key, &old, port(&old), Claim::Only) {
                return Stored::Taken;
            }
            self.tables.replies.forget(Stage::Going, &key);
        }
        if let Some(old) = self.tables.replies.at(Stage::Opening, &key) {
            if !same(&old) && !self.is_over(&key, &old, port(&old), Claim::Only) {
                return Stored::Taken;
            }
            if p.asks() && flow.retries == 0 && self.is_unanswered(&old, p, flow) {
                return Stored::Again;
            }
            if is_answered_already(&old, p, &reply) {
                return Stored::Answered;
            }
        }
        self.tables.replies.put(Stage::Opening, key, reply);
        Stored::Written
    }

    /// The entry of a flow that keeps its client's address and gets another port, by its hash. None: all that were tried are taken.
    pub(crate) fn store_other_port(&mut self, p: &Packet, flow: &Flow, backend: &abi::Backend) -> Option<u16> {
        let (src, dst) = (ip_of(p.family, p.src), ip_of(p.family, p.dst));
        let hash = select::flow_hash(self.config.hash_seed, src, dst, p.sport, p.dport, p.protocol) >> 48;
        for round in 0..OTHER_PORTS {
            if round >= PROBES_PRESSED && self.is_pressed(backend) {
                return None;
            }
            let spread = (hash + round as u64 * 0x9e37) & u64::from(u16::MAX);
            let port = FIRST_OTHER_PORT + ((spread * (0x1_0000 - FIRST_OTHER_PORT)) >> 16);
            let port = u16::try_from(port).ok()?;
            let is_given_out = self.control.port_from(port) == Some(port);
            if port == p.sport || is_given_out {
                continue;
            }
            let claim = if round < OTHER_PORTS_FREE { Claim::Only } else { Claim::Any };
            let key = reply_key(p, backend, End { addr: p.src, port });
            if let Some((_, old)) = self.tables.replies.find(&key) {
                if !self.is_over(&key, &old, old.source_port(port), claim) {
                    continue;
                }
                self.tables.replies.forget_all(&key);
            }
            let reply = self.reply_of(p, flow, self.asked_at(p));
            self.tables.replies.put(Stage::Opening, key, reply);
            return Some(port);
        }
        None
    }

    /// The entry of a flow in the node's name, at the port whose turn it is. None: all that were tried are taken.
    pub(crate) fn store_snat(&mut self, p: &Packet, flow: &Flow, backend: &abi::Backend) -> Option<u16> {
        let node = self.source(p.family, flow.tunnel);
        let again = p.protocol == TCP;
        if let Some(port) = again.then(|| self.store_snat_again(p, flow, backend)).flatten() {
            return Some(port);
        }
        let goes_on = p.protocol == TCP && !p.syn;
        let probes = match p.protocol {
            SCTP => 1,
            _ if goes_on => CHOICE,
            _ if self.was_long_search(backend) => PROBES_SHORT,
            _ => PROBES,
        };
        for probe in 0..probes {
            if probe == PROBES_SHORT {
                self.tables.turns.entry(turn_slot(backend)).or_default().long_search = Some(self.now.ticks);
            }
            let pressed = self.is_pressed(backend);
            if probe >= PROBES_PRESSED && pressed {
                break;
            }
            let Some(port) = self.take_port(backend, p.sport) else { continue };
            let claim = match p.protocol {
                SCTP => Claim::Only,
                _ if goes_on => Claim::Free,
                _ if probe < CHOICE => Claim::Turn,
                _ if probe < PROBES_KEPT && !pressed => Claim::Need,
                _ => Claim::Any,
            };
            let key = reply_key(p, backend, End { addr: node, port });
            let mut free = true;
            for stage in [Stage::Going, Stage::Opening] {
                free = match self.tables.replies.at(stage, &key) {
                    Some(old) if free && self.is_over(&key, &old, Some(port), claim) => {
                        if stage == Stage::Opening {
                            self.press(backend, &key, &old, port);
                        }
                        self.tables.replies.forget(stage, &key);
                        true
                    }
                    Some(_) => false,
                    None => free,
                };
            }
            if free {
                let reply = Reply { snat: true, ..self.reply_of(p, flow, self.asked_at(p)) };
                self.tables.replies.put(Stage::Opening, key, reply);
                return Some(port);
            }
        }
        match (probes, self.is_pressed(backend)) {
            (1 | CHOICE, _) => {}
            (_, true) => self.pass_over(backend, PROBES - PROBES_PRESSED),
            (tried, false) => self.pass_over(backend, PROBES - tried),
        }
        None
    }

    /// Whether a reply entry is free for another flow: its own was evicted or is over.
    pub(crate) fn is_over(&self, key: &Key, reply: &Reply, port: Option<u16>, claim: Claim) -> bool {
        if matches!(claim, Claim::Turn | Claim::Need | Claim::Free) && self.keeps_port(reply) {
            return false;
        }
        let flow = self.tables.flows.find(&reply.flow_key(key));
        flow.is_none_or(|(_, flow)| self.flow_is_over(key.protocol, &flow, reply, port, claim))
    }
}

/// What a backend's answers to `peer` look like.
pub(crate) fn reply_key(p: &Packet, backend: &abi::Backend, peer: End) -> Key {
    Key { family: p.family, protocol: p.protocol, from: backend_end(backend), to: peer }
}
