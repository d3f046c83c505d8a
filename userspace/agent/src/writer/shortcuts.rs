//! Interfaces that lead to pods and to other hosts: what packets may take past the host's stack, and what a pod's own come by.

use tracing::error;
use weir_core::shortcuts::shortcuts;

use super::Writer;

impl Writer {
    /// Writes them where they changed.
    pub(super) fn update_shortcuts(&mut self) {
        let wanted = shortcuts(&self.interfaces, |index| self.attached.get(&index).map(|(_, kind)| *kind));
        if self.shortcuts.as_ref() == Some(&wanted) {
            return;
        }
        match self.datapath.set_shortcuts(&wanted) {
            Ok(()) => self.shortcuts = Some(wanted),
            // Whatever has none takes the way through the host; the next change tries again.
            Err(cause) => {
                error!(%cause, "interfaces are not told to the programs: packets go through the host's stack");
            }
        }
    }
}
