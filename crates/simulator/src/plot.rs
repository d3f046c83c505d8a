//! Pictures of a scenario: every policy over time, one panel per figure.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::{
    ChartBuilder, Color, DrawingArea, IntoDrawingArea, LineSeries, PathElement, RGBColor, SVGBackend,
    SeriesLabelPosition, WHITE,
};

use crate::record::{Moment, Outcome};

/// Width and height of a picture, and of its panels.
const SIZE: (u32, u32) = (900, 1500);
/// By policy, in the order of [`weir_core::policies::Kind::ALL`]: colours that people who see few can tell apart (Okabe
/// and Ito), and a grey.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(160, 150, 20),
    RGBColor(120, 120, 120),
];

/// A picture that could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw {file}: {cause}: check that its directory can be written")]
pub struct PlotError {
    file: String,
    cause: String,
}

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

/// Draws the outcomes of one scenario into an SVG file.
///
/// # Errors
/// [`PlotError`] if the file cannot be written.
pub fn draw(title: &str, outcomes: &[Outcome], file: &Path) -> Result<(), PlotError> {
    draw_panels(title, outcomes, file)
        .map_err(|cause| PlotError { file: file.display().to_string(), cause: cause.to_string() })
}

fn draw_panels(title: &str, outcomes: &[Outcome], file: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let panels = area.titled(title, ("sans-serif", 20))?.split_evenly((PANELS.len(), 1));
    for (index, (panel, area)) in PANELS.iter().zip(panels).enumerate() {
        let lines: Vec<Vec<(f64, f64)>> = outcomes.iter().map(|outcome| panel.line(&outcome.moments)).collect();
        panel.draw(&lines, outcomes, &area, index == 0)?;
    }
    area.present()?;
    Ok(())
}

impl Panel {
    /// Seconds, and the figure as it is drawn.
    fn line(&self, moments: &[Moment]) -> Vec<(f64, f64)> {
        let drawn = |value: f64| if self.logarithmic { value.max(0.1).log10() } else { value };
        moments.iter().filter_map(|moment| Some((moment.at, drawn((self.of)(moment)?)))).collect()
    }

    fn draw(
        &self,
        lines: &[Vec<(f64, f64)>],
        outcomes: &[Outcome],
        area: &DrawingArea<SVGBackend<'_>, Shift>,
        legend: bool,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let points = || lines.iter().flatten();
        let end = points().map(|(at, _)| *at).fold(1.0, f64::max);
        let low = points().map(|(_, value)| *value).fold(0.0, f64::min);
        let high = points().map(|(_, value)| *value).fold(if self.logarithmic { 1.0 } else { 0.05 }, f64::max) * 1.05;
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, ("sans-serif", 15))
            .margin(8)
            .x_label_area_size(24)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..end, low..high)?;
        let label = |value: &f64| {
            if self.logarithmic {
                format!("{:.3}", 10f64.powf(*value)).trim_end_matches('0').trim_end_matches('.').into()
            } else {
                format!("{value:.2}")
            }
        };
        chart.configure_mesh().x_desc("s").y_labels(6).y_label_formatter(&label).light_line_style(WHITE).draw()?;
        // The first is drawn last, on top of the others.
        for ((line, outcome), colour) in lines.iter().zip(outcomes).zip(COLOURS).rev() {
            let series = LineSeries::new(line.iter().copied(), colour.stroke_width(2));
            chart
                .draw_series(series)?
                .label(outcome.policy)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
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
