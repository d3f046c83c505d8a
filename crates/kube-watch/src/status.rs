//! How a source of events fares: published by the source, read by health checks, metrics and `weir status`.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::watch;
use weir_core::cluster::Event;

/// A kind of object that is watched.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Kind {
    /// Services.
    Services,
    /// EndpointSlices.
    Slices,
    /// Nodes.
    Nodes,
    /// ServiceCIDRs.
    ServiceCidrs,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Services, Self::Slices, Self::Nodes, Self::ServiceCidrs];
    /// The kinds without which nothing can be served right.
    pub const REQUIRED: [Self; 3] = [Self::Services, Self::Slices, Self::Nodes];

    /// The resource's name in the Kubernetes API, which is also its name in metrics.
    #[must_use]
    pub const fn resource(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::Slices => "endpointslices",
            Self::Nodes => "nodes",
            Self::ServiceCidrs => "servicecidrs",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.resource())
    }
}

/// What an event did to what is known of a kind.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Change {
    /// An object is new or has changed.
    Applied,
    /// An object is gone, or no longer one that is served.
    Deleted,
    /// All objects came anew: the first list, and one whenever a watch cannot go on from where it was.
    Relisted,
}

impl Change {
    /// All changes.
    pub const ALL: [Self; 3] = [Self::Applied, Self::Deleted, Self::Relisted];

    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Deleted => "deleted",
            Self::Relisted => "relisted",
        }
    }

    /// What this event does.
    pub(crate) const fn of(event: &Event) -> Self {
        match event {
            Event::Service(_) | Event::Slice(_) | Event::Node(_) | Event::ServiceCidr(_) => Self::Applied,
            Event::ServiceGone(_) | Event::SliceGone(_) | Event::NodeGone(_) | Event::ServiceCidrGone(_) => {
                Self::Deleted
            }
            Event::Services(_) | Event::Slices(_) | Event::Nodes(_) | Event::ServiceCidrs(_) => Self::Relisted,
        }
    }
}

/// How many events did what, since the start.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct EventCounts {
    applied: u64,
    deleted: u64,
    relisted: u64,
}

impl EventCounts {
    /// Events that did this.
    #[must_use]
    pub const fn of(&self, change: Change) -> u64 {
        match change {
            Change::Applied => self.applied,
            Change::Deleted => self.deleted,
            Change::Relisted => self.relisted,
        }
    }

    const fn count(&mut self, change: Change) {
        let counter = match change {
            Change::Applied => &mut self.applied,
            Change::Deleted => &mut self.deleted,
            Change::Relisted => &mut self.relisted,
        };
        *counter += 1;
    }
}

/// How one kind fares.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct KindStatus {
    /// Whether the last contact with the source went well. What was read before stays in force when it did not.
    pub connected: bool,
    /// Whether the whole list was delivered at least once.
    pub synced: bool,
    /// Why the source is not connected; `None` while it is, and before the first attempt has ended.
    pub error: Option<String>,
    /// When the last event was delivered.
    pub last_event: Option<Timestamp>,
    /// Events that were delivered.
    pub events: EventCounts,
}

/// How all kinds fare.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Status {
    /// Services.
    pub services: KindStatus,
    /// EndpointSlices.
    pub slices: KindStatus,
    /// Nodes.
    pub nodes: KindStatus,
    /// ServiceCIDRs; connected or not, nothing waits for them.
    pub service_cidrs: KindStatus,
}

impl Status {
    /// One kind.
    #[must_use]
    pub const fn kind(&self, kind: Kind) -> &KindStatus {
        match kind {
            Kind::Services => &self.services,
            Kind::Slices => &self.slices,
            Kind::Nodes => &self.nodes,
            Kind::ServiceCidrs => &self.service_cidrs,
        }
    }

    const fn kind_mut(&mut self, kind: Kind) -> &mut KindStatus {
        match kind {
            Kind::Services => &mut self.services,
            Kind::Slices => &mut self.slices,
            Kind::Nodes => &mut self.nodes,
            Kind::ServiceCidrs => &mut self.service_cidrs,
        }
    }

    /// Whether every required kind was delivered at least once.
    #[must_use]
    pub fn synced(&self) -> bool {
        Kind::REQUIRED.into_iter().all(|kind| self.kind(kind).synced)
    }

    /// Whether every required kind is connected.
    #[must_use]
    pub fn connected(&self) -> bool {
        Kind::REQUIRED.into_iter().all(|kind| self.kind(kind).connected)
    }

    /// What is wrong with required kinds, for people: the reason that most of them have in common is said once. `None` if
    /// nothing is.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let mut reasons: Vec<String> = Vec::new();
        for kind in Kind::REQUIRED {
            let status = self.kind(kind);
            let reason = match (&status.error, status.synced) {
                (Some(error), _) => error.clone(),
                (None, false) => "waiting for the first list".to_owned(),
                (None, true) => continue,
            };
            if !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

/// The source's end of its status. Clones publish into the same status.
#[derive(Clone, Debug)]
pub struct StatusWriter(Arc<watch::Sender<Status>>);

impl StatusWriter {
    /// A status in which nothing has happened yet, and the end to read it from.
    #[must_use]
    pub fn new() -> (Self, watch::Receiver<Status>) {
        let (sender, receiver) = watch::channel(Status::default());
        (Self(Arc::new(sender)), receiver)
    }

    /// The source answered. Returns whether it had not before.
    pub(crate) fn connected(&self, kind: Kind) -> bool {
        self.0.send_if_modified(|status| {
            let status = status.kind_mut(kind);
            let changed = !status.connected || status.error.is_some();
            status.connected = true;
            status.error = None;
            changed
        })
    }

    /// The source failed.
    pub(crate) fn failed(&self, kind: Kind, error: &str) {
        self.0.send_if_modified(|status| {
            let status = status.kind_mut(kind);
            let changed = status.connected || status.error.as_deref() != Some(error);
            status.connected = false;
            if changed {
                status.error = Some(error.to_owned());
            }
            changed
        });
    }

    /// An event was delivered. Wakes readers only for the first list: they wait for changes of state, and a busy cluster
    /// has thousands of events a second.
    pub(crate) fn delivered(&self, kind: Kind, change: Change) {
        self.0.send_if_modified(|status| {
            let status = status.kind_mut(kind);
            status.last_event = Some(Timestamp::now());
            status.events.count(change);
            let first = change == Change::Relisted && !status.synced;
            status.synced |= first;
            first
        });
    }
}
