//! `bench-papers`: figures of two papers, measured in namespaces with real generators, beside real kube-proxy.
//!
//! It runs in a child process, see [`crate::guard`]: however it ends, its parent removes what it has made.

mod bed;
mod claims;
mod experiments;
mod generators;
mod measured;
mod plot;
mod proxies;
mod report;
mod results;
mod slice;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use crate::benchmark::{self, Verb, listed};
use crate::guard::{self, Stop};
use crate::origin::Origin;
use crate::progress::Step;
use crate::requirements;
use bed::Bed;
use experiments::{Contender, Figure, NODES};
use proxies::Proxies;
use results::{Record, Results};
use slice::Calibration;

/// Options of `bench-papers`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Only these figures
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    figure: Vec<Figure>,
    /// How often each point is measured; reports have only what was measured three times or more
    #[arg(long, value_name = "N", default_value_t = report::REPETITIONS, value_parser = clap::value_parser!(u32).range(1..))]
    reps: u32,
    /// Directory for results and pictures
    #[arg(long, value_name = "DIR", default_value = "target/bench/papers")]
    output: PathBuf,
    /// The report; its pictures lie beside it in a directory of the same name
    #[arg(long, value_name = "FILE", default_value = "docs/papers.md")]
    report: PathBuf,
    /// Measure nothing: write the report from the results of earlier runs
    #[arg(long)]
    report_only: bool,
}

/// Measures, and writes results, pictures and report.
///
/// # Errors
/// When this machine cannot run it, or a part of it fails. The error says what to do about it.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let report = || report::write(&options.output, &options.report).map(|()| ExitCode::SUCCESS);
    benchmark::run(options.report_only, || measure_all(options), report)
}

fn measure_all(options: &Options) -> Result<ExitCode> {
    let programs = requirements::beside_kube_proxy("bench-papers")?;
    generators::require()?;
    fs::create_dir_all(&options.output).with_context(|| format!("cannot make {}", options.output.display()))?;
    guard::supervise(|directory, stop| {
        let figures = options.figures();
        let run = Run { options, figures: &figures, agent: &programs.agent, stop };
        run.repeat(directory)?;
        Ok(ExitCode::SUCCESS)
    })
}

impl Options {
    fn figures(&self) -> Vec<Figure> {
        let asked = |figure: &Figure| self.figure.is_empty() || self.figure.contains(figure);
        Figure::ALL.into_iter().filter(asked).collect()
    }
}

/// A run of the benchmark.
struct Run<'a> {
    options: &'a Options,
    figures: &'a [Figure],
    agent: &'a PathBuf,
    stop: &'a Stop,
}

/// What is kept of a node where a request got no answer, as arguments of `weir`.
const STATE: [(&str, &[&str]); 6] = [
    ("flows", &["flows"]),
    ("awaited", &["map", "dump", "awaited4"]),
    ("replies", &["map", "dump", "replies4"]),
    ("services", &["map", "dump", "services"]),
    ("lines", &["map", "dump", "lines"]),
    ("drops", &["drops", "-a"]),
];

/// What was measured, by figure, with what a node can do by itself.
type Measurements = BTreeMap<Figure, (Calibration, Vec<Record>)>;

