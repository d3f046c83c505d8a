//! Exit codes: scripts tell by them what happened.

use std::io;
use std::process::ExitCode;

use weir_datapath::Error as Datapath;

use crate::agent::NoAnswer;
use crate::index::NoSuchService;
use crate::kubectl::NoPod;

/// How a command that ran to its end answers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Answer {
    /// As asked.
    Yes,
    /// Degraded, or nothing of the kind.
    No,
    /// As the same program answered elsewhere: its exit code.
    Of(u8),
}

impl Answer {
    /// Its exit code.
    pub(crate) fn code(self) -> ExitCode {
        match self {
            Self::Yes => ExitCode::SUCCESS,
            Self::No => ExitCode::from(1),
            Self::Of(code) => ExitCode::from(code),
        }
    }
}

/// The exit code of an error; `None` if nobody listens any more, which is no error.
pub(crate) fn code_of(error: &anyhow::Error) -> Option<u8> {
    for cause in error.chain() {
        if cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) {
            return None;
        }
        if cause.is::<NoPod>() {
            return Some(4);
        }
        if cause.is::<NoSuchService>() {
            return Some(1);
        }
        if let Some(silent) = cause.downcast_ref::<NoAnswer>() {
            return Some(match silent {
                NoAnswer::Absent { .. } => 4,
                NoAnswer::Refused { .. } => 3,
            });
        }
        if let Some(datapath) = cause.downcast_ref::<Datapath>() {
            match datapath {
                Datapath::NotSetUp { .. } => return Some(4),
                Datapath::Capability { .. } => return Some(3),
                Datapath::NoBpffs { .. }
                | Datapath::Locked { .. }
                | Datapath::Io { .. }
                | Datapath::Object { .. }
                | Datapath::Layout { .. }
                | Datapath::MapFull { .. }
                | Datapath::NoSlot { .. } => {}
            }
        }
    }
    Some(2)
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn absent_pins_and_missing_rights_have_their_own_codes() {
        let absent = Datapath::NotSetUp { path: "/sys/fs/bpf/weir/maps-v3".into() };
        let refused = Datapath::Capability { action: "cannot open".to_owned() };
        let locked = Datapath::Locked { path: "/sys/fs/bpf/weir".into() };
        let codes = [absent, refused, locked].map(|error| code_of(&anyhow::Error::from(error).context("more")));
        assert_eq!(codes, [Some(4), Some(3), Some(2)]);
    }

    #[test]
    fn a_reader_that_went_away_is_no_error() {
        let broken: anyhow::Result<()> = Err(io::Error::from(io::ErrorKind::BrokenPipe)).context("cannot write");
        assert_eq!(code_of(&broken.unwrap_err()), None);
    }
}
