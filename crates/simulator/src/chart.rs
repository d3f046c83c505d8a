//! Charts as SVG files: panels below each other, a line in each of them for everybody that is compared.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::{
    ChartBuilder, Color, DrawingArea, IntoDrawingArea, LineSeries, PathElement, RGBColor, SVGBackend,
    SeriesLabelPosition, WHITE,
};

/// By line; colours that people who see few can tell apart (Okabe and Ito), and a grey.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
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

/// One of the panels.
#[derive(Clone, Debug)]
pub struct Panel<'a> {
    /// What it shows.
    pub title: &'a str,
    /// What is below it.
    pub across: Across<'a>,
    /// Upper end of its scale.
    pub high: f64,
    /// What stands beside its scale.
    pub label: fn(f64) -> String,
    /// Its lines, at most eight, in the order of the legend.
    pub lines: Vec<Line>,
}

/// What is below a panel.
#[derive(Clone, Copy, Debug)]
pub enum Across<'a> {
    /// Seconds, from 0 to the last point.
    Seconds,
    /// Places 0, 1, 2, ... with nothing between two.
    Places {
        /// What they are.
        axis: &'a str,
        /// Their names.
        names: &'a [String],
    },
}

/// A line.
#[derive(Clone, Debug)]
pub struct Line {
    /// Whose it is.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<Point>,
}

/// A point of a line.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// From the left.
    pub x: f64,
    /// On the panel's scale.
    pub y: f64,
    /// The least and the most of what `y` is the median of.
    pub spread: Option<(f64, f64)>,
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Draws panels into a file, of that width and height. The first panel has the legend.
///
/// # Errors
/// [`PlotError`] if the file cannot be written.
pub fn draw(title: &str, panels: &[Panel<'_>], size: (u32, u32), file: &Path) -> Result<(), PlotError> {
    draw_all(title, panels, size, file)
        .map_err(|cause| PlotError { file: file.display().to_string(), cause: cause.to_string() })
}

fn draw_all(title: &str, panels: &[Panel<'_>], size: (u32, u32), file: &Path) -> Drawn {
    let area = SVGBackend::new(file, size).into_drawing_area();
    area.fill(&WHITE)?;
    let areas = area.titled(title, ("sans-serif", 20))?.split_evenly((panels.len(), 1));
    for (index, (panel, area)) in panels.iter().zip(areas).enumerate() {
        panel.draw(&area, index == 0)?;
    }
    area.present()?;
    Ok(())
}

impl Panel<'_> {
    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>, legend: bool) -> Drawn {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let low = points().map(|point| point.y).fold(0.0, f64::min);
        let (axis, below, dots, names): (_, _, _, &[String]) = match self.across {
            Across::Seconds => ("s", 0.0..points().map(|point| point.x).fold(1.0, f64::max), 0, &[]),
            Across::Places { axis, names } => (axis, -0.5..names.len() as f64 - 0.5, 3, names),
        };
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, ("sans-serif", 15))
            .margin(8)
            .x_label_area_size(36)
            .y_label_area_size(60)
            .build_cartesian_2d(below, low..self.high)?;
        let name_at = |at: &f64| {
            let named = names.iter().enumerate().find(|(index, _)| (*index as f64 - at).abs() < 0.01);
            named.map(|(_, name)| name.clone()).unwrap_or_default()
        };
        let label = |value: &f64| (self.label)(*value);
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(axis).y_labels(6).y_label_formatter(&label).light_line_style(WHITE);
        if !names.is_empty() {
            mesh.x_labels(2 * names.len() + 1).x_label_formatter(&name_at);
        }
        mesh.draw()?;
        // The first is drawn last, on top of the others.
        for (line, colour) in self.lines.iter().zip(COLOURS).rev() {
            let series = LineSeries::new(line.points.iter().map(|point| (point.x, point.y)), colour.stroke_width(2));
            chart
                .draw_series(series.point_size(dots))?
                .label(&line.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
            let spreads = line.points.iter().filter_map(|point| Some((point.x, point.spread?)));
            let bar = |(x, (least, most))| PathElement::new([(x, least), (x, most)], colour.stroke_width(1));
            chart.draw_series(spreads.map(bar))?;
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
