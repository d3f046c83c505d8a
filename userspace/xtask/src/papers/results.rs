//! Results as they are kept: one JSON file for each figure.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use weir_testbed::figures;

use super::experiments::{Contender, Figure};
use super::slice::{Calibration, Slice};

/// A generator that used more of a core than this, or a machine that had less idle time, was the bottleneck.
const SATURATED_GENERATOR: f64 = 0.9;
const SATURATED_IDLE: f64 = 0.02;

/// One figure's.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Results {
    pub(super) figure: String,
    pub(super) command: String,
    pub(super) kernel: String,
    pub(super) date: String,
    /// CPUs of the machine.
    pub(super) cpus: usize,
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
    pub(super) fn summary(&self, x: &str, contender: Contender, of: fn(&Record) -> f64) -> Option<Summary> {
        Summary::of(self.at(x, contender).map(of).collect())
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
        let path = file(directory, figure.name());
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let results = serde_json::from_slice(&text);
        Ok(Some(results.with_context(|| format!("cannot understand {}: remove it", path.display()))?))
    }
}

/// What repetitions have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Summary {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

impl Summary {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) };
        Some(Self { median, least, most })
    }
}

fn file(directory: &Path, figure: &str) -> PathBuf {
    directory.join(format!("figure-{figure}.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_have_a_median_and_a_spread() {
        let summary = |values: &[f64]| Summary::of(values.to_vec());
        assert_eq!(summary(&[3.0, 1.0, 2.0]), Some(Summary { median: 2.0, least: 1.0, most: 3.0 }));
        assert_eq!(summary(&[1.0, 2.0]), Some(Summary { median: 1.5, least: 1.0, most: 2.0 }));
        assert_eq!(summary(&[]), None);
    }
}
