//! A flood of SYNs beside connections that are open and new ones that are to begin.

mod counts;
mod remembered;
mod report;
pub(crate) mod source;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use weir_datapath::View;
use weir_testbed::load::Load;
use weir_testbed::{Node, Pod, World, address};

use crate::claim::{Bound, Claim};
use crate::demo::agent::{Agent, Spread, Tables};
use crate::guard::{self, Stop};
use crate::origin::Origin;
use crate::progress::Step;
use crate::requirements::{self, Programs};
use crate::section;
use crate::serve_http;
use crate::service_file::{self, PORT, StaticService, TARGET_PORT, external};
use crate::steering::Holder;
use counts::Counts;
use remembered::Remembered;

/// Where endpoints are, seen from the node that connections come to.
const LOCAL: &str = "local";
const REMOTE: &str = "remote";
/// Families: there is a case of each kind for each.
const FAMILIES: f64 = 2.0;
/// Endpoints of a service.
const PODS: u8 = 2;
/// The agent's argument for the last cases: a bound that the CPU of a small machine floods several times over. To the default it takes a
/// large one.
const STATELESS: &str = "--flood-rate=10000";
/// SYNs of a whole run.
const SYNS: u64 = 1 << 24;
/// Open connections.
const OPEN: usize = 10_000;
/// New connections per second meanwhile, and how many may wait.
const RATE: u32 = 100;
const CLIENTS: usize = 256;
/// The part of them that has to be tried for a case to be one.
const TRIED: f64 = 0.9;
/// Patience with a new connection: its SYN may be lost twice.
const PATIENCE: Duration = Duration::from_secs(10);

/// `make bench-flood`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// SYNs of each case
    #[arg(long, default_value_t = SYNS)]
    syns: u64,
    /// Seed of the sources
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File for the figures
    #[arg(long, default_value = "target/bench/flood.json", value_name = "FILE")]
    output: PathBuf,
    /// Where a whole run leaves its table
    #[arg(long, value_name = "FILE", default_value = "docs/performance.md")]
    report: PathBuf,
}

/// One case.
#[derive(Clone, Debug, Serialize)]
struct Case {
    family: u8,
    /// `local` or `remote`: where the endpoints are.
    backend: &'static str,
    /// Whether the flood was to be above what the node remembers: its agent had the bound of [`STATELESS`].
    stateless: bool,
    syns: u64,
    syns_per_second: f64,
    /// Above so many new flows a second on a CPU the node remembers no SYN to an endpoint of its own; 0: it remembers all.
    stateless_above: f64,
    open: usize,
    /// Of the open ones, those that the endpoint which they began at does not answer any more.
    broken: usize,
    /// Of the open ones, those of which the node does not know any more where they go.
    forgotten: usize,
    /// New connections that were to be begun during the flood, and what became of those that were.
    due: u64,
    answered: u64,
    failed: u64,
    median_ms: f64,
    p99_ms: f64,
    /// Of those that failed, by what the client was told.
    reasons: Counts,
    /// What the client's kernel and those of the endpoints have counted meanwhile.
    client: Counts,
    endpoints: Counts,
    /// Packets that the node has answered itself or dropped, and connections that it met in their middle.
    node: Counts,
}

/// What is written.
#[derive(Debug, Serialize)]
struct Figures {
    origin: Origin,
    cases: Vec<Case>,
    claims: Vec<Claim>,
}

/// Measures, prints and writes the figures.
///
/// # Errors
/// When this machine cannot run it, or a part of it fails.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let programs = requirements::nodes("bench-flood")?;
    guard::supervise(|directory, stop| {
        let Options { syns, seed, output, report } = options;
        let cases = measure(options, &programs, directory, stop)?;
        let origin = Origin::of(format!("make bench-flood SYNS={syns} SEED={seed}"))?;
        let claims = claims(&cases);
        let lacks = (*syns < SYNS).then(|| format!("{syns} of {SYNS} SYNs"));
        section::finish(&Figures { origin, cases, claims }, output, report, lacks.as_deref())
    })
}

impl Case {
    fn name(&self) -> String {
        let stateless = if self.stateless { ", stateless" } else { "" };
        format!("IPv{}, {}{stateless}", self.family, self.backend)
    }

    /// Of the new connections that were due during the flood, the part that was begun meanwhile.
    fn tried(&self) -> f64 {
        (self.answered + self.failed) as f64 / self.due.max(1) as f64
    }

    /// Above so many of the flood's SYNs a second on a CPU the node remembers none; None: it remembers all.
    fn bound(&self) -> Option<f64> {
        (self.backend == LOCAL && self.stateless_above > 0.0).then_some(self.stateless_above)
    }

    /// Whether the flood was so fast that the node did not remember all of its SYNs.
    fn is_above_bound(&self) -> bool {
        self.bound().is_some_and(|bound| self.syns_per_second > bound)
    }

    /// Whether a stateless case was one: of connections whose SYN is not remembered the node meets the middle first.
    fn was_stateless(&self) -> bool {
        self.stateless && self.is_above_bound() && self.node.contains_key(counts::ADOPTED)
    }
}

