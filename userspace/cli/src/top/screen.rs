//! How `weir top` looks. On a small terminal columns go from the right, and sections from below.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Clear, Paragraph, Row, Table};

use super::keys::{Choices, HELP};
use super::model::{Board, NodeRow, RefusalRow, ServiceRow, Sort, arranged};
use crate::weights::{milliseconds, percent};

/// What stands where nothing is known.
const UNKNOWN: &str = "-";
/// Cells of a full bar.
const BAR: u16 = 20;
/// Cells between two columns.
const GAP: u16 = 2;
/// Lines for nodes and for reasons, their headings included, where there is room for all.
const MOST_NODES: usize = 9;
const MOST_REASONS: usize = 6;
/// Lines that services get before reasons, and before nodes.
const LEAST_SERVICES: usize = 4;
/// From here on a node is nearly full, and full.
const BUSY: f64 = 0.6;
const FULL: f64 = 0.85;

/// Everything that is drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Picture<'a> {
    pub(crate) board: &'a Board,
    pub(crate) choices: &'a Choices,
    /// Why the maps cannot be read now: what is shown is of before.
    pub(crate) trouble: Option<&'a str>,
    /// Whether there may be colours.
    pub(crate) colored: bool,
}

/// A column of a table.
struct Column<T> {
    name: &'static str,
    /// In cells; 0 takes what is left.
    width: u16,
    right: bool,
    /// What it is the column of, to mark the one that rows are sorted by.
    sort: Option<Sort>,
    cell: fn(&T, &Picture<'_>) -> Line<'static>,
}

impl Picture<'_> {
    /// Draws it all.
    pub(crate) fn draw(&self, frame: &mut Frame<'_>) {
        let warning = self.warning();
        let area = frame.area();
        let room = usize::from(area.height).saturating_sub(2 + usize::from(warning.is_some()));
        let [nodes, reasons] = self.heights(room);
        let lines = Constraint::Length;
        let warned = u16::from(warning.is_some());
        let heights = [lines(1), lines(warned), lines(nodes), Constraint::Min(0), lines(reasons), lines(1)];
        let [top, second, nodes, services, reasons, bottom] = Layout::vertical(heights).areas(area);
        frame.render_widget(Paragraph::new(self.title()), top);
        if let Some(warning) = warning {
            frame.render_widget(Paragraph::new(warning), second);
        }
        self.table(frame, nodes, &NODES, &self.board.nodes.iter().collect::<Vec<_>>(), Self::node_style);
        self.services(frame, services);
        self.table(frame, reasons, &REFUSALS, &self.board.refusals.iter().collect::<Vec<_>>(), Self::refusal_style);
        frame.render_widget(Paragraph::new(self.footer()), bottom);
        if self.choices.help {
            self.help(frame, area);
        }
    }

    /// Lines for nodes and for reasons.
    fn heights(&self, room: usize) -> [u16; 2] {
        // A heading, the rows, and an empty line.
        let wanted = |rows: usize, most: usize| if rows == 0 { 0 } else { (rows + 2).min(most) };
        let nodes = wanted(self.board.nodes.len(), MOST_NODES).min(room.saturating_sub(LEAST_SERVICES));
        let reasons = wanted(self.board.refusals.len(), MOST_REASONS).min(room.saturating_sub(nodes + LEAST_SERVICES));
        // A heading alone tells nothing.
        [nodes, reasons].map(|lines| u16::try_from(lines).unwrap_or(u16::MAX)).map(|n| if n < 2 { 0 } else { n })
    }

    fn services(&self, frame: &mut Frame<'_>, area: Rect) {
        let Choices { sort, reversed, filter, scroll, .. } = self.choices;
        let rows = arranged(&self.board.services, *sort, *reversed, filter);
        if rows.is_empty() {
            let text = if filter.is_empty() { "no services on this node" } else { "no service has this text" };
            frame.render_widget(Paragraph::new(text), area);
            return;
        }
        let visible = usize::from(area.height).saturating_sub(2).max(1);
        let first = (*scroll).min(rows.len().saturating_sub(visible));
        self.table(frame, area, &SERVICES, &rows[first..], Self::service_style);
    }

