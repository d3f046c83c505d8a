//! Programs of an agent of another ABI version: they go on behind ours for a while. Connections that began under them are in
//! their maps alone.

use std::time::{Duration, Instant};

use anyhow::Result;
use tracing::{info, warn};
use weir_abi as abi;

use super::Writer;

/// For how long they have what begins in its middle. Nobody tells their maps of endpoints that go away, and no flood is kept
/// from tables meanwhile.
const KEPT: Duration = Duration::from_secs(60);

impl Writer {
    /// Before anything is attached: lets them go on if there are any. The datapath is to be told the flags after it.
    pub(super) fn keep_former(&mut self) -> Result<()> {
        // What comes wrapped names its endpoint: ours take it up without them. And filters run behind all links. What an agent with
        // other settings has moved aside goes once ours are attached.
        if self.settings.direct || !self.settings.attach.tcx {
            self.former = self.datapath.has_former()?.then(Instant::now);
            return Ok(());
        }
        if self.datapath.keep_former()? {
            info!(seconds = KEPT.as_secs(), "connections of an agent of another ABI version are left to its programs");
            self.former = Some(Instant::now() + KEPT);
            self.mask_flags();
        }
        Ok(())
    }

    /// Ends them when their time is over, and ours are wherever they are wanted. What is left of their connections goes on by our
    /// programs first, so that answers find their way when they end.
    pub(super) fn end_former(&mut self) -> Result<()> {
        // Ours take everything as soon as that is over, whatever else there is to wait for: no flood is kept from tables until then.
        if self.former.is_none_or(|until| Instant::now() < until) || self.leave_to_others()? || !self.is_attached() {
            return Ok(());
        }
        match self.datapath.drop_former() {
            Ok(()) => {
                info!("programs of another ABI version are gone");
                self.former = None;
                // Until now somebody else might have served what processes are connected to.
                self.stranded.notify_one();
            }
            Err(cause) => warn!(%cause, "programs of another ABI version stay behind ours; trying again"),
        }
        Ok(())
    }

    /// Whether connections that begin in their middle are left to another proxy, or to former programs: tells the datapath.
    /// Returns whether that is news.
    pub(super) fn leave_to_others(&mut self) -> Result<bool> {
        let changed = self.mask_flags();
        self.datapath.configure(&self.settings.config)?;
        Ok(changed)
    }

    /// The same, but that the datapath is told with what is told next. Returns whether the flag is another one now.
    fn mask_flags(&mut self) -> bool {
        let former = self.former.is_some_and(|until| Instant::now() < until);
        let beside = if former || self.settings.stage.is_beside() { abi::CONFIG_BESIDE } else { 0 };
        let flags = self.settings.config.flags & !abi::CONFIG_BESIDE | beside;
        let changed = flags != self.settings.config.flags;
        self.settings.config = abi::Config { flags, ..self.settings.config };
        changed
    }
}
