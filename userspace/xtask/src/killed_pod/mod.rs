//! `bench-killed-pod`: a pod is gone without a FIN while connections arrive, and nobody tells the agents.
//!
//! Its interface on the node goes down, so that nothing reaches it and nothing comes back, as when its node's kernel has
//! killed it or its cable is out; the services go on naming it as ready. Each connection that is sent to it has to find
//! another pod: its client sends the SYN again after Linux's first retransmission timeout, a second, and that one is sent
//! elsewhere. So the slowest connection may take that second, and not two.
//!
//! Within a minute its node looks for the pod anew, in vain, and sends ICMP errors for what is on its way there. That minute is over at once
//! in half of the cases. A client gives up when it is told of such an error, so the node that it has asked drops those about SYNs that go
//! elsewhere when they come again, as `stale`.

mod cut;
mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use weir_abi as abi;
use weir_datapath::{FlowEntry, View};
use weir_testbed::paced::{Paced, Report};
use weir_testbed::{Node, Pod, World, address, ask, wait};

use crate::claim::{Bound, Claim};
use crate::demo::agent::{Agent, Spread, Tables};
use crate::guard::{self, Stop};
use crate::origin::Origin;
use crate::progress::Step;
use crate::requirements::{self, Programs};
use crate::section;
use crate::serve_http;
use crate::service_file::{self, PORT, StaticService, TARGET_PORT};
use cut::Cut;

/// Repetitions of a whole run, their length in seconds, and new connections per second.
const REPS: u32 = 3;
const SECONDS: u32 = 20;
const RATE: u32 = 1000;
/// Nodes, and pods on each of them.
const NODES: u8 = 2;
const PODS: u8 = 3;
/// The part of a repetition before the cut.
const BEFORE: f64 = 0.25;
/// Linux's first retransmission timeout (TCP_TIMEOUT_INIT, RFC 6298), and what timers and a busy machine may add to it.
const TIMEOUT: Duration = Duration::from_secs(1);
const MARGIN: Duration = Duration::from_millis(200);
/// Patience with a pod whose interface is up again.
const SOON: Duration = Duration::from_secs(20);
/// Time between two looks at the load.
const GLANCE: Duration = Duration::from_millis(50);

/// Options of the benchmark.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// How often each case is repeated
    #[arg(long, value_name = "N", default_value_t = REPS, value_parser = clap::value_parser!(u32).range(1..))]
    reps: u32,
    /// Length of each repetition; the pod is killed after a quarter of it
    #[arg(long, value_name = "N", default_value_t = SECONDS, value_parser = clap::value_parser!(u32).range(4..))]
    seconds: u32,
    /// New connections per second
    #[arg(long, value_name = "N", default_value_t = RATE, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// File for the figures
    #[arg(long, value_name = "FILE", default_value = "target/bench/killed_pod.json")]
    output: PathBuf,
    /// Where a whole run leaves its table
    #[arg(long, value_name = "FILE", default_value = "docs/performance.md")]
    report: PathBuf,
}

impl Options {
    /// What a whole run has and this one has not.
    fn lacks(&self) -> Option<String> {
        let Self { reps, seconds, rate, output: _, report: _ } = self;
        let whole = *reps >= REPS && *seconds >= SECONDS && *rate >= RATE;
        (!whole).then(|| format!("REPS={reps} SECONDS={seconds} RATE={rate} of {REPS}, {SECONDS} and {RATE}"))
    }
}

/// What the pod's node knows of its end.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Known {
    /// Nothing: it goes on sending to where the pod was.
    Nothing,
    /// It looks for the pod at once, in vain, and says so of what was sent there.
    Unreachable,
}

