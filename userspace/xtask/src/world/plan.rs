//! What is measured, and in which order.

use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::way::{Backend, Family, Path, Proxy, Way};

/// What is measured, as on the command line and in results.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub(super) enum Case {
    /// CPU time of the machine for a short connection, at a fixed rate
    CpuPerConnection,
    /// How long connecting takes, at the same rate
    ConnectLatency,
    /// Short connections per second, as fast as they go, for a few seconds
    Burst,
    /// Requests per second over connections that stay open
    Keepalive,
    /// Gbit/s over one connection
    Bulk,
    /// Short connections per second, as fast as they go, for a minute
    Sustained,
}

/// The load that a measurement makes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Load {
    /// Short connections at a fixed rate.
    Paced,
    /// Short connections, as fast as they go.
    Burst,
    /// Requests over open connections, as fast as they go.
    Keepalive,
    /// One connection that sends all it can.
    Bulk,
    /// As `Burst`, for a minute.
    Sustained,
}

/// A number that a measurement ends with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Figure {
    Cpu,
    ConnectMedian,
    Connect99,
    Burst,
    Keepalive,
    Bulk,
    Sustained,
}

/// Which way is better.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Better {
    Lower,
    Higher,
}

impl Load {
    /// In the order of their turns: what leaves most behind comes last.
    const ALL: [Self; 5] = [Self::Paced, Self::Burst, Self::Keepalive, Self::Bulk, Self::Sustained];

    /// Into how many rounds of all ways a repetition is cut. What a proxy adds to a connection is less than what a machine of many
    /// changes by in a few seconds, so that what is compared has to be short, close together, and done often.
    pub(super) const fn rounds(self) -> u32 {
        match self {
            Self::Paced => 6,
            Self::Burst | Self::Keepalive | Self::Bulk => 3,
            Self::Sustained => 1,
        }
    }

    /// How long a measurement in a round is, unless somebody says otherwise.
    pub(super) const fn time(self) -> Duration {
        match self {
            Self::Paced | Self::Burst | Self::Keepalive | Self::Bulk => Duration::from_secs(1),
            Self::Sustained => Duration::from_secs(60),
        }
    }
}

impl Case {
    pub(super) const fn load(self) -> Load {
        match self {
            Self::CpuPerConnection | Self::ConnectLatency => Load::Paced,
            Self::Burst => Load::Burst,
            Self::Keepalive => Load::Keepalive,
            Self::Bulk => Load::Bulk,
            Self::Sustained => Load::Sustained,
        }
    }
}

impl Figure {
    /// In the order of the report.
    pub(super) const ALL: [Self; 7] =
        [Self::Cpu, Self::Sustained, Self::Burst, Self::Keepalive, Self::Bulk, Self::ConnectMedian, Self::Connect99];

    pub(super) const fn case(self) -> Case {
        match self {
            Self::Cpu => Case::CpuPerConnection,
            Self::ConnectMedian | Self::Connect99 => Case::ConnectLatency,
            Self::Burst => Case::Burst,
            Self::Keepalive => Case::Keepalive,
            Self::Bulk => Case::Bulk,
            Self::Sustained => Case::Sustained,
        }
    }

    /// The part of connections that it is a time of.
    pub(super) const fn quantile(self) -> Option<f64> {
        match self {
            Self::ConnectMedian => Some(0.5),
            Self::Connect99 => Some(0.99),
            Self::Cpu | Self::Burst | Self::Keepalive | Self::Bulk | Self::Sustained => None,
        }
    }

