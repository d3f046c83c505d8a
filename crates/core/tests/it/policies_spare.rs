//! What a node that runs `waterfill` tells others that it takes.

use weir_core::load::Sample;
use weir_core::policies::waterfill::Waterfill;
use weir_core::policies::{PodsLoad, Policy};

use crate::policies_build::{Scene, peer};
use crate::policies_waterfill::{at_ease, scene, step};

#[test]
fn spare_is_what_the_node_takes_beyond_its_own_flows_divided_by_who_spills() {
    let policy = at_ease(vec![]);
    assert!((policy.spare(1).unwrap() - 40.0).abs() < 1e-6);
    assert!((policy.spare(4).unwrap() - 10.0).abs() < 1e-6);
    assert_eq!(Waterfill::default().spare(1), None);
}

#[test]
fn spare_stays_the_same_while_others_use_it() {
    let mut policy = Waterfill::default();
    // 40 own flows and 30 of others.
    scene(40.0, 70.0, 0.0, vec![]).settle(&mut policy, 60);
    assert!((policy.spare(1).unwrap() - 40.0).abs() < 0.1, "{:?}", policy.spare(1));
}

#[test]
fn a_node_that_spills_takes_nothing() {
    let peers = vec![peer(1, 0.1, 500.0, 1)];
    let mut policy = at_ease(peers.clone());
    step(&mut policy, 160.0, 0.0, &peers);
    assert_eq!(policy.spare(1), Some(0.0));
}

#[test]
fn a_node_that_never_did_much_tells_nothing_as_long_as_it_cannot_tell_its_flows_from_the_rest() {
    let mut policy = Waterfill::default();
    // Three flows per second, and 20 % of a small node's CPU, by whomever.
    Scene::new(0.2, vec![]).offers(0.0, 3.0).settle(&mut policy, 60);
    assert_eq!(policy.spare(1), None);
    Scene::new(0.6, vec![]).offers(0.0, 60.0).settle(&mut policy, 60);
    assert!(policy.spare(1).is_some(), "what keeps it busy is mostly those flows");
}

#[test]
fn hours_without_a_flow_make_none_dearer() {
    let mut policy = at_ease(vec![]);
    for (minutes, idle_cores) in [(1, 0.001), (9, 0.004), (120, 0.001), (60 * 24, 0.002)] {
        let mut idle = scene(0.0, 0.0, 0.0, vec![]);
        idle.own.pods = Some(Sample::fresh(PodsLoad { cores: idle_cores, limit: None }));
        idle.settle(&mut policy, minutes * 60);
        let spare = policy.spare(1).unwrap();
        assert!((spare - 80.0).abs() < 2.0, "{spare} of 80 flows/s after {minutes} idle minutes more");
    }
}
