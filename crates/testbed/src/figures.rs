//! Figures of a benchmark, for other programs to read.

use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::{Error, Result};

/// Writes figures as JSON, makes the directory if need be, and says where they are.
///
/// # Errors
/// When the file cannot be written.
pub fn write(path: &Path, figures: &impl Serialize) -> Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(Error::file("create", directory))?;
    }
    let text = serde_json::to_vec_pretty(figures).map_err(|error| Error::Invalid(format!("figures: {error}")))?;
    fs::write(path, text).map_err(Error::file("write", path))?;
    println!("{}", path.display());
    Ok(())
}
