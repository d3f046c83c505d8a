//! What `weir doctor` asks of this crate: whether the kernel takes the programs, and whose programs are at an interface.

use std::os::fd::AsFd;

use aya::programs::SchedClassifier;
use aya::programs::tc::TcAttachType;
use weir_core::ops::Capacity;

use crate::capabilities;
use crate::error::{Error, Result};
use crate::layout::MAPS;
use crate::objects::{self, OBJECTS, load_program};
use crate::sys;

/// The smallest maps that the options allow: these ones live for as long as it takes to load the programs.
const SMALL: Capacity = Capacity {
    services: 16,
    backends: 16,
    lines: 16,
    frontends: 16,
    nodes: 16,
    flows: 1024,
    openings: 1024,
    sockets: 1024,
    affinities: 1024,
    source_ranges: 16,
    held_pieces: 0,
};

/// Names of the programs at an interface, as far as the kernel keeps them, in the order in which they run.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Attached {
    /// Those of what comes in.
    pub ingress: Vec<String>,
    /// Those of what leaves.
    pub egress: Vec<String>,
}

/// Names of the capabilities that this process lacks to load and attach programs, joined; empty if it has all.
#[must_use]
pub fn missing_capabilities() -> String {
    capabilities::missing()
}

/// The agent's option that sets the size of a map; none of one whose size is fixed, or of no map of ours.
#[must_use]
pub fn size_option(map: &str) -> Option<&'static str> {
    MAPS.iter().find(|spec| spec.name == map).map(|spec| spec.option).filter(|option| !option.is_empty())
}

/// Loads every program on maps of its own, and lets go of all of it: what this kernel's verifier and helpers have to say,
/// before anything is attached. Returns the number of programs.
///
/// # Errors
/// The first program that the kernel refuses, with the verifier's words.
pub fn check_programs() -> Result<usize> {
    let mut count = 0;
    let mut loader = objects::loader();
    for spec in MAPS {
        if let Some(entries) = spec.entries(&SMALL) {
            loader.map_max_entries(spec.name, entries);
        }
    }
    for object in OBJECTS {
        for (name, program) in object.load(&mut loader)?.programs_mut() {
            load_program(object.name, name, program)?;
            count += 1;
        }
    }
    Ok(count)
}

/// The programs in the tcx lists of an interface of the caller's network namespace; none before Linux 6.6, which has no such
/// lists. It takes CAP_SYS_ADMIN.
///
/// # Errors
/// [`Error::Capability`] without that, and when the kernel does not tell for another reason.
pub fn attached_programs(interface: &str) -> Result<Attached> {
    let listed = |direction| match SchedClassifier::query_tcx(interface, direction) {
        Ok((_, found)) => Ok(found.iter().map(|info| String::from_utf8_lossy(info.name()).into_owned()).collect()),
        // The kernel does not know the question.
        Err(error) if says(&error, libc::EINVAL) => Ok(Vec::new()),
        Err(error) if says(&error, libc::EPERM) => {
            Err(Error::Capability { action: format!("cannot list the programs at {interface}") })
        }
        Err(error) => {
            let action = format!("cannot list the programs at {interface}: {error}");
            Err(Error::Object { object: "the interface", reason: action })
        }
    };
    Ok(Attached { ingress: listed(TcAttachType::Ingress)?, egress: listed(TcAttachType::Egress)? })
}

/// Whether an error goes back to one of the kernel.
fn says(error: &(dyn std::error::Error + 'static), number: i32) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<std::io::Error>().is_some_and(|io| io.raw_os_error() == Some(number)) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The name of a program by its number in the kernel. It takes CAP_SYS_ADMIN.
///
/// # Errors
/// [`Error::Capability`] without that; when there is none of this number, or the kernel does not tell.
pub fn program_name(id: u32) -> Result<String> {
    let info = sys::program_by_id(id).and_then(|fd| sys::program_info(fd.as_fd()));
    let info = info.map_err(|e| Error::io(format!("cannot inspect program {id}"), e))?;
    let name: Vec<u8> = info.name.iter().map(|letter| letter.to_ne_bytes()[0]).take_while(|byte| *byte != 0).collect();
    Ok(String::from_utf8_lossy(&name).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_that_can_be_larger_names_the_option() {
        assert_eq!(size_option("flows6"), Some("--max-flows"));
        assert_eq!((size_option("config"), size_option("nothing")), (None, None));
    }
}
