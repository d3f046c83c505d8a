//! Follows the file, and keeps what it last said when it cannot be read.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::{Notify, mpsc};

use super::{Contents, parse};
use crate::file::{Changes, FollowError, Reading, Source};
use crate::status::{Change, Kind, StatusWriter};

/// Follows the file at `path` until `sink` is closed, and reads it again at every `reload` (a SIGHUP, say).
///
/// A file that is missing or wrong leaves the old state in force, tells the log once and `status` until it is mended.
///
/// # Errors
/// If the file's directory cannot be watched: there would be no news ever.
pub async fn follow(
    path: &Path,
    sink: mpsc::Sender<Contents>,
    status: StatusWriter,
    reload: Arc<Notify>,
) -> Result<(), FollowError> {
    // Set up before the first reading: a change between the two is seen.
    let mut changes = Changes::of(path)?;
    let mut source = Source::new(path.to_owned(), "services", None);
    loop {
        if let Some(contents) = read(&mut source, &status).await {
            if sink.send(contents).await.is_err() {
                return Ok(());
            }
            Kind::ALL.into_iter().for_each(|kind| status.delivered(kind, Change::Relisted));
        }
        tokio::select! {
            () = changes.next() => {}
            () = reload.notified() => {
                source.asked();
                changes.renew();
            }
            () = sink.closed() => return Ok(()),
        }
    }
}

/// What the file says, if that is news.
async fn read(source: &mut Source, status: &StatusWriter) -> Option<Contents> {
    let news = match source.read(parse).await {
        Reading::New(contents) => Some(contents),
        Reading::Known => None,
        Reading::Refused(error) => {
            Kind::ALL.into_iter().for_each(|kind| status.failed(kind, &error));
            return None;
        }
    };
    for kind in Kind::ALL {
        status.connected(kind);
    }
    news
}
