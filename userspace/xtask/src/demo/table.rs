//! What the demo has to show, as text.

use std::time::Duration;

use super::NODES;
use super::traffic::Tally;

/// Width of the phase column.
const WIDTH: usize = 28;

/// The names of the columns.
pub(super) fn header() -> String {
    format!(
        "{:<WIDTH$} {:>10} {:>8} {:>8} {:>6} {:>6} {:>6} {:>5} {:>5} {:>5} {:>7}",
        "PHASE", "REQUESTS/S", "P50 ms", "P99 ms", "NODE1", "NODE2", "NODE3", "CPU1", "CPU2", "CPU3", "ERRORS"
    )
}

/// One phase.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// Its name.
    pub(super) phase: &'static str,
    /// Answers per second.
    pub(super) per_second: f64,
    /// Median latency in milliseconds.
    pub(super) p50_ms: f64,
    /// The latency in milliseconds that 99 of 100 answers stay within.
    pub(super) p99_ms: f64,
    /// The part of the answers that came from each node, 0 to 1.
    pub(super) shares: [f64; NODES as usize],
    /// How much of its machine each node's pods used, 0 to 1; None where there is no limit.
    pub(super) cpu: Option<[f64; NODES as usize]>,
    /// Requests without an answer.
    pub(super) errors: u64,
}

impl Row {
    /// A phase with what it has counted.
    pub(super) fn new(phase: &'static str, tally: &Tally) -> Self {
        Self {
            phase,
            per_second: tally.per_second(),
            p50_ms: tally.quantile_ms(0.5),
            p99_ms: tally.quantile_ms(0.99),
            shares: tally.shares(),
            cpu: None,
            errors: tally.failed(),
        }
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { phase, per_second, p50_ms, p99_ms, shares, cpu, errors } = self;
        write!(f, "{phase:<WIDTH$} {per_second:>10.0} {p50_ms:>8.2} {p99_ms:>8.2}")?;
        for share in shares {
            write!(f, " {:>5.0}%", share * 100.0)?;
        }
        for node in 0..NODES.into() {
            let cpu = cpu.map_or_else(|| "-".to_owned(), |cpu| format!("{:.0}%", cpu[node] * 100.0));
            write!(f, " {cpu:>5}")?;
        }
        write!(f, " {errors:>7}")
    }
}

/// Requests to which something was done.
#[derive(Clone, Debug)]
pub(super) struct Disturbance {
    /// How many of them got an answer.
    pub(super) answered: u64,
    /// How many did not.
    pub(super) failed: u64,
    /// Why not, see [`Tally::reasons`].
    pub(super) reasons: String,
}

impl Disturbance {
    /// What the requests of `tally` met.
    pub(super) fn new(tally: &Tally) -> Self {
        Self { answered: tally.answered(), failed: tally.failed(), reasons: tally.reasons() }
    }
}

impl std::fmt::Display for Disturbance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { answered, failed, reasons } = self;
        write!(f, "{failed} of {} requests failed{reasons}", answered + failed)
    }
}

/// What came after the local pods died.
#[derive(Clone, Copy, Debug)]
pub(super) struct Takeover {
    /// From their death to the first answer from another node.
    pub(super) first_answer: Duration,
    /// From their death to the last failed request; `None` if none failed.
    pub(super) last_failure: Option<Duration>,
}

/// The three lines at the end.
pub(super) fn summary(spread: &Row, local: &Row, restart: &Disturbance, takeover: (Takeover, &Disturbance)) -> String {
    let (Takeover { first_answer, last_failure }, disturbance) = takeover;
    let last = last_failure.map_or_else(String::new, |time| format!(", the last after {} ms", time.as_millis()));
    format!(
        "local first   {:.1} x the requests at 1/{:.0} of the median latency ({:.0}/s, {:.2} ms; spread evenly {:.0}/s, {:.2} ms)\n\
         restart       {NODES} agents restarted under load: {restart}\n\
         takeover      first answer from elsewhere {} ms after the local pods died: {disturbance}{last}",
        ratio(local.per_second, spread.per_second),
        ratio(spread.p50_ms, local.p50_ms),
        local.per_second,
        local.p50_ms,
        spread.per_second,
        spread.p50_ms,
        first_answer.as_millis(),
    )
}

fn ratio(above: f64, below: f64) -> f64 {
    above / below.max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPREAD: Row = Row {
        phase: "spread evenly",
        per_second: 500.0,
        p50_ms: 20.0,
        p99_ms: 25.5,
        shares: [0.33, 0.335, 0.335],
        cpu: None,
        errors: 0,
    };
    const LOCAL: Row = Row {
        phase: "local first",
        per_second: 10_000.0,
        p50_ms: 0.5,
        p99_ms: 2.0,
        shares: [1.0, 0.0, 0.0],
        cpu: Some([0.8, 0.05, 0.0]),
        errors: 7,
    };

    #[test]
    fn every_row_stands_under_the_names_of_the_columns() {
        for row in [SPREAD, LOCAL] {
            assert_eq!(row.to_string().len(), header().len(), "{row}");
        }
        let cells: Vec<_> = LOCAL.to_string().split_whitespace().map(str::to_owned).collect();
        assert_eq!(cells, ["local", "first", "10000", "0.50", "2.00", "100%", "0%", "0%", "80%", "5%", "0%", "7"]);
    }

    #[test]
    fn the_summary_says_what_local_first_gains_and_what_restart_and_takeover_cost() {
        let restart = Disturbance { answered: 900, failed: 0, reasons: String::new() };
        let died = Disturbance { answered: 3990, failed: 10, reasons: " (connection refused)".into() };
        let takeover =
            Takeover { first_answer: Duration::from_millis(80), last_failure: Some(Duration::from_millis(75)) };
        let text = summary(&SPREAD, &LOCAL, &restart, (takeover, &died));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].contains("20.0 x the requests at 1/40 of the median latency"), "{}", lines[0]);
        assert!(lines[1].ends_with("0 of 900 requests failed"), "{}", lines[1]);
        assert!(lines[2].contains("80 ms after"), "{}", lines[2]);
        assert!(
            lines[2].ends_with("10 of 4000 requests failed (connection refused), the last after 75 ms"),
            "{}",
            lines[2]
        );
    }
}
