//! Results as they are kept: one JSON file for each figure.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::{Deserialize, Serialize};
use weir_testbed::figures;

use super::experiments::{Contender, Figure};
use super::slice::{Calibration, Slice};
use crate::benchmark;
use crate::cpu::SATURATED_IDLE;
use crate::origin::Origin;
use crate::spread::Spread;

/// A generator that used more of a core than this was the bottleneck.
const SATURATED_GENERATOR: f64 = 0.9;

/// One figure's.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Results {
    pub(super) figure: String,
    #[serde(flatten)]
    pub(super) origin: Origin,
    pub(super) calibration: Calibration,
    pub(super) records: Vec<Record>,
}

/// One measurement.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Record {
    pub(super) figure: String,
    pub(super) x: String,
    pub(super) proxy: String,
    pub(super) policy: String,
    /// From 1.
    pub(super) repetition: u32,
    pub(super) rps: f64,
    pub(super) mean_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) failed: u64,
    /// The part of a core that the busiest generator used.
    pub(super) generator: f64,
    /// The part of all CPUs that nobody used.
    pub(super) idle: f64,
}

impl Record {
    pub(super) fn new(figure: Figure, x: &str, contender: Contender, repetition: u32, slice: &Slice) -> Self {
        let Slice { measured, generator, idle } = slice;
        Self {
            figure: figure.name().into(),
            x: x.into(),
            proxy: contender.proxy().into(),
            policy: contender.policy().into(),
            repetition,
            rps: measured.rps,
            mean_ms: measured.mean_ms,
            p99_ms: measured.p99_ms(),
            failed: measured.failed,
            generator: *generator,
            idle: *idle,
        }
    }

    /// Whether the load, not the cluster, was the bottleneck.
    pub(super) fn is_saturated(&self) -> bool {
        self.generator > SATURATED_GENERATOR || self.idle < SATURATED_IDLE
    }
}

impl Results {
    /// Repetitions of all points.
    pub(super) fn repetitions(&self) -> u32 {
        self.records.iter().map(|record| record.repetition).max().unwrap_or(0)
    }

    /// The figure's measurements at one point, by one contender.
    pub(super) fn at<'a>(&'a self, x: &'a str, contender: Contender) -> impl Iterator<Item = &'a Record> {
        let matches = move |record: &&Record| {
            record.x == x && record.proxy == contender.proxy() && record.policy == contender.policy()
        };
        self.records.iter().filter(matches)
    }

    /// Median and spread of a figure at one point; `None` if it was not measured.
    pub(super) fn summary(&self, x: &str, contender: Contender, of: fn(&Record) -> f64) -> Option<Spread> {
        Spread::of(self.at(x, contender).map(of).collect())
    }

    /// Keeps them in a directory.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn write(&self, directory: &Path) -> Result<()> {
        Ok(figures::write(&file(directory, &self.figure), self)?)
    }

    /// Those of an earlier run; `None` if there was none.
    ///
    /// # Errors
    /// When the file is of another version of this program.
    pub(super) fn load(directory: &Path, figure: Figure) -> Result<Option<Self>> {
        benchmark::kept(&file(directory, figure.name()))
    }
}

fn file(directory: &Path, figure: &str) -> PathBuf {
    directory.join(format!("figure-{figure}.json"))
}
