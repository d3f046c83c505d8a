//! `docs/papers.md`: tables and pictures of all figures that were measured often enough.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::claims;
use super::experiments::{Contender, Figure};
use super::plot;
use super::results::{Record, Results};
use crate::claim;
use crate::spread::Spread;

/// Fewer repetitions are no result.
pub(super) const REPETITIONS: u32 = 3;

/// Writes the report and its pictures, from results in a directory.
///
/// # Errors
/// When results cannot be understood or a file cannot be written.
pub(super) fn write(results: &Path, report: &Path) -> Result<()> {
    let pictures = report.with_extension("");
    let mut text = String::from(INTRODUCTION);
    for figure in Figure::ALL {
        let found = Results::load(results, figure)?.filter(|results| results.repetitions() >= REPETITIONS);
        writeln!(text, "\n## {}\n\n{}", figure.title(), figure.about())?;
        let Some(results) = found else {
            text.push_str("\nNot measured yet.\n");
            continue;
        };
        fs::create_dir_all(&pictures).with_context(|| format!("cannot make {}", pictures.display()))?;
        let picture = pictures.join(picture(figure));
        plot::draw(figure, &results, &picture)?;
        let name = pictures.file_name().unwrap_or_default().to_string_lossy();
        writeln!(text, "\n![{}]({name}/{})\n", figure.title(), self::picture(figure))?;
        section(&mut text, figure, &results)?;
    }
    fs::write(report, text).with_context(|| format!("cannot write {}", report.display()))?;
    println!("{}", report.display());
    Ok(())
}

/// The file name of a figure's picture.
pub(super) fn picture(figure: Figure) -> String {
    format!("figure-{figure}.svg")
}

/// A figure's table, and what must hold of it; also for the terminal.
pub(super) fn section(text: &mut String, figure: Figure, results: &Results) -> Result<()> {
    table(text, figure, results)?;
    claim::table(text, &claims::of(figure, results))?;
    let Results { figure: _, origin, calibration, records: _ } = results;
    writeln!(
        text,
        "\n{origin}; {} repetitions. A node of {} cores by itself: {:.0} requests/s, {:.0} us of its \
         quota for each, and {:.0} us of the generator's.",
        results.repetitions(),
        calibration.cores,
        calibration.rps,
        calibration.server_us,
        calibration.client_us,
    )?;
    Ok(())
}

fn table(text: &mut String, figure: Figure, results: &Results) -> Result<()> {
    let contenders = figure.contenders();
    write!(text, "| {} |", figure.axis())?;
    contenders.iter().try_for_each(|contender| write!(text, " {contender} |"))?;
    writeln!(text, "\n| --- |{}", " --- |".repeat(contenders.len()))?;
    let mut saturated = false;
    for point in figure.points() {
        write!(text, "| {} |", point.x)?;
        for contender in contenders {
            let (cell, mark) = cell(results, &point.x, *contender);
            saturated |= mark;
            write!(text, " {cell}{} |", if mark { " \\*" } else { "" })?;
        }
        text.push('\n');
    }
    text.push_str(
        "\nRequests/s (median, spread); mean and p99 latency in ms (medians); failed requests, if there were any.\n",
    );
    if saturated {
        text.push_str("\n\\* In a repetition the generator used more than 90 % of a core, or the machine had less than 2 % idle time: more load was not to be had.\n");
    }
    Ok(())
}

/// What a cell says, and whether the generator was the bottleneck.
fn cell(results: &Results, x: &str, contender: Contender) -> (String, bool) {
    let of = |field: fn(&Record) -> f64| results.summary(x, contender, field);
    let (Some(rps), Some(mean), Some(p99)) = (of(|r| r.rps), of(|r| r.mean_ms), of(|r| r.p99_ms)) else {
        return ("not measured".into(), false);
    };
    let Spread { median, least, most } = rps;
    let mut cell = format!("**{median:.0}** ({least:.0}-{most:.0}); {:.1}, {:.1}", mean.median, p99.median);
    let failed: u64 = results.at(x, contender).map(|record| record.failed).sum();
    if failed > 0 {
        // Writing to a string does not fail.
        let _ = write!(cell, "; {failed} failed");
    }
    (cell, results.at(x, contender).any(Record::is_saturated))
}

const INTRODUCTION: &str = "# The papers' experiments

Figures of two papers, measured anew: Weir beside the paper's own policy as it is implemented here, and beside real
kube-proxy. `make bench-papers` measures all of it and writes this file.

* **RAP**: Nguyen, Phan, Kim: *RAP: A Light-Weight Resource Adaptive Proxy*, Sensors 2022, 22(8), 2869; policy `rap`.
* **EdgeMesh**: Narawade: *Enhanced EdgeMesh scheduling for KubeEdge*, NCI 2023; policy `nearest-half`.

Four nodes are network namespaces with delay links between them. The pods of a node share a CPU quota, its own capacity; load
generators (`ab`, `hey`), proxies and API server are not in it. A request costs its server a fixed CPU time. Clients are in a
pod on each node and ask for a node port at that node's address, a new connection for each request. Every measurement is
four seconds long after two seconds of the same load; Weir's agents know the delays before it begins. kube-proxy is the real
one, and its connection tracking forgets ended connections after 10 s in place of 120 s: four nodes share one machine's limit.
Proxies take turns: a repetition is one measurement of each point by each of them. Absolute numbers are the machine's; what
counts is who stands where beside whom.
";

#[cfg(test)]
mod tests {
    use super::super::slice::Calibration;
    use super::*;
    use crate::origin::Origin;

    #[test]
    fn a_table_has_a_row_for_each_point_and_marks_where_the_load_was_short_of_cpu() {
        let record = |idle: f64, repetition| Record {
            figure: "6".into(),
            x: "3".into(),
            proxy: "weir".into(),
            policy: "waterfill".into(),
            repetition,
            rps: 1000.0 * f64::from(repetition),
            mean_ms: 1.25,
            p99_ms: 9.5,
            failed: u64::from(repetition),
            generator: 0.5,
            idle,
        };
        let calibration = Calibration { cores: 0.25, rps: 2000.0, server_us: 100.0, client_us: 60.0 };
        let records = vec![record(0.5, 1), record(0.01, 2), record(0.5, 3)];
        let results = Results { figure: "6".into(), origin: Origin::default(), calibration, records };
        let mut text = String::new();
        section(&mut text, Figure::Delay, &results).unwrap();
        let row = "| 3 | **2000** (1000-3000); 1.2, 9.5; 6 failed \\* | not measured | not measured | not measured |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("| 18 | not measured |") && text.contains("more load was not to be had"), "{text}");
        assert!(text.ends_with("and 60 us of the generator's.\n"), "{text}");
    }
}
