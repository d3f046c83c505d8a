//! Programs that are kept: pinned once the verifier has walked them, for the next agent with the same programs and the same maps. Its
//! maps are right sooner than a walk takes.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use aya::programs::ProgramFd;

use crate::error::{Error, Result};
use crate::layout::{MAPS, MapSpec};
use crate::pins::{PinDir, make_directory, pin_names, remove_directory, remove_pin};
use crate::sys;

/// Of the compiled objects, and of what loads them: see build.rs.
const OBJECTS: &str = env!("WEIR_OBJECTS");

/// Files that say whether and how the kernel compiles what it loads, in the first network namespace alone. What it has loaded before stays as
/// it is.
pub const COMPILER: [&str; 2] = ["/proc/sys/net/core/bpf_jit_enable", "/proc/sys/net/core/bpf_jit_harden"];

/// What programs are made of: the compiled objects, the maps that they use by the kernel's numbers, which no other map gets
/// before the machine starts anew, and how the kernel compiles them. Sizes of maps are no matter of their own.
pub(crate) fn made_of(maps: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    // Where it does not tell, that is what it says each time.
    let compiler = COMPILER.map(|path| fs::read_to_string(path).ok());
    (OBJECTS, maps, compiler).hash(&mut hasher);
    hasher.finish()
}

/// The kernel's numbers of the pinned maps, in the order of [`MAPS`].
fn pinned_maps(pins: &PinDir) -> Result<Vec<u32>> {
    let id = |spec: MapSpec| {
        let (fd, _) = pins.open_map(&spec, 0)?;
        Ok(MapSpec::info(fd.as_fd(), &pins.map(spec.name))?.id)
    };
    MAPS.into_iter().map(id).collect()
}

/// Keeps programs that were just loaded. Returns their directory.
///
/// # Errors
/// Those of the file system.
pub(crate) fn keep(pins: &PinDir, loaded: &BTreeMap<String, ProgramFd>) -> Result<PathBuf> {
    let kept = pins.programs(made_of(&pinned_maps(pins)?));
    let unfinished = pins.unfinished_programs();
    forget(&unfinished)?;
    make_directory(&unfinished)?;
    add(&unfinished, loaded)?;
    // All of them or none. What was there lacked some.
    forget(&kept)?;
    fs::rename(&unfinished, &kept).map_err(|e| Error::io(format!("cannot make {}", kept.display()), e))?;
    Ok(kept)
}

/// Keeps programs that were just loaded beside those in a directory.
///
/// # Errors
/// Those of the file system.
pub(crate) fn add(directory: &Path, loaded: &BTreeMap<String, ProgramFd>) -> Result<()> {
    for (name, program) in loaded {
        let path = directory.join(name);
        // An agent that died in between has left some of them.
        remove_pin(&path)?;
        sys::obj_pin(program.as_fd(), &path).map_err(|e| Error::io(format!("cannot pin {}", path.display()), e))?;
    }
    Ok(())
}

/// Whether an agent has kept such a program, of whatever it is made.
///
/// # Errors
/// Those of the file system.
pub(crate) fn has(pins: &PinDir, such: impl Fn(&str) -> bool) -> Result<bool> {
    for directory in pins.all_programs()? {
        if pin_names(&directory)?.iter().any(|name| such(name)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Forgets all programs but those in a directory: nobody loads them any more.
///
/// # Errors
/// Those of the file system.
pub(crate) fn forget_others(pins: &PinDir, directory: &Path) -> Result<()> {
    pins.all_programs()?.iter().filter(|other| *other != directory).try_for_each(|other| forget(other))
}

/// Opens the programs that are kept in a directory; none where it is not there.
///
/// # Errors
/// Those of the file system, and when there are no more file descriptors.
pub(crate) fn open(directory: &Path) -> Result<BTreeMap<String, OwnedFd>> {
    let open = |name: String| {
        let path = directory.join(&name);
        let fd = sys::obj_get(&path, 0).map_err(|e| Error::io(format!("cannot open {}", path.display()), e))?;
        Ok((name, fd))
    };
    pin_names(directory)?.into_iter().map(open).collect()
}

fn forget(directory: &Path) -> Result<()> {
    pin_names(directory)?.iter().try_for_each(|name| remove_pin(&directory.join(name)))?;
    remove_directory(directory)
}
