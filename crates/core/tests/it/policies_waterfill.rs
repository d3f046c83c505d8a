//! `waterfill`, rule by rule.

use std::time::Duration;

use weir_core::load::{PeerReport, Sample, Share};
use weir_core::policies::waterfill::constants::{ENTER_TICKS, LEAVE_TICKS, STEP};
use weir_core::policies::waterfill::{Vessel, Waterfill, fill};
use weir_core::policies::{Decision, Ineligible, PodsLoad, Policy, Reason};

use crate::policies_build::{Scene, TICK, assert_shares, peer, share};

/// A node of which a flow per second costs a hundredth, as its pods tell, with some flows offered and some CPU in use
/// by others.
pub(crate) fn scene(offered: f64, local: f64, background: f64, peers: Vec<PeerReport>) -> Scene {
    let service = (local * 0.01).min(1.0 - background);
    let mut scene = Scene::new(background + service, peers).offers(offered, local);
    scene.own.pods = Some(Sample::fresh(PodsLoad { cores: service * 2.0, limit: None }));
    scene
}

/// A node that has been at ease: 40 flows per second of the 80 that it takes.
pub(crate) fn at_ease(peers: Vec<PeerReport>) -> Waterfill {
    let mut policy = Waterfill::default();
    scene(40.0, 40.0, 0.0, peers).settle(&mut policy, 30);
    policy
}

/// The decisions of the two ticks after a step of the offered load. Until the second one all of it comes here, and what
/// the node cannot do queues up.
pub(crate) fn step(policy: &mut Waterfill, offered: f64, background: f64, peers: &[PeerReport]) -> [Decision; 2] {
    [1.0, 2.0].map(|tick| {
        let mut hot = scene(offered, offered, background, peers.to_vec());
        let waits = (offered - (1.0 - background) * 100.0).max(0.0) * TICK.as_secs_f64() * tick;
        hot.offered.open_flows = format!("{waits:.0}").parse().unwrap();
        hot.decide(policy)
    })
}

#[test]
fn all_stays_up_to_the_target() {
    let decision = scene(79.0, 79.0, 0.0, vec![peer(1, 0.1, 500.0, 1)]).settle(&mut Waterfill::default(), 60);
    assert_shares(&decision, &[1.0, 0.0]);
}

#[test]
fn the_excess_leaves_within_two_ticks_after_a_step_of_the_offered_load_and_what_piled_up_is_done_before() {
    let peers = vec![peer(1, 0.1, 500.0, 1)];
    let mut policy = at_ease(peers.clone());
    let [first, second] = step(&mut policy, 160.0, 0.0, &peers);
    assert_shares(&first, &[1.0, 0.0]);
    // 80 of 160 are too many, and 30 wait: at once no more than five points for those.
    assert_shares(&second, &[0.45, 0.55]);
    let mut after = scene(160.0, 80.0, 0.0, peers);
    let stays = [20, 10, 0, 0, 0].map(|open_flows| {
        after.offered.open_flows = open_flows;
        after.decide(&mut policy).shares[0]
    });
    assert!(stays[0] < 0.45 && stays[1] > stays[0], "{stays:?}");
    let later = after.settle(&mut policy, 120).shares[0];
    assert!((later - 0.5).abs() < 0.02, "{later}");
}

#[test]
fn a_tick_that_holds_the_beginning_of_a_step_is_the_first_of_the_two() {
    let peers = vec![peer(1, 0.1, 500.0, 1)];
    let shares = |offered: [f64; 2]| {
        let mut policy = at_ease(peers.clone());
        offered.map(|offered| scene(offered, offered, 0.0, peers.clone()).decide(&mut policy).shares[0])
    };
    // Below the level that begins to spill, at 83, but more than chance explains.
    let [first, second] = shares([82.0, 160.0]);
    assert!(first == 1.0 && (0.4..0.6).contains(&second), "{first} {second}");
    assert_eq!(shares([82.0, 82.0]), [1.0, 1.0], "a rise alone lets nothing leave");
    assert_eq!(shares([45.0, 160.0]), [1.0, 1.0], "and without one it takes two ticks");
}

