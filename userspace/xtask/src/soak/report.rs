//! A section of `docs/performance.md`: what happened, what was counted, and what must hold of it.

use std::fmt::{self, Write};
use std::path::Path;

use anyhow::Result;

use super::Figures;
use super::census::Census;
use super::claims::Judged;
use super::traffic::Asked;
use crate::origin::Origin;
use crate::{claim, section};

/// Its name in the file.
const NAME: &str = "soak";
/// Failures that are quoted.
const QUOTED: usize = 20;

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
    let Figures { origin, minutes, asked, done, failures, late, gone: _, nodes, samples: _, claims } = figures;
    let Origin { command, kernel, date, cpus } = origin;
    let Asked { http, udp, lost, lines } = asked;
    writeln!(text, "## {minutes} minutes in which everything changes\n")?;
    writeln!(
        text,
        "`{command}`, Linux {kernel}, {cpus} CPUs, {date}. Two nodes with agents and an API server; a client"
    )?;
    writeln!(
        text,
        "outside and a pod of each node ask all the time, in both families: {http} connections with a request,"
    )?;
    writeln!(
        text,
        "{udp} questions by datagram ({lost} datagrams were sent again), {lines} exchanges over connections that stay."
    )?;
    writeln!(text, "The agent of node 2 was never restarted.")?;
    claim::table(text, claims)?;
    writeln!(text, "\n| meanwhile | |\n| --- | --- |")?;
    done.iter().try_for_each(|(name, count)| writeln!(text, "| {name} | {count} |"))?;
    let at_killed = failures.iter().filter(|judged| judged.pod.is_some()).count();
    writeln!(text, "| requests and connections that were at a pod when it went | {at_killed} |")?;
    writeln!(text, "\n| | node | at first | in the end |\n| --- | --- | --- | --- |")?;
    for [first, last] in nodes {
        let row = |text: &mut String, name: &str, then: u64, now: u64| {
            writeln!(text, "| {name} | {} | {then} | {now} |", first.node)
        };
        row(text, "agent: resident KiB", first.agent.rss_kib, last.agent.rss_kib)?;
        row(text, "agent: of that neither files nor maps", first.agent.own_kib, last.agent.own_kib)?;
        row(text, "agent: open files", first.agent.files as u64, last.agent.files as u64)?;
        row(text, "agent: threads", first.agent.threads, last.agent.threads)?;
        rows(text, first, last, |census| &census.owned)?;
        rows(text, first, last, |census| &census.remembered)?;
    }
    for judged in failures.iter().filter(|judged| judged.pod.is_none()).take(QUOTED) {
        let Judged { failure, pod: _ } = judged;
        writeln!(
            text,
            "\n* {:.1} to {:.1} s, {} of {} at {}: {} ({:?})",
            failure.from, failure.until, failure.what, failure.who, failure.target, failure.error, failure.endpoint
        )?;
    }
    late.iter().take(QUOTED).try_for_each(|late| writeln!(text, "\n* {late}"))
}

type Counts = std::collections::BTreeMap<&'static str, usize>;

fn rows(text: &mut String, first: &Census, last: &Census, of: fn(&Census) -> &Counts) -> fmt::Result {
    of(last).iter().try_for_each(|(name, now)| {
        let then = of(first).get(name).copied().unwrap_or(0);
        writeln!(text, "| {name} | {} | {then} | {now} |", first.node)
    })
}
