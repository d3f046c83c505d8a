//! Who is probed when.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use weir_mesh::{Config, ConfigError, NodeId, Schedule};

use crate::world::millis;

struct Log {
    schedule: Schedule,
    rng: fastrand::Rng,
    now: Duration,
    probes: Vec<(Duration, NodeId)>,
}

/// The peer with this number is that many microseconds away.
fn micros(id: NodeId) -> Duration {
    Duration::from_micros(id.0)
}

impl Log {
    fn new(peers: u64, seed: u64) -> Self {
        let (schedule, rng) = (Schedule::new(Config::default()), fastrand::Rng::with_seed(seed));
        let mut log = Self { schedule, rng, now: Duration::ZERO, probes: Vec::new() };
        log.schedule.set(&ids(1..=peers), &mut log.rng);
        log
    }

    /// Peers are measured when they are probed, except those that `silent` names.
    fn run(&mut self, time: Duration, silent: impl Fn(NodeId) -> bool) {
        let end = self.now + time;
        let mut measured: BTreeSet<_> = self.probes.iter().map(|(_, id)| *id).collect();
        while let Some(due) = self.schedule.next().filter(|due| *due <= end) {
            self.now = due.max(self.now);
            let distance = |id: NodeId| (measured.contains(&id) && !silent(id)).then(|| micros(id));
            if let Some(id) = self.schedule.take(self.now, distance, &mut self.rng) {
                measured.insert(id);
                self.probes.push((self.now, id));
            }
        }
        self.now = end;
    }

    fn times(&self, id: u64) -> Vec<Duration> {
        self.probes.iter().filter(|(_, probed)| probed.0 == id).map(|(at, _)| *at).collect()
    }
}

fn ids(range: impl Iterator<Item = u64>) -> BTreeSet<NodeId> {
    range.map(NodeId).collect()
}

#[test]
fn a_thousand_peers_are_all_known_within_twenty_seconds() {
    let mut log = Log::new(1000, 1);
    log.run(millis(20_000), |_| false);
    let probed: BTreeSet<_> = log.probes.iter().map(|(_, id)| *id).collect();
    assert_eq!(probed, ids(1..=1000));
}

#[test]
fn the_nearest_are_probed_every_interval_give_or_take_a_tenth() {
    let mut log = Log::new(1000, 2);
    log.run(millis(60_000), |_| false);
    let near: BTreeSet<_> = (1..=1000).map(NodeId).filter(|id| log.schedule.is_near(*id)).collect();
    assert_eq!(near.len(), 16);
    // Who is near stays near unless another is nearer by a fifth, so not exactly the first 16.
    assert!(near.iter().all(|id| id.0 <= 20), "{near:?}");
    for id in near {
        let times: Vec<_> = log.times(id.0).into_iter().filter(|at| *at > millis(30_000)).collect();
        let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
        let (least, most) =
            gaps.fold((Duration::MAX, Duration::ZERO), |(least, most), gap| (least.min(gap), most.max(gap)));
        assert!(least >= millis(360) && most <= millis(440), "{id:?}: {least:?} to {most:?}");
    }
}

#[test]
fn two_near_nodes_take_turns_and_each_probes_within_a_second() {
    let mut rng = fastrand::Rng::with_seed(8);
    let mut nodes = [Schedule::new(Config::default()), Schedule::new(Config::default())];
    nodes.iter_mut().for_each(|node| node.set(&ids(1..=1), &mut rng));
    let mut probes = Vec::new();
    while let Some((due, number)) = (0..2).filter_map(|number| Some((nodes[number].next()?, number))).min() {
        if due > millis(60_000) {
            break;
        }
        if nodes[number].take(due, |_| Some(millis(1)), &mut rng).is_some() {
            nodes[1 - number].probed_by(NodeId(1), due, &mut rng);
            probes.push((due, number));
        }
    }
    let settled: Vec<_> = probes.into_iter().filter(|(at, _)| *at > millis(2000)).collect();
    for pair in settled.windows(2) {
        let gap = pair[1].0 - pair[0].0;
        assert!(pair[0].1 != pair[1].1, "one probes twice: {pair:?}");
        assert!(gap >= millis(360) && gap <= millis(440), "{gap:?}");
    }
}

