//! `docs/performance.md`: tables of every case, and what must hold of them.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use super::claims;
use super::plan::Figure;
use super::results::{Part, Record, Results};
use super::way::{Backend, Family, Path as To, Proxy, Way};
use crate::claim;
use crate::section;
use crate::spread::Spread;

/// Fewer repetitions are no result.
pub(super) const REPETITIONS: u32 = 5;

/// Writes the report, if the results lack nothing of a whole run. Fails where a claim does not hold.
///
/// # Errors
/// When the file cannot be written.
pub(super) fn write(results: &Results, report: &Path) -> Result<ExitCode> {
    if let Some(lacks) = lacks(results) {
        println!("{} is left as it is: {lacks}", report.display());
    } else {
        let kept = fs::read_to_string(report).map(|before| section::all(&before)).unwrap_or_default();
        let text = format!("{INTRODUCTION}\n{}{kept}", tables(results)?);
        fs::write(report, text).with_context(|| format!("cannot write {}", report.display()))?;
        println!("{}", report.display());
    }
    Ok(claim::exit_code(&claims::of(results)))
}

/// What a whole run has and these results have not: of options, their command has those that were not as usual.
fn lacks(results: &Results) -> Option<String> {
    let repetitions = results.repetitions();
    if repetitions < REPETITIONS {
        return Some(format!("{repetitions} of {REPETITIONS} repetitions"));
    }
    let variables = results.origin.command.split(' ').filter(|word| word.contains('=') && !word.starts_with("REPS="));
    let variables: Vec<&str> = variables.collect();
    (!variables.is_empty()).then(|| format!("measured with {}", variables.join(" ")))
}

/// All tables, also for the terminal.
///
/// # Errors
/// None of a string.
pub(super) fn tables(results: &Results) -> Result<String> {
    let Results { origin, programs, earlier, rate, records } = results;
    let mut text = format!("{origin}; ");
    let mut first = 1;
    for Part { kernel, programs: before, date, records: last } in earlier {
        let others = if before == programs { "" } else { ", of an earlier build of Weir's programs" };
        write!(text, "figures {first} to {last} of {} on Linux {kernel}, {date}{others}; ", records.len())?;
        first = last + 1;
    }
    writeln!(
        text,
        "medians of {}, with the least and the most. A fixed rate is {rate} connections/s.",
        results.repetitions()
    )?;
    claim::table(&mut text, &claims::of(results))?;
    Figure::ALL.into_iter().try_for_each(|figure| table(&mut text, figure, results))?;
    Ok(text)
}

fn table(text: &mut String, figure: Figure, results: &Results) -> Result<()> {
    let mut rows = String::new();
    let (mut any, mut short) = (false, false);
    for path in To::SERVED {
        for backend in Backend::ALL {
            for (family, services) in Family::ALL.into_iter().flat_map(|family| with_each(family, results)) {
                write!(rows, "| {path} | {backend} | {family} | {services} |")?;
                let through = Proxy::ALL.map(|proxy| Way { path, services, proxy });
                for way in [Way::DIRECT, Way::ROUTED].into_iter().chain(through) {
                    let cell = cell(figure, results, way, backend, family);
                    any |= cell.is_some() && way.proxy != Proxy::None;
                    let is_short = results.at(figure, way, backend, family).any(Record::is_short);
                    short |= is_short;
                    write!(rows, " {}{} |", cell.unwrap_or_default(), if is_short { " \\*" } else { "" })?;
                }
                rows.push('\n');
            }
        }
    }
    if !any {
        return Ok(());
    }
    writeln!(text, "\n## {}\n\nIn {}.\n", figure.title(), figure.unit())?;
    write!(text, "| path | backend | family | services | {0} | {0}, by way of the first node |", Proxy::None)?;
    Proxy::ALL.iter().try_for_each(|proxy| write!(text, " {proxy} |"))?;
    writeln!(text, "\n|{}", " --- |".repeat(4 + 2 + Proxy::ALL.len()))?;
    text.push_str(&rows);
    if short {
        text.push_str("\n\\* The machine had no CPU time left for that rate.\n");
    }
    Ok(())
}

fn with_each(family: Family, results: &Results) -> impl Iterator<Item = (Family, u32)> {
    results.services().into_iter().map(move |services| (family, services))
}

/// What a cell says; None where nothing was measured.
fn cell(figure: Figure, results: &Results, way: Way, backend: Backend, family: Family) -> Option<String> {
    let Spread { median, least, most } = results.spread(figure, way, backend, family)?;
    let digits = usize::from(most < 1000.0);
    let mut cell = format!("**{median:.digits$}** ({least:.digits$}-{most:.digits$})");
    if let Some(ratio) = results.to_direct(figure, way, backend, family) {
        // Writing to a string does not fail.
        let _ = write!(cell, "; × {ratio:.2}");
    }
    let failed: u64 = results.at(figure, way, backend, family).map(|record| record.failed).sum();
    if failed > 0 {
        let _ = write!(cell, "; {failed} failed");
    }
    Some(cell)
}

const INTRODUCTION: &str = "# Performance

Connections from end to end: what a service costs beside a connection straight to the pod, with Weir and with real
kube-proxy. `make bench-world` measures all of it and writes this file. Further down is what others have measured and written: a
packet by itself (`make bench-packet`), connections beside a flood (`make bench-flood`) and a pod that is gone
(`make bench-killed-pod`), a cluster in which everything changes (`make soak`). How soon changes are in force is `make bench-sync`'s
to say.

