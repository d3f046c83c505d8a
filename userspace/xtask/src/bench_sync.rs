//! `bench-sync`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use weir_bench_sync::Scale;

/// Options of `bench-sync`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Number of Services
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    services: u32,
    /// Number of endpoints of each
    #[arg(long, value_name = "N", default_value_t = 10)]
    endpoints: u32,
    /// File for the figures
    #[arg(long, value_name = "FILE", default_value = "target/bench/sync.json")]
    output: PathBuf,
}

/// Runs the benchmark with the agent that was built beside this program.
pub(crate) fn run(options: Options) -> Result<ExitCode> {
    let Options { services, endpoints, output } = options;
    let agent = std::env::current_exe().context("cannot find this program")?.with_file_name("weir-agent");
    weir_bench_sync::run(Scale { services, endpoints }, &agent, &output)?;
    Ok(ExitCode::SUCCESS)
}