    fn table<T>(
        &self,
        frame: &mut Frame<'_>,
        area: Rect,
        columns: &[Column<T>],
        rows: &[&T],
        style: fn(&Self, &T) -> Style,
    ) {
        if area.height == 0 || rows.is_empty() {
            return;
        }
        let columns = fitting(columns, area.width);
        let widths = columns.iter().map(|column| match column.width {
            0 => Constraint::Fill(1),
            width => Constraint::Length(width),
        });
        let aligned = |line: Line<'static>, right: bool| Cell::from(if right { line.right_aligned() } else { line });
        let heading = |column: &&Column<T>| {
            let mark = if column.sort == Some(self.choices.sort) { "*" } else { "" };
            aligned(Line::from(format!("{}{mark}", column.name)), column.right)
        };
        let header = Row::new(columns.iter().map(heading)).style(Style::new().add_modifier(Modifier::BOLD));
        let last = usize::from(area.height).saturating_sub(2).max(1);
        let body = rows.iter().take(last).map(|row| {
            let cells = columns.iter().map(|column| aligned((column.cell)(row, self), column.right));
            Row::new(cells).style(style(self, row))
        });
        frame.render_widget(Table::new(body, widths).header(header).column_spacing(GAP), area);
    }

    fn title(&self) -> Line<'static> {
        let Board { here, services, nodes, .. } = self.board;
        let sum = |value: fn(&ServiceRow) -> Option<f64>| {
            let known: Vec<f64> = services.iter().filter_map(value).collect();
            (!known.is_empty()).then(|| known.iter().sum::<f64>())
        };
        let (flows, failed) = (sum(|row| row.flows), sum(|row| row.failed));
        let left = sum(|row| Some(row.flows? * (1.0 - row.local?)));
        let spill = left.zip(flows).filter(|(_, flows)| *flows > 0.0).map(|(left, flows)| left / flows);
        let open: u64 = services.iter().map(|row| row.open).sum();
        let name = here.clone().unwrap_or_else(|| "this node".to_owned());
        let text = format!(
            "  {} nodes, {} service ports, {} flows/s, {} % spilled, {open} open, {} failed/s",
            nodes.len(),
            services.len(),
            number(flows),
            spill.map_or_else(|| UNKNOWN.to_owned(), percent),
            number(failed),
        );
        let mut spans = vec![Span::styled(name, Style::new().add_modifier(Modifier::BOLD)), Span::raw(text)];
        if self.choices.paused {
            spans.push(Span::styled("  paused", Style::new().add_modifier(Modifier::REVERSED)));
        }
        Line::from(spans)
    }

    fn warning(&self) -> Option<Line<'static>> {
        let text = match (self.trouble, &self.board.silent) {
            (Some(trouble), _) => format!("what you see is old: {trouble}"),
            (None, Some(silent)) => format!("from the maps alone, without load and delays: {silent}"),
            (None, None) => return None,
        };
        Some(Line::styled(text, self.color(Color::Yellow).add_modifier(Modifier::BOLD)))
    }

    fn footer(&self) -> Line<'static> {
        let Choices { filter, typing, .. } = self.choices;
        let mut spans = Vec::new();
        if *typing || !filter.is_empty() {
            let cursor = if *typing { "_" } else { "" };
            let text = format!("filter: {filter}{cursor}");
            spans.push(Span::styled(text, Style::new().add_modifier(Modifier::REVERSED)));
            spans.push(Span::raw("  "));
        }
        spans.push(Span::raw("q quit  ? help  space pause  / filter  sort: f l o e n  r reverse"));
        Line::from(spans)
    }

    fn help(&self, frame: &mut Frame<'_>, area: Rect) {
        let line = |(keys, what): &(&str, &str)| Line::from(format!("  {keys:<22}{what}"));
        let mut lines = vec![
            Line::from("nodes     LEVEL%: CPU or network in use, whichever is more. FLOWS/S, SHARE%:"),
            Line::from("          new flows of this node that go there; at other nodes they are spill"),
            Line::from("services  LOCAL%: new flows that stayed here. FAILED/S: flows that were refused,"),
            Line::from("          dropped or not answered. ENDPOINTS: here, and all"),
            Line::from(""),
        ];
        lines.extend(HELP.iter().map(line));
        frame.render_widget(Clear, area);
        frame.render_widget(Paragraph::new(lines), area);
    }

    fn color(&self, color: Color) -> Style {
        if self.colored { Style::new().fg(color) } else { Style::new() }
    }

    fn node_style(&self, row: &NodeRow) -> Style {
        if row.silent { self.color(Color::Red) } else { Style::new() }
    }

    fn service_style(&self, row: &ServiceRow) -> Style {
        match row.failed {
            Some(failed) if failed > 0.0 => self.color(Color::Yellow),
            Some(_) | None if row.endpoints.1 == 0 => self.color(Color::Yellow),
            Some(_) | None => Style::new(),
        }
    }

    fn refusal_style(&self, row: &RefusalRow) -> Style {
        match row.rate {
            Some(rate) if rate > 0.0 && row.verdict == "dropped" => self.color(Color::Yellow),
            Some(_) | None => Style::new(),
        }
    }

    /// A bar of eighths, full at 1.
    fn bar(&self, level: Option<f64>) -> Line<'static> {
        const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
        let Some(level) = level else { return Line::from("") };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 160")]
        let eighths = (level.clamp(0.0, 1.0) * f64::from(BAR) * 8.0).round() as usize;
        let text = "█".repeat(eighths / 8) + EIGHTHS[eighths % 8];
        let color = if level < BUSY {
            Color::Green
        } else if level < FULL {
            Color::Yellow
        } else {
            Color::Red
        };
        Line::styled(text, self.color(color))
    }
}

