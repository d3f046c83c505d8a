//! An upgrade of the chart's release on all nodes of the cluster, under load: no connection may fail, and one that is open
//! stays open.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use weir_testbed::paced::{Paced, RunningPaced};
use weir_testbed::{World, bpffs, cgroup, wait};

use super::chart::{AGENTS, Chart, NAMESPACE, Tag};
use super::cluster::Cluster;
use super::programs::Programs;
use super::proxy::Proxy;
use super::template::fill;
use super::{Options, images};
use crate::guard::{self, Stop};
use crate::progress::Step;

const WEB: &str = include_str!("../../../../deploy/dev/conformance/web.yaml");

/// The port of the service on every node.
const NODE_PORT: u16 = 30080;

/// Patience with pods that start.
const SOON: Duration = Duration::from_secs(120);

/// Time between two requests on the connection that stays open.
const PACE: Duration = Duration::from_millis(100);

/// Longest silence on it: far longer than any answer takes, shorter than TCP gives up.
const SILENCE: Duration = Duration::from_secs(5);

/// How long the load runs before the upgrade begins.
const BEFORE: Duration = Duration::from_secs(5);

/// Options of the upgrade.
#[derive(Args, Clone, Debug)]
pub(crate) struct RolloutOptions {
    /// Connections from outside, started in each second at each of two nodes
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=2000))]
    rate: u32,
    /// Seconds of load; the upgrade must fit in
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(30..))]
    seconds: u64,
}

/// Installs the chart, loads a service, upgrades, and compares.
///
/// # Errors
/// When this machine cannot run the cluster, a part of it fails, or the upgrade was noticed.
pub(crate) fn run(options: &RolloutOptions) -> Result<ExitCode> {
    if !nix::unistd::geteuid().is_root() {
        bail!("a cluster takes network namespaces and containers, which only root may make: run it with sudo");
    }
    let cluster = Options::with_proxy(Proxy::Chart);
    let programs = Programs::find(&cluster)?;
    bpffs::ensure_mounted().context("the agents pin their maps on bpffs")?;
    cgroup::root().context("the agents attach their socket hooks to a cgroup")?;
    guard::supervise(|directory, stop| upgrade(options, &cluster, &programs, directory, stop))
}

