//! One measurement: a load on one way, and what it tells.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use weir_testbed::paced::Paced;

use super::bed::Bed;
use super::placement::Apart;
use super::plan::{Block, Figure, Load};
use super::tools::{Client, Connections, Rate};
use super::way::Way;
use crate::cpu::CpuTimes;
use crate::guard::Stop;
use crate::spread::Spread;

/// Time between two looks at connections that are being made.
const GLANCE: Duration = Duration::from_millis(50);

/// What a measurement ends with.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Measured {
    pub(super) figures: Vec<(Figure, f64)>,
    /// Connections or requests that failed.
    pub(super) failed: u64,
    /// The part of all CPUs that nobody used.
    pub(super) idle: f64,
}

impl Measured {
    /// What some rounds say together, and all that failed. `None` of none.
    pub(super) fn of_rounds(rounds: &[Self]) -> Option<Self> {
        let together = |(index, (figure, _)): (usize, &(Figure, f64))| {
            let values = rounds.iter().filter_map(|round| round.figures.get(index)).map(|(_, value)| *value);
            Some((*figure, middle(*figure, values.collect())?))
        };
        let figures = rounds.first()?.figures.iter().enumerate().filter_map(together).collect();
        let idle = Spread::of(rounds.iter().map(|round| round.idle).collect())?.median;
        Some(Self { figures, failed: rounds.iter().map(|round| round.failed).sum(), idle })
    }
}

/// What the rounds of a repetition have measured on a way, each next to a measurement without a service.
#[derive(Clone, Debug, Default)]
pub(super) struct Rounds {
    own: Vec<Measured>,
    direct: Vec<Measured>,
}

impl Rounds {
    pub(super) fn push(&mut self, own: Measured, direct: Measured) {
        self.own.push(own);
        self.direct.push(direct);
    }

    /// See [`Measured::of_rounds`].
    pub(super) fn medians(&self) -> Option<Measured> {
        Measured::of_rounds(&self.own)
    }

    /// A figure in parts of what it was without a service in the same round: the median of rounds, or of CPU time all of it in parts of all of
    /// that. None if it was not measured.
    pub(super) fn to_direct(&self, figure: Figure) -> Option<f64> {
        let of =
            |measured: &Measured| measured.figures.iter().find(|(known, _)| *known == figure).map(|(_, value)| *value);
        if figure == Figure::Cpu {
            let all = |rounds: &[Measured]| middle(figure, rounds.iter().filter_map(of).collect());
            return Some(all(&self.own)? / all(&self.direct)?);
        }
        let rounds = self.own.iter().zip(&self.direct);
        middle(figure, rounds.filter_map(|(own, direct)| Some(of(own)? / of(direct)?)).collect())
    }
}

/// What several values of a figure come to: their median. CPU time is told in units that are a large part of what a proxy adds in one round, so
/// that of this it is the mean: each round has as many connections. None of none.
fn middle(figure: Figure, values: Vec<f64>) -> Option<f64> {
    if figure == Figure::Cpu {
        let count = values.len();
        return (count > 0).then(|| values.iter().sum::<f64>() / count as f64);
    }
    Spread::of(values).map(|spread| spread.median)
}

/// How a load is made.
#[derive(Clone, Copy)]
pub(super) struct Setting<'a> {
    /// Connections per second where their number is fixed.
    pub(super) rate: u32,
    /// In place of a load's own time.
    pub(super) time: Option<Duration>,
    /// Where tools write.
    pub(super) log: &'a Path,
    pub(super) stop: &'a Stop,
}

