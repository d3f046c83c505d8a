//! Files that are followed: read again when they change or when asked to. What they last said stays in force while they
//! cannot be read.

mod changes;

use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

pub(crate) use changes::Changes;
pub use changes::FollowError;

/// What is wrong with a file, and where.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct FileError {
    /// Line, from 1; 0 if the mistake has no place.
    pub line: u64,
    /// Column in characters, from 1; 0 if the mistake has no place.
    pub column: u64,
    /// What is wrong, with the field's name.
    pub message: String,
}

impl FileError {
    pub(crate) fn at(location: serde_saphyr::Location, message: impl Into<String>) -> Self {
        Self { line: location.line(), column: location.column(), message: message.into() }
    }
}

fn says_nothing(text: &str) -> bool {
    text.lines().all(|line| matches!(line.trim(), "" | "---") || line.trim().starts_with('#'))
}

/// Values in a file: as many as all Services and endpoints that the maps may hold are written with, several times over.
const MOST_VALUES: usize = 8_000_000;

/// The library's bounds are for small files of strangers. A file may name the same health check at each of its services; how much all aliases stand for is
/// bounded in any case.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_nodes: MOST_VALUES,
            max_events: 2 * MOST_VALUES,
            max_total_scalar_bytes: 512 << 20,
            enforce_alias_anchor_ratio: false,
        },
    }
}

/// The form of a YAML text. A file that is being written is empty for a moment, which must not take everything away:
/// `nothing` is how its owner says that nothing is wanted.
pub(crate) fn from_yaml<T: DeserializeOwned>(text: &str, nothing: &str) -> Result<T, FileError> {
    if says_nothing(text) {
        let message = format!("the file is empty (write `{nothing}` for none)");
        return Err(FileError { line: 1, column: 1, message });
    }
    serde_saphyr::from_str_with_options(text, options()).map_err(|error| {
        let location = error.location().unwrap_or(serde_saphyr::Location::UNKNOWN);
        // The line and column stand before the message already; the snippet does not fit into a log line.
        let text = error.without_snippet().to_string();
        let place = format!(" at line {}, column {}", location.line(), location.column());
        FileError::at(location, text.replace(&place, ""))
    })
}

/// A file as it was last read.
pub(crate) struct Source {
    path: PathBuf,
    /// What it holds, for the log.
    what: &'static str,
    /// The text that is in force.
    text: Option<String>,
    /// The mistake that the log knows of.
    told: Option<String>,
}

/// What reading a file brought.
#[derive(Debug)]
pub enum Reading<T> {
    /// Something else than before.
    New(T),
    /// What is in force already.
    Known,
    /// It is missing or wrong: what it said before stays in force. With the file's name and the mistake.
    Refused(String),
}

impl Source {
    /// A file that was never read, or that held this text.
    pub(crate) const fn new(path: PathBuf, what: &'static str, text: Option<String>) -> Self {
        Self { path, what, text, told: None }
    }

    /// Lets the log hear of a mistake again that it knows.
    pub(crate) fn asked(&mut self) {
        self.told = None;
    }

    /// Reads the file. The log hears of a mistake once, and that it is gone.
    pub(crate) async fn read<T>(&mut self, parse: impl FnOnce(&str) -> Result<T, FileError>) -> Reading<T> {
        let known = self.text.as_ref();
        let read = text_of(&self.path).await.and_then(|text| {
            // It is looked at every few seconds, and may be long.
            let said = if known == Some(&text) { None } else { Some(meaning(&self.path, &text, parse)?) };
            Ok((text, said))
        });
        let (text, said) = match read {
            Ok(read) => read,
            Err(error) => {
                if self.told.as_ref() != Some(&error) {
                    let (what, kept) = (self.what, self.text.is_some());
                    tracing::error!(%error, kept, "the file of {what} is refused; what it said before stays in force");
                    self.told = Some(error.clone());
                }
                return Reading::Refused(error);
            }
        };
        if self.told.take().is_some() {
            tracing::info!(file = %self.path.display(), "the file of {} is good again", self.what);
        }
        let Some(said) = said else { return Reading::Known };
        self.text = Some(text);
        Reading::New(said)
    }
}

/// What a file holds, and what it means.
pub(crate) async fn load<T>(
    path: &Path,
    parse: impl FnOnce(&str) -> Result<T, FileError>,
) -> Result<(String, T), String> {
    let text = text_of(path).await?;
    let said = meaning(path, &text, parse)?;
    Ok((text, said))
}

async fn text_of(path: &Path) -> Result<String, String> {
    let (file, shown) = (path.to_owned(), path.display());
    let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(file)).await;
    read.unwrap_or_else(|cause| Err(io::Error::other(cause))).map_err(|cause| format!("{shown}: {cause}"))
}

fn meaning<T>(path: &Path, text: &str, parse: impl FnOnce(&str) -> Result<T, FileError>) -> Result<T, String> {
    parse(text).map_err(|cause| format!("{}: {cause}", path.display()))
}
