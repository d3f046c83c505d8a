//! When a file changes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;

/// A file is read once its directory was quiet for this long: editors write in several steps.
const SETTLE: Duration = Duration::from_millis(50);
/// Yet at the latest after this many of these pauses, whatever else happens in its directory.
const MAX_PAUSES: u32 = 20;

/// It is read as often in any case: what a network file system changes elsewhere no watch tells.
const LOOK: Duration = Duration::from_secs(10);

/// Why a file cannot be followed at all.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The path names no file.
    #[error("{} names no file", .0.display())]
    NoName(PathBuf),
    /// Its directory cannot be watched.
    #[error("cannot watch directory {} for changes of the file: {cause}", directory.display())]
    Watch {
        /// The directory.
        directory: PathBuf,
        /// Why.
        cause: notify::Error,
    },
}

/// Changes of one file from now on.
pub(crate) struct Changes {
    path: PathBuf,
    watcher: RecommendedWatcher,
    sender: mpsc::Sender<()>,
    changed: mpsc::Receiver<()>,
}

impl Changes {
    /// Those of the file at `path`, which need not exist.
    pub(crate) fn of(path: &Path) -> Result<Self, FollowError> {
        let (sender, changed) = mpsc::channel(1);
        Ok(Self { path: path.to_owned(), watcher: watch(path, sender.clone())?, sender, changed })
    }

    /// Waits for a change, and until changes pause, or until it is time to look. No change is lost if nobody waits at the moment.
    pub(crate) async fn next(&mut self) {
        if tokio::time::timeout(LOOK, self.changed.recv()).await.is_ok() {
            for _ in 0..MAX_PAUSES {
                match tokio::time::timeout(SETTLE, self.changed.recv()).await {
                    Ok(Some(())) => tokio::time::sleep(SETTLE).await,
                    Ok(None) | Err(_) => break,
                }
            }
        }
        self.renew();
    }

    /// Watches what stands at the path now: the directory may be another one by that name, and a link lead elsewhere. To be asked before each reading.
    pub(crate) fn renew(&mut self) {
        match watch(&self.path, self.sender.clone()) {
            Ok(watcher) => self.watcher = watcher,
            // The former one may be as good: there may be too many for one more beside it.
            Err(cause) => tracing::debug!(%cause, "the file is looked at now and then"),
        }
    }
}

/// Watches the directory, not the file: editors put a new file in its place, and the file behind a mounted ConfigMap
/// changes with a symbolic link beside it. A file that is itself a link to elsewhere is watched there, too.
fn watch(path: &Path, changed: mpsc::Sender<()>) -> Result<RecommendedWatcher, FollowError> {
    let name = path.file_name().map(OsString::from).ok_or_else(|| FollowError::NoName(path.to_owned()))?;
    let directory = directory_of(path);
    let error = |cause| FollowError::Watch { directory: directory.clone(), cause };
    let handler = move |event: notify::Result<notify::Event>| {
        // A full channel holds a change that is still to be looked at: one is enough.
        if event.map_or(true, |event| is_change(&event)) {
            let _ = changed.try_send(());
        }
    };
    let mut watcher = notify::recommended_watcher(handler).map_err(error)?;
    watcher.watch(&directory, RecursiveMode::NonRecursive).map_err(error)?;
    let target = std::fs::canonicalize(path).map(|target| directory_of(&target));
    if let Ok(target) = target.as_deref()
        && std::fs::canonicalize(&directory).is_ok_and(|directory| directory != target)
        && let Err(cause) = watcher.watch(target, RecursiveMode::NonRecursive)
    {
        // It is looked at every few seconds.
        tracing::debug!(file = ?name, directory = %target.display(), %cause, "cannot watch what the file links to");
    }
    Ok(watcher)
}

fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Whether something was written. Our own reading is an event, too.
const fn is_change(event: &notify::Event) -> bool {
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        EventKind::Any | EventKind::Create(_) | EventKind::Modify(_) | EventKind::Remove(_) | EventKind::Other => true,
    }
}
