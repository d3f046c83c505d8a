//! Programs that an agent of another ABI version has left. Only they know the connections that began under them, so they go on
//! for a while behind ours: what ours leave untouched, theirs see.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use weir_abi::Hook;

use crate::attach::remove_pin;
use crate::error::{Error, Result};
use crate::load::Datapath;
use crate::pins::{FORMER_LINKS, pin_names};

/// Hooks that run several programs one after the other.
const TCX: [Hook; 4] = [Hook::NicIn, Hook::NicOut, Hook::PodIn, Hook::PodOut];

impl Datapath {
    /// To be called before anything is attached: programs of an agent of another layout, those at TCX hooks, are to go on behind ours.
    /// Returns whether there are any. If so, connections that begin in their middle are to be left to them with
    /// [`weir_abi::CONFIG_BESIDE`].
    ///
    /// # Errors
    /// When the pin directory cannot be read.
    pub fn keep_former(&mut self) -> Result<bool> {
        if !self.adopted() {
            let is_tcx = |pin: &String| TCX.iter().any(|hook| pin.starts_with(&format!("{hook}-")));
            self.former = self.pins.link_names()?.into_iter().filter(is_tcx).collect();
        }
        Ok(!self.former.is_empty() || !pin_names(&self.pins.former_links())?.is_empty())
    }

    /// Ends the programs of agents of other layouts that go on behind ours. Connections that only they know begin in their middle
    /// from now on.
    ///
    /// # Errors
    /// When a pin cannot be removed.
    pub fn drop_former(&mut self) -> Result<()> {
        self.former.clear();
        self.drop_former_in(&self.pins.former_links())
    }

    /// The same of those that another version has kept: it is no more, or they are of this one.
    ///
    /// # Errors
    /// When a pin cannot be removed.
    pub(crate) fn drop_others_former(&self) -> Result<()> {
        let own = self.pins.former_links();
        let entries = self.pins.entries()?;
        let kept = entries.iter().filter(|name| name.as_encoded_bytes().starts_with(FORMER_LINKS.as_bytes()));
        kept.map(|name| self.pins.root().join(name))
            .filter(|path| *path != own)
            .try_for_each(|path| self.drop_former_in(&path))
    }

    /// Moves a link aside that was there before these maps: its program goes on until it is dropped.
    pub(crate) fn set_aside(&mut self, pin: &str) -> Result<()> {
        if !self.former.remove(pin) {
            return Ok(());
        }
        let to = self.pins.former_links();
        match fs::DirBuilder::new().mode(0o700).create(&to) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                return Err(Error::io(format!("cannot make directory {}", to.display()), e));
            }
            Ok(()) | Err(_) => {}
        }
        let from = self.pins.links().join(pin);
        match fs::rename(&from, to.join(pin)) {
            // Its interface was not wanted for a while.
            Err(e) if e.kind() != ErrorKind::NotFound => {
                Err(Error::io(format!("cannot move {} aside", from.display()), e))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    pub(crate) fn drop_former_link(&self, pin: &str) -> Result<()> {
        remove_pin(&self.pins.former_links().join(pin))
    }

    fn drop_former_in(&self, directory: &Path) -> Result<()> {
        let pins = pin_names(directory)?;
        pins.iter().try_for_each(|pin| remove_pin(&directory.join(pin)))?;
        match fs::remove_dir(directory) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                Err(Error::io(format!("cannot remove {}", directory.display()), e))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}
