//! The chart's values as they are documented: the comment above a key is its description.

use std::fmt::Write;

use serde_json::Value;
use weir_testbed::{Error, Result};

/// A key with a comment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Documented {
    /// The keys that lead to it.
    pub path: Vec<String>,
    /// Its comment, in one line.
    pub description: String,
    /// Its default, in JSON. None of a section, whose keys have comments of their own.
    pub default: Option<String>,
}

impl Documented {
    /// Its path, as `--set` has it.
    #[must_use]
    pub fn key(&self) -> String {
        self.path.join(".")
    }
}

/// All keys with comments, in the order of the file.
///
/// # Errors
/// When the file is no YAML.
pub fn documented(text: &str) -> Result<Vec<Documented>> {
    let values = parse(text)?;
    let keys = commented(text);
    let is_section =
        |path: &[String]| keys.iter().any(|(other, _)| other.len() > path.len() && other.starts_with(path));
    let with_default = |(path, description): &(Vec<String>, String)| {
        let default = path.iter().fold(&values, |value, key| &value[key]);
        let default = (!is_section(path)).then(|| default.to_string());
        Documented { path: path.clone(), description: description.clone(), default }
    };
    Ok(keys.iter().map(with_default).collect())
}

/// Keys that no comment describes, neither their own nor one of a key above them that is no section.
///
/// # Errors
/// When the file is no YAML.
pub fn undocumented(text: &str) -> Result<Vec<String>> {
    let known = documented(text)?;
    let mut missing = Vec::new();
    let mut open = vec![(Vec::new(), parse(text)?)];
    while let Some((path, value)) = open.pop() {
        let Value::Object(children) = value else { continue };
        for (key, child) in children {
            let path: Vec<String> = path.iter().cloned().chain([key]).collect();
            match known.iter().find(|one| one.path == path) {
                None => missing.push(path.join(".")),
                Some(Documented { default: Some(_), .. }) => {}
                Some(Documented { default: None, .. }) => open.push((path, child)),
            }
        }
    }
    missing.sort();
    Ok(missing)
}

/// The table of all values, in Markdown.
///
/// # Errors
/// When the file is no YAML.
pub fn table(text: &str) -> Result<String> {
    let mut table = String::from("| value | default | |\n| --- | --- | --- |\n");
    for one in documented(text)? {
        let default = one.default.as_ref().map_or_else(String::new, |default| format!("`{default}`"));
        let cells = [format!("`{}`", one.key()), default, one.description.clone()].map(|cell| cell.replace('|', "\\|"));
        // Writing to a string does not fail.
        let _ = writeln!(table, "| {} |", cells.join(" | "));
    }
    Ok(table)
}

fn parse(text: &str) -> Result<Value> {
    serde_saphyr::from_str(text).map_err(|error| Error::Invalid(format!("not a file of values: {error}")))
}

/// Paths of keys with a comment right above them, and the comments. The file is ours: its keys are plain words, and lists
/// hold no such keys.
fn commented(text: &str) -> Vec<(Vec<String>, String)> {
    let mut found = Vec::new();
    let mut above: Vec<(usize, String)> = Vec::new();
    let mut comment: Vec<&str> = Vec::new();
    for line in text.lines() {
        let content = line.trim_start();
        let indent = line.len() - content.len();
        if let Some(words) = content.strip_prefix('#') {
            comment.push(words.trim());
            continue;
        }
        let key = content.split_once(':').map(|(key, _)| key).filter(|_| !content.starts_with('-'));
        if let Some(key) = key {
            above.retain(|(other, _)| *other < indent);
            above.push((indent, key.to_owned()));
            if !comment.is_empty() {
                found.push((above.iter().map(|(_, key)| key.clone()).collect(), comment.join(" ")));
            }
        }
        comment.clear();
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

    use super::*;

    const VALUES: &str = "\
# Not about any key.

# A section
image:
  # Where it
  # comes from
  name: weir
  tag: \"\"
# One thing | another
limits:
  cpu: 1
  memory: 2Mi
";

    #[test]
    fn a_comment_describes_the_key_below_it_and_all_that_has_no_comment_of_its_own() {
        assert_eq!(
            table(VALUES).unwrap(),
            "| value | default | |\n| --- | --- | --- |\n\
             | `image` |  | A section |\n\
             | `image.name` | `\"weir\"` | Where it comes from |\n\
             | `limits` | `{\"cpu\":1,\"memory\":\"2Mi\"}` | One thing \\| another |\n"
        );
    }

    #[test]
    fn a_key_of_a_section_without_a_comment_is_missed() {
        assert_eq!(undocumented(VALUES).unwrap(), ["image.tag"]);
    }
}
