//! `bench-world`: connections from a client outside the cluster to a service, from end to end, with Weir, with real
//! kube-proxy, and without a service.
//!
//! It runs in a child process, see [`crate::guard`]: however it ends, its parent removes what it has made.

mod bed;
mod claims;
mod measure;
mod placement;
mod plan;
mod proxies;
mod report;
mod results;
mod tools;
mod way;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::benchmark::{self, Verb, listed, name_of};
use crate::cpu::CpuTimes;
use crate::guard::{self, Stop};
use crate::origin::Origin;
use crate::progress::Step;
use crate::requirements::{self};
use bed::Bed;
use measure::{Measured, Rounds, Setting};
use plan::{Block, Case, Figure};
use proxies::Proxies;
use results::{Record, Results, programs};
use way::{Proxy, Way};

/// Numbers of services that are compared.
const SERVICES: [u32; 2] = [10, 10_000];
/// More than an agent has room for, both families counted.
const MOST_SERVICES: i64 = 15_000;
/// Short connections per second where their number is fixed: what the slowest proxy does on two small cores, and no more.
const RATE: u32 = 2000;
/// What a proxy does that runs again after a while is not measured.
const SETTLE: Duration = Duration::from_millis(500);
/// A machine that does less than this for a while is calm, and the most that is waited for it.
const CALM: f64 = 0.1;
const WHILE: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(120);

/// Options of `bench-world`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Only these cases
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_enum)]
    case: Vec<Case>,
    /// How often everything is measured; the report has only what was measured five times or more
    #[arg(long, value_name = "N", default_value_t = report::REPETITIONS, value_parser = clap::value_parser!(u32).range(1..))]
    reps: u32,
    /// Length of each measurement, in place of 1 or 60 s
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// Numbers of services
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = SERVICES,
        value_parser = clap::value_parser!(u32).range(i64::from(bed::FEWEST_SERVICES)..=MOST_SERVICES))]
    services: Vec<u32>,
    /// Short connections per second where their number is fixed
    #[arg(long, value_name = "N", default_value_t = RATE, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// File for the results
    #[arg(long, value_name = "FILE", default_value = "target/bench/world.json")]
    output: PathBuf,
    /// The report, which only a whole run writes
    #[arg(long, value_name = "FILE", default_value = "docs/performance.md")]
    report: PathBuf,
    /// Go on with the results of a run that was ended: measure what they lack. Options, machine and the kernel's version must be the same;
    /// of another build of the kernel or of Weir's programs the report says which figures they are
    #[arg(long, conflicts_with = "report_only")]
    resume: bool,
    /// Measure nothing: write the report from the results of the last run
    #[arg(long)]
    report_only: bool,
}

/// Measures, and writes results and report. Fails where a claim does not hold.
///
/// # Errors
/// When this machine cannot run it, or a part of it fails. The error says what to do about it.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let report = || report::write(&Results::load(&options.output)?, &options.report);
    benchmark::run(options.report_only, || measure_all(options), report)
}

fn measure_all(options: &Options) -> Result<ExitCode> {
    let programs = requirements::beside_kube_proxy("bench-world")?;
    tools::require()?;
    // Connections that nobody answers stay open for a while.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    guard::supervise(|directory, stop| {
        Run { options, agent: &programs.agent, stop }.repeat(directory)?;
        Ok(ExitCode::SUCCESS)
    })
}

impl Options {
    fn cases(&self) -> Vec<Case> {
        if self.case.is_empty() { Case::value_variants().to_vec() } else { self.case.clone() }
    }

    /// Each once, the smallest first.
    fn services(&self) -> Vec<u32> {
        let mut services = self.services.clone();
        services.sort_unstable();
        services.dedup();
        services
    }

    /// What the reader has to type for the same.
    fn command(&self) -> String {
        let services = self.services();
        Verb::new("bench-world")
            .unless(self.case.is_empty(), "CASE", listed(self.case.iter().map(name_of)))
            .unless(self.reps == report::REPETITIONS, "REPS", self.reps)
            .unless(self.seconds.is_none(), "SECONDS", self.seconds.unwrap_or_default())
            .unless(services == SERVICES, "SERVICES", listed(&services))
            .unless(self.rate == RATE, "RATE", self.rate)
            .to_string()
    }
}

