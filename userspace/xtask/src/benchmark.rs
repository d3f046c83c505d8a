//! What the benchmarks with a report of their own have in common: results that are kept, and a report that can be written
//! from them again.

use std::fmt::{self, Display};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::de::DeserializeOwned;

/// Measures, unless only the report is asked for, and writes the report of what was kept.
///
/// # Errors
/// As both.
pub(crate) fn run(
    report_only: bool,
    measure: impl FnOnce() -> Result<ExitCode>,
    report: impl FnOnce() -> Result<ExitCode>,
) -> Result<ExitCode> {
    if !report_only {
        let code = measure()?;
        if code != ExitCode::SUCCESS {
            return Ok(code);
        }
    }
    report()
}

/// What an earlier run has kept; None if there was none.
///
/// # Errors
/// When the file cannot be read, or is of another version of this program.
pub(crate) fn kept<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        read => read.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let results = serde_json::from_slice(&text);
    Ok(Some(results.with_context(|| format!("cannot understand {}: remove it", path.display()))?))
}

/// What a reader has to type for the same: a verb of make, and what of it was not as usual.
#[derive(Clone, Debug)]
pub(crate) struct Verb(String);

impl Verb {
    pub(crate) fn new(name: &str) -> Self {
        Self(format!("make {name}"))
    }

    /// With a variable, unless it is `usual`.
    pub(crate) fn unless(self, usual: bool, variable: &str, value: impl Display) -> Self {
        if usual { self } else { Self(format!("{self} {variable}={value}")) }
    }
}

impl Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Values of an option that takes several.
pub(crate) fn listed(values: impl IntoIterator<Item: Display>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(",")
}

/// How an option spells a value.
pub(crate) fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verb_says_only_what_was_not_as_usual() {
        let verb = Verb::new("bench-world").unless(true, "REPS", 5).unless(false, "SERVICES", listed([10, 20]));
        assert_eq!(verb.to_string(), "make bench-world SERVICES=10,20");
    }

    #[test]
    fn results_that_are_not_there_are_none_and_those_of_another_version_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results.json");
        assert_eq!(kept::<Vec<u32>>(&path).unwrap(), None);
        fs::write(&path, "[1, 2]").unwrap();
        assert_eq!(kept::<Vec<u32>>(&path).unwrap(), Some(vec![1, 2]));
        let error = kept::<String>(&path).unwrap_err().to_string();
        assert!(error.contains("results.json: remove it"), "{error}");
    }

    #[test]
    fn a_run_that_failed_leaves_the_report_as_it_is() {
        let failed = || Ok(ExitCode::FAILURE);
        assert_eq!(run(false, failed, || unreachable!("nothing was measured")).unwrap(), ExitCode::FAILURE);
        assert_eq!(run(true, failed, || Ok(ExitCode::SUCCESS)).unwrap(), ExitCode::SUCCESS);
    }

    #[test]
    fn a_run_fails_where_its_report_says_so() {
        let measured = || Ok(ExitCode::SUCCESS);
        assert_eq!(run(false, measured, || Ok(ExitCode::FAILURE)).unwrap(), ExitCode::FAILURE);
    }
}
