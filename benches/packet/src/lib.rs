//! Nanoseconds per packet of the XDP program, by `BPF_PROG_RUN` inside a wrapper that restores the packet in each round.
//!
//! What is reported is net of the null program in the same wrapper, on the same flows. All endpoints are on this node:
//! the packet is translated and passed up. `wrapper.bpf.c` says how a round works. [`live`] is about frames that are sent on.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use serde::Serialize;
use weir_core::model::Family;
use weir_core::ops::Capacity;

mod bed;
mod frame;
mod live;

use bed::{Bed, Endpoints, Setting};
pub use live::{LiveFigure, live};

/// Flows that are known, where all of them get packets.
pub const FLOWS: [u32; 4] = [1, 1000, 65_536, 524_288];
/// The same for packets of other flows, and different packets that are not ours.
pub const OTHER_FLOWS: u32 = 1000;
/// Services in the maps.
pub const SERVICES: [u32; 3] = [1, 1000, 10_000];
/// Least rounds of one timed run of packets that are all alike, and of each flow: once in a tick a packet looks further, so that of
/// many flows a run must hold ticks in the same part as any other.
const ROUNDS: u32 = 400_000;
const ROUNDS_OF_EACH: u32 = 8;
/// Patience with the entries for answers, which are written anew once in a tick.
const TICKS: Duration = Duration::from_secs(10);
/// New flows of one timed run.
const NEW_FLOWS: u32 = 24_576;
/// Sets of maps that are made anew for each figure, of which the median counts: where a set lies in memory is part of what many flows
/// cost, by more than a half from one set to another.
pub const BEDS: usize = 3;
/// Runs in one set of maps of which the median counts.
pub const RUNS: usize = 5;

/// What the packets are.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Case {
    /// Of flows that are known.
    Established,
    /// Each the first of its flow, while that many flows are known.
    NewFlow,
    /// To addresses that are no frontends.
    NotOurs,
}

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// What the packets are.
    pub case: Case,
    /// `v4` or `v6`.
    pub family: &'static str,
    /// Flows that are known, or different packets.
    pub flows: u32,
    /// Services in the maps; flows are spread over all of them.
    pub services: u32,
    /// Nanoseconds per packet, the null program's subtracted.
    pub net_ns: f64,
    /// Nanoseconds per packet of the null program.
    pub null_ns: f64,
}

/// Measures these cases, and prints a line for each figure.
///
/// # Errors
/// Without root, with BPF statistics switched on, or when a packet does not come out as it should.
pub fn measure(cases: &[Case]) -> Result<Vec<Figure>> {
    prepare()?;
    let mut figures = Vec::new();
    println!("{:<12} {:<6} {:>8} {:>9} {:>8} {:>8}", "CASE", "FAMILY", "FLOWS", "SERVICES", "NET ns", "NULL ns");
    for case in cases.iter().copied() {
        for family in [Family::V4, Family::V6] {
            for services in SERVICES {
                for flows in case.flows() {
                    let figure = one(case, family, *flows, services)?;
                    let Figure { family, net_ns, null_ns, .. } = &figure;
                    let name = format!("{case:?}");
                    println!("{name:<12} {family:<6} {flows:>8} {services:>9} {net_ns:>8.1} {null_ns:>8.1}");
                    figures.push(figure);
                }
            }
        }
    }
    Ok(figures)
}

impl Case {
    const fn flows(self) -> &'static [u32] {
        match self {
            Self::Established => &FLOWS,
            Self::NewFlow | Self::NotOurs => &[OTHER_FLOWS],
        }
    }
}

fn prepare() -> Result<()> {
    if !weir_testbed::require_root("bench-packet") {
        bail!("the benchmark needs root: sudo make bench-packet");
    }
    sweep(weir_testbed::bpffs::ensure_mounted()?)?;
    let path = "/proc/sys/kernel/bpf_stats_enabled";
    let stats = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    ensure!(stats.trim() == "0", "BPF statistics cost up to 70 ns a run: sysctl -w kernel.bpf_stats_enabled=0");
    // One processor throughout: the flow table's free lists are per processor.
    let mut cpus = nix::sched::CpuSet::new();
    cpus.set(0)?;
    nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &cpus).context("cannot stay on one processor")
}

