//! `bench-packet`.

mod claims;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;
use weir_bench_packet::{Case, Figure, LiveFigure};
use weir_testbed::figures;

use crate::benchmark::{Verb, listed, name_of};
use crate::claim::{self, Claim};
use crate::origin::Origin;

/// Options of `bench-packet`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Only these cases, and no live frames
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_enum)]
    case: Vec<Case>,
    /// File for the figures
    #[arg(long, value_name = "FILE", default_value = "target/bench/packet.json")]
    output: PathBuf,
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
struct Written {
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
    let origin = Origin::of(options.command())?;
    let all = options.case.is_empty();
    let figures = weir_bench_packet::measure(if all { Case::value_variants() } else { &options.case })?;
    let live = if all { weir_bench_packet::live()? } else { Vec::new() };
    let claims = claims::of(&figures);
    let holds = claim::print(&claims);
    figures::write(&options.output, &Written { origin, figures, live, claims })?;
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