#[test]
fn a_step_within_a_tick_is_known_in_full_at_the_next_one() {
    let peers = vec![peer(1, 0.1, 500.0, 1)];
    let mut policy = at_ease(peers.clone());
    let ticks = [140.0, 160.0].map(|offered| scene(offered, offered, 0.0, peers.clone()).decide(&mut policy));
    let reason = &ticks[1].reasons[0];
    assert!(matches!(reason, Reason::Excess { offered, .. } if (offered - 160.0).abs() < 1e-9), "{reason:?}");
}

#[test]
fn what_pods_use_more_after_their_last_reading_is_not_taken_for_others() {
    let mut policy = at_ease(vec![peer(1, 0.1, 500.0, 1)]);
    let decisions = [250, 500, 750].map(|age| {
        let mut scene = scene(79.0, 79.0, 0.0, vec![peer(1, 0.1, 500.0, 1)]);
        let cores = PodsLoad { cores: 0.8, limit: None };
        scene.own.pods = Some(Sample { value: cores, age: Duration::from_millis(age) });
        scene.decide(&mut policy)
    });
    let Reason::Local { demand, .. } = decisions[2].reasons[0] else { panic!("{:?}", decisions[2].reasons) };
    assert!((demand - 0.79).abs() < 1e-6, "{demand}: 79 flows a second of a hundredth each");
}

#[test]
fn what_others_use_of_the_node_is_not_the_services_room() {
    let mut policy = Waterfill::default();
    let peers = vec![peer(1, 0.1, 500.0, 1)];
    scene(20.0, 20.0, 0.4, peers.clone()).settle(&mut policy, 60);
    // 80 % - 40 % is room for 40 flows of 80; 10 wait.
    assert_shares(&step(&mut policy, 80.0, 0.4, &peers)[1], &[0.45, 0.55]);
}

#[test]
fn the_limit_of_the_pods_counts_like_a_small_node() {
    let mut scene = Scene::new(0.2, vec![peer(1, 0.1, 500.0, 1)]).offers(20.0, 20.0);
    // 0.2 of half a core: 10 flows per second are 20 % of the limit, and 5 % of the node.
    scene.own.pods = Some(Sample::fresh(PodsLoad { cores: 0.2, limit: Some(0.5) }));
    let mut policy = Waterfill::default();
    scene.settle(&mut policy, 30);
    scene = scene.offers(80.0, 80.0);
    scene.own.load.cpu = share(0.35);
    scene.own.pods = Some(Sample::fresh(PodsLoad { cores: 0.5, limit: Some(0.5) }));
    // The limit lets 50 flows per second through. The rest waits: 30, or 7.5 a tick, and is done first.
    let [_, stays] = [7, 15].map(|open_flows| {
        scene.offered.open_flows = open_flows;
        scene.decide(&mut policy).shares[0]
    });
    assert!((stays - 0.45).abs() < 0.01, "{stays}");
}

#[test]
fn without_a_step_of_the_own_load_the_share_moves_at_most_five_points_a_tick() {
    let mut policy = at_ease(vec![peer(1, 0.1, 500.0, 1)]);
    // Somebody else needs the node from now on.
    let crowded = scene(40.0, 40.0, 0.6, vec![peer(1, 0.1, 500.0, 1)]);
    let mut before = 0.0;
    for _ in 0..100 {
        let spill = crowded.ask(|inputs| policy.decide(inputs).spill(inputs));
        assert!((spill - before).abs() <= STEP + 1e-9);
        before = spill;
    }
    assert!(before > 0.4, "{before}");
}

#[test]
fn spilling_begins_three_points_above_the_target_for_two_ticks_and_ends_five_below_for_five() {
    let peers = vec![peer(1, 0.1, 500.0, 1)];
    let mut policy = at_ease(peers.clone());
    let stays = step(&mut policy, 160.0, 0.0, &peers).map(|decision| decision.shares[0]);
    assert!(stays[0] == 1.0 && stays[1] < 1.0 && stays.len() == ENTER_TICKS as usize, "{stays:?}");
    let at_target = scene(76.0, 76.0, 0.0, peers.clone());
    let reasons = at_target.settle(&mut policy, 60).reasons;
    assert!(reasons.iter().any(|reason| matches!(reason, Reason::Excess { .. })), "76 % does not end it: {reasons:?}");
    let below = scene(60.0, 60.0, 0.0, peers);
    let mut ended_after = 0;
    let is_local = |reason: &Reason| matches!(reason, Reason::Local { .. });
    while !below.decide(&mut policy).reasons.iter().any(is_local) {
        ended_after += 1;
    }
    assert!(ended_after >= LEAVE_TICKS - 1, "{ended_after}");
    assert_shares(&below.settle(&mut policy, 10), &[1.0, 0.0]);
}

