//! Sections of a report that several benchmarks share: each writes its own, between two comments, and leaves the others.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde::Serialize;
use weir_testbed::figures;

use crate::claim::{self, Claim};

/// What a benchmark has found: figures for programs, a section of a report for people.
pub(crate) trait Section: Serialize {
    /// Its name in the report.
    const NAME: &'static str;

    /// What must hold of the figures.
    fn claims(&self) -> &[Claim];

    /// Writes the section. A string takes all of it.
    ///
    /// # Errors
    /// Those of `text`.
    fn write(&self, text: &mut String) -> fmt::Result;

    /// The section.
    fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut text);
        text
    }
}

/// Prints a section and writes its figures; into the report it comes only if the run lacks nothing of a whole one. Fails where a
/// claim does not hold.
///
/// # Errors
/// When a file cannot be read or written.
pub(crate) fn finish<S: Section>(section: &S, output: &Path, report: &Path, lacks: Option<&str>) -> Result<ExitCode> {
    let text = section.text();
    println!("\n{text}");
    figures::write(output, section)?;
    match lacks {
        None => put(report, S::NAME, &text)?,
        Some(lacks) => println!("{} is left as it is: {lacks}", report.display()),
    }
    Ok(claim::exit_code(section.claims()))
}

/// Puts a section into a file, in place of the one that it has of this name, or at its end.
fn put(file: &Path, name: &str, text: &str) -> Result<()> {
    let before = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    fs::write(file, with(&before, name, text)).with_context(|| format!("cannot write {}", file.display()))?;
    println!("{}", file.display());
    Ok(())
}

/// All sections of a text, as they are.
pub(crate) fn all(text: &str) -> String {
    let mut found = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(BEGIN) {
        let section = &rest[at..];
        let name = section[BEGIN.len()..].split(' ').next().unwrap_or_default();
        let end = end_of(name);
        let Some(length) = section.find(&end).map(|at| at + end.len()) else { break };
        found.push('\n');
        found.push_str(&section[..length]);
        found.push('\n');
        rest = &section[length..];
    }
    found
}

const BEGIN: &str = "<!-- begin ";

fn end_of(name: &str) -> String {
    format!("<!-- end {name} -->")
}

fn with(text: &str, name: &str, section: &str) -> String {
    let (begin, end) = (format!("{BEGIN}{name} -->"), end_of(name));
    let section = format!("{begin}\n{}\n{end}", section.trim_end());
    let place = text.find(&begin).and_then(|from| Some((from, from + text[from..].find(&end)? + end.len())));
    match place {
        Some((from, to)) => format!("{}{section}{}", &text[..from], &text[to..]),
        None => format!("{}\n\n{section}\n", text.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Bound;

    #[derive(Serialize)]
    struct Found {
        claims: Vec<Claim>,
    }

    impl Section for Found {
        const NAME: &'static str = "found";

        fn claims(&self) -> &[Claim] {
            &self.claims
        }

        fn write(&self, text: &mut String) -> fmt::Result {
            text.push_str("what was found\n");
            Ok(())
        }
    }

    #[test]
    fn a_run_leaves_its_figures_and_only_a_whole_one_its_section_whether_claims_hold_or_not() {
        let directory = tempfile::tempdir().unwrap();
        let (output, report) = (directory.path().join("found.json"), directory.path().join("report.md"));
        fs::write(&report, "# Report\n").unwrap();
        let claim = |seen| Claim { text: "failed".into(), seen, bound: Bound::AtMost(0.0) };
        let end =
            |seen, lacks| finish(&Found { claims: vec![claim(0.0), claim(seen)] }, &output, &report, lacks).unwrap();

        assert_eq!(end(0.0, Some("1 of 2")), ExitCode::SUCCESS);
        assert_eq!(fs::read_to_string(&report).unwrap(), "# Report\n");
        assert_eq!(end(1.0, None), ExitCode::FAILURE);
        let text = "# Report\n\n<!-- begin found -->\nwhat was found\n<!-- end found -->\n";
        assert_eq!(fs::read_to_string(&report).unwrap(), text);
        let figures: serde_json::Value = serde_json::from_slice(&fs::read(&output).unwrap()).unwrap();
        assert_eq!(figures["claims"][1]["holds"], false);
    }

    #[test]
    fn a_section_comes_last_at_first_and_then_stays_where_it_is() {
        let one = with("# Report\n", "one", "first\n");
        let both = with(&one, "two", "second");
        assert_eq!(
            both,
            "# Report\n\n<!-- begin one -->\nfirst\n<!-- end one -->\n\n<!-- begin two -->\nsecond\n<!-- end two -->\n"
        );
        assert_eq!(with(&both, "one", "again"), both.replace("first", "again"));
    }

    #[test]
    fn a_new_report_takes_the_sections_of_the_old_one_along() {
        let old = with(&with("# Report\n", "one", "first"), "two", "second");
        let new = format!("# Report\n\nof today\n{}", all(&old));
        assert_eq!(with(&with(&new, "one", "first"), "two", "second"), new);
        assert!(new.contains("first") && new.contains("second"), "{new}");
        assert_eq!(all("# Report\n"), "");
    }
}
