//! The experiments of `make sim`, and smaller ones of the same make for tests.

use std::time::Duration;

use rand::{Rng, RngExt, SeedableRng, seq};
use rand_pcg::Pcg64;

use crate::arrivals::Pattern;
use crate::crowd::Crowd;
use crate::feed::Feed;
use crate::scenario::Scenario;
use crate::world::{Machine, World};

/// Seconds of a core that a request takes: 4 ms, a small page made on the spot. Four cores do 1000 in a second.
const WORK: f64 = 0.004;
/// Round-trip times between nodes of one site, and the longest that RAP's paper has (Figure 6): 3 to 18 ms.
const RTT: (Duration, Duration) = (Duration::from_millis(3), Duration::from_millis(18));

/// Ages of data that the controller must bear.
pub const AGES: [u64; 5] = [1, 2, 5, 10, 15];

/// All experiments.
#[must_use]
pub fn all(seed: u64) -> Vec<Scenario> {
    let ages = AGES.map(|age| one_hot(Duration::from_secs(age)));
    let beyond = [beyond_all(), endless_crowd(), bursts()];
    ages.into_iter().chain(patterns(seed)).chain(beyond).chain([hundred_hot(seed, 1000), clusters(seed)]).collect()
}

/// RAP's four nodes, one of them with half as much again as it can do, while all that is measured is `age` old.
#[must_use]
pub fn one_hot(age: Duration) -> Scenario {
    let machine = Machine { cores: 4, speed: 1.0, background: 0.0 };
    let rows = [[0.0, 3.0, 8.0, 18.0], [3.0, 0.0, 9.0, 17.0], [8.0, 9.0, 0.0, 12.0], [18.0, 17.0, 12.0, 0.0]];
    let name = match age.as_secs() {
        1 => "one-hot-1s-old",
        2 => "one-hot-2s-old",
        5 => "one-hot-5s-old",
        10 => "one-hot-10s-old",
        15 => "one-hot-15s-old",
        _ => "one-hot",
    };
    Scenario {
        name,
        about: "constant overload of one node of four, data of one age",
        world: World::with_matrix(vec![machine; 4], &rows.map(|row| row.to_vec())),
        rest: vec![0.5, 0.2, 0.4, 0.1],
        pattern: Pattern::Step { at: 60.0, to: 1.5 },
        hot: vec![0],
        feed: Feed::aged(age),
        work: WORK,
        life: Duration::ZERO,
        length: Duration::from_secs(400),
        settled: Duration::from_secs(200),
    }
}

/// One of each pattern, among nodes of different sizes and with the mesh.
fn patterns(seed: u64) -> Vec<Scenario> {
    let step = Pattern::Step { at: 30.0, to: 1.6 };
    let all_hot = Pattern::Step { at: 30.0, to: 1.2 };
    let ramp = Pattern::Ramp { from: 30.0, until: 120.0, to: 2.0 };
    let flash = Pattern::FlashCrowd { at: 30.0, peak: 4.0, half_life: 15.0 };
    let loss = Pattern::NodeLoss { at: 30.0, back: 90.0 };
    let [mut flows, mut metrics] = ["long-flows", "metrics-api"].map(|name| drawn(name, 8, 1, step, seed));
    (flows.about, flows.life) = ("a step at one node, flows live 30 s", Duration::from_secs(30));
    (metrics.about, metrics.feed) = ("a step at one node, data of metrics.k8s.io each 15 s", Feed::METRICS_API);
    for long in [&mut flows, &mut metrics] {
        (long.length, long.settled) = (Duration::from_secs(300), Duration::from_secs(150));
    }
    let mut days = drawn("diurnal", 16, 16, Pattern::Diurnal { day: 240.0, peak: 1.1 }, seed);
    (days.about, days.length) = ("each node has its day, of four minutes", Duration::from_secs(480));
    let mut busy = drawn("node-loss", 8, 1, loss, seed);
    (busy.about, busy.settled) = ("a node dies and is back after a minute", Duration::from_secs(30));
    busy.rest.fill(0.5);
    let about = |about, scenario| Scenario { about, ..scenario };
    vec![
        about("a step at one node of eight", drawn("step", 8, 1, step, seed)),
        about("more and more at one node of eight", drawn("ramp", 8, 1, ramp, seed)),
        days,
        about("four times its capacity at one node, then less and less", drawn("flash-crowd", 16, 1, flash, seed)),
        about("more everywhere than all can do", drawn("all-hot", 8, 8, all_hot, seed)),
        busy,
        flows,
        metrics,
    ]
}

