//! What people are told: why the API server cannot be watched, and which parts of objects were refused.

use std::collections::HashMap;
use std::error::Error;
use std::fmt::Display;

use kube::runtime::watcher;
use weir_core::model::ObjectName;

use crate::convert::Problem;
use crate::events::{Events, Regarding};
use crate::status::Kind;

/// A failure in words: what, why, and what to do where something can be done. `None`: no failure, the watch only fell
/// behind the server's history and starts anew.
pub(super) fn describe(kind: impl Display + Copy, error: &watcher::Error) -> Option<String> {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => Some(describe_client(kind, error)),
        watcher::Error::WatchError(status) if status.code == 410 => None,
        watcher::Error::WatchError(status) => Some(describe_status(kind, status)),
        watcher::Error::NoResourceVersion => Some(format!("API server lists {kind} without a resource version")),
    }
}

/// The answer 403 or 404, if that is what failed: the API does not show this kind, and asking again at once is no use.
pub(super) fn withheld(error: &watcher::Error) -> Option<u16> {
    let code = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status)) => status.code,
        watcher::Error::WatchError(status) => status.code,
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::NoResourceVersion => return None,
    };
    matches!(code, 403 | 404).then_some(code)
}

fn describe_client(kind: impl Display + Copy, error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => describe_status(kind, status),
        kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_) => {
            format!("API server unreachable: {}", root_cause(error))
        }
        kube::Error::SerdeError(error) => format!("API server's answer about {kind} cannot be read: {error}"),
        other => format!("API server cannot be asked: {}", root_cause(other)),
    }
}

fn describe_status(kind: impl Display + Copy, status: &kube::core::Status) -> String {
    let said = if status.message.is_empty() { &status.reason } else { &status.message };
    match status.code {
        401 => format!("API server does not accept our credentials: {said} (check the token or the kubeconfig)"),
        404 => format!("API server has no {kind}: {said}"),
        403 => format!("API server does not let us list and watch {kind}: {said} (check the ClusterRole)"),
        code => format!("API server answers {code}: {said}"),
    }
}

/// The end of the chain, which says what happened; the links before it only say where.
fn root_cause(error: &dyn Error) -> String {
    let mut last = error;
    while let Some(next) = last.source() {
        last = next;
    }
    last.to_string()
}

/// What was refused of which object. The API sends every object again and again; the log and the object's owner are
/// told once.
pub(super) struct Objections {
    kind: Kind,
    events: Events,
    raised: HashMap<ObjectName, Vec<Problem>>,
}

impl Objections {
    /// Objections to objects of one kind.
    pub(super) fn new(kind: Kind, events: Events) -> Self {
        Self { kind, events, raised: HashMap::new() }
    }

    /// Tells what was refused of an object, unless the same was told before.
    pub(super) fn raise(&mut self, name: ObjectName, problems: Vec<Problem>) {
        if problems.is_empty() {
            self.raised.remove(&name);
            return;
        }
        if self.raised.get(&name) == Some(&problems) {
            return;
        }
        for problem in &problems {
            tracing::warn!(kind = %self.kind, object = %name, %problem, "refused a part of an object");
        }
        // Whoever looks for an annotation that does nothing need not read about addresses.
        let (annotations, parts): (Vec<_>, Vec<_>) =
            problems.iter().partition(|problem| matches!(problem, Problem::Annotation(_)));
        for (reason, told) in [(reason(self.kind), parts), (WRONG_ANNOTATION, annotations)] {
            if !told.is_empty() {
                let note = told.into_iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                self.events.warn(Regarding { kind: self.kind, name: name.clone() }, reason, note);
            }
        }
        self.raised.insert(name, problems);
    }

    /// Forgets an object that is gone.
    pub(super) fn withdraw(&mut self, name: &ObjectName) {
        self.raised.remove(name);
    }
}

/// The reason of an event about annotations of ours that take no effect.
const WRONG_ANNOTATION: &str = "WrongAnnotation";

/// The reason of an event about an object of which something was refused.
const fn reason(kind: Kind) -> &'static str {
    match kind {
        Kind::Services => "InvalidService",
        Kind::Slices => "InvalidEndpointSlice",
        Kind::Nodes => "InvalidNode",
        Kind::ServiceCidrs => "InvalidServiceCIDR",
    }
}
