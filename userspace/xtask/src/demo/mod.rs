//! `demo`: three edge nodes in network namespaces, real requests from a pod on the first one, and where they go: spread
//! evenly, local first, without local pods, and over the level of the node's machine.
//!
//! The play runs in a child process, see [`crate::guard`]: however it ends, its parent removes what it has made.

pub(crate) mod agent;
mod play;
mod spill;
pub(crate) mod stage;
mod table;
mod traffic;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use weir_testbed::{bpffs, cgroup};

use crate::guard;

/// Nodes of the demo.
const NODES: u8 = 3;

/// Options of the demo.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Leave the world up afterwards, with commands to look around in it, until Ctrl-C
    #[arg(long)]
    keep: bool,
}

/// The programs that the demo shows.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) agent: PathBuf,
    cli: PathBuf,
}

/// Plays the demo and removes everything that it has made, also on Ctrl-C.
///
/// # Errors
/// When this machine cannot run it, or a part of it fails. The error says what to do about it.
pub(crate) fn run(options: Options) -> Result<ExitCode> {
    if !nix::unistd::geteuid().is_root() {
        bail!("the demo makes network namespaces and loads BPF programs, which only root may do: run `sudo make demo`");
    }
    let programs = Programs::find()?;
    bpffs::ensure_mounted().context("the agents pin their maps on bpffs")?;
    cgroup::root().context("the agents attach their socket hooks to a cgroup")?;
    guard::supervise(|directory, stop| {
        play::play(options.keep, &programs, directory, stop)?;
        Ok(ExitCode::SUCCESS)
    })
}

impl Programs {
    /// Those that were built together with this one: they lie beside it.
    pub(crate) fn find() -> Result<Self> {
        let own = std::env::current_exe().context("cannot tell where this program lies")?;
        let find = |name: &str| {
            let path = own.with_file_name(name);
            if !path.is_file() {
                bail!("{} is missing: run `make build` first", path.display());
            }
            Ok(path)
        };
        Ok(Self { agent: find("weir-agent")?, cli: find("weir")? })
    }
}
