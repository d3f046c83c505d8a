//! Maps of another size than is wanted: while their copies are filled, and until every link runs the programs on these, they are pinned in a
//! directory of their own. An agent that ends in between has lost nothing: what serves is still there, and the next one begins anew with it.

use std::fs;
use std::path::Path;

use tracing::warn;

use crate::error::{Error, Result};
use crate::layout::MapSpec;
use crate::pins::{PinDir, make_directory, pin_names, remove_directory, remove_pin};

/// Takes a map out of the way of its copy.
///
/// # Errors
/// Those of the file system.
pub(crate) fn move_aside(pins: &PinDir, spec: &MapSpec) -> Result<()> {
    make_directory(&pins.replaced_maps())?;
    rename(&pins.map(spec.name), &pins.replaced_maps().join(spec.name))
}

/// Puts all of them back, in place of their copies, which were never in force.
///
/// # Errors
/// Those of the file system; the others are put back all the same.
pub(crate) fn put_back(pins: &PinDir) -> Result<()> {
    remove_all(&pins.unused_maps())?;
    let directory = pins.replaced_maps();
    let names = pin_names(&directory)?;
    if !names.is_empty() {
        warn!(
            maps = names.join(" "),
            "going on with maps of the former size: no agent has put the new ones into force"
        );
    }
    let moved: Vec<_> = names.iter().map(|name| rename(&directory.join(name), &pins.map(name))).collect();
    moved.into_iter().collect::<Result<()>>()?;
    remove_directory(&directory)
}

/// Forgets all of them: no link runs programs on them any more. Whoever ends in the midst of this must not have some of them put back.
///
/// # Errors
/// Those of the file system.
pub(crate) fn forget(pins: &PinDir) -> Result<()> {
    rename(&pins.replaced_maps(), &pins.unused_maps())?;
    remove_all(&pins.unused_maps())
}

fn remove_all(directory: &Path) -> Result<()> {
    pin_names(directory)?.iter().try_for_each(|name| remove_pin(&directory.join(name)))?;
    remove_directory(directory)
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(|e| Error::io(format!("cannot move {} to {}", from.display(), to.display()), e))
}
