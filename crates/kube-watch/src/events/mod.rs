//! Kubernetes events: what is wrong with an object, or worth knowing of it, told where its owner looks (`kubectl describe`).
//!
//! An [`Events`] only puts notices into a queue; a task of its own publishes them. So a server that is down, slow or
//! unwilling costs events and nothing else.

mod publish;
mod throttle;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::Client;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::Instant;
use weir_core::model::ObjectName;

use crate::status::Kind;
use throttle::{Throttle, Verdict};

/// Notices that wait for their publication.
const QUEUE: usize = 256;
/// A queue that stays full is told again after this long.
const REPEAT: Duration = Duration::from_secs(60);

/// The object that a notice is about.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Regarding {
    /// Its kind.
    pub kind: Kind,
    /// Its name; a Node and a ServiceCIDR have no namespace.
    pub name: ObjectName,
}

impl Regarding {
    /// A Service.
    #[must_use]
    pub const fn service(name: ObjectName) -> Self {
        Self { kind: Kind::Services, name }
    }

    /// An EndpointSlice.
    #[must_use]
    pub const fn endpoint_slice(name: ObjectName) -> Self {
        Self { kind: Kind::Slices, name }
    }

    /// A Node.
    #[must_use]
    pub fn node(name: &str) -> Self {
        Self { kind: Kind::Nodes, name: ObjectName::new("", name) }
    }

    /// A ServiceCIDR.
    #[must_use]
    pub fn service_cidr(name: &str) -> Self {
        Self { kind: Kind::ServiceCidrs, name: ObjectName::new("", name) }
    }
}

impl fmt::Display for Regarding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, name } = self;
        match kind {
            Kind::Services | Kind::Slices => write!(f, "{kind} {name}"),
            Kind::Nodes | Kind::ServiceCidrs => write!(f, "{kind} {}", name.name),
        }
    }
}

/// Takes notices about objects. Clones share one queue.
#[derive(Clone, Debug)]
pub struct Events(Option<Arc<Intake>>);

impl Events {
    /// Takes notices and forgets them: where there is no Kubernetes to tell.
    #[must_use]
    pub const fn disabled() -> Self {
        Self(None)
    }

    /// Starts a task that publishes notices in the name of `node`. It ends after the last clone, when the queue is
    /// empty.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    #[must_use]
    pub fn start(client: Client, node: &str) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        tokio::spawn(publish::publish(client, node.to_owned(), receiver));
        Self(Some(Arc::new(Intake { sender, ledger: Mutex::default() })))
    }

    /// Tells the owner of an object what is wrong with it. Returns at once and never fails.
    ///
    /// `reason` is a short word in CamelCase of at most 128 bytes, always the same for the same cause; `note` is for
    /// people, and only its first KiB is kept. The same notice is published once in ten minutes, and not more than
    /// one in five seconds for each object, after a burst of 25.
    pub fn warn(&self, object: Regarding, reason: &'static str, note: impl Into<String>) {
        self.take(Notice { severity: Severity::Warning, object, reason, note: note.into() });
    }

    /// Tells the owner of an object what is worth knowing and nothing to mend. As [`Events::warn`] else.
    pub fn inform(&self, object: Regarding, reason: &'static str, note: impl Into<String>) {
        self.take(Notice { severity: Severity::Normal, object, reason, note: note.into() });
    }

    fn take(&self, notice: Notice) {
        if let Some(intake) = &self.0 {
            intake.take(notice, Instant::now());
        }
    }

    /// Notices that were lost because the queue was full.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.0.as_ref().map_or(0, |intake| intake.ledger.lock().unwrap_or_else(PoisonError::into_inner).dropped)
    }
}

/// Whether there is something to mend.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Severity {
    Normal,
    Warning,
}

/// A notice about an object.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct Notice {
    severity: Severity,
    object: Regarding,
    reason: &'static str,
    note: String,
}

/// The entrance of the queue.
#[derive(Debug)]
struct Intake {
    sender: mpsc::Sender<Notice>,
    ledger: Mutex<Ledger>,
}

/// What has come in.
#[derive(Debug, Default)]
struct Ledger {
    throttle: Throttle,
    dropped: u64,
    /// When the log was last told that the queue is full.
    told: Option<Instant>,
}

impl Ledger {
    /// Counts a notice that found no place, and tells the log now and then.
    fn lose(&mut self, notice: &Notice, now: Instant) {
        self.dropped += 1;
        if self.told.is_some_and(|told| now.duration_since(told) < REPEAT) {
            return;
        }
        self.told = Some(now);
        let (Notice { severity: _, object, reason, note: _ }, dropped) = (notice, self.dropped);
        tracing::warn!(%object, reason, dropped, "too many Kubernetes events are waiting; this one is lost");
    }
}

impl Intake {
    fn take(&self, notice: Notice, now: Instant) {
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        // First a place, then the verdict: a notice that finds no place must not count as given.
        let place = match self.sender.try_reserve() {
            Ok(place) => place,
            Err(TrySendError::Full(())) => return ledger.lose(&notice, now),
            // The runtime is shutting down.
            Err(TrySendError::Closed(())) => return,
        };
        match ledger.throttle.admit(&notice, now) {
            Verdict::New => place.send(notice),
            Verdict::Repeated => {}
            Verdict::TooOften => {
                let Notice { severity: _, object, reason, note } = &notice;
                tracing::debug!(%object, reason, note, "too many Kubernetes events about one object; left out");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intake() -> (Events, mpsc::Receiver<Notice>) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Events(Some(Arc::new(Intake { sender, ledger: Mutex::default() }))), receiver)
    }

    fn service(number: usize) -> Regarding {
        Regarding::service(ObjectName::new("shop", format!("web-{number}")))
    }

    #[tokio::test]
    async fn what_finds_no_place_is_counted_and_may_come_again() {
        let (events, mut queue) = intake();
        for number in 0..QUEUE + 2 {
            events.warn(service(number), "AddressTaken", "10.96.0.10 port 80");
        }
        assert_eq!(events.clone().dropped(), 2);
        assert_eq!(queue.recv().await.map(|notice| notice.object), Some(service(0)));
        events.warn(service(QUEUE), "AddressTaken", "10.96.0.10 port 80");
        assert_eq!((events.dropped(), queue.len()), (2, QUEUE));
    }

    #[tokio::test]
    async fn the_same_warning_takes_one_place() {
        let (events, queue) = intake();
        for _ in 0..3 {
            events.warn(service(1), "AddressTaken", "10.96.0.10 port 80");
        }
        assert_eq!((events.dropped(), queue.len()), (0, 1));
    }

    #[test]
    fn nobody_is_told_where_there_is_nobody() {
        let events = Events::disabled();
        events.warn(Regarding::node("edge-1"), "InvalidNode", "status.addresses");
        assert_eq!(events.dropped(), 0);
    }

    #[test]
    fn objects_are_named_as_people_write_them() {
        let slice = Regarding::endpoint_slice(ObjectName::new("shop", "web-x"));
        assert_eq!(slice.to_string(), "endpointslices shop/web-x");
        assert_eq!(Regarding::node("edge-1").to_string(), "nodes edge-1");
    }
}
