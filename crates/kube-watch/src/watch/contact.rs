//! Contact with the API server, seen at its answers.
//!
//! A watch that is taken up again after an outage yields nothing until an object changes, so its events cannot tell
//! that the server is back; the HTTP answer can.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use kube::runtime::watcher;
use tokio::time::Instant;

use super::report::describe;
use crate::status::{Kind, StatusWriter};

/// A failure that goes on is told again after this long.
const REPEAT: Duration = Duration::from_secs(60);

/// Keeps the status of one kind and tells the log when it changes.
pub(super) struct Contact {
    kind: Kind,
    status: StatusWriter,
    told: Mutex<Told>,
}

/// What the log knows.
#[derive(Default)]
struct Told {
    /// The last warning and when it was given.
    warning: Option<(String, Instant)>,
    /// Whether that warning still stands.
    stands: bool,
}

impl Told {
    /// Whether a failure is to be told: a new one always, the same one again only after a while, even if the contact
    /// was good for a moment.
    fn warns(&mut self, failure: &str, now: Instant) -> bool {
        let news = match &self.warning {
            Some((last, at)) => last != failure || now.duration_since(*at) >= REPEAT,
            None => true,
        };
        if news {
            self.warning = Some((failure.to_owned(), now));
            self.stands = true;
        }
        news
    }

    /// Whether it is to be told that the server withholds the kind: once, until it shows it.
    fn warns_once(&mut self, failure: &str, now: Instant) -> bool {
        let news = !self.stands || self.warning.as_ref().is_none_or(|(last, _)| last != failure);
        if news {
            self.warning = Some((failure.to_owned(), now));
            self.stands = true;
        }
        news
    }

    /// Whether the end of a failure is to be told: only if the failure was.
    fn recovers(&mut self) -> bool {
        std::mem::take(&mut self.stands)
    }
}

impl Contact {
    /// The contact about one kind, published in `status`.
    pub(super) fn new(kind: Kind, status: StatusWriter) -> Arc<Self> {
        Arc::new(Self { kind, status, told: Mutex::default() })
    }

    /// A client that reports every good answer here.
    pub(super) fn observe(self: &Arc<Self>, client: &Client) -> Client {
        let contact = Arc::clone(self);
        let namespace = client.default_namespace().to_owned();
        let client = client.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (client, contact) = (client.clone(), Arc::clone(&contact));
            async move {
                let response: Response<Body> = client.send(request).await?;
                if response.status().is_success() {
                    contact.made();
                }
                Ok::<_, kube::Error>(response)
            }
        });
        Client::new(service, namespace)
    }

    fn made(&self) {
        self.status.connected(self.kind);
        if self.told.lock().unwrap_or_else(PoisonError::into_inner).recovers() {
            tracing::info!(kind = %self.kind, "the API server answers again");
        }
    }

    /// The watch failed and is about to be retried.
    pub(super) fn lost(&self, error: &watcher::Error) {
        let Some(failure) = describe(self.kind, error) else {
            tracing::debug!(kind = %self.kind, "the watch fell too far behind; listing again");
            return;
        };
        self.status.failed(self.kind, &failure);
        if self.told.lock().unwrap_or_else(PoisonError::into_inner).warns(&failure, Instant::now()) {
            tracing::warn!(kind = %self.kind, error = %failure, "the API server cannot be watched; retrying");
        }
    }

    /// The server has no such kind or does not show it, which goes on without it. `effect`: what does not happen then.
    pub(super) fn withheld(&self, error: &watcher::Error, effect: &str) {
        let failure = describe(self.kind, error).unwrap_or_default();
        self.status.failed(self.kind, &failure);
        if self.told.lock().unwrap_or_else(PoisonError::into_inner).warns_once(&failure, Instant::now()) {
            tracing::warn!(kind = %self.kind, error = %failure, "{effect}; this is said once, and asked again seldom");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_once_a_minute_and_its_end_once() {
        let mut told = Told::default();
        let start = Instant::now();
        assert!(told.warns("refused", start));
        assert!(!told.warns("refused", start + Duration::from_secs(59)));
        assert!(told.warns("refused", start + Duration::from_secs(60)));
        assert!(told.recovers());
        assert!(!told.recovers());
    }

    #[test]
    fn a_contact_that_flaps_is_told_like_one_failure() {
        let mut told = Told::default();
        let start = Instant::now();
        assert!(told.warns("refused", start));
        assert!(told.recovers());
        assert!(!told.warns("refused", start + Duration::from_secs(1)));
        assert!(!told.recovers(), "the log never heard of the second failure");
    }

    #[test]
    fn a_kind_that_is_withheld_is_told_once_and_again_only_after_it_was_shown() {
        let mut told = Told::default();
        let start = Instant::now();
        assert!(told.warns_once("forbidden", start));
        assert!(!told.warns_once("forbidden", start + Duration::from_secs(3600)));
        assert!(told.warns_once("not found", start + Duration::from_secs(3601)), "another cause");
        assert!(told.recovers());
        assert!(told.warns_once("not found", start + Duration::from_secs(3602)));
    }

    #[test]
    fn another_failure_is_news() {
        let mut told = Told::default();
        let start = Instant::now();
        assert!(told.warns("refused", start));
        assert!(told.warns("forbidden", start + Duration::from_secs(1)));
    }
}
