//! `waterfill` beyond everybody's headroom: who takes what nobody has room for.

use proptest::prelude::*;
use weir_core::load::PeerReport;
use weir_core::policies::Policy;
use weir_core::policies::waterfill::{Basin, Waterfill};

use crate::policies_build::{assert_shares, peer};
use crate::policies_waterfill::{at_ease, scene, step};

/// A node that does 100 flows per second, 80 of them up to its target, and others with some headroom.
fn basin(headroom: f64) -> Basin {
    Basin { target: 0.8, own: 80.0, cost: Some(0.01), headroom }
}

#[test]
fn what_fits_leaves_up_to_the_headroom() {
    assert!((basin(40.0).most(100.0) - 0.4).abs() < 1e-9, "of 100 flows 40 have room elsewhere");
    assert!((basin(40.0).most(120.0) - 1.0 / 3.0).abs() < 1e-9, "80 here and 40 there are just all");
}

#[test]
fn beyond_all_headroom_idle_nodes_take_in_proportion_to_what_they_can_do() {
    // 120 flows per second up to the target are a node of 150.
    for offered in [200.0, 250.0, 1000.0, 1e6] {
        assert!((basin(120.0).most(offered) - 0.6).abs() < 1e-9, "{offered}: {}", basin(120.0).most(offered));
    }
}

#[test]
fn what_others_use_of_the_node_takes_no_part_in_its_share_of_the_overload() {
    // 60 % are others': 20 flows per second up to the target, but each point of the level is one more flow.
    let crowded = Basin { own: 20.0, ..basin(20.0) };
    // 60 beyond: four of five points here, since 20 flows of headroom are 25 of 125.
    assert!((crowded.most(100.0) - 0.32).abs() < 1e-9, "{}", crowded.most(100.0));
}

#[test]
fn without_a_known_cost_no_more_than_the_headroom_leaves() {
    assert!((Basin { cost: None, ..basin(40.0) }.most(400.0) - 0.1).abs() < 1e-9);
    assert_eq!(basin(0.0).most(1e9), 0.0);
    assert_eq!(basin(40.0).most(0.0), 0.0);
}

#[test]
fn a_burst_beyond_all_headroom_does_not_wait_at_home() {
    let peers = vec![peer(1, 0.0, 80.0, 1), peer(2, 0.0, 80.0, 1)];
    let mut policy = at_ease(peers.clone());
    // Sixteen times what the node takes, while half of what comes is taken for done.
    let stays = step(&mut policy, 1280.0, 0.0, &peers)[1].shares[0];
    assert!(stays < 0.6, "{stays}");
    // Once it is seen that the node does a hundred a second: each node is as large as the others.
    assert_shares(&scene(1280.0, 100.0, 0.0, peers).settle(&mut policy, 120), &[1.0 / 3.0; 3]);
}

#[test]
fn nodes_that_are_all_as_hot_keep_their_own() {
    let peers = vec![peer(1, 0.95, 0.0, 1), peer(2, 1.0, 0.0, 1)];
    let decision = scene(1000.0, 100.0, 0.0, peers.clone()).settle(&mut at_ease(peers), 20);
    assert_shares(&decision, &[1.0, 0.0, 0.0]);
}

#[test]
fn who_is_full_of_the_flows_of_others_goes_on_telling_what_its_own_leave() {
    let mut policy = Waterfill::default();
    // 40 own flows of 80, and 60 of others: as busy as it can be.
    scene(40.0, 100.0, 0.0, vec![]).settle(&mut policy, 60);
    assert!((policy.spare(1).unwrap() - 40.0).abs() < 1.0, "{:?}", policy.spare(1));
    scene(100.0, 100.0, 0.0, vec![]).settle(&mut policy, 60);
    assert_eq!(policy.spare(1), Some(0.0), "its own are more than it takes");
}

#[test]
fn a_node_that_tells_no_room_is_not_filled_above_the_node_that_spills() {
    let silent = |cpu| PeerReport { services: vec![], ..peer(1, cpu, 0.0, 1) };
    let mut policy = at_ease(vec![silent(0.0)]);
    let mut spill = 0.0;
    // Two nodes of a hundred flows per second, and four times as many at one of them.
    for _ in 0..480 {
        let scene = scene(400.0, 100.0, 0.0, vec![silent(f64::min(spill * 4.0, 1.0))]);
        spill = scene.ask(|inputs| policy.decide(inputs).spill(inputs));
    }
    assert!((0.1..=0.5).contains(&spill), "{spill}");
}

proptest! {
    /// The others together are never above the level of the node that spills, and more headroom never keeps more here.
    #[test]
    fn nobody_is_filled_above_the_node_that_spills(
        target in 0.1..1.0_f64, background in 0.0..1.0_f64, cost in 1e-4..1.0_f64, headroom in 0.0..1e4_f64,
        offered in 0.0..1e5_f64,
    ) {
        let own = (target - background).max(0.0) / cost;
        let basin = Basin { target, own, cost: Some(cost), headroom };
        let most = basin.most(offered);
        prop_assert!((0.0..=1.0).contains(&most));
        let here = background + (1.0 - most) * offered * cost;
        // As if the headroom were all that they can do: idle nodes.
        let there = most * offered / headroom.max(f64::MIN_POSITIVE) * target;
        prop_assert!(most == 0.0 || offered <= own + headroom || there <= here + 1e-6, "{there} there, {here} here");
        let wider = Basin { headroom: headroom * 1.5, ..basin };
        prop_assert!(wider.most(offered) >= most - 1e-9);
    }
}
