//! Pictures of a scenario: every policy over time, one panel per figure.

use std::path::Path;

use crate::chart::{self, Across, Line, PlotError, Point};
use crate::record::{Moment, Outcome};

/// Width and height.
const SIZE: (u32, u32) = (900, 1500);

/// A figure over time.
struct Panel {
    title: &'static str,
    /// Whether its scale is one of powers of ten: from milliseconds to seconds everything occurs.
    logarithmic: bool,
    of: fn(&Moment) -> Option<f64>,
}

const PANELS: [Panel; 5] = [
    Panel { title: "mean latency, ms", logarithmic: true, of: |moment| Some(moment.latency_ms) },
    Panel { title: "rejected or lost, requests/s", logarithmic: false, of: |moment| Some(moment.rejected) },
    Panel { title: "local share at the hot nodes", logarithmic: false, of: |moment| Some(moment.local_share) },
    Panel { title: "its standard deviation over 30 s", logarithmic: false, of: |moment| Some(moment.deviation) },
    Panel {
        title: "latency / least possible",
        logarithmic: true,
        of: |moment| moment.distance.map(|distance| 1.0 + distance),
    },
];

/// Draws the outcomes of one scenario into an SVG file, in the order of [`weir_core::policies::Kind::ALL`].
///
/// # Errors
/// [`PlotError`] if the file cannot be written.
pub fn draw(title: &str, outcomes: &[Outcome], file: &Path) -> Result<(), PlotError> {
    chart::draw(title, &PANELS.map(|panel| panel.of_all(outcomes)), SIZE, file)
}

impl Panel {
    fn of_all(&self, outcomes: &[Outcome]) -> chart::Panel<'static> {
        let line = |outcome: &Outcome| Line { name: outcome.policy.to_owned(), points: self.points(&outcome.moments) };
        let lines: Vec<Line> = outcomes.iter().map(line).collect();
        let least = if self.logarithmic { 1.0 } else { 0.05 };
        let high = lines.iter().flat_map(|line| &line.points).map(|point| point.y).fold(least, f64::max) * 1.05;
        let label = if self.logarithmic { power } else { number };
        chart::Panel { title: self.title, across: Across::Seconds, high, label, lines }
    }

    fn points(&self, moments: &[Moment]) -> Vec<Point> {
        let drawn = |value: f64| if self.logarithmic { value.max(0.1).log10() } else { value };
        let point = |moment: &Moment| Some(Point { x: moment.at, y: drawn((self.of)(moment)?), spread: None });
        moments.iter().filter_map(point).collect()
    }
}

/// Ten to the power of it.
fn power(value: f64) -> String {
    format!("{:.3}", 10f64.powf(value)).trim_end_matches('0').trim_end_matches('.').into()
}

fn number(value: f64) -> String {
    format!("{value:.2}")
}
