//! A section of `docs/performance.md`: the flood, who got through beside it, and whence failures came.

use std::fmt::{self, Write};
use std::path::Path;

use anyhow::Result;

use super::counts::Counts;
use super::{Case, Figures};
use crate::origin::Origin;
use crate::{claim, section};

/// Its name in the file.
const NAME: &str = "flood";

/// Puts the section into the report.
///
/// # Errors
/// When the file cannot be read or written.
pub(super) fn keep(report: &Path, text: &str) -> Result<()> {
    section::put(report, NAME, text)
}

/// The section.
pub(super) fn section(figures: &Figures) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write_section(&mut text, figures);
    text
}

fn write_section(text: &mut String, figures: &Figures) -> fmt::Result {
    let Figures { origin, cases, claims } = figures;
    let Origin { command, kernel, date, cpus } = origin;
    writeln!(text, "## Beside a flood of SYNs\n")?;
    writeln!(
        text,
        "`{command}`, Linux {kernel}, {cpus} CPUs, {date}. One CPU sends SYNs of random sources to the service as"
    )?;
    writeln!(
        text,
        "fast as it can. A client has connections to it that stay open, and makes new ones with a request each."
    )?;
    claim::table(text, claims)?;
    writeln!(text, "\n| | SYNs | a second | open, broken | new, failed | median | 99 % |")?;
    writeln!(text, "| --- | --- | --- | --- | --- | --- | --- |")?;
    cases.iter().try_for_each(|case| row(text, case))?;
    writeln!(text, "\n| | what was counted meanwhile |\n| --- | --- |")?;
    for case in cases {
        let Case { reasons, client, endpoint, node, .. } = case;
        for (who, counts) in [("failures", reasons), ("client", client), ("endpoint", endpoint), ("node", node)] {
            if !counts.is_empty() {
                writeln!(text, "| {}, {who} | {} |", case.name(), list(counts))?;
            }
        }
    }
    Ok(())
}

fn row(text: &mut String, case: &Case) -> fmt::Result {
    let Case { syns, syns_per_second, open, broken, answered, failed, median_ms, p99_ms, .. } = case;
    let (name, new) = (case.name(), answered + failed);
    writeln!(
        text,
        "| {name} | {syns} | {syns_per_second:.0} | {open}, {broken} | {new}, {failed} | {median_ms:.1} ms | {p99_ms:.0} ms |"
    )
}

fn list(counts: &Counts) -> String {
    let each: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    each.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_has_a_row_and_a_line_for_each_who_counted_something() {
        let case = Case {
            family: 6,
            backend: "remote",
            syns: 1000,
            syns_per_second: 500.0,
            open: 10,
            broken: 0,
            answered: 99,
            failed: 1,
            median_ms: 1.25,
            p99_ms: 40.0,
            reasons: Counts::from([("timed out".into(), 1)]),
            client: Counts::new(),
            endpoint: Counts::from([("SyncookiesFailed".into(), 2), ("SyncookiesSent".into(), 3)]),
            node: Counts::new(),
        };
        let text = section(&Figures {
            origin: Origin::default(),
            claims: super::super::claims(std::slice::from_ref(&case)),
            cases: vec![case],
        });
        for line in [
            "| IPv6, remote | 1000 | 500 | 10, 0 | 100, 1 | 1.2 ms | 40 ms |",
            "| IPv6, remote, failures | timed out 1 |",
            "| IPv6, remote, endpoint | SyncookiesFailed 2, SyncookiesSent 3 |",
            "| percent of the new connections that succeed, in the worst case | at least 99.00 | 99.00 | holds |",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("client |"), "{text}");
    }
}
