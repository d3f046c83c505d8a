//! What holds for every policy: new endpoints start slowly, failing ones are out, and writes are rare.

use std::time::Duration;

use weir_core::controller::{Controller, Tick};
use weir_core::ejection::Outcome;
use weir_core::load::Share;
use weir_core::policies::{Kind, Reason};

use crate::policies_build::{Scene, assert_shares, endpoint, peer};

fn tick(controller: &mut Controller, scene: &Scene, outcomes: &[Outcome]) -> Tick {
    scene.ask(|inputs| controller.tick(inputs, outcomes))
}

fn busy_for(controller: &mut Controller, scene: &Scene, seconds: u32) -> Tick {
    (1..seconds * 4).for_each(|_| drop(tick(controller, scene, &[])));
    tick(controller, scene, &[])
}

#[test]
fn it_writes_once_and_then_only_when_more_than_half_a_point_moves() {
    let mut scene = Scene::new(0.1, vec![peer(1, 0.1, 0.0, 1)]);
    let mut controller = Controller::new(Kind::LeastConn);
    (scene.endpoints[0].open_flows, scene.endpoints[1].open_flows) = (999, 999);
    let first = tick(&mut controller, &scene, &[]).write.unwrap();
    assert_eq!((first.spill, first.local.len(), first.remote.len()), (0x8000, 1, 1));
    assert_eq!(tick(&mut controller, &scene, &[]).write, None);
    scene.endpoints[1].open_flows = 985;
    assert_eq!(tick(&mut controller, &scene, &[]).write, None, "0.35 points");
    scene.endpoints[1].open_flows = 960;
    assert!(tick(&mut controller, &scene, &[]).write.is_some(), "1 point since the last write");
    controller.forget_written();
    assert!(tick(&mut controller, &scene, &[]).write.is_some());
}

#[test]
fn another_set_of_endpoints_is_written_at_once() {
    let mut scene = Scene::new(0.1, vec![peer(1, 0.1, 0.0, 1)]);
    let mut controller = Controller::new(Kind::Random);
    tick(&mut controller, &scene, &[]);
    scene.endpoints[1].backend = 9;
    let written = tick(&mut controller, &scene, &[]).write.unwrap();
    assert_eq!(written.remote.iter().map(|(backend, _)| *backend).collect::<Vec<_>>(), [9]);
}

#[test]
fn a_new_endpoint_grows_from_a_tenth_of_its_share_over_ten_seconds() {
    let mut scene = Scene::new(0.1, vec![peer(1, 0.1, 0.0, 1)]);
    scene.endpoints.pop();
    let mut controller = Controller::new(Kind::Random);
    busy_for(&mut controller, &scene, 30);
    scene.endpoints.push(endpoint(5, 0));
    let first = tick(&mut controller, &scene, &[]).decision;
    assert_shares(&first, &[1.0 / 1.1, 0.1 / 1.1]);
    assert!(first.reasons.contains(&Reason::Ramp { endpoints: 1 }));
    assert_shares(&busy_for(&mut controller, &scene, 5).decision, &[1.0 / 1.55, 0.55 / 1.55]);
    assert_shares(&busy_for(&mut controller, &scene, 5).decision, &[0.5, 0.5]);
}

#[test]
fn the_first_endpoint_of_a_node_takes_over_slowly_from_the_others() {
    let with_both = Scene::new(0.1, vec![peer(1, 0.1, 100.0, 1)]).offers(10.0, 0.0);
    let mut controller = Controller::new(Kind::Waterfill);
    busy_for(&mut controller, &with_both.clone().without_local_endpoints(), 15);
    // A tenth of the first five points that the policy brings home.
    assert_shares(&tick(&mut controller, &with_both, &[]).decision, &[0.005, 0.995]);
    assert_shares(&busy_for(&mut controller, &with_both, 5).decision, &[0.55, 0.45]);
    assert_shares(&busy_for(&mut controller, &with_both, 5).decision, &[1.0, 0.0]);
}

#[test]
fn the_ramp_keeps_within_what_may_leave() {
    let mut with_both = Scene::new(0.1, vec![peer(1, 0.1, 100.0, 1)]).offers(10.0, 0.0);
    with_both.parameters.max_spill = Share::new(0.25).unwrap();
    let mut controller = Controller::new(Kind::Waterfill);
    busy_for(&mut controller, &with_both.clone().without_local_endpoints(), 15);
    assert_shares(&tick(&mut controller, &with_both, &[]).decision, &[0.75, 0.25]);
}

#[test]
fn nobody_is_new_where_all_are() {
    let scene = Scene::new(0.1, vec![peer(1, 0.1, 0.0, 1)]);
    assert_shares(&tick(&mut Controller::new(Kind::Random), &scene, &[]).decision, &[0.5, 0.5]);
}

#[test]
fn an_ejected_endpoint_gets_nothing_and_is_written_at_once() {
    let scene = Scene::new(0.1, vec![peer(1, 0.1, 0.0, 1), peer(2, 0.1, 0.0, 1)]);
    let mut controller = Controller::new(Kind::Random);
    tick(&mut controller, &scene, &[]);
    let fails = Outcome { failed_over: 5, ..Outcome::default() };
    let after = tick(&mut controller, &scene, &[fails, Outcome::default(), Outcome::default()]);
    assert_shares(&after.decision, &[0.0, 0.5, 0.5]);
    assert_eq!(after.ejected, [true, false, false]);
    let written = after.write.unwrap();
    assert_eq!((written.spill, written.local.len()), (u16::MAX, 0), "an empty tier passes on all");
    assert!(after.decision.reasons.contains(&Reason::Ejected { endpoints: 1 }));
}

#[test]
fn another_policy_takes_over_without_making_endpoints_new() {
    let scene = Scene::new(0.1, vec![peer(1, 0.1, 0.0, 1)]);
    let mut controller = Controller::new(Kind::Waterfill);
    busy_for(&mut controller, &scene, 1);
    controller.change(Kind::Random);
    assert_eq!(controller.kind(), Kind::Random);
    assert_shares(&tick(&mut controller, &scene, &[]).decision, &[0.5, 0.5]);
}

#[test]
fn no_endpoints_are_no_reason_to_write() {
    let mut scene = Scene::new(0.1, vec![]);
    scene.endpoints.clear();
    scene.elapsed = Duration::ZERO;
    for kind in Kind::ALL {
        assert_eq!(tick(&mut Controller::new(kind), &scene, &[]).write, None, "{}", kind.name());
    }
}