    pub(super) const fn unit(self) -> &'static str {
        match self {
            Self::Cpu | Self::ConnectMedian | Self::Connect99 => "us",
            Self::Burst | Self::Sustained => "connections/s",
            Self::Keepalive => "requests/s",
            Self::Bulk => "Gbit/s",
        }
    }

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Cpu => "CPU time of the machine for a short connection",
            Self::ConnectMedian => "Time to connect, median",
            Self::Connect99 => "Time to connect, 99th percentile",
            Self::Burst => "Short connections, a burst",
            Self::Keepalive => "Requests over open connections",
            Self::Bulk => "One connection that sends all it can",
            Self::Sustained => "Short connections, sustained",
        }
    }

    pub(super) const fn better(self) -> Better {
        match self {
            Self::Cpu | Self::ConnectMedian | Self::Connect99 => Better::Lower,
            Self::Burst | Self::Keepalive | Self::Bulk | Self::Sustained => Better::Higher,
        }
    }
}

/// The same load on every way to pods of one kind: these measurements follow each other.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Block {
    pub(super) load: Load,
    pub(super) backend: Backend,
    pub(super) family: Family,
}

/// All blocks of a repetition that these cases need.
pub(super) fn blocks(cases: &[Case]) -> Vec<Block> {
    let wanted = Load::ALL.into_iter().filter(|load| cases.iter().any(|case| case.load() == *load));
    wanted.flat_map(|load| pods().map(move |(backend, family)| Block { load, backend, family })).collect()
}

/// Each kind of pod, by each family.
pub(super) fn pods() -> impl Iterator<Item = (Backend, Family)> {
    Backend::ALL.into_iter().flat_map(|backend| Family::ALL.map(|family| (backend, family)))
}

/// All ways that have turns, where proxies have so many services.
pub(super) fn ways(services: &[u32]) -> Vec<Way> {
    let fewest = services.first().copied().unwrap_or_default();
    let through = |path: Path| {
        let proxies = move |services: &u32| Proxy::ALL.map(|proxy| Way { path, services: *services, proxy });
        services.iter().flat_map(proxies).filter(move |way| way.proxy.serves(way.services, fewest))
    };
    Path::SERVED.into_iter().flat_map(through).chain([Way::ROUTED]).collect()
}

/// The order of a round, from 1: each second one goes backward, and who is first changes, so that nobody always comes
/// after the same one.
pub(super) fn turns(ways: &[Way], round: u32) -> Vec<Way> {
    let mut turns = ways.to_vec();
    let shift = usize::try_from((round - 1) / 2).unwrap_or_default() % turns.len().max(1);
    turns.rotate_left(shift);
    if round.is_multiple_of(2) {
        turns.reverse();
    }
    turns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_has_one_turn_in_each_round_and_neighbours_change() {
        let ways = ways(&[10, 10_000]);
        assert_eq!(ways.len(), 2 * (5 + 4) + 1);
        for round in 1..=5 {
            let turns = turns(&ways, round);
            assert!(ways.iter().all(|way| turns.contains(way)) && turns.len() == ways.len(), "{round}");
        }
        let first = |round| turns(&ways, round).iter().position(|way| *way == ways[0]);
        assert_eq!([1, 2, 3, 4, 5].map(first), [0, 18, 18, 0, 17].map(Some));
        let mut backward = turns(&ways, 2);
        backward.reverse();
        assert_eq!(backward, turns(&ways, 1));
    }

    #[test]
    fn cases_that_share_a_load_are_measured_at_once_and_others_are_left_out() {
        let both = blocks(&[Case::ConnectLatency, Case::CpuPerConnection]);
        assert_eq!(both, blocks(&[Case::ConnectLatency]));
        assert_eq!(both.len(), 4);
        assert!(both.iter().all(|block| block.load == Load::Paced));
        assert_eq!(blocks(Case::value_variants()).len(), 20);
        assert_eq!(blocks(&[]), []);
    }

    #[test]
    fn the_minute_that_leaves_most_behind_comes_last() {
        let blocks = blocks(&[Case::Sustained, Case::Burst]);
        assert_eq!(blocks.first().map(|block| block.load), Some(Load::Burst));
        assert_eq!(blocks.last().map(|block| block.load), Some(Load::Sustained));
    }
}