#[test]
fn no_headroom_anywhere_keeps_all_flows_here() {
    let peers = vec![peer(1, 0.95, 0.0, 1), peer(2, 0.8, 0.0, 1)];
    let mut policy = at_ease(peers.clone());
    step(&mut policy, 160.0, 0.0, &peers);
    let decision = scene(160.0, 100.0, 0.0, peers).settle(&mut policy, 20);
    assert_shares(&decision, &[1.0, 0.0, 0.0]);
    assert!(decision.reasons.contains(&Reason::NoHeadroom), "{:?}", decision.reasons);
}

#[test]
fn the_nearest_class_is_filled_before_the_next_and_in_proportion_to_headroom() {
    let peers = vec![peer(1, 0.1, 30.0, 1), peer(2, 0.1, 10.0, 1), peer(3, 0.1, 1000.0, 20)];
    let mut policy = at_ease(peers.clone());
    assert_shares(&step(&mut policy, 100.0, 0.0, &peers)[1], &[0.8, 0.15, 0.05, 0.0]);
    assert_shares(&scene(200.0, 80.0, 0.0, peers).decide(&mut policy), &[0.4, 0.15, 0.05, 0.4]);
}

#[test]
fn filling_never_gives_more_than_headroom() {
    let vessels = [(1, 10.0), (0, 4.0), (0, 0.0), (0, 12.0)].map(|(class, headroom)| Vessel { class, headroom });
    assert_eq!(fill(8.0, &vessels), [0.0, 2.0, 0.0, 6.0]);
    assert_eq!(fill(20.0, &vessels), [4.0, 4.0, 0.0, 12.0]);
    assert_eq!(fill(99.0, &vessels), [10.0, 4.0, 0.0, 12.0]);
    assert_eq!(fill(5.0, &[]), Vec::<f64>::new());
}

#[test]
fn the_owner_limits_spill_and_distance() {
    let mut policy = at_ease(vec![peer(1, 0.1, 500.0, 1)]);
    let mut limited = scene(400.0, 80.0, 0.0, vec![peer(1, 0.1, 500.0, 1)]);
    limited.parameters.max_spill = Share::new(0.3).unwrap();
    assert_shares(&limited.settle(&mut policy, 5), &[0.7, 0.3]);
    limited.parameters.max_rtt = Some(Duration::from_micros(900));
    let decision = limited.decide(&mut policy);
    assert_shares(&decision, &[1.0, 0.0]);
    assert!(decision.reasons.iter().any(|reason| matches!(reason, Reason::Ineligible { cause: Ineligible::Far, .. })));
}

#[test]
fn a_frozen_report_gives_no_more_and_an_old_one_nothing() {
    let peers = vec![peer(1, 0.1, 500.0, 1), peer(2, 0.1, 500.0, 20)];
    let mut policy = at_ease(peers.clone());
    assert_shares(&step(&mut policy, 100.0, 0.0, &peers)[1], &[0.8, 0.2, 0.0]);
    let mut hot = scene(200.0, 80.0, 0.0, peers);
    hot.peers[0].as_mut().unwrap().age = Duration::from_secs(4);
    // The load doubles: the one that is silent keeps its 20 flows per second.
    assert_shares(&hot.decide(&mut policy), &[0.4, 0.1, 0.5]);
    hot.peers[0].as_mut().unwrap().age = Duration::from_secs(11);
    assert_shares(&hot.decide(&mut policy), &[0.4, 0.0, 0.6]);
}

#[test]
fn all_comes_home_at_once_when_nobody_is_left() {
    let peers = vec![peer(1, 0.1, 500.0, 1)];
    let mut policy = at_ease(peers.clone());
    assert!(step(&mut policy, 160.0, 0.0, &peers)[1].shares[1] > 0.5);
    let mut hot = scene(160.0, 80.0, 0.0, peers);
    hot.peers[0] = None;
    assert_shares(&hot.decide(&mut policy), &[1.0, 0.0]);
}

