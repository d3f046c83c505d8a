//! The kernel against the reference model of the packet path (`weir_model`), on scenarios that are made of bytes: a node's
//! services, and packets, answers, errors and changes in random order. A scenario about which they differ is shrunk, written
//! into the corpus, and printed.
//!
//!     FUZZ_SECONDS=600      how long random scenarios are played
//!     WEIR_TEST_SEED=n      the first one
//!     FUZZ_GROW=1           scenarios that reach what the corpus does not are added to it

mod bench;
mod compare;
mod coverage;
mod frame;
mod kernel;
mod odd;
mod places;
mod processes;
mod routes;
mod sockets;
mod step;
mod tables;
mod world;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use self::bench::{Bench, End};
use self::routes::Devices;
use self::step::{STEP_BYTES, Scenario, WORLD_BYTES};
use crate::clock;
use crate::model::seed;
use crate::node::Node;

/// Most steps of a random scenario.
const STEPS: usize = 40;
/// Random scenarios of a usual test run.
const USUAL_SECONDS: u64 = 60;
/// How often a scenario is played when the clock moves meanwhile.
const PLAYS: usize = 100;
/// How often one that has failed is played until it does again: some backends are drawn at random, others with the hour.
const REPEATS: usize = 50;

/// A hook's number and a reason.
type Reached = BTreeSet<(u32, u32)>;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

/// The entries with their names, in order.
fn entries() -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<_> = fs::read_dir(corpus())
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(&path).unwrap())
        })
        .collect();
    all.sort();
    all
}

fn keep(prefix: &str, entry: &[u8]) -> PathBuf {
    let name = BuildHasherDefault::<DefaultHasher>::default().hash_one(entry);
    let path = corpus().join(format!("{prefix}-{name:016x}"));
    fs::write(&path, entry).unwrap();
    path
}

struct Fuzzer {
    node: Node,
    devices: Devices,
}

impl Fuzzer {
    fn new(what: &str) -> Option<Self> {
        if !clock::require_shown(what) {
            return None;
        }
        let node = Node::new(what)?;
        let devices = Devices::of(&node);
        Some(Self { node, devices })
    }

    /// What an entry reaches, or how the two differ and what had happened by then.
    fn play(&mut self, entry: &[u8]) -> Result<Reached, (String, Vec<String>)> {
        let scenario = Scenario::decode(entry);
        for _ in 0..PLAYS {
            let (bench, end) = Bench::play(&mut self.node, self.devices, &scenario);
            match end {
                End::Whole => return Ok(bench.reached),
                End::Differs(how) => return Err((how, bench.log)),
                End::Late => {}
            }
        }
        panic!("the machine is too slow to play a scenario of {} steps", scenario.steps.len());
    }

    /// Drops steps for as long as what is left still does it.
    fn shrink(&mut self, entry: &[u8], mut still: impl FnMut(&mut Self, &[u8]) -> bool) -> Vec<u8> {
        let mut entry = entry.to_vec();
        let mut at = WORLD_BYTES;
        while at < entry.len() {
            let mut less = entry.clone();
            less.drain(at..(at + STEP_BYTES).min(entry.len()));
            if still(self, &less) {
                entry = less;
            } else {
                at += STEP_BYTES;
            }
        }
        entry
    }

    /// How the two differ about an entry, if they do in one of some plays.
    fn play_again(&mut self, entry: &[u8]) -> Option<(String, Vec<String>)> {
        (0..REPEATS).find_map(|_| self.play(entry).err())
    }

    /// Fails with the least scenario about which the two differ; where that does not do it again, with what was seen of the whole one.
    fn fail(&mut self, entry: &[u8], name: &str, seen: (String, Vec<String>)) -> ! {
        let mut least = entry.to_vec();
        // What the whole does not do again, none of its parts need be asked.
        while self.play_again(&least).is_some() {
            let shrunk = self.shrink(&least, |fuzzer, less| fuzzer.play_again(less).is_some());
            if shrunk == least {
                break;
            }
            least = shrunk;
        }
        let again = self.play_again(&least);
        let path = keep("found", if again.is_some() { &least } else { entry });
        let (how, log) = again.unwrap_or(seen);
        panic!("kernel and model differ ({name}):\n{}\n{how}\nkept as {}", log.join("\n"), path.display());
    }
}

fn random_entry(rng: &mut fastrand::Rng) -> Vec<u8> {
    let mut entry = vec![0; WORLD_BYTES + rng.usize(1..=STEPS) * STEP_BYTES];
    rng.fill(&mut entry);
    entry
}

#[test]
fn the_kernel_does_to_random_packets_what_the_model_of_the_path_does() {
    let Some(mut fuzzer) = Fuzzer::new("the kernel against the model of the path") else { return };
    let seconds = env::var("FUZZ_SECONDS").map_or(USUAL_SECONDS, |text| text.parse().expect("seconds"));
    let grow = env::var_os("FUZZ_GROW").is_some();
    let seed = seed();
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut reached, mut scenarios) = (Reached::new(), 0);
    if grow {
        reached = entries().iter().flat_map(|(_, entry)| fuzzer.play(entry).unwrap_or_default()).collect();
    }
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(seconds) {
        let entry = random_entry(&mut rng);
        scenarios += 1;
        let new = match fuzzer.play(&entry) {
            Ok(new) => new,
            Err(seen) => fuzzer.fail(&entry, &format!("WEIR_TEST_SEED={seed}"), seen),
        };
        if grow && !new.is_subset(&reached) {
            let wanted: Reached = new.difference(&reached).copied().collect();
            let least = fuzzer.shrink(&entry, |fuzzer, less| fuzzer.play(less).is_ok_and(|new| wanted.is_subset(&new)));
            keep("reach", &least);
            reached.extend(wanted);
        }
    }
    eprintln!("{scenarios} scenarios in {seconds} s");
}

#[test]
fn the_kernel_does_what_the_model_does_on_the_corpus_which_reaches_every_reason() {
    let Some(mut fuzzer) = Fuzzer::new("the corpus of the model of the path") else { return };
    let mut reached = Reached::new();
    for (name, entry) in entries() {
        match fuzzer.play(&entry) {
            Ok(new) => reached.extend(new),
            Err((how, log)) => panic!("kernel and model differ ({name}):\n{}\n{how}", log.join("\n")),
        }
    }
    coverage::assert_complete(&reached);
}