/// Where everything is.
struct Place<'a> {
    bed: &'a Bed,
    proxies: &'a Proxies,
    directory: &'a Path,
}

/// A run of the benchmark.
struct Run<'a> {
    options: &'a Options,
    agent: &'a Path,
    stop: &'a Stop,
}

impl Run<'_> {
    /// What earlier runs have measured, if this one is to go on with it.
    fn begin(&self) -> Result<Results> {
        let origin = Origin::of(self.options.command())?;
        let rate = self.options.rate;
        let none = Results { origin, programs: programs(), earlier: Vec::new(), rate, records: Vec::new() };
        if self.options.resume { Results::load(&self.options.output)?.resumed(none) } else { Ok(none) }
    }

    /// Measures all of it as often as was asked for.
    fn repeat(&self, directory: &Path) -> Result<()> {
        let mut results = self.begin()?;
        let blocks = plan::blocks(&self.options.cases());
        for repetition in 1..=self.options.reps {
            let missing: Vec<Block> = blocks.iter().copied().filter(|block| !results.has(*block, repetition)).collect();
            if !missing.is_empty() {
                self.repetition(repetition, &missing, &mut results, directory)?;
            }
        }
        println!("\n{}\n{}", report::tables(&results)?, self.options.output.display());
        Ok(())
    }

    /// Measures blocks of a repetition, and keeps what there is after each. It has a world of its own: where a process or a map happens to
    /// lie in memory is no property of a proxy, and an hour after its start kube-proxy's nftables mode writes all rules anew
    /// (`proxyutil.FullSyncPeriod`), of 10,000 services for minutes in which the kernel lets nothing else run. What thousands of
    /// services are measured with comes before that.
    fn repetition(&self, number: u32, blocks: &[Block], results: &mut Results, directory: &Path) -> Result<()> {
        let services = self.options.services();
        let directory = directory.join(format!("repetition-{number}"));
        fs::create_dir(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let step = Step::begin("building nodes, pods and API servers");
        let bed = Bed::build(&services, &directory)?;
        step.done();
        let step = Step::begin("starting proxies");
        let proxies = Proxies::start(&services, self.agent, &bed, &directory, self.stop)?;
        step.done();
        self.await_calm()?;
        let place = Place { bed: &bed, proxies: &proxies, directory: &directory };
        let ways = plan::ways(&services);
        let fewest = services.first().copied().unwrap_or_default();
        for block in blocks {
            let ways: Vec<Way> = ways.iter().copied().filter(|way| way.has_turn(*block, fewest)).collect();
            results.records.extend(self.measure_block(*block, &ways, number, &place)?);
            results.write(&self.options.output)?;
        }
        Ok(())
    }

    /// Measures a block's rounds: two ways at a time, with none between them that is next to both.
    fn measure_block(&self, block: Block, ways: &[Way], repetition: u32, place: &Place<'_>) -> Result<Vec<Record>> {
        let rounds = block.load.rounds();
        let mut direct = Vec::new();
        let mut through: HashMap<Way, Rounds> = HashMap::new();
        for round in 1..=rounds {
            for neighbours in plan::turns(ways, (repetition - 1) * rounds + round).chunks(2) {
                let [first, second @ ..] = neighbours else { continue };
                let mut own = vec![(*first, self.measure(block, *first, place)?)];
                let between = self.measure(block, Way::DIRECT, place)?;
                for way in second {
                    own.push((*way, self.measure(block, *way, place)?));
                }
                for (way, measured) in own {
                    through.entry(way).or_default().push(measured, between.clone());
                }
                direct.push(between);
            }
        }
        let mut records = self.records(block, Way::DIRECT, repetition, Measured::of_rounds(&direct), |_| None);
        for (way, rounds) in ways.iter().filter_map(|way| Some((*way, through.get(way)?))) {
            let to_direct = |figure| rounds.to_direct(figure);
            records.extend(self.records(block, way, repetition, rounds.medians(), to_direct));
        }
        Ok(records)
    }

    fn measure(&self, block: Block, way: Way, place: &Place<'_>) -> Result<Measured> {
        let Block { load, backend, family } = block;
        let what = || format!("{load:?}, {} {backend} {family}, {} services, {}", way.path, way.services, way.proxy);
        let time = self.options.seconds.map(|seconds| Duration::from_secs(seconds.into()));
        let log = place.directory.join("load.log");
        let setting = Setting { rate: self.options.rate, time, log: &log, stop: self.stop };
        let measured = place.proxies.in_turn(way, || {
            if way.proxy != Proxy::None {
                self.stop.sleep(SETTLE)?;
            }
            measure::measure(block, way, place.bed, setting)
        });
        measured.with_context(what)
    }

    /// What the rounds of a repetition come to, which is printed, too.
    fn records(
        &self,
        block: Block,
        way: Way,
        repetition: u32,
        medians: Option<Measured>,
        to_direct: impl Fn(Figure) -> Option<f64>,
    ) -> Vec<Record> {
        let Block { load: _, backend, family } = block;
        let Some(Measured { figures, failed, idle }) = medians else { return Vec::new() };
        let cases = self.options.cases();
        let wanted = figures.into_iter().filter(|(figure, _)| cases.contains(&figure.case()));
        let record = |(figure, value): (Figure, f64)| Record {
            case: figure.case(),
            way,
            backend,
            family,
            quantile: figure.quantile(),
            repetition,
            value,
            to_direct: to_direct(figure),
            unit: figure.unit().into(),
            failed,
            idle,
        };
        let records: Vec<Record> = wanted.map(record).collect();
        for record in &records {
            println!("{}", line(record, self.options.reps));
        }
        records
    }

    /// Waits until what was started has done what it does at first.
    fn await_calm(&self) -> Result<()> {
        let step = Step::begin("waiting for a calm machine");
        let mut waited = Duration::ZERO;
        loop {
            let before = CpuTimes::read()?;
            self.stop.sleep(WHILE)?;
            waited += WHILE;
            let busy = 1.0 - CpuTimes::read()?.idle_since(&before);
            if busy < CALM {
                step.done();
                return Ok(());
            }
            if waited >= LONGEST {
                println!("the machine is busy by itself: {:.0} %", busy * 100.0);
                return Ok(());
            }
        }
    }
}