/// One repetition.
#[derive(Clone, Debug, Serialize)]
struct Repetition {
    family: u8,
    /// `local` or `remote`: where the pod was.
    pod: &'static str,
    known: Known,
    opened: u64,
    /// Neither connected nor answered, those of `cut_off` apart.
    failed: u64,
    /// At the pod when it was killed: [`Cut::excuses`].
    cut_off: u64,
    /// SYNs that came again and went to another pod.
    again: u64,
    /// ICMP errors that clients were told by the node that they came to.
    told: u64,
    /// Packets that this node has dropped as `stale`: such errors about SYNs that go elsewhere are among them.
    stale: u64,
    slowest_ms: f64,
    median_ms: f64,
    /// Of those that failed, by what the client was told.
    reasons: BTreeMap<String, u64>,
}

/// What is written.
#[derive(Debug, Serialize)]
struct Figures {
    origin: Origin,
    repetitions: Vec<Repetition>,
    claims: Vec<Claim>,
}

/// Measures, prints and writes the figures. Fails where a claim does not hold.
///
/// # Errors
/// When this machine cannot run it, or a part of it fails.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let programs = requirements::nodes("bench-killed-pod")?;
    guard::supervise(|directory, stop| {
        let Options { reps, seconds, rate, output, report } = options;
        let origin = Origin::of(format!("make bench-killed-pod REPS={reps} SECONDS={seconds} RATE={rate}"))?;
        let repetitions = measure(options, &programs, directory, stop)?;
        let claims = claims(&repetitions, *rate);
        section::finish(&Figures { origin, repetitions, claims }, output, report, options.lacks().as_deref())
    })
}

fn measure(options: &Options, programs: &Programs, directory: &Path, stop: &Stop) -> Result<Vec<Repetition>> {
    let world = World::builder().nodes(NODES).pods_per_node(PODS).build()?;
    let pods: Vec<Pod> = world.nodes().iter().flat_map(Node::pods).collect();
    let servers = pods.iter().map(|pod| serve_http::start(pod, TARGET_PORT, directory));
    let _servers = servers.collect::<Result<Vec<_>>>()?;
    let external = service_file::external(1);
    let service = StaticService { name: "web".into(), external, pods: pods.clone() };
    let file = service_file::write(&world, &[service], directory)?;
    let mut agents = Vec::new();
    for node in world.nodes() {
        agents.push(Agent::start(
            &world,
            node.number(),
            &Spread::Random,
            &programs.agent,
            &file,
            directory,
            Tables::Small,
        )?);
    }
    agents.iter_mut().try_for_each(|agent| agent.await_ready(&world))?;
    for prefix in address::external_ips() {
        world.route_via(prefix, 1)?;
    }
    // Linux tells one address of few errors in a second. Here one stands for many clients.
    for node in world.nodes() {
        node.netns().sysctls(&[("net/ipv4/icmp_ratemask", "0"), ("net/ipv6/icmp/ratelimit", "0")])?;
    }
    let view = View::open(guard::pin_dir(1))?;
    let mut done = Vec::new();
    for _ in 0..options.reps {
        for (node, known) in [1, 2].into_iter().flat_map(|node| [(node, Known::Nothing), (node, Known::Unreachable)]) {
            for ip in external {
                let step = Step::begin("a killed pod");
                pods.iter().try_for_each(|pod| await_pod(&world, pod))?;
                let bed = Bed { world: &world, view: &view, target: SocketAddr::new(ip, PORT) };
                done.push(bed.repeat(&world.node(node).pod(1), known, options, stop)?);
                step.done();
            }
        }
    }
    Ok(done)
}

/// Where a repetition takes place.
struct Bed<'a> {
    world: &'a World,
    /// The maps of the node that connections come to.
    view: &'a View,
    target: SocketAddr,
}

