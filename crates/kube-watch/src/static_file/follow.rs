//! Follows the file, and keeps what it last said when it cannot be read.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::{Notify, mpsc};
use weir_core::cluster::Event;

use super::parse;
use crate::file::{Changes, FollowError, Reading, Source};
use crate::status::{Kind, StatusWriter};

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
    // Set up before the first reading: a change between the two is seen.
    let mut changes = Changes::of(path)?;
    let mut source = Source::new(path.to_owned(), "services", None);
    loop {
        for event in read(&mut source, &status).await {
            let kind = kind(&event);
            if sink.send(event).await.is_err() {
                return Ok(());
            }
            status.delivered(kind, true);
        }
        tokio::select! {
            () = changes.next() => {}
            () = reload.notified() => source.asked(),
            () = sink.closed() => return Ok(()),
        }
    }
}

/// What the file says, if that is news.
async fn read(source: &mut Source, status: &StatusWriter) -> Vec<Event> {
    let events = match source.read(parse).await {
        Reading::New(events) => events,
        Reading::Known => Vec::new(),
        Reading::Refused(error) => {
            for kind in Kind::ALL {
                status.failed(kind, &error);
            }
            return Vec::new();
        }
    };
    for kind in Kind::ALL {
        status.connected(kind);
    }
    events
}

const fn kind(event: &Event) -> Kind {
    match event {
        Event::Service(_) | Event::ServiceGone(_) | Event::Services(_) => Kind::Services,
        Event::Slice(_) | Event::SliceGone(_) | Event::Slices(_) => Kind::Slices,
        Event::Node(_) | Event::NodeGone(_) | Event::Nodes(_) => Kind::Nodes,
        Event::ServiceCidr(_) | Event::ServiceCidrGone(_) | Event::ServiceCidrs(_) => Kind::ServiceCidrs,
    }
}
