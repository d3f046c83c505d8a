//! At most so many bytes per second to one peer.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use proptest::prelude::*;
use weir_core::load::ServiceId;
use weir_mesh::{Arrival, Budget, Config, MAX_PACKET, NodeId, Refusal, seal, size_on_wire};

use crate::codec::header;
use crate::world::{NEW, World, busy, keys, millis, name, service};

#[test]
fn headers_count() {
    let v4: SocketAddr = "10.0.0.1:1".parse().expect("an address");
    let v6: SocketAddr = "[2001:db8::1]:1".parse().expect("an address");
    let mapped: SocketAddr = "[::ffff:10.0.0.1]:1".parse().expect("an address");
    assert_eq!([v4, v6, mapped].map(|to| size_on_wire(to, 100)), [128, 148, 128]);
}

proptest! {
    #[test]
    fn never_more_than_the_rate_and_one_packet(
        rate in 100..5000_u32,
        steps in prop::collection::vec((0..700_u64, 0..1400_usize), 1..200),
    ) {
        let (mut budget, mut now, mut spent) = (Budget::new(rate), Duration::ZERO, 0);
        for (pause, bytes) in steps {
            now += millis(pause);
            let available = budget.available(now);
            prop_assert_eq!(budget.spend(bytes, now), bytes <= available);
            if bytes <= available {
                spent += bytes;
            }
            prop_assert!(spent as f64 <= f64::from(rate) * now.as_secs_f64() + Budget::STOCK as f64);
        }
    }
}

#[test]
fn what_is_not_spent_comes_back_at_the_rate() {
    let mut budget = Budget::new(1000);
    assert!(budget.spend(Budget::STOCK, Duration::ZERO));
    assert_eq!(budget.available(Duration::ZERO), 0);
    assert_eq!(budget.available(millis(500)), 500);
    assert_eq!(budget.available(millis(60_000)), Budget::STOCK);
}

/// Both have far more to tell than fits, probe each other and answer each other.
#[test]
fn two_talkative_nodes_stay_within_the_budget_and_keep_in_touch() {
    let mut world = World::new(2, Config::default(), &keys(&[NEW]));
    for node in &mut world.nodes {
        node.tells = Some((busy(0.5), (0..500).map(service).collect()));
    }
    let mut held_back = Vec::new();
    for second in 1..=60 {
        world.run(millis(1000));
        for from in [0, 1] {
            let sent = world.sent.iter().filter(|sent| sent.from == from).map(|sent| &sent.transmit);
            let bytes: usize = sent.map(|sent| size_on_wire(sent.to, sent.bytes.len())).sum();
            assert!(bytes <= 1000 * second + Budget::STOCK, "{bytes} bytes in {second} s");
            assert_eq!(world.nodes[from].mesh.counters().bytes_sent, bytes as u64);
            let age = world.report(from, 1 - from).expect("a report").age;
            assert!(age < millis(750), "{age:?}");
        }
        held_back.push(world.nodes[0].mesh.counters().probes_held_back);
    }
    assert_eq!(held_back[5], held_back[59], "after the start, when both first look who is there");
    assert_eq!(world.nodes[0].mesh.counters().refused(Refusal::OverBudget), 0);
}

#[test]
fn in_a_full_mesh_each_pair_stays_within_the_budget() {
    let mut world = World::new(18, Config::default(), &keys(&[NEW]));
    for node in &mut world.nodes {
        node.tells = Some((busy(0.5), (0..100).map(service).collect()));
    }
    world.run(millis(10_000));
    let mut pairs = BTreeMap::<_, usize>::new();
    for sent in &world.sent {
        *pairs.entry((sent.from, sent.transmit.to)).or_default() +=
            size_on_wire(sent.transmit.to, sent.transmit.bytes.len());
    }
    assert_eq!(pairs.len(), 18 * 17);
    let most = pairs.values().max().copied().unwrap_or_default();
    assert!(most <= 10 * 1000 + Budget::STOCK, "{most} bytes in 10 s");
}

#[test]
fn a_node_that_asks_too_often_is_not_answered() {
    let ring = keys(&[NEW]);
    let mut world = World::new(2, Config::default(), &ring);
    let (from, sender, me) = (world.nodes[1].address, NodeId::of(&name(1)), NodeId::of(&name(0)));
    let (mut answered, mut refused) = (0, 0);
    for sequence in 0..100 {
        let header = weir_mesh::Header { sender, sequence, time: world.now(0).wall, ..header(me) };
        let probe = seal(&header, &weir_mesh::Body::default().encode(), MAX_PACKET, &ring, 0);
        match world.hand(0, from, &probe) {
            Ok(_) => answered += 1,
            Err(refusal) => {
                assert_eq!(refusal, Refusal::OverBudget);
                refused += 1;
            }
        }
    }
    assert!((1..=Budget::STOCK / weir_mesh::MIN_PACKET).contains(&answered), "{answered}");
    assert_eq!(world.nodes[0].mesh.counters().refused(Refusal::OverBudget), refused);
}

/// What a probe tells is learnt at once; the budget is spent by its reply, which comes with the next turn.
#[test]
fn of_a_node_that_asks_too_often_no_more_is_learnt_before_the_next_turn_than_it_may_ask_in_one() {
    let ring = keys(&[NEW]);
    let mut world = World::new(2, Config::default(), &ring);
    let (from, sender, me) = (world.nodes[1].address, NodeId::of(&name(1)), NodeId::of(&name(0)));
    let ask = |world: &mut World, sequence: u64| {
        let header = weir_mesh::Header { sender, sequence, time: world.now(0).wall, ..header(me) };
        let spilled: Vec<_> = (0..90).map(|n| (ServiceId(90 * sequence + n), 1.0)).collect();
        let body = weir_mesh::Body { spilled, spilled_in_all: u16::MAX, ..weir_mesh::Body::default() };
        let bytes = seal(&header, &body.encode(), MAX_PACKET, &ring, 0);
        let now = world.now(0);
        world.nodes[0].mesh.hear(Arrival { from, bytes: &bytes, stamp: None }, now)
    };
    let heard: Vec<_> = (0..100).map(|sequence| ask(&mut world, sequence)).collect();
    let questions: Vec<_> = heard.into_iter().filter_map(|heard| heard.ok().flatten()).collect();
    let (learnt, now) = (world.nodes[0].mesh.inbound(world.now(0)).len(), world.now(0));
    assert!((1..=4).contains(&questions.len()), "{}", questions.len());
    assert_eq!(learnt, 90 * questions.len());
    for question in &questions {
        let _ = world.nodes[0].mesh.reply(question, now);
    }
    world.steady += Duration::from_secs(10);
    assert!(ask(&mut world, 100).is_ok(), "they wait no more");
}
