//! `bench-packet`.

mod claims;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;
use weir_bench_packet::{Case, Figure, LiveFigure};

use crate::benchmark::{Verb, listed, name_of};
use crate::claim::Claim;
use crate::origin::Origin;
use crate::section;

/// Options of `bench-packet`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Only these cases, and no live frames
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_enum)]
    case: Vec<Case>,
    /// File for the figures
    #[arg(long, value_name = "FILE", default_value = "target/bench/packet.json")]
    output: PathBuf,
    /// Where a whole run leaves its table
    #[arg(long, value_name = "FILE", default_value = "docs/performance.md")]
    report: PathBuf,
}

impl Options {
    /// What the reader has to type for the same.
    fn command(&self) -> String {
        let cases = listed(self.case.iter().map(name_of));
        Verb::new("bench-packet").unless(cases.is_empty(), "CASE", cases).to_string()
    }
}

/// What is written.
#[derive(Debug, Serialize)]
struct Figures {
    origin: Origin,
    figures: Vec<Figure>,
    live: Vec<LiveFigure>,
    claims: Vec<Claim>,
}

/// Measures, prints and writes the figures. Fails where one of the bars is missed.
///
/// # Errors
/// Without root, or when a packet does not come out as it should.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let Options { case, output, report } = options;
    let origin = Origin::of(options.command())?;
    let all = case.is_empty();
    let figures = weir_bench_packet::measure(if all { Case::value_variants() } else { case })?;
    let live = if all { weir_bench_packet::live()? } else { Vec::new() };
    let claims = claims::of(&figures);
    let lacks = (!all).then(|| format!("only {}", listed(case.iter().map(name_of))));
    section::finish(&Figures { origin, figures, live, claims }, output, report, lacks.as_deref())
}
