//! The key of agents that talk to each other, in worlds of their own.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Writes it to a file. It is no secret: nobody else can reach these nodes.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn write(file: &Path) -> Result<()> {
    fs::write(file, format!("{:064x}\n", 0x5eed)).with_context(|| format!("cannot write {}", file.display()))
}