impl Bed<'_> {
    /// Makes connections, of which the pod gets none any more from a moment on, and lets it have them again afterwards.
    fn repeat(&self, pod: &Pod, known: Known, options: &Options, stop: &Stop) -> Result<Repetition> {
        let time = Duration::from_secs(options.seconds.into());
        let before = self.counted()?;
        let load = Paced { target: self.target, per_second: options.rate, time }.start(self.world.client())?;
        stop.sleep(time.mul_f64(BEFORE))?;
        let begun = Instant::now();
        self.set_interface(pod, "down")?;
        let when = begun..=Instant::now();
        if known == Known::Unreachable {
            self.forget_neighbour(pod)?;
        }
        let cut = Cut { when, ports: self.ports_at(pod)? };
        while load.is_running() {
            stop.sleep(GLANCE)?;
        }
        let report = load.finish()?;
        let after = self.counted()?;
        let [again, told, stale] = std::array::from_fn(|what| after[what] - before[what]);
        self.set_interface(pod, "up")?;
        let family = if self.target.is_ipv4() { 4 } else { 6 };
        let place = if pod.node() == 1 { "local" } else { "remote" };
        Ok(Repetition { family, pod: place, known, again, told, stale, ..Repetition::of(&report, &cut) })
    }

    /// The client's ports whose connections are at a pod, by the tables of the node that they come to.
    fn ports_at(&self, pod: &Pod) -> Result<BTreeSet<u16>> {
        let (addresses, mut backends) = (pod.address().both(), BTreeSet::new());
        self.view.visit_endpoints(|slot, backend, _| {
            if addresses.contains(&backend.addr.ip()) {
                backends.insert(slot);
            }
        })?;
        let is_there =
            |entry: &FlowEntry| entry.frontend.ip() == self.target.ip() && backends.contains(&entry.flow.backend);
        let flows = self.view.flows()?.into_iter();
        Ok(flows.filter(is_there).map(|entry| entry.client_port).collect())
    }

    /// Lets the node look for the pod at once, in vain.
    fn forget_neighbour(&self, pod: &Pod) -> Result<()> {
        let lines = pod.address().both().map(|ip| format!("neigh flush to {ip}\n"));
        Ok(self.world.node(pod.node()).netns().ip(&lines.concat())?)
    }

    fn set_interface(&self, pod: &Pod, state: &str) -> Result<()> {
        Ok(self.world.node(pod.node()).netns().ip(&format!("link set {} {state}", pod.host_interface()))?)
    }

    /// SYNs that came again, ICMP errors that were told, and packets that were dropped as stale, so far.
    fn counted(&self) -> Result<[u64; 3]> {
        Ok([self.unanswered()?, self.of_reason(abi::REASON_ERROR_TOLD)?, self.of_reason(abi::REASON_STALE)?])
    }

    /// Packets from other machines and to them, by what became of them.
    fn of_reason(&self, reason: u32) -> Result<u64> {
        let hooks = [abi::HOOK_NIC_INGRESS, abi::HOOK_NIC_EGRESS];
        let counted = hooks.map(|hook| self.view.counters().counter(hook as usize, reason as usize));
        counted.into_iter().map(|counted| Ok(counted?.packets)).sum()
    }

    /// SYNs that came again, of all pods.
    fn unanswered(&self) -> Result<u64> {
        let mut sum = 0;
        self.view.visit_endpoints(|_, _, counters| sum += u64::from(counters.unanswered))?;
        Ok(sum)
    }
}

