//! `serve-http`: the server of a pod, in a process of its own: one that runs in the control group of its node's machine.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use weir_testbed::process::Process;
use weir_testbed::{Pod, serve};

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

/// Starts the server of a pod: a process of its own, which may have as many files as there are connections.
///
/// # Errors
/// When it cannot be started.
pub(crate) fn start(pod: &Pod, port: u16, logs: &Path) -> Result<Process> {
    let own = std::env::current_exe().context("cannot tell where this program lies")?;
    let mut command = pod.netns().command(own);
    command.args(["serve-http", "--name", &pod.name(), "--port", &port.to_string()]);
    Ok(Process::start(command, "the server", &logs.join(format!("{}.log", pod.name())))?)
}
