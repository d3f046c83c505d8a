//! Sections of a report that several benchmarks share: each writes its own, between two comments, and leaves the others.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Puts a section into a file, in place of the one that it has of this name, or at its end.
///
/// # Errors
/// When the file cannot be read or written.
pub(crate) fn put(file: &Path, name: &str, text: &str) -> Result<()> {
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
