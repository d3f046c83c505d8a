//! SYNs for an endpoint on another node that gets more of them than it has ports for: one passes when it comes again (ADR 41).

use weir_abi as abi;
use weir_core::model::Family;

use crate::Model;
use crate::kept::turn_slot;
use crate::packet::{Key, Packet, TCP};
use crate::tables::{Flow, Reply};

/// Ticks in which all ports have had their turn, at most, if flows that begin lose them before anybody can have answered.
const LAP: u32 = 1;
/// Ticks after a long search in which others look at fewer ports.
const SHORT: u32 = 1;

impl Model {
    /// Notes that a flow takes its port from one that has only just begun.
    pub(crate) fn press(&mut self, backend: &abi::Backend, key: &Key, old: &Reply, port: u16) {
        let Some((_, flow)) = self.tables.flows.find(&old.flow_key(key)) else { return };
        let is_its = flow.backend == old.backend && flow.source_port() == Some(port);
        let begins = is_its && flow.is_opening() && flow.ended.is_none() && !flow.closing && !old.closing;
        let has_asked = old.asked.is_some() || old.replied;
        if backend.proto == TCP && begins && has_asked && !self.now.is_idle(flow.created, LAP) {
            self.tables.turns.entry(turn_slot(backend)).or_default().pressed = Some(self.now.ticks);
        }
    }

    /// Whether a SYN that begins a flow has to come again. It is noted, and has come from then on.
    pub(crate) fn is_held_back(&mut self, p: &Packet, flow: &Flow, backend: &abi::Backend) -> bool {
        p.syn && p.protocol == TCP && flow.retries == 0 && self.is_pressed(backend) && self.note_syn(&p.key())
    }

    /// Whether flows to an endpoint that nobody waited for have lost their source ports of late.
    pub(crate) fn is_pressed(&self, backend: &abi::Backend) -> bool {
        let pressed = self.tables.turns.get(&turn_slot(backend)).and_then(|turn| turn.pressed);
        pressed.is_some_and(|then| !self.now.is_idle(then, abi::OPENING_IDLE))
    }

    /// Whether a search for a source port towards an endpoint was long of late.
    pub(crate) fn was_long_search(&self, backend: &abi::Backend) -> bool {
        let long_search = self.tables.turns.get(&turn_slot(backend)).and_then(|turn| turn.long_search);
        long_search.is_some_and(|then| !self.now.is_idle(then, SHORT))
    }

    /// The set, of each table of flows that begin, that has a key.
    pub(crate) fn set_of(&self, key: &Key) -> (Family, u32) {
        (key.family, abi::opening_set(self.hash_of(key), self.opening_sets))
    }

    /// The hash of a key, which names its set.
    fn hash_of(&self, key: &Key) -> u64 {
        abi::opening_hash(&words(key), self.config.hash_seed, abi::opening_step(self.opening_sets))
    }

    /// Notes a SYN, in the place of others with the same hash. Says whether it was not there.
    fn note_syn(&mut self, key: &Key) -> bool {
        let hash = self.hash_of(key);
        let set = abi::opening_set(hash, self.opening_sets);
        let [tag, place, ..] = hash.to_le_bytes();
        self.tables.first_syns.insert((set, place), tag.max(1)) != Some(tag.max(1))
    }
}

/// The key as it lies in memory.
fn words(key: &Key) -> Vec<u32> {
    let skipped = if key.family == Family::V4 { 12 } else { 0 };
    let mut bytes = Vec::new();
    for end in [key.from, key.to] {
        bytes.extend_from_slice(&end.addr.octets()[skipped..]);
    }
    bytes.extend(key.from.port.to_be_bytes().into_iter().chain(key.to.port.to_be_bytes()));
    bytes.extend([key.protocol, 0, 0, 0]);
    bytes.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect()
}