/// The same nodes, of which one gets more than all of them can do together.
#[must_use]
pub fn beyond_all() -> Scenario {
    Scenario {
        name: "beyond-all",
        about: "more at one node of four than all of them can do",
        pattern: Pattern::Step { at: 60.0, to: 4.5 },
        ..one_hot(Duration::from_secs(1))
    }
}

/// A hundred clients at one node that never stop.
#[must_use]
pub fn endless_crowd() -> Scenario {
    let endless = Crowd { clients: 100.0, requests: f64::INFINITY, pause: 0.0 };
    crowd("crowd", "clients at one of three nodes ask again when they are answered", endless)
}

/// A hundred clients at one node that come again and again, with two requests each.
#[must_use]
pub fn bursts() -> Scenario {
    crowd("bursts", "they come in bursts of two requests each", Crowd { clients: 100.0, requests: 2.0, pause: 0.3 })
}

/// The EdgeMesh paper's three nodes and their distances; the first has clients that wait for their answers, more than
/// all nodes can serve at once.
fn crowd(name: &'static str, about: &'static str, crowd: Crowd) -> Scenario {
    let machine = |cores| Machine { cores, speed: 0.05, background: 0.0 };
    let rows = [[0.0, 5.0, 19.0], [5.0, 0.0, 22.0], [19.0, 22.0, 0.0]];
    Scenario {
        name,
        about,
        world: World::with_matrix([8, 5, 2].map(machine).to_vec(), &rows.map(|row| row.to_vec())),
        rest: vec![0.0; 3],
        pattern: Pattern::Crowd(crowd),
        hot: vec![0],
        feed: Feed::MESH,
        work: WORK,
        life: Duration::ZERO,
        length: Duration::from_secs(120),
        settled: Duration::from_secs(10),
    }
}

/// Many nodes, a tenth of which get half as much again as they can do.
#[must_use]
pub fn hundred_hot(seed: u64, nodes: usize) -> Scenario {
    let pattern = Pattern::Step { at: 15.0, to: 1.5 };
    let mut scenario = drawn("hundred-hot", nodes, nodes / 10, pattern, seed);
    scenario.about = "a thousand nodes, a hundred of them hot at once";
    // Busy neighbours: what one hot node leaves of their room is not enough for the next.
    scenario.rest.iter_mut().for_each(|rest| *rest += 0.25);
    (scenario.length, scenario.settled) = (Duration::from_secs(40), Duration::from_secs(25));
    scenario
}

/// The most nodes that Kubernetes is made for, in zones of 25.
fn clusters(seed: u64) -> Scenario {
    let mut scenario = drawn("five-thousand", 5000, 500, Pattern::Step { at: 12.0, to: 1.5 }, seed);
    scenario.about = "five thousand nodes in zones of 25, a tenth of them hot";
    let mut rng = Pcg64::seed_from_u64(seed);
    scenario.world = World::drawn(5000, 25, RTT.0, RTT.1, &mut rng);
    (scenario.length, scenario.settled) = (Duration::from_secs(30), Duration::from_secs(20));
    scenario
}

/// Nodes of different sizes, up to 40 % busy at rest, some of them drawn to be hot.
fn drawn(name: &'static str, nodes: usize, hot: usize, pattern: Pattern, seed: u64) -> Scenario {
    let mut rng = Pcg64::seed_from_u64(seed);
    let world = World::drawn(nodes, nodes, RTT.0, RTT.1, &mut rng);
    let rest = (0..nodes).map(|_| rng.random_range(0.1..0.4)).collect();
    Scenario {
        name,
        about: "",
        world,
        rest,
        pattern,
        hot: some(nodes, hot, &mut rng),
        feed: Feed::MESH,
        work: WORK,
        life: Duration::ZERO,
        length: Duration::from_secs(180),
        settled: Duration::from_secs(60),
    }
}

fn some(nodes: usize, count: usize, rng: &mut impl Rng) -> Vec<usize> {
    let mut chosen = seq::index::sample(rng, nodes, count).into_vec();
    chosen.sort_unstable();
    chosen
}
