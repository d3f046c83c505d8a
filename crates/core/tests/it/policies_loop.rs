//! A tiny world in virtual time: what the policies do shows in the loads, and the loads reach the policies late.

use std::collections::VecDeque;
use std::time::Duration;

use weir_core::load::{PeerReport, Sample, ServiceLoad, Share};
use weir_core::policies::{Kind, Offered, Policy};

use crate::policies_build::{SERVICE, Scene, TICK, node_load, peer};

/// Flows per second that a node can do.
const CAPACITY: f64 = 100.0;
/// Seconds that the world runs, and those of them after which it should have settled.
const END: f64 = 400.0;
const SETTLED: f64 = 200.0;

/// A node: flows wait in its queue, and it does as many as it can.
#[derive(Clone, Copy, Default)]
struct Sim {
    queue: f64,
    used: f64,
    arrived: f64,
}

impl Sim {
    fn run(&mut self, arrived: f64) {
        let possible = CAPACITY * TICK.as_secs_f64();
        let waiting = self.queue + arrived * TICK.as_secs_f64();
        let done = waiting.min(possible);
        // Clients give up after two seconds.
        self.queue = (waiting - done).min(2.0 * CAPACITY);
        (self.used, self.arrived) = (done / possible, arrived);
    }
}

/// What came of a run.
struct Outcome {
    deviation: f64,
    mean: f64,
    overloaded: f64,
}

/// One hot node, offered 150 % of what it can do, and three others with some load of their own. All that is measured is
/// `age` old. `told`: whether the others tell what they can take, or only how busy they are.
fn run(kind: Kind, age: Duration, told: bool) -> Outcome {
    let own_load = [150.0, 20.0, 40.0, 10.0];
    let mut policy = kind.start();
    let mut nodes = [Sim::default(); 4];
    let mut past: VecDeque<[Sim; 4]> = VecDeque::new();
    let late = usize::try_from(age.as_millis() / TICK.as_millis()).unwrap();
    let mut shares = vec![1.0, 0.0, 0.0, 0.0];
    let (mut local, mut overloaded, mut ticks) = (Vec::new(), 0.0_f64, 0_u32);
    while f64::from(ticks) * TICK.as_secs_f64() < END {
        let spilled = |node: usize| own_load[0] * shares[node];
        for (index, node) in nodes.iter_mut().enumerate() {
            node.run(if index == 0 { spilled(0) } else { own_load[index] + spilled(index) });
        }
        past.push_front(nodes);
        past.truncate(late + 1);
        let seen = *past.back().unwrap();
        let peers = (1..4).map(|index| report(index, &seen[index], own_load[index], age, told)).collect();
        shares = decide(&mut *policy, peers, &nodes[0], &seen[0], own_load[0], age);
        ticks += 1;
        if f64::from(ticks) * TICK.as_secs_f64() > SETTLED {
            local.push(shares[0]);
            overloaded = overloaded.max(nodes[1..].iter().map(|node| node.arrived).fold(0.0, f64::max));
        }
    }
    let mean = local.iter().sum::<f64>() / local.len() as f64;
    let variance = local.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / local.len() as f64;
    Outcome { deviation: variance.sqrt(), mean, overloaded }
}

fn decide(
    policy: &mut dyn Policy,
    peers: Vec<PeerReport>,
    now: &Sim,
    seen: &Sim,
    offered: f64,
    age: Duration,
) -> Vec<f64> {
    let mut scene = Scene::new(0.0, peers);
    scene.own.load.cpu = Some(Sample { value: Share::clamped(seen.used), age });
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a short queue")]
    let open_flows = now.queue as u32;
    scene.offered = Offered {
        flows_per_second: offered,
        begun_per_second: offered,
        local_flows_per_second: now.arrived,
        open_flows,
    };
    scene.parameters.report_interval = age;
    scene.ask(|inputs| policy.decide(inputs).shares)
}

fn report(index: usize, seen: &Sim, own: f64, age: Duration, told: bool) -> PeerReport {
    let spare = ServiceLoad { flows_per_second: seen.arrived, open_flows: 0, spare: (0.8 * CAPACITY - own).max(0.0) };
    PeerReport {
        load: node_load(seen.used),
        services: told.then_some((SERVICE, spare)).into_iter().collect(),
        age,
        ..peer(index, 0.0, 0.0, index as u64)
    }
}

fn ages() -> impl Iterator<Item = Duration> {
    [1, 2, 3, 5, 8, 10, 12, 15].into_iter().map(Duration::from_secs)
}

#[test]
fn waterfill_holds_its_share_still_however_old_the_data_are() {
    for age in ages() {
        let Outcome { deviation, mean, overloaded } = run(Kind::Waterfill, age, true);
        assert!(deviation <= 0.03, "data {age:?} old: standard deviation {deviation}");
        // 80 of 150 flows per second are the target; the dead band is 3 points of utilisation, 2 of share.
        assert!((mean - 80.0 / 150.0).abs() <= 0.03, "data {age:?} old: {mean} stay");
        assert!(overloaded <= 0.83 * CAPACITY, "data {age:?} old: a node gets {overloaded} flows per second");
    }
}

#[test]
fn waterfill_holds_still_among_nodes_that_only_tell_how_busy_they_are() {
    for age in ages() {
        let Outcome { deviation, mean, overloaded } = run(Kind::Waterfill, age, false);
        assert!(deviation <= 0.03, "data {age:?} old: standard deviation {deviation}, mean {mean}");
        assert!(overloaded <= 0.9 * CAPACITY, "data {age:?} old: a node gets {overloaded} flows per second");
    }
}

#[test]
fn rap_switches_to_and_fro_in_the_same_world() {
    let Outcome { deviation, .. } = run(Kind::Rap, Duration::from_secs(5), true);
    assert!(deviation > 0.3, "{deviation}");
}
