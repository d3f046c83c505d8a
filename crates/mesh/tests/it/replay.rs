//! Each packet of a sender is taken once.

use std::collections::BTreeSet;

use proptest::prelude::*;
use weir_mesh::{Config, Order, Refusal, Window};

use crate::world::{NEW, World, keys, millis};

#[test]
fn a_packet_is_taken_once() {
    let mut window = Window::new(1, 100);
    assert_eq!(window.admit(1, 100), Err(Refusal::Replayed));
    assert_eq!(window.admit(1, 101), Ok(Order::Newest));
    assert_eq!(window.admit(1, 101), Err(Refusal::Replayed));
}

#[test]
fn packets_may_overtake_each_other_within_the_window() {
    let mut window = Window::new(1, 0);
    assert_eq!(window.admit(1, Window::LENGTH), Ok(Order::Newest));
    for sequence in (1..Window::LENGTH).rev() {
        assert_eq!(window.admit(1, sequence), Ok(Order::Late), "{sequence}");
        assert_eq!(window.admit(1, sequence), Err(Refusal::Replayed), "{sequence}");
    }
    assert_eq!(window.admit(1, 0), Err(Refusal::Outdated));
}

#[test]
fn a_restart_makes_what_was_sent_before_it_worthless() {
    let mut window = Window::new(10, 500);
    assert_eq!(window.admit(11, 1), Ok(Order::Newest));
    assert_eq!(window.admit(10, 501), Err(Refusal::Outdated));
    assert_eq!(window.admit(11, 2), Ok(Order::Newest));
    assert_eq!(window.admit(11, 1), Err(Refusal::Replayed));
}

#[test]
fn the_end_of_the_numbers_is_no_trap() {
    let mut window = Window::new(u64::MAX, u64::MAX - 1);
    assert_eq!(window.admit(u64::MAX, u64::MAX), Ok(Order::Newest));
    assert_eq!(window.admit(u64::MAX, u64::MAX), Err(Refusal::Replayed));
    assert_eq!(window.admit(u64::MAX, 0), Err(Refusal::Outdated));
}

proptest! {
    #[test]
    fn the_window_is_a_set_with_an_end(steps in prop::collection::vec((0..200_u64, 0..3000_u64), 1..400)) {
        let (mut window, mut seen, mut highest) = (Window::new(1, 5000), BTreeSet::from([5000]), 5000_u64);
        for (forward, back) in steps {
            let sequence = (highest + forward * forward / 20).saturating_sub(back);
            let expected = if sequence > highest {
                Ok(Order::Newest)
            } else if highest - sequence >= Window::LENGTH {
                Err(Refusal::Outdated)
            } else if seen.contains(&sequence) {
                Err(Refusal::Replayed)
            } else {
                Ok(Order::Late)
            };
            prop_assert_eq!(window.admit(1, sequence), expected);
            if expected.is_ok() {
                seen.insert(sequence);
                highest = highest.max(sequence);
            }
        }
    }
}

#[test]
fn a_captured_packet_is_of_no_use() {
    let mut world = World::new(3, Config::default(), &keys(&[NEW]));
    world.run(millis(3000));
    let from = world.nodes[0].address;
    let captured: Vec<_> = world.sent.iter().filter(|sent| sent.from == 0).map(|sent| &sent.transmit).collect();
    let captured: Vec<_> = captured.into_iter().map(|sent| (sent.to, sent.bytes.clone())).collect();
    assert!(captured.len() > 10);
    for (to, bytes) in captured {
        for node in [1, 2] {
            let expected = if world.nodes[node].address == to { Refusal::Replayed } else { Refusal::Misdirected };
            assert_eq!(world.hand(node, from, &bytes).err(), Some(expected));
        }
        assert_eq!(world.hand(0, from, &bytes).err(), Some(Refusal::Misdirected), "back to its sender");
    }
}

#[test]
fn a_packet_that_waits_for_the_window_to_be_forgotten_is_too_old() {
    let config = Config::default();
    let mut world = World::new(2, config, &keys(&[NEW]));
    world.run(millis(3000));
    let captured = world.sent.iter().rfind(|sent| sent.from == 0).expect("a packet").transmit.bytes.clone();
    let from = world.nodes[0].address;
    world.cut = vec![0, 1];
    world.run(millis(1000));
    assert_eq!(world.hand(1, from, &captured).err(), Some(Refusal::Replayed));
    world.run(config.skew * 3);
    assert_eq!(world.hand(1, from, &captured).err(), Some(Refusal::Skewed));
}

/// A node whose clock was set back before it began anew. probed: the other one goes on sending to it.
fn is_heard_again(probed: bool) {
    let ring = keys(&[NEW]);
    let mut world = World::new(2, Config::default(), &ring);
    world.nodes[0].ahead = millis(20_000);
    let restart = |world: &mut World| {
        let now = world.now(0);
        let mut mesh = weir_mesh::Mesh::new("node-0", Config::default(), ring.clone(), 9, now);
        mesh.set_peers([("node-1".into(), world.nodes[1].address)]);
        world.nodes[0].mesh = mesh;
    };
    restart(&mut world);
    if !probed {
        world.nodes[1].mesh.set_peers([]);
    }
    world.run(millis(1000));
    assert!(world.peer(0, 1).rtt.is_some());

    world.nodes[0].ahead = millis(0);
    restart(&mut world);
    world.run(millis(2000));
    assert_eq!(world.peer(0, 1).rtt, None, "older than the packets before it");
    assert!(world.nodes[1].mesh.counters().refused(Refusal::Outdated) > 0);
    world.run(Config::default().skew * 3);
    assert!(world.peer(0, 1).rtt.is_some());
}

#[test]
fn a_node_whose_clock_was_set_back_before_a_restart_is_heard_again() {
    is_heard_again(true);
    is_heard_again(false);
}
