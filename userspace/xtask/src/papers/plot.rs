//! A figure as an SVG: requests per second above, mean latency below; lines are medians, bars the spread.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::{
    ChartBuilder, Color, DrawingArea, IntoDrawingArea, LineSeries, PathElement, RGBColor, SVGBackend,
    SeriesLabelPosition, WHITE,
};

use super::experiments::Figure;
use super::results::{Record, Results};
use crate::spread::Spread;

/// Width and height.
const SIZE: (u32, u32) = (900, 760);
/// By contender; colours that people who see few can tell apart (Okabe and Ito).
const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 114, 178), RGBColor(0, 158, 115), RGBColor(213, 94, 0), RGBColor(204, 121, 167)];

/// A picture that could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw {file}: {cause}: check that its directory can be written")]
pub(super) struct PlotError {
    file: String,
    cause: String,
}

/// What of it is drawn.
struct Panel {
    title: &'static str,
    of: fn(&Record) -> f64,
}

const PANELS: [Panel; 2] = [
    Panel { title: "requests/s", of: |record| record.rps },
    Panel { title: "mean latency, ms", of: |record| record.mean_ms },
];

/// Draws a figure into a file.
///
/// # Errors
/// [`PlotError`] if it cannot be written.
pub(super) fn draw(figure: Figure, results: &Results, file: &Path) -> Result<(), PlotError> {
    let failed =
        |cause: Box<dyn std::error::Error>| PlotError { file: file.display().to_string(), cause: cause.to_string() };
    draw_panels(figure, results, file).map_err(failed)
}

fn draw_panels(figure: Figure, results: &Results, file: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let panels = area.titled(figure.title(), ("sans-serif", 20))?.split_evenly((PANELS.len(), 1));
    for (index, (panel, area)) in PANELS.iter().zip(panels).enumerate() {
        panel.draw(figure, results, &area, index == 0)?;
    }
    area.present()?;
    Ok(())
}

impl Panel {
    fn draw(
        &self,
        figure: Figure,
        results: &Results,
        area: &DrawingArea<SVGBackend<'_>, Shift>,
        legend: bool,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let places: Vec<String> = figure.points().into_iter().map(|point| point.x).collect();
        let line = |contender| -> Vec<(f64, Spread)> {
            let at = |(index, x): (usize, &String)| Some((index as f64, results.summary(x, contender, self.of)?));
            places.iter().enumerate().filter_map(at).collect()
        };
        let lines: Vec<_> = figure.contenders().iter().map(|contender| (contender, line(*contender))).collect();
        // Above the lines is room for the legend.
        let room = if legend { 1.45 } else { 1.1 };
        let high = lines.iter().flat_map(|(_, line)| line).map(|(_, summary)| summary.most).fold(1.0, f64::max) * room;
        let end = places.len() as f64 - 0.5;
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, ("sans-serif", 15))
            .margin(8)
            .x_label_area_size(36)
            .y_label_area_size(60)
            .build_cartesian_2d(-0.5..end, 0.0..high)?;
        // A place has a name, and nothing is between two.
        let name = |at: &f64| {
            let index = places.iter().enumerate().find(|(index, _)| (*index as f64 - at).abs() < 0.01);
            index.map(|(_, name)| name.clone()).unwrap_or_default()
        };
        chart
            .configure_mesh()
            .x_desc(figure.axis())
            .x_labels(2 * places.len() + 1)
            .x_label_formatter(&name)
            .y_labels(6)
            .y_label_formatter(&|value| format!("{value:.0}"))
            .light_line_style(WHITE)
            .draw()?;
        // The first is drawn last, on top of the others.
        for ((contender, line), colour) in lines.iter().zip(COLOURS).rev() {
            let medians = line.iter().map(|(at, summary)| (*at, summary.median));
            chart
                .draw_series(LineSeries::new(medians, colour.stroke_width(2)).point_size(3))?
                .label(contender.to_string())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
            let bars = line.iter().map(|(at, summary)| {
                PathElement::new([(*at, summary.least), (*at, summary.most)], colour.stroke_width(1))
            });
            chart.draw_series(bars)?;
        }
        if legend {
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperLeft)
                .background_style(WHITE.mix(0.8))
                .draw()?;
        }
        Ok(())
    }
}
