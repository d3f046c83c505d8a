//! One measurement: the load of a point for a few seconds, and whether it was the load that was short of CPU time.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::bed::Bed;
use super::experiments::{Load, NODES, Point, Service};
use super::generators::{Generator, Order, Report};
use super::measured::Measured;
use crate::cpu::CpuTimes;
use crate::guard::Stop;

/// Load before the measurement, so that who follows the load has followed it.
const WARM_UP: Duration = Duration::from_secs(2);
/// Load that is measured.
const MEASURED: Duration = Duration::from_secs(4);
/// Concurrent requests when a node is measured by itself.
const ALONE: u32 = 4;

/// What was measured.
#[derive(Clone, Debug)]
pub(super) struct Slice {
    pub(super) measured: Measured,
    /// The part of a core that the busiest generator used.
    pub(super) generator: f64,
    /// The part of all CPUs that nobody used.
    pub(super) idle: f64,
}

/// Measures a point with the proxies that run.
///
/// # Errors
/// When a generator fails, and at the stop sign.
pub(super) fn measure(bed: &Bed, service: Service, point: &Point, stop: &Stop) -> Result<Slice> {
    match point.load {
        Load::Ab(concurrency) => {
            let all = |time| {
                let orders = (1..=NODES).zip(concurrency).filter(|(_, concurrency)| *concurrency > 0);
                let orders = orders.map(|(node, concurrency)| (node, Order::Ab { concurrency, time }));
                run(bed, service, point, orders, stop)
            };
            all(WARM_UP)?;
            all(MEASURED)
        }
        Load::Hey { requests, concurrency } => {
            run(bed, service, point, [(1, Order::HeyFor { time: WARM_UP, concurrency })], stop)?;
            let begin = Instant::now();
            let mut all: Option<Slice> = None;
            while begin.elapsed() < MEASURED {
                let next = run(bed, service, point, [(1, Order::Hey { requests, concurrency })], stop)?;
                all = Some(all.map_or(next.clone(), |before| before.then(&next)));
            }
            all.context("no time was left for a measurement")
        }
    }
}

/// What a node can do by itself: answers per second of its first pod, asked past every proxy, and the CPU time of its
/// machine and of `ab` for each.
#[derive(Clone, Copy, Debug, serde::Deserialize, serde::Serialize)]
pub(super) struct Calibration {
    /// Cores that the node has.
    pub(super) cores: f64,
    pub(super) rps: f64,
    /// Microseconds of the node's quota that an answer costs.
    pub(super) server_us: f64,
    /// Microseconds of `ab` that a request costs.
    pub(super) client_us: f64,
}

impl Calibration {
    /// Measures node 1 with the cost and the capacity of a point.
    ///
    /// # Errors
    /// As [`measure`].
    pub(super) fn of(bed: &Bed, point: &Point, stop: &Stop) -> Result<Self> {
        let before = bed.machine(1).cpu_time()?;
        let order = Order::Ab { concurrency: ALONE, time: WARM_UP };
        let client = bed.client(1);
        let started = Generator::start(order, client.netns(), Bed::server(1), point.cost, &bed.file("calibration"))?;
        let Report { measured, cpu } = started.finish(stop)?;
        let used = bed.machine(1).cpu_time()?.saturating_sub(before);
        let rps = measured.rps;
        let each = |time: f64| if measured.answered > 0 { time * 1e6 / measured.answered as f64 } else { 0.0 };
        let (server_us, client_us) = (each(used.as_secs_f64()), each(cpu * measured.seconds));
        Ok(Self { cores: point.cores[0], rps, server_us, client_us })
    }
}

impl Slice {
    /// Together with a later one.
    fn then(&self, later: &Self) -> Self {
        let [own, others] = [self, later].map(|slice| slice.measured.seconds);
        Self {
            measured: self.measured.then(&later.measured),
            generator: self.generator.max(later.generator),
            idle: (self.idle * own + later.idle * others) / (own + others).max(f64::MIN_POSITIVE),
        }
    }
}

/// Runs generators at the same time.
fn run(
    bed: &Bed,
    service: Service,
    point: &Point,
    orders: impl IntoIterator<Item = (u8, Order)>,
    stop: &Stop,
) -> Result<Slice> {
    let before = CpuTimes::read()?;
    let mut generators = Vec::new();
    for (node, order) in orders {
        let (client, files) = (bed.client(node), bed.file(&format!("load-node{node}")));
        generators.push(Generator::start(order, client.netns(), bed.target(service, node), point.cost, &files)?);
    }
    let reports = generators.into_iter().map(|generator| generator.finish(stop)).collect::<Result<Vec<_>>>()?;
    let idle = CpuTimes::read()?.idle_since(&before);
    let mut slice = Slice { measured: Measured::default(), generator: 0.0, idle };
    for Report { measured, cpu } in reports {
        slice.measured = slice.measured.beside(&measured);
        slice.generator = slice.generator.max(cpu);
    }
    Ok(slice)
}
