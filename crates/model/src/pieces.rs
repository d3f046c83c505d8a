//! Datagrams in pieces: the first one has the ports, the later ones are told them, and wait for it where they come before.

use weir_abi as abi;

use crate::packet::{Packet, Piece, UDP, is_transport};
use crate::tables::{Fragment, FragmentKey, HeldPiece};
use crate::{Again, Hook, Model, Place, Reason};

/// Ticks for which a piece waits.
const HELD_IDLE: u32 = 1;

const fn fragment_key(p: &Packet, out: bool) -> FragmentKey {
    FragmentKey { src: p.src, dst: p.dst, id: p.fragment_id, protocol: p.protocol, out }
}

impl Model {
    /// Gives a later piece the ports of the first one, unless the packet's number may be another's by now.
    pub(crate) fn take_ports(&self, p: &mut Packet, out: bool) -> Result<(), Reason> {
        let found = self.tables.fragments.get(&fragment_key(p, out));
        let is_idle = |first: &Fragment| self.now.is_idle(first.last_seen, self.config.fragment_idle);
        match found.filter(|first| first.state != abi::FRAGMENT_AWAITED && !is_idle(first)) {
            None => Err(abi::REASON_FRAGMENT_HELD),
            Some(first) if first.state == abi::FRAGMENT_FOREIGN => Err(abi::REASON_FRAGMENT),
            Some(first) => {
                (p.sport, p.dport) = (first.sport, first.dport);
                Ok(())
            }
        }
    }

    /// What becomes of a piece without ports, which may be kept: on its way to an address that no host has it goes no further.
    pub(crate) fn without_ports(&mut self, frame: &[u8], p: &Packet, place: &Place<'_>, reason: Reason) -> Reason {
        let out = matches!(place.hook, Hook::NicOut | Hook::PodOut);
        let is_kept = reason == abi::REASON_FRAGMENT_HELD && self.hold(frame, p, out, place.device);
        match (!out && self.is_lost(p), is_kept) {
            (false, _) => abi::REASON_FRAGMENT,
            (true, true) => abi::REASON_FRAGMENT_HELD,
            (true, false) => abi::REASON_FRAGMENT_LOST,
        }
    }

    /// Notes what became of a first piece, whose fate the others share. length: of its frame as it leaves, as there is room for so many bytes
    /// alone. Returns those that waited for it, if they are translated as well.
    pub(crate) fn note_first(&mut self, p: &Packet, length: usize, out: bool, reason: Reason) -> Vec<Again> {
        let is_ours = reason >= abi::REASON_TO_LOCAL;
        let is_told = !matches!(reason, abi::REASON_MALFORMED | abi::REASON_LEFT_TO_TC);
        if p.piece != Piece::First || !is_transport(p.protocol) || !is_told || !(is_ours || self.holds_pieces()) {
            return Vec::new();
        }
        let state = if is_ours { abi::FRAGMENT_OURS } else { abi::FRAGMENT_FOREIGN };
        let first = Fragment { sport: p.sport, dport: p.dport, last_seen: self.now.ticks, state };
        let before = self.tables.fragments.insert(fragment_key(p, out), first);
        let is_awaited = before.is_some_and(|before| before.state == abi::FRAGMENT_AWAITED);
        let is_translated = is_ours && reason < abi::REASON_NO_ENDPOINTS;
        let waited = if is_awaited { self.release(p, out) } else { Vec::new() };
        if is_translated && length <= abi::HELD_BYTES { waited } else { Vec::new() }
    }

    const fn holds_pieces(&self) -> bool {
        self.config.held_pieces >= abi::HELD_REGION
    }

    /// Keeps a piece until the first one comes, if there is room.
    fn hold(&mut self, frame: &[u8], p: &Packet, out: bool, device: u32) -> bool {
        let key = fragment_key(p, out);
        let may_take = |held: &HeldPiece| self.now.is_idle(held.last_seen, HELD_IDLE);
        let places = 0..abi::HELD_REGION;
        let place = places.into_iter().find(|place| self.tables.held.get(place).is_none_or(may_take));
        let Some(place) = place.filter(|_| self.holds_pieces() && frame.len() <= abi::HELD_BYTES) else { return false };
        let (ports, last_seen) =
            (self.tables.fragments.get(&key).map(|known| (known.sport, known.dport)), self.now.ticks);
        let (sport, dport) = ports.unwrap_or_default();
        self.tables.fragments.insert(key, Fragment { sport, dport, last_seen, state: abi::FRAGMENT_AWAITED });
        self.tables.held.insert(place, HeldPiece { key, frame: frame.to_vec(), l3: p.l3, device, last_seen });
        true
    }

    /// Takes the pieces that waited for a first one out of their places.
    fn release(&mut self, p: &Packet, out: bool) -> Vec<Again> {
        let (key, now) = (fragment_key(p, out), self.now);
        let waits = |held: &HeldPiece| held.key == key && held.l3 == p.l3 && !now.is_idle(held.last_seen, HELD_IDLE);
        let released = self.tables.held.extract_if(.., |_, held| waits(held));
        released.map(|(_, held)| Again { device: held.device, frame: held.frame }).collect()
    }

    /// Whether a piece whose ports nobody knows is on its way to a cluster IP, which no host has.
    fn is_lost(&self, p: &Packet) -> bool {
        let may_be_the_other_proxys = self.has(abi::CONFIG_BESIDE) && p.protocol != UDP;
        !may_be_the_other_proxys && self.control.is_cluster_ip(p.family, p.dst)
    }
}
