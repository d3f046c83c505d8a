//! `sim`: every policy in every scenario of the simulator.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, ensure};
use clap::Args;
use weir_core::policies::Kind;
use weir_simulator::optimum::Course;
use weir_simulator::{Outcome, Scenario, catalogue, report, run_against};

/// Options of `sim`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Only scenarios whose names begin so
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Only one policy
    #[arg(long, value_name = "NAME", value_parser = |name: &str| name.parse::<Kind>())]
    policy: Option<Kind>,
    /// Of all numbers by chance
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Directory for pictures and the summary
    #[arg(long, value_name = "DIR", default_value = "target/sim")]
    output: PathBuf,
}

/// Runs the scenarios, prints a table of each and fails if something does not hold that must.
pub(crate) fn run_all(options: &Options) -> Result<ExitCode> {
    let Options { only, policy, seed, output } = options;
    let mut scenarios = catalogue::all(*seed);
    scenarios.retain(|scenario| only.as_ref().is_none_or(|name| scenario.name.starts_with(name)));
    ensure!(
        !scenarios.is_empty(),
        "no scenario begins with {:?}: see docs/simulator.md",
        only.as_deref().unwrap_or("")
    );
    let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| policy.is_none_or(|only| only == *kind)).collect();
    std::fs::create_dir_all(output).with_context(|| format!("cannot make {}", output.display()))?;
    println!("seed {seed}");
    let mut all = Vec::new();
    for scenario in &scenarios {
        let outcomes = side_by_side(scenario, &kinds, *seed)?;
        println!("\n{}: {}\n{}", scenario.name, scenario.about, report::table(&outcomes));
        report::draw(scenario, &outcomes, output)?;
        all.extend(outcomes);
    }
    let summary = output.join("summary.json");
    report::write_summary(&all, &summary)?;
    println!("\npictures and summary.json are in {}", output.display());
    let violations = report::violations(&all);
    violations.iter().for_each(|violation| println!("does not hold: {violation}"));
    Ok(if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One scenario with each policy, as many at a time as there are processors.
fn side_by_side(scenario: &Scenario, kinds: &[Kind], seed: u64) -> Result<Vec<Outcome>> {
    let best = Course::of(scenario)?;
    let next: Mutex<VecDeque<usize>> = Mutex::new((0..kinds.len()).collect());
    let take = || next.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let work = || {
        let mut done = Vec::new();
        while let Some(index) = take() {
            done.push((index, run_against(&best, scenario, kinds[index], seed)));
        }
        done
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let mut done = thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a simulation never panics")).collect::<Vec<_>>()
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, outcome)| Ok(outcome?)).collect()
}
