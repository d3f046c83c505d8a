//! Maps of another size than is wanted: while their copies are filled, and until every link runs the programs on these, they are pinned in a
//! directory of their own. An agent that ends before the first link runs these has lost nothing: what serves is still there, and the next one begins anew with
//! it. From then on their directory has another name, and the next one goes on with the copies, to which flows follow (`switch.rs`).

use std::os::fd::OwnedFd;
use std::path::Path;

use tracing::warn;

use crate::error::{Error, Result};
use crate::layout::{MAPS, MapSpec};
use crate::pins::{PinDir, make_directory, pin_names, remove_directory, remove_pin, rename};
use crate::sys;

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

/// Notes that links get the programs of the copies from now on: these are in force, and none of those that they replace is put back.
///
/// # Errors
/// Those of the file system.
pub(crate) fn switch(pins: &PinDir) -> Result<()> {
    if pins.switched_maps().is_dir() {
        return Ok(());
    }
    rename(&pins.replaced_maps(), &pins.switched_maps())
}

/// Those of a switch in whose midst an agent has ended.
///
/// # Errors
/// When one of them cannot be opened.
pub(crate) fn half_switched(pins: &PinDir) -> Result<Vec<(MapSpec, OwnedFd)>> {
    let directory = pins.switched_maps();
    let names = pin_names(&directory)?;
    let of_ours = MAPS.into_iter().filter(|spec| names.iter().any(|name| name == spec.name));
    let open = |spec: MapSpec| {
        let path = directory.join(spec.name);
        let fd = sys::obj_get(&path, 0).map_err(|e| Error::io(format!("cannot open {}", path.display()), e))?;
        Ok((spec, fd))
    };
    of_ours.map(open).collect()
}

/// Forgets all of them: no link runs programs on them any more. Whoever ends in the midst of this must not have some of them put back.
///
/// # Errors
/// Those of the file system.
pub(crate) fn forget(pins: &PinDir) -> Result<()> {
    // Where that could not be noted they are where they were.
    let switched = if pins.switched_maps().is_dir() { pins.switched_maps() } else { pins.replaced_maps() };
    rename(&switched, &pins.unused_maps())?;
    remove_all(&pins.unused_maps())
}

fn remove_all(directory: &Path) -> Result<()> {
    pin_names(directory)?.iter().try_for_each(|name| remove_pin(&directory.join(name)))?;
    remove_directory(directory)
}
