//! What people are told: why the API server cannot be watched, and which parts of objects were refused.

use std::collections::HashMap;
use std::error::Error;

use kube::runtime::watcher;
use weir_core::model::ObjectName;

use crate::convert::Problem;
use crate::status::Kind;

/// A failure in words: what, why, and what to do where something can be done. `None`: no failure, the watch only fell
/// behind the server's history and starts anew.
pub(super) fn describe(kind: Kind, error: &watcher::Error) -> Option<String> {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => Some(describe_client(kind, error)),
        watcher::Error::WatchError(status) if status.code == 410 => None,
        watcher::Error::WatchError(status) => Some(describe_status(kind, status)),
        watcher::Error::NoResourceVersion => Some(format!("API server lists {kind} without a resource version")),
    }
}

fn describe_client(kind: Kind, error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => describe_status(kind, status),
        kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_) => {
            format!("API server unreachable: {}", root_cause(error))
        }
        kube::Error::SerdeError(error) => format!("API server's answer about {kind} cannot be read: {error}"),
        other => format!("API server cannot be asked: {}", root_cause(other)),
    }
}

fn describe_status(kind: Kind, status: &kube::core::Status) -> String {
    let said = if status.message.is_empty() { &status.reason } else { &status.message };
    match status.code {
        401 => format!("API server does not accept our credentials: {said} (check the token or the kubeconfig)"),
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

/// What was refused of which object. The API sends every object again and again; the log is told once.
#[derive(Default)]
pub(super) struct Objections(HashMap<ObjectName, Vec<Problem>>);

impl Objections {
    /// Tells the log what was refused of an object, unless it was told the same before.
    pub(super) fn raise(&mut self, kind: Kind, name: ObjectName, problems: Vec<Problem>) {
        if problems.is_empty() {
            self.0.remove(&name);
            return;
        }
        if self.0.get(&name) == Some(&problems) {
            return;
        }
        for problem in &problems {
            tracing::warn!(%kind, object = %name, %problem, "refused a part of an object");
        }
        self.0.insert(name, problems);
    }

    /// Forgets an object that is gone.
    pub(super) fn withdraw(&mut self, name: &ObjectName) {
        self.0.remove(name);
    }
}