/// A number in a line.
fn line(record: &Record, repetitions: u32) -> String {
    let Record { case, way, backend, family, quantile, repetition, value, to_direct, unit, failed, idle } = record;
    let Way { path, services, proxy } = way;
    let case = name_of(case);
    let case = quantile.map_or(case.clone(), |part| format!("{case} p{:.0}", part * 100.0));
    let ratio = to_direct.map_or(String::new(), |ratio| format!(", x {ratio:.3}"));
    let short = if record.is_short() { "; NO CPU TIME LEFT FOR THAT RATE" } else { "" };
    format!(
        "{case:<19} {path:<9} {backend:<6} {family} {services:>5} {proxy:<19} {repetition}/{repetitions}: {value:9.1} \
         {unit}{ratio}, {failed} failed; idle {:.0} %{short}",
        idle * 100.0
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    fn options(arguments: &[&str]) -> Options {
        Cli::try_parse_from([&["bench-world"], arguments].concat()).unwrap().options
    }

    #[test]
    fn without_options_everything_is_measured_five_times() {
        let options = options(&[]);
        assert_eq!((options.cases().len(), options.reps, options.services()), (6, 5, vec![10, 10_000]));
        assert_eq!(options.command(), "make bench-world");
    }

    #[test]
    fn a_short_run_says_what_was_narrowed() {
        let options = options(&["--case=bulk,cpu_per_connection", "--reps=1", "--seconds=2", "--services=10,10"]);
        assert_eq!((options.cases(), options.services()), (vec![Case::Bulk, Case::CpuPerConnection], vec![10]));
        let command = "make bench-world CASE=bulk,cpu_per_connection REPS=1 SECONDS=2 SERVICES=10";
        assert_eq!(options.command(), command);
    }
}
