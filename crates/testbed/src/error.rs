//! What can go wrong while a world is built. Nothing here is recoverable: a test prints it and fails.

use std::io;
use std::path::Path;
use std::time::Duration;

/// The result of everything fallible in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a part of the world could not be built, changed or asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried, with the object's name.
        action: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A line of an `ip -batch` script failed.
    #[error("`ip {line}` failed in {netns}: {message}")]
    Ip {
        /// The line that failed, or the whole script if `ip` did not say which.
        line: String,
        /// Namespace that the script ran in.
        netns: String,
        /// What `ip` printed.
        message: String,
    },
    /// A program failed.
    #[error("`{command}` failed ({status}): {message}")]
    Command {
        /// Program and arguments.
        command: String,
        /// Exit status.
        status: String,
        /// The end of what it printed.
        message: String,
    },
    /// Something did not happen in time.
    #[error("{what} did not happen within {limit:?}{detail}")]
    Timeout {
        /// What was awaited.
        what: String,
        /// How long.
        limit: Duration,
        /// What was seen instead; empty or starts with a separator.
        detail: String,
    },
    /// A needed program or kernel feature is not on this machine.
    #[error("{what} is missing: {hint}")]
    Missing {
        /// Name of the part.
        what: String,
        /// What to do about it.
        hint: String,
    },
    /// The API server refused a request.
    #[error("{action}: {source}")]
    Api {
        /// The request, with the object's name.
        action: String,
        /// The client's error.
        source: Box<kube::Error>,
    },
    /// The caller asked for something that does not exist or does not fit.
    #[error("{0}")]
    Invalid(String),
    /// A server answered something that is not its protocol.
    #[error("{peer} answered {answer:?}, which is not \"name client-address\"")]
    Answer {
        /// Who was asked.
        peer: String,
        /// The answer.
        answer: String,
    },
}

impl Error {
    /// An I/O error with the action that met it; for `map_err`.
    pub fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::Io { action, source }
    }

    /// The same for errors of the `nix` crate.
    pub(crate) fn nix(action: impl Into<String>) -> impl FnOnce(nix::Error) -> Self {
        let action = action.into();
        move |errno| Self::Io { action, source: errno.into() }
    }

    /// An I/O error about a file.
    pub(crate) fn file(verb: &str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        Self::io(format!("{verb} {}", path.display()))
    }

    /// The kind of an I/O error; `None` for all others.
    #[must_use]
    pub fn io_kind(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Io { source, .. } => Some(source.kind()),
            Self::Ip { .. }
            | Self::Command { .. }
            | Self::Timeout { .. }
            | Self::Missing { .. }
            | Self::Api { .. }
            | Self::Invalid(_)
            | Self::Answer { .. } => None,
        }
    }
}
