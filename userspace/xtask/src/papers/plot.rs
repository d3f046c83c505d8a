//! A figure as an SVG: requests per second above, mean latency below; lines are medians, bars the spread.

use std::path::Path;

use weir_simulator::chart::{self, Across, Line, PlotError, Point};

use super::experiments::Figure;
use super::results::{Record, Results};

/// Width and height.
const SIZE: (u32, u32) = (900, 760);

/// Draws a figure into a file.
///
/// # Errors
/// [`PlotError`] if it cannot be written.
pub(super) fn draw(figure: Figure, results: &Results, file: &Path) -> Result<(), PlotError> {
    let places: Vec<String> = figure.points().into_iter().map(|point| point.x).collect();
    let panel = |title, room, of: fn(&Record) -> f64| panel(figure, results, &places, (title, room), of);
    // Above the lines is room for the legend.
    let panels =
        [panel("requests/s", 1.45, |record| record.rps), panel("mean latency, ms", 1.1, |record| record.mean_ms)];
    chart::draw(figure.title(), &panels, SIZE, file)
}

fn panel<'a>(
    figure: Figure,
    results: &Results,
    names: &'a [String],
    (title, room): (&'a str, f64),
    of: fn(&Record) -> f64,
) -> chart::Panel<'a> {
    let mut most = 1.0;
    let mut lines = Vec::new();
    for contender in figure.contenders() {
        let mut points = Vec::new();
        for (index, name) in names.iter().enumerate() {
            if let Some(spread) = results.summary(name, *contender, of) {
                most = f64::max(most, spread.most);
                points.push(Point { x: index as f64, y: spread.median, spread: Some((spread.least, spread.most)) });
            }
        }
        lines.push(Line { name: contender.to_string(), points });
    }
    let across = Across::Places { axis: figure.axis(), names };
    chart::Panel { title, across, high: most * room, label: |value| format!("{value:.0}"), lines }
}