A client outside the cluster reaches two nodes through a router; all of them are network namespaces on one machine. It asks
a service at the first node, by its node port or its cluster IP. The service has one pod, on that node (local) or on the
other one (remote); both nodes run the proxy. Each proxy has two nodes, pods and services of its own and the same Kubernetes
API with so many services. `no service` is the same client and the pod's own address; it reaches a remote pod without the
first node. A proxy cannot: what is reached by way of the first node costs that hop, which is the proxy's as much as a route's, so that
it is measured by itself, too. All are measured in turns, a round forward and the next one backward; who has no turn is stopped. Next to each turn the
same is measured without a service: virtual machines change by a tenth and more from one second to the next, so that what stands
behind `×`, the median of what neighbours have to each other, is nearer to the truth than the quotient of two medians.

* CPU time is that of the whole machine, load included, by /proc/stat, at a fixed rate below what it can do: what a proxy adds is
  the difference to `no service`. Client and servers are on different CPUs then, as on different machines. A
  repetition of this consists of six rounds of a second; of CPU time, which the kernel tells in hundredths of a second, it is their mean.
* Short connections have one HTTP request each, `Connection: close`. `wrk` makes 32 at a time, for three rounds of a second or, sustained, for a
  minute. For so long kube-proxy is measured over IPv4, at node ports with the fewest services alone: a repetition of everything takes more than an hour.
* Requests over open connections are `wrk`'s over 32 of them, a single sender is `iperf3`.
* The time to connect is that of the connections at the fixed rate, as the client sees it.
* *weir host-bypass* is an agent with `--host-bypass` ([ADR 31](adr/0031-host-bypass.md)), which is about local pods alone; it is
  measured where it has to be faster than no service.
* *weir dsr* is an agent with `--external-mode dsr` ([ADR 30](adr/0030-direct-server-return.md)): a remote pod's node answers the client
  itself. It is measured with the fewest services; their number makes no difference to it.
";

#[cfg(test)]
mod tests {
    use super::super::results::tests::{record, results};
    use super::*;

    #[test]
    fn a_table_has_a_row_for_each_way_and_marks_what_was_short_of_cpu() {
        let way = |proxy| Way { path: To::NodePort, services: 10, proxy };
        let mut short = record(Figure::Cpu, way(Proxy::Iptables), Backend::Local, 180.0);
        (short.idle, short.failed) = (0.01, 3);
        let records = vec![
            record(Figure::Cpu, Way::DIRECT, Backend::Local, 100.0),
            record(Figure::Cpu, way(Proxy::Weir), Backend::Local, 125.0),
            record(Figure::Cpu, way(Proxy::Weir), Backend::Local, 126.0),
            short,
        ];
        let text = tables(&results(records)).unwrap();
        let row = "| NodePort | local | IPv4 | 10 | **100.0** (100.0-100.0) |  | **125.5** (125.0-126.0); × 1.25 |  |  | \
                   **180.0** (180.0-180.0); × 1.80; 3 failed \\* |  |\n";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("| ClusterIP | remote | IPv6 | 10 |") && text.contains("had no CPU time left"), "{text}");
        assert!(!text.contains("Gbit/s"), "{text}");
    }

    #[test]
    fn only_a_whole_run_writes_the_report_and_any_fails_where_a_claim_does_not_hold() {
        let directory = tempfile::tempdir().unwrap();
        let report = directory.path().join("performance.md");
        let way = Way { path: To::NodePort, services: 10, proxy: Proxy::Weir };
        let end = |command: &str, repetition, value| {
            let last = Record { repetition, ..record(Figure::Bulk, way, Backend::Local, value) };
            let mut all = results(vec![last]);
            all.origin.command = command.into();
            write(&all, &report).unwrap()
        };
        assert_eq!(end("make bench-world", 4, 100.0), ExitCode::SUCCESS);
        assert_eq!(end("make bench-world CASE=bulk SECONDS=2", 5, 100.0), ExitCode::SUCCESS);
        assert_eq!(end("make bench-world REPS=6 SERVICES=10", 6, 96.0), ExitCode::FAILURE);
        assert!(!report.exists());
        assert_eq!(end("make bench-world REPS=6", 6, 96.0), ExitCode::FAILURE);
        assert!(fs::read_to_string(&report).unwrap().contains("**does not hold**"));
    }

    #[test]
    fn a_reader_is_told_which_kernel_and_programs_each_part_of_the_figures_is_of() {
        let mut all = results(vec![record(Figure::Cpu, Way::DIRECT, Backend::Local, 100.0); 5]);
        let part = |kernel: &str, programs: &str, records| Part {
            kernel: kernel.into(),
            programs: programs.into(),
            date: "2026-11-25".into(),
            records,
        };
        all.earlier = vec![part("6.18.44-1", "", 2), part("6.18.44-2", "a", 4)];
        let parts = "; figures 1 to 2 of 5 on Linux 6.18.44-1, 2026-11-25, of an earlier build of Weir's programs; figures 3 to 4 of 5 on Linux 6.18.44-2, 2026-11-25; medians of";
        let text = tables(&all).unwrap();
        assert!(text.contains(parts), "{text}");
    }

    #[test]
    fn large_numbers_have_no_decimals() {
        let way = Way { path: To::ClusterIp, services: 10, proxy: Proxy::Weir };
        let results = results(vec![record(Figure::Burst, way, Backend::Local, 12_345.6)]);
        let cell = cell(Figure::Burst, &results, way, Backend::Local, Family::V4);
        assert_eq!(cell.as_deref(), Some("**12346** (12346-12346); × 123.46"));
    }
}
