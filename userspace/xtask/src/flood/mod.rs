//! A flood of SYNs beside connections that are open and new ones that are to begin.

pub(crate) mod source;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use weir_testbed::load::Load;
use weir_testbed::{Node, World, address, figures};

use crate::demo::agent::{Agent, Spread};
use crate::guard::{self, Stop};
use crate::origin::Origin;
use crate::progress::Step;
use crate::requirements::{self, Programs};
use crate::serve_http;
use crate::service_file::{self, PORT, StaticService, TARGET_PORT, external};
use crate::steering::Holder;

/// Open connections.
const OPEN: usize = 10_000;
/// New connections per second meanwhile, and how many may wait.
const RATE: u32 = 100;
const CLIENTS: usize = 64;
/// Patience with a new connection: its SYN may be lost twice.
const PATIENCE: Duration = Duration::from_secs(10);

/// `make bench-flood`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// SYNs of each case
    #[arg(long, default_value_t = 1 << 24)]
    syns: u64,
    /// Seed of the sources
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File for the figures
    #[arg(long, default_value = "target/bench/flood.json", value_name = "FILE")]
    output: PathBuf,
}

/// One case.
#[derive(Clone, Debug, Serialize)]
struct Case {
    family: u8,
    /// `local` or `remote`: where the endpoint is.
    backend: &'static str,
    syns: u64,
    syns_per_second: f64,
    open: usize,
    /// Of the open ones.
    broken: usize,
    answered: u64,
    failed: u64,
    p99_ms: f64,
}

/// What is written.
#[derive(Debug, Serialize)]
struct Figures {
    origin: Origin,
    cases: Vec<Case>,
}

/// Measures, prints and writes the figures.
///
/// # Errors
/// When this machine cannot run it, or a part of it fails.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let programs = requirements::nodes("bench-flood")?;
    guard::supervise(|directory, stop| {
        let cases = measure(options, &programs, directory, stop)?;
        let origin = Origin::of(format!("make bench-flood SYNS={} SEED={}", options.syns, options.seed))?;
        print(&cases, &origin);
        let holds = cases.iter().all(Case::holds);
        figures::write(&options.output, &Figures { origin, cases })?;
        Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    })
}

impl Case {
    /// No open connection breaks, and of the new ones at most one in a hundred fails.
    fn holds(&self) -> bool {
        self.broken == 0 && self.failed * 100 <= self.answered + self.failed
    }
}

fn measure(options: &Options, programs: &Programs, directory: &Path, stop: &Stop) -> Result<Vec<Case>> {
    let world = World::builder().nodes(2).pods_per_node(1).build()?;
    let _servers = [1, 2]
        .map(|node| serve_http::start(&world.node(node).pod(1), TARGET_PORT, directory))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    let file = services(&world, directory)?;
    let mut agent = Agent::start(&world, 1, &Spread::LocalFirst, &programs.agent, &file, directory)?;
    agent.await_ready(&world)?;
    for prefix in address::external_ips() {
        world.route_via(prefix, 1)?;
    }
    // Nobody has the addresses that the flood comes from, and nobody says so.
    world.router().ip("route add blackhole 11.0.0.0/8\nroute add blackhole 2001:db8:ffff::/48")?;
    let mut cases = Vec::new();
    for node in [1, 2] {
        for ip in external(node) {
            let step = Step::begin("a flood");
            cases.push(case(&world, node, SocketAddr::new(ip, PORT), options, stop)?);
            step.done();
        }
    }
    Ok(cases)
}

/// One flood. The endpoint is on that node.
fn case(world: &World, node: u8, target: SocketAddr, options: &Options, stop: &Stop) -> Result<Case> {
    let mut holder = Holder::start(world.client(), target, OPEN)?;
    let load = Load::http(target).concurrency(CLIENTS).rate(RATE).timeout(PATIENCE).start(world.client())?;
    let sent = source::flood(world.router(), target, options.syns, options.seed, stop)?;
    let report = load.stop()?;
    let broken = holder.broken()?;
    Ok(Case {
        family: if target.is_ipv4() { 4 } else { 6 },
        backend: if node == 1 { "local" } else { "remote" },
        syns: sent.packets,
        syns_per_second: sent.packets as f64 / sent.time.as_secs_f64(),
        open: OPEN,
        broken,
        answered: report.answered(),
        failed: report.failed(),
        p99_ms: report.p99().as_secs_f64() * 1000.0,
    })
}

/// Two services of one endpoint in each family, one here and one on the other node.
fn services(world: &World, directory: &Path) -> Result<PathBuf> {
    let service = |node: &Node| StaticService {
        name: format!("on-{}", node.name()),
        external: external(node.number()),
        pods: vec![node.pod(1)],
    };
    service_file::write(world, &world.nodes().iter().map(service).collect::<Vec<_>>(), directory)
}

fn print(cases: &[Case], origin: &Origin) {
    let Origin { command, kernel, date, cpus } = origin;
    println!("\n{command}, Linux {kernel}, {cpus} CPUs, {date}");
    println!(
        "{:<10} {:<8} {:>12} {:>10} {:>14} {:>16} {:>10}",
        "FAMILY", "BACKEND", "SYNS", "SYNS/s", "BROKEN OF", "NEW, FAILED", "P99"
    );
    for case in cases {
        let Case { family, backend, syns, syns_per_second, open, broken, answered, failed, p99_ms } = case;
        let (broken, new) = (format!("{broken} of {open}"), format!("{}, {failed}", answered + failed));
        let verdict = if case.holds() { "" } else { "  misses" };
        println!(
            "IPv{family:<7} {backend:<8} {syns:>12} {syns_per_second:>10.0} {broken:>14} {new:>16} {p99_ms:>7.0} ms{verdict}"
        );
    }
}
