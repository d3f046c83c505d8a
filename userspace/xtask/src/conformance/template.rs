//! Configuration files with blanks: `@NAME@`.

use anyhow::{Result, bail};

/// Fills the blanks of a template.
///
/// # Errors
/// When a blank has no value.
pub(super) fn fill(template: &str, values: &[(&str, &str)]) -> Result<String> {
    let filled =
        values.iter().fold(template.to_owned(), |text, (name, value)| text.replace(&format!("@{name}@"), value));
    let blank =
        filled.lines().filter(|line| !line.trim_start().starts_with('#')).find(|line| line.matches('@').count() > 1);
    match blank {
        Some(line) => bail!("the template has a blank without a value: {line}"),
        None => Ok(filled),
    }
}

#[cfg(test)]
mod tests {
    use super::fill;

    #[test]
    fn every_blank_needs_a_value() {
        assert_eq!(fill("a: @A@\nb: @A@-@B@", &[("A", "1"), ("B", "2")]).unwrap(), "a: 1\nb: 1-2");
        assert!(fill("a: @A@", &[("B", "2")]).unwrap_err().to_string().contains("a: @A@"));
    }
}
