//! Whatever comes, nothing that no key signed is believed, and nothing makes the decoder fall.

use proptest::prelude::*;
use weir_mesh::{Body, Config, MAX_PACKET, MIN_PACKET, NodeId, Refusal, open, seal};

use crate::codec::{body, header};
use crate::world::{NEW, OLD, World, busy, keys, millis, service};

fn packet(length: usize) -> Vec<u8> {
    seal(&header(NodeId::of("near")), &Body::default().encode(), length, &keys(&[NEW]), 0)
}

fn refusal(packet: &[u8]) -> Option<Refusal> {
    open(packet, NodeId::of("near"), &keys(&[NEW, OLD])).err()
}

#[test]
fn every_bit_counts() {
    for length in [MIN_PACKET, 333, MAX_PACKET] {
        let mut packet = packet(length);
        assert_eq!(refusal(&packet), None);
        for bit in 0..length * 8 {
            packet[bit / 8] ^= 1 << (bit % 8);
            assert!(refusal(&packet).is_some(), "bit {bit} of {length} bytes");
            packet[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn every_byte_counts() {
    let packet = packet(200);
    for length in 0..packet.len() {
        let expected = if length < MIN_PACKET { Refusal::Truncated } else { Refusal::Forged };
        assert_eq!(refusal(&packet[..length]), Some(expected), "{length} bytes");
    }
    assert_eq!(refusal(&[&packet[..], &[0]].concat()), Some(Refusal::Forged));
    assert_eq!(refusal(&self::packet(MAX_PACKET + 1)), Some(Refusal::Oversized));
}

#[test]
fn each_reason_has_its_name() {
    let changed = |place: usize, value: u8| {
        let mut packet = packet(200);
        packet[place] = value;
        refusal(&packet)
    };
    assert_eq!(changed(0, b'X'), Some(Refusal::Foreign));
    assert_eq!(changed(2, 2), Some(Refusal::UnknownVersion));
    assert_eq!(changed(3, 3), Some(Refusal::UnknownKind));
    assert_eq!(changed(12, 0), Some(Refusal::Misdirected));
    assert_eq!(changed(199, 0), Some(Refusal::Forged));
    let other = seal(&header(NodeId::of("near")), &Body::default().encode(), 200, &keys(&[OLD]), 0);
    assert_eq!(open(&other, NodeId::of("near"), &keys(&[NEW])).err(), Some(Refusal::Forged));
}

#[test]
fn labels_are_different_and_stable_words() {
    let mut labels: Vec<_> = Refusal::ALL.iter().map(|refusal| refusal.label()).collect();
    assert!(labels.iter().all(|label| label.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')));
    labels.sort_unstable();
    labels.dedup();
    assert_eq!(labels.len(), Refusal::ALL.len());
}

#[test]
fn refused_packets_are_counted_by_their_reason_and_change_nothing() {
    let mut world = World::new(2, Config::default(), &keys(&[NEW]));
    world.nodes[0].tells = Some((busy(0.5), vec![service(1)]));
    world.run(millis(5000));
    let before = world.report(1, 0).expect("a report");
    let from = world.nodes[0].address;
    let genuine = world.sent.iter().rfind(|sent| sent.from == 0).expect("a packet").transmit.bytes.clone();
    for bit in 0..genuine.len() * 8 {
        let mut forged = genuine.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        assert!(world.hand(1, from, &forged).is_err());
    }
    let counters = *world.nodes[1].mesh.counters();
    let counted: u64 = Refusal::ALL.iter().map(|reason| counters.refused(*reason)).sum();
    assert_eq!(counted, genuine.len() as u64 * 8);
    // Magic 16 bits, version 8; the kind's byte is another kind's or none.
    assert_eq!((counters.refused(Refusal::Foreign), counters.refused(Refusal::UnknownVersion)), (16, 8));
    assert_eq!(counters.refused(Refusal::Misdirected), 64);
    assert_eq!(world.report(1, 0).expect("a report"), before);
}

proptest! {
    #[test]
    fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..1400)) {
        prop_assert!(refusal(&bytes).is_some());
    }

    #[test]
    fn random_bytes_behind_a_good_beginning_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..1150)) {
        let mut packet = packet(MAX_PACKET);
        packet.truncate(52);
        packet.extend(bytes);
        prop_assert!(refusal(&packet).is_some());
    }

    #[test]
    fn mutated_packets_are_refused(
        body in body(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 1..=u8::MAX), 1..8),
    ) {
        let original = seal(&header(NodeId::of("near")), &body.encode(), 0, &keys(&[NEW]), 0);
        let mut packet = original.clone();
        for (place, change) in changes {
            let place = place.index(packet.len());
            packet[place] ^= change;
        }
        prop_assume!(packet != original);
        prop_assert!(refusal(&packet).is_some());
    }

    /// Who holds the key may still send nonsense.
    #[test]
    fn signed_nonsense_is_refused_or_believable(
        mut bytes in prop::collection::vec(any::<u8>(), 0..1200),
        few in any::<bool>(),
    ) {
        if few && bytes.len() > 32 {
            // Few enough to fit what follows.
            bytes[26..32].copy_from_slice(&[9, 9, 9, 9, 3, 4]);
        }
        let Ok(body) = Body::decode(&bytes) else { return Ok(()) };
        prop_assert_eq!(Body::decode(&body.encode()), Ok(body.clone()));
        if let Some(report) = body.report {
            prop_assert_eq!(report.load.checked().ok(), Some(report.load));
            prop_assert!(report.services.iter().all(|(_, load)| load.checked().is_ok()));
        }
    }

    #[test]
    fn a_mesh_takes_whatever_is_signed(
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 32..1000), 1..20),
        kind in prop::sample::select(vec![weir_mesh::Kind::Probe, weir_mesh::Kind::Reply]),
    ) {
        let ring = keys(&[NEW]);
        let mut world = World::new(2, Config::default(), &ring);
        let from = world.nodes[1].address;
        let me = NodeId::of(&crate::world::name(0));
        for (sequence, body) in bodies.iter().enumerate() {
            let time = world.now(0).wall;
            let sender = NodeId::of(&crate::world::name(1));
            let header = weir_mesh::Header { kind, sender, time, sequence: sequence as u64, ..header(me) };
            let packet = seal(&header, body, 0, &ring, 0);
            let answer = world.hand(0, from, &packet);
            prop_assert!(answer.is_err() || kind == weir_mesh::Kind::Probe);
        }
        for report in world.reports(0).into_values() {
            prop_assert!(report.load.checked().is_ok());
        }
    }
}
