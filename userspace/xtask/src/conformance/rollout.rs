//! The chart on a cluster: beside kube-proxy first, installed and taken out by the README's commands. Then in kube-proxy's place,
//! with an upgrade of its release on all nodes under load, over IPv4 and IPv6: no connection may fail, and talks over TCP and UDP
//! go on with the pods that they began with. Then its removal, as the README tells.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;
use weir_testbed::paced::{Paced, Report, RunningPaced};
use weir_testbed::{World, bpffs, cgroup, wait};

use super::chart::{AGENTS, Chart, NAMESPACE, Tag};
use super::cluster::Cluster;
use super::held::{Held, Over, Talk};
use super::programs::Programs;
use super::proxy::Proxy;
use super::template::fill;
use super::{Options, beside, images, removal};
use crate::guard::{self, Stop};
use crate::progress::Step;

const WEB: &str = include_str!("../../../../deploy/dev/conformance/web.yaml");

/// The port of the service on every node.
const NODE_PORT: u16 = 30080;

/// Patience with pods that start.
const SOON: Duration = Duration::from_secs(120);

/// Nodes that are asked from outside.
const ASKED: [u8; 2] = [1, 2];

/// How long the load runs before the upgrade begins.
const BEFORE: Duration = Duration::from_secs(5);

/// Options of the upgrade.
#[derive(Args, Clone, Debug)]
pub(crate) struct RolloutOptions {
    /// Connections from outside, started in each second at each of two nodes over IPv4 and over IPv6
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=2000))]
    rate: u32,
    /// Seconds of load; the upgrade must fit in
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(30..))]
    seconds: u64,
}

