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

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::{guard, requirements};

/// Nodes of the demo.
const NODES: u8 = 3;

/// Options of the demo.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Leave the world up afterwards, with commands to look around in it, until Ctrl-C
    #[arg(long)]
    keep: bool,
}

/// Plays the demo and removes everything that it has made, also on Ctrl-C.
///
/// # Errors
/// When this machine cannot run it, or a part of it fails. The error says what to do about it.
pub(crate) fn run(options: Options) -> Result<ExitCode> {
    let programs = requirements::nodes("demo")?;
    guard::supervise(|directory, stop| {
        play::play(options.keep, &programs, directory, stop)?;
        Ok(ExitCode::SUCCESS)
    })
}
