//! A flood of SYNs beside connections that are open and new ones that are to begin.

mod source;

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;
use weir_testbed::load::Load;
use weir_testbed::process::Process;
use weir_testbed::{Pod, World, address, bpffs, cgroup, figures};

use crate::demo::Programs;
use crate::demo::agent::{Agent, Spread};
use crate::guard::{self, Stop};
use crate::origin::Origin;
use crate::progress::Step;
use crate::steering::Holder;

/// Open connections.
const OPEN: usize = 10_000;
/// New connections per second meanwhile, and how many may wait.
const RATE: u32 = 100;
const CLIENTS: usize = 64;
/// Patience with a new connection: its SYN may be lost twice.
const PATIENCE: Duration = Duration::from_secs(10);
/// Port of the pods.
const TARGET_PORT: u16 = 8080;
/// Port of the services.
const PORT: u16 = 80;

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
    ensure!(nix::unistd::geteuid().is_root(), "namespaces and BPF programs need root: sudo make bench-flood");
    let programs = Programs::find()?;
    bpffs::ensure_mounted().context("the agents pin their maps on bpffs")?;
    cgroup::root().context("the agents attach their socket hooks to a cgroup")?;
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
    let _servers =
        [1, 2].map(|node| serve(&world.node(node).pod(1), directory)).into_iter().collect::<Result<Vec<_>>>()?;
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

/// Starts the server of a pod: a process of its own, which may have as many files as there are connections.
fn serve(pod: &Pod, directory: &Path) -> Result<Process> {
    let own = std::env::current_exe().context("cannot tell where this program lies")?;
    let mut command = pod.netns().command(own);
    command.args(["serve-http", "--name", &pod.name(), "--port", &TARGET_PORT.to_string()]);
    Ok(Process::start(command, "the server", &directory.join(format!("{}.log", pod.name())))?)
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

/// The addresses of the service whose endpoint is on a node.
fn external(node: u8) -> [IpAddr; 2] {
    address::external_ips().map(|prefix| match prefix.network() {
        IpAddr::V4(ip) => IpAddr::V4((u32::from(ip) + u32::from(node)).into()),
        IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) + u128::from(node)).into()),
    })
}

/// Two services of one endpoint in each family, one here and one on the other node.
fn services(world: &World, directory: &Path) -> Result<PathBuf> {
    let mut text = String::from("nodes:\n");
    for node in world.nodes() {
        let [v4, v6] = node.address().both();
        // Writing to a string does not fail.
        let _ = writeln!(text, "  - {{name: {}, addresses: [{v4}, \"{v6}\"]}}", node.name());
    }
    text.push_str("services:\n");
    for node in world.nodes() {
        let [v4, v6] = external(node.number());
        let name = node.name();
        let _ = writeln!(text, "  - name: on-{name}\n    externalIPs: [{v4}, \"{v6}\"]");
        let _ = writeln!(text, "    ports: [{{port: {PORT}, targetPort: {TARGET_PORT}}}]\n    endpoints:");
        for ip in node.pod(1).address().both() {
            let _ = writeln!(text, "      - {{address: \"{ip}\", node: {name}}}");
        }
    }
    let own = directory.join("services");
    std::fs::create_dir(&own).with_context(|| format!("cannot make {}", own.display()))?;
    let file = own.join("services.yaml");
    std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
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
