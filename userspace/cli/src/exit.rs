//! Exit codes: scripts tell by them what happened.

use std::error::Error;
use std::io;
use std::process::ExitCode;

use nix::errno::Errno;
use weir_datapath::{Error as Datapath, missing_capabilities};

use crate::agent::NoAnswer;
use crate::index::NoSuchService;
use crate::kubectl::{NoPod, NotReached};

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

/// An error, said before anything is done, unless this process has the capabilities that Weir needs.
///
/// # Errors
/// [`Datapath::Capability`] with what was to be done.
pub(crate) fn require_rights(action: &str) -> Result<(), Datapath> {
    if missing_capabilities().is_empty() { Ok(()) } else { Err(Datapath::Capability { action: action.to_owned() }) }
}

/// Whether the kernel has refused for want of rights.
fn is_refusal(cause: &(dyn Error + 'static)) -> bool {
    let by_io = cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::PermissionDenied);
    by_io || matches!(cause.downcast_ref::<Errno>(), Some(Errno::EPERM | Errno::EACCES))
}

/// The exit code of an error; `None` if nobody listens any more, which is no error.
pub(crate) fn code_of(error: &anyhow::Error) -> Option<u8> {
    for cause in error.chain() {
        if cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) {
            return None;
        }
        if is_refusal(cause) {
            return Some(3);
        }
        if cause.is::<NoPod>() {
            return Some(4);
        }
        if let Some(on_the_way) = cause.downcast_ref::<NotReached>() {
            return Some(on_the_way.code());
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
    fn what_the_kernel_refuses_is_a_missing_right_whoever_asked_it() {
        let mount: anyhow::Result<()> = Err(Errno::EPERM).context("cannot mount bpf at /sys/fs/bpf: run it as root");
        let file: anyhow::Result<()> = Err(io::Error::from_raw_os_error(libc::EACCES)).context("cannot read /proc/x");
        let other: anyhow::Result<()> = Err(Errno::EBUSY).context("cannot mount bpf at /sys/fs/bpf");
        assert_eq!([mount, file, other].map(|result| code_of(&result.unwrap_err())), [Some(3), Some(3), Some(2)]);
    }

    #[test]
    fn a_reader_that_went_away_is_no_error() {
        let broken: anyhow::Result<()> = Err(io::Error::from(io::ErrorKind::BrokenPipe)).context("cannot write");
        assert_eq!(code_of(&broken.unwrap_err()), None);
    }
}
