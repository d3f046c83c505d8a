//! Programs that an agent of another ABI version has left. Only they know the connections that began under them, so they go on
//! for a while behind ours: what ours leave untouched, theirs see.

use std::fs;
use std::path::Path;

use weir_abi::Hook;

use crate::error::{Error, Result};
use crate::load::Datapath;
use crate::pins::{make_directory, pin_names, remove_directory, remove_pin};

/// Hooks that run several programs one after the other.
const TCX: [Hook; 4] = [Hook::NicIn, Hook::NicOut, Hook::PodIn, Hook::PodOut];

impl Datapath {
    /// Whether an earlier agent of this layout has attached the programs that serve, so that its maps are in force. Else they may be
    /// there since long ago.
    ///
    /// # Errors
    /// When the pin directory cannot be read.
    pub fn serves(&self) -> Result<bool> {
        Ok(self.adopted() && self.pins.is_ours()?)
    }

    /// To be called before anything is attached: programs of an agent of another layout, those at TCX hooks, are to go on behind ours.
    /// Returns whether there are any. If so, connections that begin in their middle are to be left to them with
    /// [`weir_abi::CONFIG_BESIDE`].
    ///
    /// # Errors
    /// When the pin directory cannot be read, or a pin not be moved aside.
    pub fn keep_former(&mut self) -> Result<bool> {
        if !self.serves()? {
            let aside = self.pins.former_links();
            let is_tcx = |pin: &String| TCX.iter().any(|hook| pin.starts_with(&format!("{hook}-")));
            let links: Vec<_> = self.pins.link_names()?.into_iter().filter(is_tcx).collect();
            if !links.is_empty() {
                make_directory(&aside)?;
            }
            links.iter().try_for_each(|pin| move_pin(&self.pins.links().join(pin), &aside.join(pin)))?;
        }
        self.has_former()
    }

    /// Whether programs of another layout are to go on behind ours.
    ///
    /// # Errors
    /// When the pin directory cannot be read.
    pub fn has_former(&self) -> Result<bool> {
        Ok(!pin_names(&self.pins.former_links())?.is_empty())
    }

    /// To be called before anything is attached, and after [`Datapath::keep_former`]: an agent that comes after this one goes by
    /// these maps.
    ///
    /// # Errors
    /// When the mark cannot be made, or another version's not be removed.
    pub fn begin_serving(&self) -> Result<()> {
        self.pins.begin_serving()
    }

    /// Ends the programs of agents of other layouts that go on behind ours. Connections that only they know begin in their middle
    /// from now on.
    ///
    /// # Errors
    /// When a pin cannot be removed.
    pub fn drop_former(&self) -> Result<()> {
        self.drop_former_in(&self.pins.former_links())
    }

    /// The same of those that another version has kept, once ours are attached: it is no more, or they are of this one.
    ///
    /// # Errors
    /// When a pin cannot be removed.
    pub fn drop_others_former(&self) -> Result<()> {
        self.pins.others_former_links()?.iter().try_for_each(|path| self.drop_former_in(path))
    }

    pub(crate) fn drop_former_link(&self, pin: &str) -> Result<()> {
        remove_pin(&self.pins.former_links().join(pin))
    }

    fn drop_former_in(&self, directory: &Path) -> Result<()> {
        let pins = pin_names(directory)?;
        pins.iter().try_for_each(|pin| remove_pin(&directory.join(pin)))?;
        remove_directory(directory)
    }
}

fn move_pin(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(|e| Error::io(format!("cannot move {} aside", from.display()), e))
}