#[test]
fn who_is_probed_all_the_time_probes_every_two_intervals_nevertheless() {
    let mut log = Log::new(1, 9);
    log.run(millis(5000), |_| false);
    log.probes.clear();
    let begin = log.now;
    while log.now < begin + millis(20_000) {
        log.schedule.probed_by(NodeId(1), log.now, &mut log.rng);
        log.run(millis(50), |_| false);
    }
    let longest = log.times(1).windows(2).map(|pair| pair[1] - pair[0]).max();
    assert!(longest.is_some_and(|longest| longest <= millis(800)), "{longest:?}");
}

#[test]
fn every_other_peer_has_its_turn_in_bounded_time() {
    let mut log = Log::new(100, 3);
    log.run(millis(120_000), |_| false);
    // 84 others, 7.5 per second, jitter; once at the start and once at the end of two rounds at worst.
    let bound = millis(84 * 133 * 11 / 10) * 2;
    for id in 1..=100 {
        let mut times = log.times(id);
        times.push(log.now);
        let longest = times.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(longest <= Some(bound), "{id}: {longest:?} of {bound:?}");
    }
}

#[test]
fn the_number_of_probes_does_not_grow_with_the_cluster() {
    let mut log = Log::new(5000, 4);
    log.run(millis(90_000), |_| false);
    log.probes.clear();
    log.run(millis(10_000), |_| false);
    // 16 + 3 every 0.4 s, a tenth more at most.
    assert!((430..=525).contains(&log.probes.len()), "{}", log.probes.len());
}

#[test]
fn who_does_not_answer_gives_its_place_to_the_next() {
    let mut log = Log::new(40, 5);
    log.run(millis(20_000), |_| false);
    assert!(log.schedule.is_near(NodeId(1)));
    log.run(millis(1000), |id| id.0 == 1);
    assert!(!log.schedule.is_near(NodeId(1)));
    log.probes.retain(|(at, _)| *at < millis(20_000));
    log.run(millis(20_000), |id| id.0 == 1);
    assert!(!log.times(1).is_empty(), "it is still probed in turn");
    log.run(millis(1000), |_| false);
    assert!(log.schedule.is_near(NodeId(1)));
}

#[test]
fn nodes_that_start_together_do_not_stay_together() {
    let starts = |seed| {
        let mut log = Log::new(16, seed);
        log.run(millis(30_000), |_| false);
        log.times(3).into_iter().rfind(|at| *at < millis(29_000)).expect("a probe")
    };
    let phases: BTreeSet<_> = (0..8).map(starts).collect();
    assert_eq!(phases.len(), 8);
}

#[test]
fn peers_come_and_go() {
    let mut log = Log::new(30, 6);
    log.run(millis(10_000), |_| false);
    log.schedule.set(&ids(20..=50), &mut log.rng);
    let before = log.probes.len();
    log.run(millis(10_000), |_| false);
    let probed: BTreeSet<_> = log.probes[before..].iter().map(|(_, id)| *id).collect();
    assert_eq!(probed, ids(20..=50));
    log.schedule.set(&BTreeSet::new(), &mut log.rng);
    assert_eq!(log.schedule.next(), None);
}

#[test]
fn after_a_pause_nothing_is_made_up_for() {
    let mut log = Log::new(10, 7);
    log.run(millis(10_000), |_| false);
    log.now += millis(60_000);
    let mut times = BTreeMap::<_, u32>::new();
    while let Some(id) = log.schedule.take(log.now, |id| Some(micros(id)), &mut log.rng) {
        *times.entry(id).or_default() += 1;
    }
    assert!(times.values().all(|count| *count == 1), "{times:?}");
}

#[test]
fn settings_out_of_range_are_refused() {
    let good = Config::default();
    assert_eq!(good.checked(), Ok(good));
    let wrong = [
        Config { interval: millis(10), ..good },
        Config { interval: millis(20_000), ..good },
        Config { nearest: 0, ..good },
        Config { sample: 0, ..good },
        Config { bytes_per_second: 300, ..good },
        Config { bytes_per_second: 2_000_000, ..good },
        Config { skew: Duration::ZERO, ..good },
    ];
    for config in wrong {
        let error: ConfigError = config.checked().expect_err("out of range");
        assert!(error.to_string().contains("set it to"), "{error}");
    }
}