/// Measures, with the proxies of the way running.
///
/// # Errors
/// When a tool fails, and at the stop sign.
pub(super) fn measure(block: Block, way: Way, bed: &Bed, setting: Setting<'_>) -> Result<Measured> {
    let Block { load, backend, family } = block;
    let Setting { rate, time, log, stop } = setting;
    let time = time.unwrap_or(load.time());
    let target = bed.target(way, backend, family, load);
    let client = Client { netns: bed.client(), log, time, stop };
    let one = |figure, Rate { value, failed }| (vec![(figure, value)], failed);
    let before = CpuTimes::read()?;
    let (figures, failed) = match load {
        Load::Paced => paced(Paced { target, per_second: rate, time }, bed, stop)?,
        Load::Burst => one(Figure::Burst, client.wrk(Connections::Short, target)?),
        Load::Keepalive => one(Figure::Keepalive, client.wrk(Connections::Kept, target)?),
        Load::Bulk => one(Figure::Bulk, client.iperf3(target)?),
        Load::Sustained => one(Figure::Sustained, client.wrk(Connections::Short, target)?),
    };
    Ok(Measured { figures, failed, idle: CpuTimes::read()?.idle_since(&before) })
}

/// CPU time of a connection and times to connect, and how many failed.
fn paced(load: Paced, bed: &Bed, stop: &Stop) -> Result<(Vec<(Figure, f64)>, u64)> {
    let _apart = Apart::keep(bed.servers())?;
    let before = CpuTimes::read()?;
    let running = load.start(bed.client())?;
    while running.is_running() {
        stop.sleep(GLANCE)?;
    }
    let used = CpuTimes::read()?.busy_since(&before);
    let report = running.finish()?;
    ensure!(report.answered > 0, "none of {} connections to {} was answered", report.opened, load.target);
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let connect = |figure: Figure| (figure, micros(report.connect_quantile(figure.quantile().unwrap_or(1.0))));
    let cpu = (Figure::Cpu, micros(used) / report.answered as f64);
    Ok((vec![cpu, connect(Figure::ConnectMedian), connect(Figure::Connect99)], report.failed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(burst: f64, connect: f64, failed: u64, idle: f64) -> Measured {
        Measured { figures: vec![(Figure::Burst, burst), (Figure::ConnectMedian, connect)], failed, idle }
    }

    #[test]
    fn of_cpu_time_all_rounds_count_as_one_is_told_in_large_units() {
        let cpu = |value| Measured { figures: vec![(Figure::Cpu, value)], failed: 0, idle: 0.5 };
        let mut rounds = Rounds::default();
        assert_eq!(rounds.to_direct(Figure::Cpu), None);
        for (own, direct) in [(105.0, 100.0), (105.0, 100.0), (100.0, 105.0), (110.0, 95.0)] {
            rounds.push(cpu(own), cpu(direct));
        }
        assert_eq!(rounds.to_direct(Figure::Cpu), Some(1.05));
        assert_eq!(rounds.medians(), Some(cpu(105.0)));
    }

    #[test]
    fn a_round_is_compared_with_its_neighbour_whatever_the_machine_does_between_rounds() {
        let mut rounds = Rounds::default();
        assert_eq!((rounds.medians(), rounds.to_direct(Figure::Burst)), (None, None));
        rounds.push(round(110.0, 8.0, 0, 0.5), round(100.0, 8.0, 0, 0.5));
        rounds.push(round(440.0, 8.0, 0, 0.5), round(400.0, 4.0, 0, 0.5));
        rounds.push(round(220.0, 8.0, 0, 0.5), round(100.0, 2.0, 0, 0.5));
        assert_eq!(rounds.to_direct(Figure::Burst), Some(1.1));
        assert_eq!(rounds.to_direct(Figure::ConnectMedian), Some(2.0));
        assert_eq!(rounds.to_direct(Figure::Bulk), None);
        assert_eq!(rounds.medians(), Some(round(220.0, 8.0, 0, 0.5)));
    }

    #[test]
    fn rounds_come_to_the_medians_of_their_figures_and_to_all_that_failed() {
        let rounds = [round(100.0, 9.0, 1, 0.5), round(300.0, 7.0, 0, 0.1), round(110.0, 8.0, 2, 0.4)];
        assert_eq!(Measured::of_rounds(&rounds), Some(round(110.0, 8.0, 3, 0.4)));
        assert_eq!(Measured::of_rounds(&rounds[..1]), Some(rounds[0].clone()));
        assert_eq!(Measured::of_rounds(&[]), None);
    }
}