/// No open connection breaks, and of the new ones at most one in a hundred fails, of all that were to be, also where no SYN is remembered.
fn claims(cases: &[Case]) -> Vec<Claim> {
    let succeeded = |case: &Case| 100.0 * case.answered as f64 / (case.answered + case.failed).max(1) as f64;
    vec![
        Claim {
            text: "open connections that break, in all cases together".into(),
            seen: cases.iter().map(|case| case.broken).sum::<usize>() as f64,
            bound: Bound::AtMost(0.0),
        },
        Claim {
            text: "open connections whose flow is forgotten, in all cases together".into(),
            seen: cases.iter().map(|case| case.forgotten).sum::<usize>() as f64,
            bound: Bound::AtMost(0.0),
        },
        Claim {
            text: "percent of the new connections that succeed, in the worst case".into(),
            seen: cases.iter().map(succeeded).fold(100.0, f64::min),
            bound: Bound::AtLeast(99.0),
        },
        Claim {
            text: "new connections that were tried / those that were to be, in the worst case".into(),
            seen: cases.iter().map(Case::tried).fold(f64::INFINITY, f64::min),
            bound: Bound::AtLeast(TRIED),
        },
        Claim {
            text: "stateless cases: flood above what is remembered, new connections met in their middle".into(),
            seen: cases.iter().filter(|case| case.was_stateless()).count() as f64,
            bound: Bound::AtLeast(FAMILIES),
        },
    ]
}

fn measure(options: &Options, programs: &Programs, directory: &Path, stop: &Stop) -> Result<Vec<Case>> {
    let world = World::builder().nodes(2).pods_per_node(PODS).build()?;
    let pods: Vec<Pod> = world.nodes().iter().flat_map(Node::pods).collect();
    let servers = pods.iter().map(|pod| serve_http::start(pod, TARGET_PORT, directory));
    let _servers = servers.collect::<Result<Vec<_>>>()?;
    let file = services(&world, directory)?;
    let mut agent = Agent::start(&world, 1, &Spread::LocalFirst, &programs.agent, &file, directory, Tables::OfMachine)?;
    agent.await_ready(&world)?;
    for prefix in address::external_ips() {
        world.route_via(prefix, 1)?;
    }
    // Nobody has the addresses that the flood comes from, and nobody says so.
    world.router().ip("route add blackhole 11.0.0.0/8\nroute add blackhole 2001:db8:ffff::/48")?;
    let flood = |node: u8, ip: IpAddr| -> Result<Case> {
        let step = Step::begin("a flood");
        let done = case(&world, node, SocketAddr::new(ip, PORT), options, stop)?;
        step.done();
        Ok(done)
    };
    let mut cases = Vec::new();
    for (node, ip) in [1, 2].into_iter().flat_map(|node| external(node).map(|ip| (node, ip))) {
        cases.push(flood(node, ip)?);
    }
    let _agent = agent.restart_with(&world, &Spread::LocalFirst, &[STATELESS])?;
    for ip in external(1) {
        cases.push(Case { stateless: true, ..flood(1, ip)? });
    }
    Ok(cases)
}

/// One flood, beside the agent as it is. The endpoints are on that node.
fn case(world: &World, node: u8, target: SocketAddr, options: &Options, stop: &Stop) -> Result<Case> {
    let (pods, view) = (world.node(node).pods(), View::open(guard::pin_dir(1))?);
    let count = || -> Result<[Counts; 3]> {
        let (client, endpoints) = ([world.client()], pods.iter().map(Pod::netns));
        Ok([counts::of_kernel(client)?, counts::of_kernel(endpoints)?, counts::of_programs(&view)?])
    };
    let mut holder = Holder::start(world.client(), target, OPEN)?;
    let (before, known) = (count()?, Remembered::of(&view, target)?);
    let load = Load::http(target).concurrency(CLIENTS).rate(RATE).timeout(PATIENCE).start(world.client())?;
    let sent = source::flood(world.router(), target, options.syns, options.seed, stop)?;
    let report = load.stop()?;
    let after = count()?;
    // Before they say something, which would have it written anew.
    let forgotten = known.lacks(OPEN, &Remembered::of(&view, target)?);
    let broken = holder.broken()?;
    let [client, endpoints, node_counts] = std::array::from_fn(|who| counts::grown(&before[who], &after[who]));
    Ok(Case {
        family: if target.is_ipv4() { 4 } else { 6 },
        backend: if node == 1 { LOCAL } else { REMOTE },
        stateless: false,
        syns: sent.packets,
        syns_per_second: sent.packets as f64 / sent.time.as_secs_f64(),
        stateless_above: stateless_above(&view)?,
        open: OPEN,
        broken,
        forgotten,
        due: report.due,
        answered: report.answered(),
        failed: report.failed(),
        median_ms: report.p50().as_secs_f64() * 1000.0,
        p99_ms: report.p99().as_secs_f64() * 1000.0,
        reasons: report.errors,
        client,
        endpoints,
        node: node_counts,
    })
}

/// New flows per second on a CPU above which SYNs are not remembered; 0: they always are.
fn stateless_above(view: &View) -> Result<f64> {
    let tick = weir_datapath::tick_clock()?.duration(1);
    Ok(f64::from(view.config()?.flood) / tick.as_secs_f64())
}

/// Two services: of the endpoints here, and of those on the other node.
fn services(world: &World, directory: &Path) -> Result<PathBuf> {
    let service = |node: &Node| StaticService {
        name: format!("on-{}", node.name()),
        external: external(node.number()),
        pods: node.pods(),
    };
    service_file::write(world, &world.nodes().iter().map(service).collect::<Vec<_>>(), directory)
}
