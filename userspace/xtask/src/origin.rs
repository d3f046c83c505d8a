//! Where figures come from.

use std::fmt;
use std::thread;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// What a reader must know of a measurement to judge or repeat it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Origin {
    pub(crate) command: String,
    /// The kernel's release.
    pub(crate) kernel: String,
    /// In UTC, `2026-11-21`.
    pub(crate) date: String,
    /// CPUs of the machine.
    pub(crate) cpus: usize,
}

impl Origin {
    /// Here and today.
    ///
    /// # Errors
    /// As [`kernel`].
    pub(crate) fn of(command: String) -> Result<Self> {
        let date = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
        Ok(Self { command, kernel: kernel()?, date, cpus: thread::available_parallelism().map_or(1, usize::from) })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { command, kernel, date, cpus } = self;
        write!(f, "`{command}`, Linux {kernel}, {cpus} CPUs, {date}")
    }
}

/// The kernel's release.
///
/// # Errors
/// When the kernel does not tell.
pub(crate) fn kernel() -> Result<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").context("cannot tell the kernel's release")?;
    Ok(text.trim().to_owned())
}
