//! `bench-packet`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

/// Options of `bench-packet`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// File for the figures
    #[arg(long, value_name = "FILE", default_value = "target/bench/packet.json")]
    output: PathBuf,
}

/// Runs the benchmark.
pub(crate) fn run(options: Options) -> Result<ExitCode> {
    let Options { output } = options;
    weir_bench_packet::run(&output)?;
    Ok(ExitCode::SUCCESS)
}