#[test]
fn an_unknown_own_load_moves_nothing() {
    let peers = vec![peer(1, 0.1, 500.0, 1)];
    let mut policy = at_ease(peers.clone());
    let before = step(&mut policy, 160.0, 0.0, &peers)[1].shares.clone();
    let mut hot = scene(160.0, 80.0, 0.0, peers);
    hot.own.load.cpu = None;
    let decision = hot.settle(&mut policy, 20);
    assert_shares(&decision, &before);
    assert!(decision.reasons.contains(&Reason::OwnLoadUnknown));
    assert_shares(&hot.decide(&mut Waterfill::default()), &[1.0, 0.0]);
}

#[test]
fn without_local_endpoints_all_go_to_the_nearest_that_can_take_them() {
    let peers = vec![peer(1, 0.1, 100.0, 20), peer(2, 0.1, 100.0, 1), peer(3, 0.1, 300.0, 1)];
    let scene = Scene::new(0.1, peers).offers(40.0, 0.0).without_local_endpoints();
    assert_shares(&scene.decide(&mut Waterfill::default()), &[0.0, 0.25, 0.75]);
    // Nobody offers anything yet: the first flow goes there, too.
    let quiet = scene.clone().offers(0.0, 0.0);
    assert_shares(&quiet.decide(&mut Waterfill::default()), &[0.0, 0.25, 0.75]);
    // Nobody can take anything: as kube-proxy would.
    let mut full = scene;
    full.peers = vec![Some(peer(1, 1.0, 0.0, 1)), None, Some(peer(3, 1.0, 0.0, 1))];
    assert_shares(&full.decide(&mut Waterfill::default()), &[0.5, 0.0, 0.5]);
    full.peers = vec![None, None, None];
    assert_shares(&full.decide(&mut Waterfill::default()), &[1.0 / 3.0; 3]);
}

#[test]
fn a_node_that_tells_no_spare_is_judged_by_its_size_and_load() {
    let mut quiet = peer(1, 0.3, 0.0, 1);
    quiet.services.clear();
    let peers = vec![quiet];
    let mut policy = at_ease(peers.clone());
    let [_, decision] = step(&mut policy, 100.0, 0.0, &peers);
    // 50 points free at a hundredth a flow, for the two nodes of the service.
    let headroom = decision.reasons.iter().find_map(|reason| match reason {
        Reason::Takes { headroom, .. } => Some(*headroom),
        _ => None,
    });
    assert!((headroom.unwrap() - 25.0).abs() < 0.5, "{:?}", decision.reasons);
}

#[test]
fn noise_is_no_step() {
    let mut policy = at_ease(vec![]);
    // 10 flows a tick are expected; 19 are within three standard deviations.
    let decision = scene(76.0, 40.0, 0.0, vec![]).decide(&mut policy);
    let demand = decision.reasons.iter().find_map(|reason| match reason {
        Reason::Local { demand, .. } => Some(*demand),
        _ => None,
    });
    assert!(demand.unwrap() < 0.43, "{decision:?}");
}

#[test]
fn every_reason_reads_as_a_sentence_with_its_numbers() {
    let peers = vec![peer(1, 0.1, 500.0, 3)];
    let [_, decision] = step(&mut at_ease(peers.clone()), 160.0, 0.0, &peers);
    let text: Vec<String> = decision.reasons.iter().map(ToString::to_string).collect();
    assert_eq!(
        text,
        [
            "160.0 flows/s are offered and the node takes 50.0: each costs 1.000 % on top of 0 %; \
             corrected by +0.0 points",
            "30.0 flows/s less than else, for those that wait since the load rose",
            "spill is 55.0 % on its way to 68.8 %",
            "n1 takes 88.0 flows/s of the 500.0 that it could, 3.0 ms away",
        ]
    );
}

#[test]
fn a_tick_without_time_is_survived() {
    let mut hot = scene(160.0, 80.0, 0.0, vec![peer(1, 0.1, 500.0, 1)]);
    hot.elapsed = Duration::ZERO;
    let decision = hot.settle(&mut at_ease(vec![]), 1);
    assert!(decision.shares.iter().all(|share| share.is_finite()), "{decision:?}");
}
