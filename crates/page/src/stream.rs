//! Server-sent events (HTML Living Standard, 9.2): `past` when a browser comes, then `now` and, if it asked for one,
//! `service`, once a period.
//!
//! A browser that does not read what it gets is hung up on: nothing piles up for it. A stream ends by itself before its
//! connection would be cut, and the browser comes again.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;
use weir_telemetry::listeners::HangUp;

use crate::recorder::Page;
use crate::view::{Now, Past, ServiceView};

/// Browsers that are told news at once.
pub(crate) const STREAMS: usize = 16;
/// News that wait for a browser: what comes first at once, and then two periods.
const WAITING: usize = 4;
/// Silence after which a sign of life is sent.
const HEART_BEAT: Duration = Duration::from_secs(5);
/// Of a stream; connections get a minute more, see [`LIMITS`](crate::server::LIMITS).
pub(crate) const LIFE: Duration = Duration::from_secs(540);

/// A browser that is told news.
pub(crate) struct Viewer {
    pub(crate) page: Page,
    /// The service that it wants to know all about.
    pub(crate) service: Option<String>,
    /// Ends its connection.
    pub(crate) hang_up: Option<HangUp>,
    /// Given back at the end.
    pub(crate) place: OwnedSemaphorePermit,
}

impl Viewer {
    /// The answer's body, which a task fills.
    pub(crate) fn start(self) -> Body {
        let (news, unread) = mpsc::channel(WAITING);
        tokio::spawn(self.follow(news));
        let unread = futures::stream::unfold(unread, |mut unread| async {
            let news: Bytes = unread.recv().await?;
            Some((Ok::<_, Infallible>(news), unread))
        });
        Body::from_stream(unread)
    }

    async fn follow(self, news: mpsc::Sender<Bytes>) {
        let Self { mut page, service, hang_up, place } = self;
        let end = Instant::now() + LIFE;
        let mut text = past(&page, service.as_deref());
        page.latest.mark_unchanged();
        text.push_str(&now(&page, service.as_deref()));
        loop {
            match news.try_send(text.into()) {
                Ok(()) => {}
                Err(mpsc::error::TrySendError::Full(_)) => {
                    hang_up.iter().for_each(HangUp::now);
                    break;
                }
                Err(mpsc::error::TrySendError::Closed(_)) => break,
            }
            text = tokio::select! {
                changed = page.latest.changed() => match changed {
                    Ok(()) => now(&page, service.as_deref()),
                    Err(_) => break,
                },
                () = tokio::time::sleep(HEART_BEAT) => ": still here\n\n".to_owned(),
                () = tokio::time::sleep_until(end) => break,
                () = news.closed() => break,
            };
        }
        drop(place);
    }
}

fn past(page: &Page, service: Option<&str>) -> String {
    // Browsers try again after two seconds.
    let mut text = "retry: 2000\n".to_owned();
    text.push_str(&event("past", &Past::new(&page.history(), service)));
    text
}

fn now(page: &Page, service: Option<&str>) -> String {
    let sample = Arc::clone(&page.latest.borrow());
    let ports = service.map(|name| (name, page.source.service(name)));
    let history = page.history();
    let mut text = event("now", &Now::new(&history, &sample));
    if let Some((name, ports)) = ports {
        text.push_str(&event("service", &ServiceView::new(&history, name, ports)));
    }
    text
}

/// JSON has no line breaks unless it is asked for them, so one line of data it is.
fn event(name: &str, data: &impl Serialize) -> String {
    let json = serde_json::to_string(data).unwrap_or_else(|cause| format!("{{\"error\":{:?}}}", cause.to_string()));
    format!("event: {name}\ndata: {json}\n\n")
}