/// Removes the pins of benchmarks that were killed: those whose name holds the id of a process that is gone.
fn sweep(bpffs: &Path) -> Result<()> {
    for entry in fs::read_dir(bpffs).with_context(|| format!("cannot list {}", bpffs.display()))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(bed::PIN_PREFIX));
        let gone = |pid: &str| !Path::new("/proc").join(pid).exists();
        if name.and_then(|name| name.split('-').next()).is_some_and(gone) {
            weir_datapath::PinDir::new(&path).remove_all(false)?;
        }
    }
    Ok(())
}

fn one(case: Case, family: Family, flows: u32, services: u32) -> Result<Figure> {
    let mut net = Vec::new();
    let mut null = Vec::new();
    for _ in 0..BEDS {
        let [weir_ns, null_ns] = in_one_bed(case, family, flows, services)?;
        net.push(weir_ns - null_ns);
        null.push(null_ns);
    }
    let [net_ns, null_ns] = [net, null].map(median);
    Ok(Figure { case, family: name(family), flows, services, net_ns, null_ns })
}

/// Nanoseconds per packet of Weir and of the null program, each the median of its runs.
fn in_one_bed(case: Case, family: Family, flows: u32, services: u32) -> Result<[f64; 2]> {
    let room = room_for(flows);
    // What goes on has begun there, all of it at once. What begins finds that table full sooner or later, as in a flood.
    let openings = if case == Case::Established { room } else { Capacity::DEFAULT.openings };
    let mut bed = Bed::new(Setting { family, services, room, openings, endpoints: Endpoints::Here, device: 0 })?;
    let first = match case {
        Case::Established | Case::NewFlow => bed::first_service(family),
        Case::NotOurs => bed::first_stranger(),
    };
    // Each flow has its turn.
    let rounds = if case == Case::NewFlow { NEW_FLOWS } else { ROUNDS.max(flows.saturating_mul(ROUNDS_OF_EACH)) };
    make_known(&mut bed, case, family, flows, services, first)?;
    let frame = frame::tcp(family, case == Case::NewFlow);
    let plan = bed.plan(&frame, flows, services, first);
    let mut weir = Vec::new();
    let mut null = Vec::new();
    for run in 0..RUNS {
        let plan = match case {
            // Numbers that no run before has used.
            Case::NewFlow => plan.from(flows + NEW_FLOWS * u32::try_from(run)?),
            Case::Established | Case::NotOurs => plan,
        };
        null.push(nanoseconds(bed.run(bed::Program::Null, &plan, &frame, rounds)?.duration));
        let before = bed.translated()?;
        let ran = bed.run(bed::Program::Weir, &plan, &frame, rounds)?;
        let (translated, wanted) = (bed.translated()? - before, if case == Case::NotOurs { 0 } else { rounds });
        ensure!(
            translated == u64::from(wanted),
            "{translated} of {rounds} packets were translated in place of {wanted}"
        );
        frame::check(family, &ran.packet, case != Case::NotOurs)?;
        weir.push(nanoseconds(ran.duration));
    }
    Ok([weir, null].map(median))
}

/// Makes so many flows known, from that service on, and the caches warm. They go on, as far as they are ours.
fn make_known(bed: &mut Bed, case: Case, family: Family, flows: u32, services: u32, first: u32) -> Result<()> {
    let frame = frame::tcp(family, false);
    let plan = bed.plan(&frame, flows, services, first);
    bed.run(bed::Program::Weir, &plan, &frame, flows)?;
    if case != Case::NotOurs {
        // Sets fill one before the other, so that some of many flows begin more than once.
        while bed.let_go_on()? > 0 {
            bed.run(bed::Program::Weir, &plan, &frame, flows)?;
        }
        // So do those of answers, which have sets of their own.
        let begin = Instant::now();
        while bed.known()? != [flows as usize; 2] {
            ensure!(begin.elapsed() < TICKS, "of {flows} flows and their answers the tables have {:?}", bed.known()?);
            bed.run(bed::Program::Weir, &plan, &frame, flows)?;
        }
    }
    bed.find_what_goes_on()
}

/// Entries of tables that hold so many flows without an eviction, and all new ones of a case beside them.
fn room_for(flows: u32) -> u32 {
    (2 * flows).next_power_of_two().max(1 << 18)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn nanoseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e9
}

const fn name(family: Family) -> &'static str {
    match family {
        Family::V4 => "v4",
        Family::V6 => "v6",
    }
}

/// Address number `n` of the backends.
pub(crate) fn backend(family: Family, n: u32) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::from(0x0af4_0000 + n).into(),
        Family::V6 => Ipv6Addr::from((0xfd00_0244_u128 << 96) + u128::from(n)).into(),
    }
}
