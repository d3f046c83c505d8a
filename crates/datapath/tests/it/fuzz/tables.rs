//! What the kernel's tables hold, in the model's words.

use std::collections::HashMap;
use std::hash::Hash;

use weir_abi as abi;
use weir_core::model::Family;
use weir_model::{End, Ended, Flow, Fragment, FragmentKey, HeldPiece, Key, Now, Reply, Stage, Turn};

use super::kernel::FLOWS;
use crate::node::Node;

/// Reads the fields of an entry, one after the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (first, rest) = self.0.split_first_chunk().unwrap();
        self.0 = rest;
        *first
    }

    fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    fn port(&mut self) -> u16 {
        u16::from_be_bytes(self.take())
    }

    fn addr(&mut self) -> abi::Addr {
        std::net::Ipv6Addr::from(self.take::<16>()).into()
    }

    fn addr_of(&mut self, family: Family) -> abi::Addr {
        match family {
            Family::V4 => std::net::Ipv4Addr::from(self.take::<4>()).into(),
            Family::V6 => self.addr(),
        }
    }
}

fn key_of(bytes: &[u8], family: Family) -> Key {
    let mut fields = Fields(bytes);
    let (from, to) = (fields.addr_of(family), fields.addr_of(family));
    let (sport, dport) = (fields.port(), fields.port());
    let [protocol] = fields.take();
    Key { family, protocol, from: End { addr: from, port: sport }, to: End { addr: to, port: dport } }
}

/// A tick of the kernel in the model's time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks {
    pub(super) kernel: u32,
    pub(super) model: Now,
}

impl Clocks {
    const fn tick(self, kernel: u32) -> u32 {
        kernel.wrapping_sub(self.kernel).wrapping_add(self.model.ticks)
    }

    /// The same of the lower bits that an entry has.
    fn lent(self, kernel: u16) -> u16 {
        u16::try_from(self.tick(kernel.into()) & u32::from(abi::HEARD_MASK)).unwrap()
    }
}

fn flow(bytes: &[u8], clocks: Clocks) -> Flow {
    let mut f = Fields(bytes);
    let (backend, generation, service, flags, port) = (f.u32(), f.u32(), f.u32(), f.u16(), f.port());
    Flow {
        backend,
        generation,
        service,
        snat: (flags & abi::FLOW_SNAT != 0).then_some(port),
        other_port: (flags & abi::FLOW_SNAT == 0 && port != 0).then_some(port),
        tunnel: flags & abi::FLOW_TUNNEL != 0,
        direct: flags & abi::FLOW_DIRECT != 0,
        hosts: flags & abi::FLOW_OWN != 0,
        closing: flags & abi::FLOW_CLOSING != 0,
        ended: (flags & abi::FLOW_ENDED != 0).then_some(Ended { is_last: flags & abi::FLOW_LAST != 0 }),
        replied: flags & abi::FLOW_REPLIED != 0,
        retries: (flags & abi::FLOW_RETRIES) / abi::FLOW_RETRY,
        opening: flags & abi::FLOW_OPENING != 0,
        settled: flags & abi::FLOW_SETTLED != 0,
        gone_on: flags & abi::FLOW_GONE_ON != 0,
        created: clocks.tick(f.u32()),
        last_seen: clocks.tick(f.u32()),
        bytes: f.u32(),
        held: f.u32(),
    }
}

fn reply(bytes: &[u8], clocks: Clocks) -> Reply {
    let mut f = Fields(bytes);
    let (frontend, client) = (f.addr(), f.addr());
    let (frontend_port, client_port, flags, heard) = (f.port(), f.port(), f.u16(), f.u16());
    Reply {
        frontend: End { addr: frontend, port: frontend_port },
        client: End { addr: client, port: client_port },
        snat: flags & abi::FLOW_SNAT != 0,
        tunnel: flags & abi::FLOW_TUNNEL != 0,
        closing: flags & abi::FLOW_CLOSING != 0,
        ended: (flags & abi::FLOW_ENDED != 0).then_some(Ended { is_last: flags & abi::FLOW_LAST != 0 }),
        heard: if flags & abi::FLOW_LENT == 0 { heard } else { 0 },
        lent: (flags & abi::FLOW_LENT != 0).then(|| clocks.lent(heard)),
        replied: flags & abi::FLOW_REPLIED != 0,
        moved: flags & abi::FLOW_MOVED != 0,
        by_hash: flags & abi::FLOW_BY_HASH != 0,
        kept: flags & abi::FLOW_KEPT != 0,
        opening: flags & abi::FLOW_OPENING != 0,
        settled: flags & abi::FLOW_SETTLED != 0,
        retries: (flags & abi::FLOW_RETRIES) / abi::FLOW_RETRY,
        asked_again: flags & abi::FLOW_ASKED_AGAIN != 0,
        alone: flags & abi::FLOW_ALONE != 0,
        backend: f.u32(),
        generation: f.u32(),
        last_seen: clocks.tick(f.u32()),
        // The clock's matter, but for whether there is one.
        asked: (f.u32() != 0).then_some(0),
        bytes: f.u32(),
        held: f.u32(),
    }
}