fn upgrade(
    options: &RolloutOptions,
    of_cluster: &Options,
    programs: &Programs,
    directory: &Path,
    stop: &Stop,
) -> Result<ExitCode> {
    let cluster = Cluster::start(of_cluster, programs, directory, stop)?;
    let chart = cluster.chart(programs);
    check_agents(&chart, Tag::Before)?;
    chart.test().context("helm test")?;
    let step = Step::begin("service");
    serve(&chart, directory)?;
    let targets = [1, 2].map(|node| SocketAddr::new(cluster.world().node(node).address().v4.into(), NODE_PORT));
    for target in targets {
        await_answer(cluster.world(), target)?;
    }
    step.done();
    stop.check()?;

    let step = Step::begin("upgrade under load");
    let time = Duration::from_secs(options.seconds);
    let begin = Instant::now();
    let load = |target| Paced { target, per_second: options.rate, time }.start(cluster.world().client());
    let loads = targets.map(load).into_iter().collect::<weir_testbed::Result<Vec<_>>>()?;
    let held = Held::start(cluster.world(), targets[0])?;
    stop.sleep(BEFORE)?;
    cluster.upgrade(programs, Tag::After)?;
    let took = begin.elapsed() - BEFORE;
    ensure!(loads.iter().all(RunningPaced::is_running), "the upgrade took {took:?}, longer than the load: --seconds");
    check_agents(&chart, Tag::After)?;
    let reports = loads.into_iter().map(RunningPaced::finish).collect::<weir_testbed::Result<Vec<_>>>()?;
    let asked = held.finish()?;
    step.done();

    println!("upgrade of {AGENTS} nodes in {:.0} s", took.as_secs_f64());
    let mut good = true;
    for (target, report) in targets.iter().zip(&reports) {
        let (opened, failed, slowest) = (report.opened, report.failed(), report.slowest());
        println!("{target}: {opened} connections, {failed} failed, the slowest connected within {slowest:?}");
        report.failures.iter().take(5).for_each(|failure| println!("  {failure:?}"));
        good &= failed == 0 && opened > 0;
    }
    println!("one connection all the time: {asked} requests, all answered");
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Every node has one agent, of this image, in the best class.
fn check_agents(chart: &Chart<'_>, tag: Tag) -> Result<()> {
    const FIELDS: &str =
        "jsonpath={range .items[*]}{.spec.nodeName} {.status.qosClass} {.spec.containers[0].image}\n{end}";
    let label = "app.kubernetes.io/name=weir";
    let all = chart.kubectl(&["--namespace", NAMESPACE, "get", "pods", "--selector", label, "--output", FIELDS])?;
    let lines: Vec<Vec<&str>> = all.lines().map(|line| line.split(' ').collect()).collect();
    let nodes: BTreeSet<_> = lines.iter().filter_map(|line| line.first()).collect();
    let image = format!(":{}", tag.name());
    let right = |line: &Vec<&str>| matches!(line[..], [_, "Guaranteed", name] if name.ends_with(&image));
    ensure!(
        nodes.len() == AGENTS && lines.len() == AGENTS && lines.iter().all(right),
        "not one agent {image} a node:\n{all}"
    );
    for node in nodes {
        let field = format!("spec.nodeName={node}");
        let words =
            ["--namespace", NAMESPACE, "get", "pods", "-l", label, "--field-selector", &field, "--output", "name"];
        let pod = chart.kubectl(&words)?;
        check_commands(chart, pod.trim()).with_context(|| format!("weir in {} of {node}", pod.trim()))?;
    }
    Ok(())
}

/// What people ask first in a pod, which has three capabilities and no other program.
fn check_commands(chart: &Chart<'_>, pod: &str) -> Result<()> {
    let weir =
        |words: &[&str]| chart.kubectl(&[&["--namespace", NAMESPACE, "exec", pod, "--", "weir"][..], words].concat());
    weir(&["status"])?;
    // A new agent takes a moment to hear the others.
    let nothing_wrong = || {
        let found = weir(&["doctor", "--quiet", "--no-headers"]).map_err(|error| format!("{error:#}"))?;
        let of_the_machine = |line: &&str| [" clock ", " rp_filter "].iter().any(|check| line.contains(check));
        let wrong: Vec<_> = found.lines().filter(|line| !of_the_machine(line)).collect();
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    };
    wait::until_some("`weir doctor` to find nothing but the machine's own settings", SOON, nothing_wrong)?;
    let api = chart.kubectl(&["get", "service", "kubernetes", "--output", "jsonpath={.spec.clusterIP}"])?;
    weir(&["trace", "192.0.2.7", &format!("{}:443", api.trim())]).map(drop)
}

fn serve(chart: &Chart<'_>, directory: &Path) -> Result<()> {
    let manifest = fill(WEB, &[("IMAGE", images::AGNHOST), ("NODE_PORT", &NODE_PORT.to_string())])?;
    let path = directory.join("web.yaml");
    std::fs::write(&path, manifest).with_context(|| format!("cannot write {}", path.display()))?;
    chart.kubectl(&["apply", "--filename", &path.display().to_string()])?;
    let limit = format!("--timeout={}s", SOON.as_secs());
    chart.kubectl(&["rollout", "status", "deployment/web", &limit]).map(drop)
}

fn await_answer(world: &World, target: SocketAddr) -> Result<()> {
    let ask = || world.client().enter(|| Conversation::open(target)?.ask()).map_err(|error| format!("{error:#}"));
    wait::until_some(&format!("an answer of {target}"), SOON, ask)?;
    Ok(())
}

/// One connection over HTTP/1.1, kept open.
struct Conversation(BufReader<TcpStream>);

impl Conversation {
    fn open(target: SocketAddr) -> Result<Self> {
        let stream =
            TcpStream::connect_timeout(&target, SILENCE).with_context(|| format!("cannot connect to {target}"))?;
        stream.set_read_timeout(Some(SILENCE)).context("cannot limit the silence")?;
        Ok(Self(BufReader::new(stream)))
    }

    fn ask(&mut self) -> Result<()> {
        self.0.get_mut().write_all(b"GET /hostname HTTP/1.1\r\nHost: web\r\n\r\n").context("cannot ask")?;
        let mut length = 0;
        let mut line = String::new();
        self.0.read_line(&mut line).context("no answer")?;
        ensure!(line.starts_with("HTTP/1.1 200 "), "it answers {line:?}");
        while line.trim_end() != "" {
            line.clear();
            self.0.read_line(&mut line).context("half an answer")?;
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().context("no length")?;
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).context("half an answer")
    }
}

/// A thread that asks on one connection until it is told to stop.
struct Held {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Result<u64>>,
}

impl Held {
    fn start(world: &World, target: SocketAddr) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = world.client().spawn("held", move || {
            let mut conversation = Conversation::open(target)?;
            let mut asked = 0;
            while !told.load(Ordering::Relaxed) {
                conversation
                    .ask()
                    .with_context(|| format!("request {} on the connection that stays open", asked + 1))?;
                asked += 1;
                std::thread::sleep(PACE);
            }
            Ok(asked)
        })?;
        Ok(Self { stop, thread })
    }

    fn finish(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