/// The columns that there is room for, from the left.
fn fitting<T>(columns: &[Column<T>], width: u16) -> Vec<&Column<T>> {
    // What takes the rest wants this much.
    let least = |column: &Column<T>| if column.width == 0 { 16 } else { column.width };
    let mut used = 0;
    let fits = |column: &&Column<T>| {
        used += least(column) + GAP;
        used <= width + GAP || used == least(column) + GAP
    };
    columns.iter().take_while(fits).collect()
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), |value| format!("{value:.1}"))
}

fn per_cent(value: Option<f64>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), percent)
}

const fn text<T>(name: &'static str, width: u16, cell: fn(&T, &Picture<'_>) -> Line<'static>) -> Column<T> {
    Column { name, width, right: false, sort: None, cell }
}

const fn figure<T>(name: &'static str, width: u16, cell: fn(&T, &Picture<'_>) -> Line<'static>) -> Column<T> {
    Column { name, width, right: true, sort: None, cell }
}

impl<T> Column<T> {
    const fn sorted_by(self, sort: Sort) -> Self {
        let Self { name, width, right, sort: _, cell } = self;
        Self { name, width, right, sort: Some(sort), cell }
    }
}

const NODES: [Column<NodeRow>; 8] = [
    text("NODE", 0, |row, _| Line::from(row.name.clone())),
    text("LEVEL", BAR, |row, picture| picture.bar(row.level)),
    figure("LEVEL%", 6, |row, _| Line::from(per_cent(row.level))),
    figure("FLOWS/S", 9, |row, _| Line::from(number(row.flows))),
    figure("SHARE%", 6, |row, _| Line::from(per_cent(row.share))),
    figure("CPU%", 6, |row, _| Line::from(per_cent(row.cpu))),
    figure("RTT", 8, |row, _| Line::from(row.rtt.map_or_else(|| UNKNOWN.to_owned(), milliseconds))),
    text("", 9, |row, _| {
        Line::from(match (row.here, row.silent) {
            (true, _) => "this node",
            (false, true) => "silent",
            (false, false) => "",
        })
    }),
];

const SERVICES: [Column<ServiceRow>; 7] = [
    text("SERVICE", 0, |row: &ServiceRow, _| Line::from(row.name.clone())).sorted_by(Sort::Name),
    text("PORT", 12, |row, _| Line::from(row.port.clone())),
    figure("FLOWS/S", 9, |row: &ServiceRow, _| Line::from(number(row.flows))).sorted_by(Sort::Flows),
    figure("LOCAL%", 7, |row: &ServiceRow, _| Line::from(per_cent(row.local))).sorted_by(Sort::Local),
    figure("OPEN", 7, |row: &ServiceRow, _| Line::from(row.open.to_string())).sorted_by(Sort::Open),
    figure("FAILED/S", 9, |row: &ServiceRow, _| Line::from(number(row.failed))).sorted_by(Sort::Failed),
    figure("ENDPOINTS", 9, |row, _| Line::from(format!("{}/{}", row.endpoints.0, row.endpoints.1))),
];

const REFUSALS: [Column<RefusalRow>; 4] = [
    text("REASON", 0, |row, _| Line::from(row.reason)),
    text("VERDICT", 10, |row, _| Line::from(row.verdict)),
    figure("PACKETS/S", 9, |row, _| Line::from(number(row.rate))),
    figure("PACKETS", 12, |row, _| Line::from(row.packets.to_string())),
];