fn entries<K: Eq + Hash, V>(
    node: &Node,
    name: &str,
    key: impl Fn(&[u8]) -> K,
    value: impl Fn(&[u8]) -> V,
) -> HashMap<K, V> {
    let raw = node.view.raw(name).unwrap().unwrap();
    raw.into_iter().map(|(k, v)| (key(&k), value(&v))).collect()
}

fn both<V>(node: &Node, names: [&str; 2], value: impl Fn(&[u8]) -> V) -> HashMap<Key, V> {
    let mut all = entries(node, names[0], |bytes| key_of(bytes, Family::V4), &value);
    all.extend(entries(node, names[1], |bytes| key_of(bytes, Family::V6), &value));
    all
}

pub(super) fn flows(node: &Node, stage: Stage, clocks: Clocks) -> HashMap<Key, Flow> {
    let names = FLOWS[if stage == Stage::Going { 0 } else { 1 }];
    both(node, names, |bytes| flow(bytes, clocks))
}

pub(super) fn replies(node: &Node, stage: Stage, clocks: Clocks) -> HashMap<Key, Reply> {
    let names = FLOWS[if stage == Stage::Going { 2 } else { 3 }];
    both(node, names, |bytes| reply(bytes, clocks))
}

pub(super) fn affinities(node: &Node, clocks: Clocks) -> HashMap<(abi::Addr, u32), abi::Affinity> {
    let entries = node.view.affinities().unwrap().into_iter();
    let in_model = |kept: abi::Affinity| abi::Affinity { last_seen: clocks.tick(kept.last_seen), ..kept };
    entries.map(|(key, kept)| ((key.client, key.service), in_model(kept))).collect()
}

pub(super) fn fragments(node: &Node, clocks: Clocks) -> HashMap<FragmentKey, Fragment> {
    let entries = node.view.fragments().unwrap().into_iter();
    entries
        .map(|(key, first)| {
            let (sport, dport, state) = (first.sport.get(), first.dport.get(), first.state);
            (fragment_key(key), Fragment { sport, dport, last_seen: clocks.tick(first.last_seen), state })
        })
        .collect()
}

const fn fragment_key(key: abi::FragmentKey) -> FragmentKey {
    FragmentKey { src: key.src, dst: key.dst, id: key.id.get(), protocol: key.proto, out: key.out != 0 }
}

/// Pieces that wait, by their place.
pub(super) fn held(node: &Node, clocks: Clocks) -> HashMap<u32, HeldPiece> {
    let piece = |(place, piece): (u32, abi::HeldPiece)| {
        let frame = piece.bytes[..usize::from(piece.length)].to_vec();
        let (key, l3, last_seen) = (fragment_key(piece.key), usize::from(piece.l3), clocks.tick(piece.last_seen));
        (place, HeldPiece { key, frame, l3, device: piece.ifindex, last_seen })
    };
    node.view.held_pieces().unwrap().into_iter().map(piece).collect()
}

/// The turns of source ports that are not at the beginning.
pub(super) fn turns(node: &Node, clocks: Clocks) -> HashMap<u32, Turn> {
    let slot = |key: &[u8]| u32::from_ne_bytes(key.try_into().unwrap());
    let turn = |value: &[u8]| {
        let mut f = Fields(value);
        let (next, pressed, long_search) = (f.u32(), f.u32(), f.u32());
        let tick = |when| (when != 0).then(|| clocks.tick(when));
        Turn { next, pressed: tick(pressed), long_search: tick(long_search) }
    };
    let mut turns = entries(node, "snat_counters", slot, turn);
    turns.retain(|_, turn| *turn != Turn::default());
    turns
}
