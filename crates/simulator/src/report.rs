//! What people and programs get to read.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use serde_json::json;

use crate::plot;
use crate::record::Outcome;
use crate::scenario::Scenario;

/// Bars for [`violations`]: the standard deviation of the local share, the distance to the optimum, seconds of overload.
const BARS: (f64, f64, f64) = (0.03, 0.10, 2.0);
/// Bar for the distance in `bursts`, whose optimum knows the end of each burst.
const BURSTS: f64 = 0.25;

/// One scenario's outcomes as a table.
#[must_use]
pub fn table(outcomes: &[Outcome]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["policy", "latency", "optimum", "above", "rejected", "local", "deviation", "overload", "writes"]);
    for outcome in outcomes {
        table.add_row([
            outcome.policy.to_owned(),
            format!("{:.1} ms", outcome.latency_ms),
            format!("{:.1} ms", outcome.optimum_ms),
            above(outcome.distance),
            format!("{:.2} %", outcome.rejected * 100.0),
            format!("{:.3}", outcome.local_share),
            format!("{:.3}", outcome.deviation),
            format!("{:.2} s", outcome.overload_seconds),
            format!("{:.2}/s", outcome.writes),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// A percentage, or a factor if it is large.
fn above(distance: f64) -> String {
    if distance < 10.0 { format!("{:.1} %", distance * 100.0) } else { format!("{:.0} x", distance + 1.0) }
}

/// Draws a scenario's outcomes into a directory.
///
/// # Errors
/// If the picture cannot be written.
pub fn draw(scenario: &Scenario, outcomes: &[Outcome], directory: &Path) -> Result<()> {
    let title = format!("{}: {}", scenario.name, scenario.about);
    Ok(plot::draw(&title, outcomes, &directory.join(format!("{}.svg", scenario.name)))?)
}

/// Writes all outcomes as JSON, moment by moment only in the pictures.
///
/// # Errors
/// If the file cannot be written.
pub fn write_summary(outcomes: &[Outcome], file: &Path) -> Result<()> {
    let summary = serde_json::to_string_pretty(&json!({ "outcomes": outcomes }))?;
    fs::write(file, summary + "\n").with_context(|| format!("cannot write {}", file.display()))
}

/// What must hold of `waterfill` and does not, in words. Constant overload of one node: a still share near the optimum.
/// More at one node than all can do: near the optimum. A hundred hot nodes: none above its capacity for long.
#[must_use]
pub fn violations(outcomes: &[Outcome]) -> Vec<String> {
    let (deviation, distance, overload) = BARS;
    let mut violations = Vec::new();
    for outcome in outcomes.iter().filter(|outcome| outcome.policy == "waterfill") {
        let mut must = |what: &str, is: f64, at_most: f64| {
            if is.is_nan() || is > at_most {
                violations.push(format!("{}: {what} is {is:.3}, more than {at_most}", outcome.scenario));
            }
        };
        if outcome.scenario.starts_with("one-hot") {
            must("the standard deviation of the local share", outcome.deviation, deviation);
            must("the distance to the optimum", outcome.distance, distance);
        }
        if outcome.scenario == "crowd" {
            must("the distance to the optimum", outcome.distance, distance);
        }
        if outcome.scenario == "bursts" {
            must("the distance to the optimum", outcome.distance, BURSTS);
        }
        if outcome.scenario == "hundred-hot" {
            must("seconds above the capacity of a node", outcome.overload_seconds, overload);
        }
    }
    violations
}