impl Run<'_> {
    /// Measures all of it as often as was asked for, and keeps what there is after each time.
    fn repeat(&self, directory: &Path) -> Result<()> {
        let step = Step::begin("building nodes, pods and links");
        let first = self.figures.iter().flat_map(|figure| figure.points()).next().context("no figure was asked for")?;
        let bed = Bed::build(&first, directory)?;
        self.stop.check()?;
        step.done();
        let mut all = Measurements::new();
        for figure in self.figures {
            all.insert(*figure, (self.calibrate(*figure, &bed)?, Vec::new()));
        }
        for repetition in 1..=self.options.reps {
            self.once(repetition, &bed, &mut all)?;
            self.keep(&all)?;
        }
        Ok(())
    }

    /// Each point of each figure, by each contender.
    fn once(&self, repetition: u32, bed: &Bed, all: &mut Measurements) -> Result<()> {
        let mut running: Option<Proxies> = None;
        for contender in Contender::ALL {
            let mut figures = self.figures.iter().filter(|figure| figure.contenders().contains(&contender)).peekable();
            if figures.peek().is_none() {
                continue;
            }
            let proxies = match running.take() {
                Some(proxies) if proxies.serve(contender) => proxies,
                other => {
                    other.map_or(Ok(()), Proxies::stop)?;
                    Proxies::start(contender, self.agent, bed, self.stop)?
                }
            };
            for figure in figures {
                let records = self.measure(*figure, contender, repetition, &proxies, bed)?;
                all.entry(*figure).and_modify(|(_, known)| known.extend(records));
            }
            running = Some(proxies);
        }
        running.map_or(Ok(()), Proxies::stop)
    }

    fn calibrate(&self, figure: Figure, bed: &Bed) -> Result<Calibration> {
        let first = figure.points().into_iter().next().context("a figure has points")?;
        bed.set(&first)?;
        let calibration = Calibration::of(bed, &first, self.stop)?;
        let Calibration { cores, rps, server_us, client_us } = calibration;
        println!(
            "figure {figure}: a node of {cores} cores by itself: {rps:.0} requests/s, {server_us:.0} us of CPU time for \
             each, and {client_us:.0} us of the generator's"
        );
        Ok(calibration)
    }

    /// All points of a figure, once.
    fn measure(
        &self,
        figure: Figure,
        contender: Contender,
        repetition: u32,
        proxies: &Proxies,
        bed: &Bed,
    ) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        for point in figure.points() {
            let doing = || format!("figure {figure}, {} {}, {contender}", figure.axis(), point.x);
            bed.set(&point)?;
            proxies.learn(contender, figure.service(), &point, bed, self.stop).with_context(doing)?;
            let measure = || slice::measure(bed, figure.service(), &point, self.stop).with_context(doing);
            let (slice, given_up) = match measure() {
                Err(error) if error.is::<generators::GaveUp>() => {
                    println!("{error:#}");
                    self.keep_state(figure, &point.x, contender, repetition)?;
                    (measure()?, 1)
                }
                measured => (measured?, 0),
            };
            let mut record = Record::new(figure, &point.x, contender, repetition, &slice);
            record.failed += given_up;
            println!("{}", line(&record, self.options.reps));
            records.push(record);
        }
        Ok(records)
    }

    /// Writes down what the nodes' tables hold, for whoever wants to know why a request got no answer.
    fn keep_state(&self, figure: Figure, x: &str, contender: Contender, repetition: u32) -> Result<()> {
        let Contender::Weir(policy) = contender else { return Ok(()) };
        let directory = self.options.output.join(format!("gave-up-{figure}-{x}-{policy}-{repetition}"));
        fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let weir = self.agent.with_file_name("weir");
        for node in 1..=NODES {
            for (name, arguments) in STATE {
                let mut command = Command::new(&weir);
                command.arg("--pin-dir").arg(guard::pin_dir(node).root()).args(arguments).args(["-o", "json"]);
                let said = command.output().with_context(|| format!("cannot start {}", weir.display()))?;
                fs::write(directory.join(format!("node{node}-{name}.json")), said.stdout)?;
            }
        }
        println!("state kept: {}", directory.display());
        Ok(())
    }

    /// Writes files and prints tables.
    fn keep(&self, all: &Measurements) -> Result<()> {
        let Options { figure, reps, output, report: _, report_only: _ } = self.options;
        let verb = Verb::new("bench-papers").unless(figure.is_empty(), "FIGURE", listed(figure)).unless(
            *reps == report::REPETITIONS,
            "REPS",
            reps,
        );
        for (figure, (calibration, records)) in all {
            let results = Results {
                figure: figure.name().into(),
                origin: Origin::of(verb.to_string())?,
                calibration: *calibration,
                records: records.clone(),
            };
            let mut text = format!("\n## {}\n\n", figure.title());
            report::section(&mut text, *figure, &results)?;
            println!("{text}");
            results.write(output)?;
            plot::draw(*figure, &results, &output.join(report::picture(*figure)))?;
        }
        Ok(())
    }
}

/// A measurement in a line.
fn line(record: &Record, repetitions: u32) -> String {
    let Record { figure, x, proxy, policy, repetition, rps, mean_ms, p99_ms, failed, generator, idle } = record;
    let short = if record.is_saturated() { "; THE LOAD WAS SHORT OF CPU" } else { "" };
    format!(
        "figure {figure} x {x:<11} {proxy:<19} {policy:<12} {repetition}/{repetitions}: {rps:6.0} requests/s, mean \
         {mean_ms:7.2} ms, p99 {p99_ms:7.1} ms, {failed} failed; generator {:.0} %, idle {:.0} %{short}",
        generator * 100.0,
        idle * 100.0
    )
}
