//! Files that are written from others and lie in the tree all the same, since people read them there.

use std::fs;

use crate::programs::root;

/// With this environment variable tests write such files in place of comparing them: `make manifests`.
pub const UPDATE: &str = "WEIR_WRITE_DOCS";

/// Asserts that a file of the tree, named from its root, holds `text`.
///
/// # Panics
/// When it holds something else or cannot be read, and when it is to be written and cannot be.
pub fn assert_current(path: &str, text: &str) {
    let file = root().join(path);
    if std::env::var_os(UPDATE).is_some() {
        fs::write(&file, text).unwrap_or_else(|error| panic!("cannot write {path}: {error}"));
        return;
    }
    let found = fs::read_to_string(&file).unwrap_or_else(|error| panic!("cannot read {path}: {error}"));
    let differs = |(ours, theirs): &(&str, &str)| ours != theirs;
    let first = text.lines().zip(found.lines()).find(differs);
    assert!(found == text, "{path} is not current: run `make manifests`; the first line that differs: {first:?}");
}