impl Repetition {
    /// Of which pod is for the caller to say.
    fn of(report: &Report, cut: &Cut) -> Self {
        let cut_off = report.failures.iter().filter(|failure| cut.excuses(failure)).count() as u64;
        let mut reasons = BTreeMap::new();
        for failure in report.failures.iter().filter(|failure| !cut.excuses(failure)) {
            let stage = if failure.connected.is_some() { "connected" } else { "connecting" };
            *reasons.entry(format!("{stage}: {}", failure.reason)).or_default() += 1;
        }
        Self {
            family: 0,
            pod: "",
            known: Known::Nothing,
            opened: report.opened,
            failed: report.failed() - cut_off,
            cut_off,
            again: 0,
            told: 0,
            stale: 0,
            slowest_ms: milliseconds(report.slowest()),
            median_ms: milliseconds(report.connect_quantile(0.5)),
            reasons,
        }
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Waits until a pod answers by itself. Its node asks it: a port of the client's from which this pod was asked at its own address is one
/// whose connections by way of the service it refuses for a minute (TIME_WAIT), as timestamps are counted anew for each address.
fn await_pod(world: &World, pod: &Pod) -> Result<()> {
    for target in pod.sockets(TARGET_PORT) {
        let look = || ask::http_ask(target).map_err(|error| error.to_string());
        let node = world.node(pod.node()).netns();
        node.enter(|| wait::until_some(&format!("an answer of {}", pod.name()), SOON, look))?;
    }
    Ok(())
}

fn claims(repetitions: &[Repetition], per_second: u32) -> Vec<Claim> {
    let failed = repetitions.iter().map(|one| one.failed as f64).sum();
    let slowest = repetitions.iter().map(|one| one.slowest_ms).fold(0.0, f64::max);
    let least = repetitions.iter().map(|one| one.again as f64).fold(f64::INFINITY, f64::min);
    let cut_off = repetitions.iter().map(|one| one.cut_off as f64).fold(0.0, f64::max);
    vec![
        Claim { text: "connections that failed, and were not cut off".into(), seen: failed, bound: Bound::AtMost(0.0) },
        Claim {
            text: format!(
                "connections of a repetition that were cut off, the most: all that a pod has within {:?}",
                cut::LIFE
            ),
            seen: cut_off,
            bound: Bound::AtMost(cut::most_at_once(per_second, NODES * PODS)),
        },
        Claim {
            text: "ms to connect, the slowest: one retransmission of the SYN, after a second".into(),
            seen: slowest,
            bound: Bound::AtMost(milliseconds(TIMEOUT + MARGIN)),
        },
        Claim {
            text: "SYNs of a repetition that the killed pod did not answer, the least".into(),
            seen: least,
            bound: Bound::AtLeast(1.0),
        },
    ]
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(super) fn repetition(failed: u64, slowest_ms: f64, again: u64) -> Repetition {
        let (reasons, family, pod, known) = (BTreeMap::new(), 4, "local", Known::Nothing);
        let (opened, cut_off, told, stale, median_ms) = (20_000, 1, 0, 0, 0.2);
        Repetition { family, pod, known, opened, failed, cut_off, again, told, stale, slowest_ms, median_ms, reasons }
    }

    #[test]
    fn only_a_whole_run_is_one_for_the_report() {
        let lacks = |reps, seconds, rate| {
            let (output, report) = (PathBuf::new(), PathBuf::new());
            Options { reps, seconds, rate, output, report }.lacks()
        };
        assert_eq!([lacks(3, 20, 1000), lacks(5, 30, 2000)], [None, None]);
        assert_eq!(lacks(3, 4, 1000).as_deref(), Some("REPS=3 SECONDS=4 RATE=1000 of 3, 20 and 1000"));
        assert!(lacks(1, 20, 1000).is_some() && lacks(3, 20, 100).is_some());
    }

    fn hold(repetitions: &[Repetition]) -> Vec<bool> {
        claims(repetitions, RATE).iter().map(Claim::holds).collect()
    }

    #[test]
    fn a_connection_may_take_one_timeout_and_no_second_one() {
        assert_eq!(hold(&[repetition(0, 1010.0, 2500)]), [true, true, true, true]);
        assert_eq!(hold(&[repetition(0, 1010.0, 2500), repetition(0, 2010.0, 2500)]), [true, true, false, true]);
    }

    #[test]
    fn one_failure_anywhere_is_too_many_and_so_is_a_repetition_that_tried_nothing() {
        assert_eq!(hold(&[repetition(1, 1010.0, 2500), repetition(0, 1.0, 0)]), [false, true, true, false]);
    }

    #[test]
    fn no_more_are_cut_off_than_a_pod_has_at_once() {
        let cut_off = |cut_off| Repetition { cut_off, ..repetition(0, 1010.0, 2500) };
        assert_eq!(hold(&[cut_off(5), cut_off(2)]), [true, true, true, true]);
        assert_eq!(hold(&[cut_off(2), cut_off(6)]), [true, false, true, true]);
    }
}