/// Follows the README, then installs the chart, loads a service, upgrades, compares, and removes all of it.
///
/// # Errors
/// When this machine cannot run the cluster, a part of it fails, the upgrade was noticed, or something is left.
pub(crate) fn run(options: &RolloutOptions) -> Result<ExitCode> {
    if !nix::unistd::geteuid().is_root() {
        bail!("a cluster takes network namespaces and containers, which only root may make: run it with sudo");
    }
    let cluster = Options::with_proxy(Proxy::KubeProxy);
    let programs = Programs::find(&cluster)?;
    programs.image()?;
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
    let mut cluster = Cluster::start(of_cluster, programs, directory, stop)?;
    let step = Step::begin("service");
    serve(&cluster.chart(programs), directory)?;
    let addresses = ASKED.into_iter().flat_map(|node| cluster.world().node(node).address().both());
    let targets: Vec<_> = addresses.map(|address| SocketAddr::new(address, NODE_PORT)).collect();
    await_answers(cluster.world(), &targets)?;
    step.done();
    stop.check()?;

    let step = Step::begin("beside kube-proxy, and out again");
    beside::try_out(&cluster, programs, &targets)?;
    step.done();
    stop.check()?;

    let step = Step::begin("in kube-proxy's place");
    cluster.remove_kube_proxy(programs)?;
    cluster.install(programs)?;
    let chart = cluster.chart(programs);
    check_agents(&chart, Tag::Before)?;
    chart.test().context("helm test")?;
    await_answers(cluster.world(), &targets)?;
    step.done();
    stop.check()?;

    let step = Step::begin("upgrade under load");
    let time = Duration::from_secs(options.seconds);
    let begin = Instant::now();
    let load = |target: &_| Paced { target: *target, per_second: options.rate, time }.start(cluster.world().client());
    let loads = targets.iter().map(load).collect::<weir_testbed::Result<Vec<_>>>()?;
    let talks = targets.iter().flat_map(|target| Over::ALL.map(|over| Held::start(cluster.world(), *target, over)));
    let talks = talks.collect::<Result<Vec<_>>>()?;
    stop.sleep(BEFORE)?;
    chart.upgrade(Tag::After)?;
    let took = begin.elapsed() - BEFORE;
    ensure!(loads.iter().all(RunningPaced::is_running), "the upgrade took {took:?}, longer than the load: --seconds");
    check_agents(&chart, Tag::After)?;
    let reports = loads.into_iter().map(RunningPaced::finish).collect::<weir_testbed::Result<Vec<_>>>()?;
    step.done();
    println!("upgrade of {AGENTS} nodes in {:.0} s", took.as_secs_f64());
    let good = is_unnoticed(&targets, &reports);
    let open = talks.len();
    let asked = talks.into_iter().map(Held::finish).sum::<Result<u64>>()?;
    println!("{open} talks all the time, TCP and UDP: {asked} requests, all answered by the pods of the first");

    stop.check()?;
    let step = Step::begin("a node's migration, and removal");
    removal::look(&chart, cluster.deliver_tools(programs)?)?;
    removal::remove(&chart, &targets)?;
    for target in &targets {
        let answer = ask(cluster.world(), *target, Over::Tcp);
        ensure!(answer.is_err(), "{target} answers although nothing is pinned any more");
    }
    step.done();
    println!("removal as the README tells: served on without agents, then nothing was left on {AGENTS} nodes");
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Tells what became of the connections, and whether all were answered.
fn is_unnoticed(targets: &[SocketAddr], reports: &[Report]) -> bool {
    let mut good = true;
    for (target, report) in targets.iter().zip(reports) {
        let (opened, failed, slowest) = (report.opened, report.failed(), report.slowest());
        println!("{target}: {opened} connections, {failed} failed, the slowest connected within {slowest:?}");
        report.failures.iter().take(5).for_each(|failure| println!("  {failure:?}"));
        good &= failed == 0 && opened > 0;
    }
    good
}

/// Every node has one agent, of this image, in the best class, and its commands answer, from within and from outside.
///
/// # Errors
/// Names what is not so.
pub(super) fn check_agents(chart: &Chart<'_>, tag: Tag) -> Result<()> {
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
    check_plug_in(chart)
}

/// What the notes say to ask from outside.
fn check_plug_in(chart: &Chart<'_>) -> Result<()> {
    let said = chart.kubectl(&["weir", "status", "--all-nodes", "--output", "json"])?;
    let answers: Value = serde_json::from_str(&said).with_context(|| format!("`kubectl weir` says {said:?}"))?;
    let items = answers["items"].as_array().map_or(&[][..], Vec::as_slice);
    let well = items.iter().filter(|item| item["exitCode"] == 0 && item["answer"].is_object()).count();
    ensure!(well == AGENTS && items.len() == AGENTS, "`kubectl weir status --all-nodes` says {said}");
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
    let web = chart.kubectl(&["get", "service", "web", "--output", "jsonpath={.spec.clusterIP}"])?;
    weir(&["trace", "192.0.2.7", &format!("{}:80", web.trim())]).map(drop)
}

fn serve(chart: &Chart<'_>, directory: &Path) -> Result<()> {
    let manifest = fill(WEB, &[("IMAGE", images::AGNHOST), ("NODE_PORT", &NODE_PORT.to_string())])?;
    let path = directory.join("web.yaml");
    std::fs::write(&path, manifest).with_context(|| format!("cannot write {}", path.display()))?;
    chart.kubectl(&["apply", "--filename", &path.display().to_string()])?;
    let limit = format!("--timeout={}s", SOON.as_secs());
    chart.kubectl(&["rollout", "status", "deployment/web", &limit]).map(drop)
}

/// Waits until all answer over TCP and UDP.
fn await_answers(world: &World, targets: &[SocketAddr]) -> Result<()> {
    for (target, over) in over_all(targets) {
        let ask = || ask(world, target, over).map_err(|error| format!("{error:#}"));
        wait::until_some(&format!("an answer of {target} over {}", over.name()), SOON, ask)?;
    }
    Ok(())
}

/// Asks all over TCP and UDP.
///
/// # Errors
/// When one does not answer.
pub(super) fn ask_all(world: &World, targets: &[SocketAddr]) -> Result<()> {
    for (target, over) in over_all(targets) {
        ask(world, target, over).with_context(|| format!("{target} over {}", over.name()))?;
    }
    Ok(())
}

fn over_all(targets: &[SocketAddr]) -> impl Iterator<Item = (SocketAddr, Over)> {
    targets.iter().flat_map(|target| Over::ALL.map(|over| (*target, over)))
}

fn ask(world: &World, target: SocketAddr, over: Over) -> Result<String> {
    world.client().enter(|| Talk::open(target, over)?.ask())
}
