//! Another stage of this node's migration: whose Services are served from now on.

use std::time::Instant;

use anyhow::Result;
use tracing::info;

use super::Writer;

impl Writer {
    /// Takes over the stage that is in force. Before anything is served that another proxy has served, or is left to it, its
    /// connections are.
    pub(super) fn stage_changed(&mut self) -> Result<()> {
        let stage = self.settings.stage.get();
        info!(%stage, "another stage of this node's migration");
        self.leave_to_others()?;
        let dirty = self.cluster.set_stage(stage);
        self.dirty.merge(dirty);
        if !self.synced {
            return Ok(());
        }
        // Before what others might send here is given up.
        self.announce();
        self.update_service_networks()?;
        self.update_direct()?;
        self.write(Instant::now())?;
        // Processes may still be connected to what another proxy has served.
        self.stranded.notify_one();
        Ok(())
    }
}
