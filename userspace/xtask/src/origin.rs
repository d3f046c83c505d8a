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
    /// What they are, as the kernel calls them. Empty where it does not, or where nobody asked.
    #[serde(default)]
    pub(crate) model: String,
}

impl Origin {
    /// Here and today.
    ///
    /// # Errors
    /// As [`kernel`].
    pub(crate) fn of(command: String) -> Result<Self> {
        let date = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        Ok(Self { command, kernel: kernel()?, date, cpus, model: model()? })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { command, kernel, date, cpus, model } = self;
        let model = if model.is_empty() { String::new() } else { format!(" ({model})") };
        write!(f, "`{command}`, Linux {kernel}, {cpus} CPUs{model}, {date}")
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

/// What the first CPU is: each architecture's kernel writes its own lines, and not all have this one.
fn model() -> Result<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").context("cannot tell what CPUs these are")?;
    Ok(model_of(&text).unwrap_or_default().to_owned())
}

fn model_of(cpuinfo: &str) -> Option<&str> {
    let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(name, _)| name.trim() == "model name").map(|(_, model)| model.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_is_told_which_cpus_figures_are_of_where_the_kernel_says_so() {
        let text =
            "processor\t: 0\nmodel\t\t: 167\nmodel name\t: Fast(R) One\n\nprocessor\t: 1\nmodel name\t: another\n";
        let known = Origin { cpus: 2, model: model_of(text).unwrap().into(), ..Origin::default() };
        assert!(known.to_string().contains("2 CPUs (Fast(R) One), "), "{known}");
        assert_eq!(model_of("processor\t: 0\nBogoMIPS\t: 50.00\n"), None);
        let unknown = Origin { cpus: 2, ..Origin::default() };
        assert!(unknown.to_string().contains("2 CPUs, "), "{unknown}");
    }
}
