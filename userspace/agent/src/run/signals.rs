//! Signals: which end the agent, and which have it read its files again.

use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

/// Notes signals from now on; the future is done at the first of them.
pub(super) fn stop() -> Result<impl Future<Output = &'static str>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    })
}

/// Each is notified at every SIGHUP from now on: one for each file that is read again.
pub(super) fn reload() -> Result<[Arc<Notify>; 2]> {
    let mut hangup = signal(SignalKind::hangup()).context("cannot wait for SIGHUP")?;
    let readers: [Arc<Notify>; 2] = Default::default();
    let notified = readers.clone();
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            notified.iter().for_each(|reader| reader.notify_one());
        }
    });
    Ok(readers)
}
