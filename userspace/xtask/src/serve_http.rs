//! `serve-http`: the server of a pod, in a process of its own: one that runs in the control group of its node's machine.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use weir_testbed::serve;

/// Options of the server.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Its name, which its answers begin with
    #[arg(long)]
    name: String,
    /// Where it listens
    #[arg(long)]
    port: u16,
}

/// Serves until it is killed.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    // As many connections as it may have.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    serve::http_here(&options.name, options.port)?;
    Ok(ExitCode::SUCCESS)
}
