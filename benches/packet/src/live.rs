//! Frames that go out: `BPF_PROG_RUN` hands them to the kernel as if a veth had received them, and what XDP sends goes over
//! that veth to its other end, which counts and drops it.
//!
//! Weir sends to endpoints on another node, through the interface that the packets came from. Beside it stand the same frames
//! under a program that drops them, and under one that sends them back untouched: what the path itself allows.

use std::fs;
use std::process::Command;
use std::thread;

use anyhow::{Context as _, Result, ensure};
use nix::sched::{CloneFlags, unshare};
use serde::Serialize;
use weir_core::model::Family;

use crate::bed::{self, Bed, Endpoints, NODE, Program, Setting};
use crate::{OTHER_FLOWS, RUNS, frame, median, name, nanoseconds, prepare, room_for};

/// Frames of one run.
const FRAMES: u32 = 1 << 19;
/// The part of them that must arrive for a rate to be one.
const ARRIVE: f64 = 0.99;
/// The two ends of the veth.
const NEAR: &str = "near";
const FAR: &str = "far";
/// Address of the near one.
const MAC: [u8; 6] = [0x0a, 0x58, 0, 0, 0, 1];

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub struct LiveFigure {
    /// What became of the frames: `XDP_DROP`, `XDP_TX` or `weir_xdp`.
    pub program: &'static str,
    /// `v4` or `v6`.
    pub family: &'static str,
    /// Frames per second, on one processor that also receives them at the other end.
    pub packets_per_second: f64,
    /// The part of the frames that arrived there; of dropped ones none is to.
    pub arrived: f64,
}

/// Measures live frames of established flows and prints a line for each figure.
///
/// # Errors
/// As [`crate::measure`], and when the veth cannot be made or loses frames.
pub fn live() -> Result<Vec<LiveFigure>> {
    prepare()?;
    println!("\n{:<12} {:<6} {:>14} {:>9}", "LIVE FRAMES", "FAMILY", "PACKETS/s", "ARRIVED");
    // A namespace without a name: it goes with its last thread.
    thread::scope(|scope| {
        let measured = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).context("cannot make a network namespace")?;
            let device = wire()?;
            let families = [Family::V4, Family::V6].map(|family| of_family(family, device));
            Ok(families.into_iter().collect::<Result<Vec<_>>>()?.concat())
        });
        measured.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Makes the veth, and the way by it to the endpoints. Returns the index of its near end.
fn wire() -> Result<u32> {
    let (v4, v6) = NODE;
    let near = MAC.map(|byte| format!("{byte:02x}")).join(":");
    let far = "0a:58:00:00:00:02";
    let script = format!(
        "link add {NEAR} address {near} type veth peer name {FAR} address {far}
        link set {NEAR} addrgenmode none up
        link set {FAR} addrgenmode none up
        addr add {v4}/24 dev {NEAR}
        addr add {v6}/64 dev {NEAR} nodad
        neigh add 172.30.0.12 lladdr {far} dev {NEAR} nud permanent
        neigh add fd00:30::12 lladdr {far} dev {NEAR} nud permanent
        route add 10.244.0.0/16 via 172.30.0.12
        route add fd00:244::/32 via fd00:30::12"
    );
    for line in script.lines().map(str::trim) {
        let output = Command::new("ip").args(line.split(' ')).output().context("cannot run ip")?;
        ensure!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    // The look into the routing table refuses what the host would not forward.
    for name in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        let path = format!("/proc/sys/net/{name}");
        fs::write(&path, "1").with_context(|| format!("cannot write {path}"))?;
    }
    nix::net::if_::if_nametoindex(NEAR).context("the veth is gone")
}

fn of_family(family: Family, device: u32) -> Result<Vec<LiveFigure>> {
    let room = room_for(OTHER_FLOWS);
    let mut bed =
        Bed::new(Setting { family, services: 1, room, openings: room, endpoints: Endpoints::Elsewhere, device })?;
    bed.attach_sink(FAR)?;
    let mut frame = frame::tcp(family, false);
    // What is to another machine it would leave alone.
    frame[..MAC.len()].copy_from_slice(&MAC);
    let plan = bed.plan(&frame, OTHER_FLOWS, 1, bed::first_service(family));
    // Makes the flows known.
    let ran = bed.run(Program::Weir, &plan, &frame, OTHER_FLOWS)?;
    frame::check(family, &ran.packet, true)?;
    while bed.let_go_on()? > 0 {
        bed.run(Program::Weir, &plan, &frame, OTHER_FLOWS)?;
    }
    bed.find_what_goes_on()?;
    let programs = [(Program::Drop, "XDP_DROP", 0.0), (Program::Null, "XDP_TX", 1.0), (Program::Weir, "weir_xdp", 1.0)];
    let mut figures = Vec::new();
    for (program, label, wanted) in programs {
        let (mut times, before) = (Vec::new(), bed.arrived()?);
        for _ in 0..RUNS {
            times.push(nanoseconds(bed.run_live(program, &plan, &frame, FRAMES)?));
        }
        let arrived = (bed.arrived()? - before) as f64 / (f64::from(FRAMES) * RUNS as f64);
        ensure!(arrived >= wanted * ARRIVE, "{label}: only {arrived:.3} of the frames came to the veth's other end");
        let packets_per_second = 1e9 / median(times).max(1.0);
        println!("{label:<12} {:<6} {packets_per_second:>14.0} {arrived:>9.3}", name(family));
        figures.push(LiveFigure { program: label, family: name(family), packets_per_second, arrived });
    }
    Ok(figures)
}
