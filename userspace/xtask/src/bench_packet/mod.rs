//! `bench-packet`.

mod claims;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use weir_bench_packet::{Figure, LiveFigure};
use weir_testbed::figures;

use crate::claim::{self, Claim};
use crate::origin::Origin;

/// Options of `bench-packet`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// File for the figures
    #[arg(long, value_name = "FILE", default_value = "target/bench/packet.json")]
    output: PathBuf,
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
    let origin = Origin::of("make bench-packet".into())?;
    let figures = weir_bench_packet::measure()?;
    let live = weir_bench_packet::live()?;
    let claims = claims::of(&figures);
    let holds = claim::print(&claims);
    figures::write(&options.output, &Written { origin, figures, live, claims })?;
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
