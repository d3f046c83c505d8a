//! Follows a file: reads it again when it changes or when asked to, and keeps what it last said when it cannot be read.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::{Notify, mpsc};
use weir_core::cluster::Event;

use super::parse;
use crate::status::{Kind, StatusWriter};

/// A file is read once its directory was quiet for this long: editors write in several steps.
const SETTLE: Duration = Duration::from_millis(50);
/// Yet at the latest after this many of these pauses, whatever else happens in its directory.
const MAX_PAUSES: u32 = 20;

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

/// Follows the file at `path` until `sink` is closed, and reads it again at every `reload` (a SIGHUP, say).
///
/// A file that is missing or wrong leaves the old state in force, tells the log once and `status` until it is mended.
///
/// # Errors
/// If the file's directory cannot be watched: there would be no news ever.
pub async fn follow(
    path: &Path,
    sink: mpsc::Sender<Event>,
    status: StatusWriter,
    reload: Arc<Notify>,
) -> Result<(), FollowError> {
    let (changed_sender, mut changed) = mpsc::channel(1);
    // Set up before the first reading: a change between the two is seen.
    let _watcher = watch(path, changed_sender)?;
    let mut source = Source { path, text: None, told: None };
    loop {
        if let Some(events) = source.read(&status).await {
            for event in events {
                let kind = kind(&event);
                if sink.send(event).await.is_err() {
                    return Ok(());
                }
                status.delivered(kind, true);
            }
        }
        tokio::select! {
            Some(()) = changed.recv() => settle(&mut changed).await,
            () = reload.notified() => source.told = None,
            () = sink.closed() => return Ok(()),
        }
    }
}

const fn kind(event: &Event) -> Kind {
    match event {
        Event::Service(_) | Event::ServiceGone(_) | Event::Services(_) => Kind::Services,
        Event::Slice(_) | Event::SliceGone(_) | Event::Slices(_) => Kind::Slices,
        Event::Node(_) | Event::NodeGone(_) | Event::Nodes(_) => Kind::Nodes,
        Event::ServiceCidr(_) | Event::ServiceCidrGone(_) | Event::ServiceCidrs(_) => Kind::ServiceCidrs,
    }
}

/// Waits until changes pause.
async fn settle(changed: &mut mpsc::Receiver<()>) {
    for _ in 0..MAX_PAUSES {
        match tokio::time::timeout(SETTLE, changed.recv()).await {
            Ok(Some(())) => tokio::time::sleep(SETTLE).await,
            Ok(None) | Err(_) => return,
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
        tracing::warn!(file = ?name, directory = %target.display(), %cause, "cannot watch what the file links to");
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

/// The file as it was last read.
struct Source<'a> {
    path: &'a Path,
    /// The text that is in force.
    text: Option<String>,
    /// The mistake that the log knows of.
    told: Option<String>,
}

impl Source<'_> {
    /// What the file says, if that is news.
    async fn read(&mut self, status: &StatusWriter) -> Option<Vec<Event>> {
        let (text, events) = match self.load().await {
            Ok(read) => read,
            Err(error) => {
                for kind in Kind::ALL {
                    status.failed(kind, &error);
                }
                if self.told.as_ref() != Some(&error) {
                    let kept = self.text.is_some();
                    tracing::error!(%error, kept, "the file of services is refused; what it said before stays in force");
                    self.told = Some(error);
                }
                return None;
            }
        };
        for kind in Kind::ALL {
            status.connected(kind);
        }
        if self.told.take().is_some() {
            tracing::info!(file = %self.path.display(), "the file of services is good again");
        }
        if self.text.as_ref() == Some(&text) {
            return None;
        }
        self.text = Some(text);
        Some(events)
    }

    async fn load(&self) -> Result<(String, Vec<Event>), String> {
        let file = self.path.to_owned();
        let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(file)).await;
        let shown = self.path.display();
        let text =
            read.unwrap_or_else(|cause| Err(io::Error::other(cause))).map_err(|cause| format!("{shown}: {cause}"))?;
        let events = parse(&text).map_err(|cause| format!("{shown}: {cause}"))?;
        Ok((text, events))
    }
}
