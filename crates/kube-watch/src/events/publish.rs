//! The task that publishes notices, one after the other.

use std::collections::HashSet;
use std::future::Future;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use k8s_openapi::api::core::v1::{Node, ObjectReference, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client};
use tokio::sync::mpsc;
use weir_core::model::ObjectName;

use super::{Notice, Regarding, Severity};
use crate::status::Kind;

/// Who reports.
const CONTROLLER: &str = "weir";
/// What was being done, which an event must say.
const ACTION: &str = "Serve";
/// The most that the server takes, in bytes.
const NOTE_LIMIT: usize = 1024;
/// The most that the server takes of the reporter's instance, in bytes. A node's name may be longer.
const INSTANCE_LIMIT: usize = 128;
/// Patience with one request. The client itself has much more, for watches.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// Publishes what comes until all senders are gone.
pub(super) async fn publish(client: Client, node: String, mut queue: mpsc::Receiver<Notice>) {
    let mut publisher = Publisher { client, instance: shortened(&node, INSTANCE_LIMIT), told: HashSet::new() };
    while let Some(notice) = queue.recv().await {
        publisher.publish(&notice).await;
    }
}

struct Publisher {
    client: Client,
    instance: String,
    /// The failures that the log knows of.
    told: HashSet<(&'static str, Option<u16>)>,
}

/// Why a request had no success.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Refused(Box<kube::core::Status>),
    #[error("no answer in {} s", REQUEST_LIMIT.as_secs())]
    Timeout,
    #[error("{0}")]
    Other(kube::Error),
}

impl Failure {
    /// The code of the server's answer, if it gave one.
    fn code(&self) -> Option<u16> {
        match self {
            Self::Refused(status) => Some(status.code),
            Self::Timeout | Self::Other(_) => None,
        }
    }

    /// Whether it may work the next time. The name of an event holds the time, so even a conflict may be gone.
    fn is_passing(&self) -> bool {
        self.code().is_none_or(|code| matches!(code, 409 | 429 | 500..))
    }
}

impl Publisher {
    async fn publish(&mut self, notice: &Notice) {
        let Notice { severity, object, reason, note } = notice;
        let uid = match retried(|| uid(&self.client, object)).await {
            Ok(uid) => uid,
            Err(failure) => {
                // Better an event that only `kubectl get events` shows than none.
                let hint = "grant the agent `get` on services, endpointslices, nodes and servicecidrs";
                self.tell(object, &failure, "cannot look up the uid of an object for its event", hint);
                None
            }
        };
        let reference = reference(object, uid);
        let event = Event {
            type_: match severity {
                Severity::Normal => EventType::Normal,
                Severity::Warning => EventType::Warning,
            },
            reason: (*reason).to_owned(),
            note: Some(shortened(note, NOTE_LIMIT)),
            action: ACTION.to_owned(),
            secondary: None,
        };
        let sent = retried(|| {
            // A new recorder for each: one that remembers takes another note about the same object for a repetition
            // of the first, and throws it away. Repetitions never come here.
            let reporter = Reporter { controller: CONTROLLER.to_owned(), instance: Some(self.instance.clone()) };
            let recorder = Recorder::new(self.client.clone(), reporter);
            let (event, reference) = (&event, &reference);
            async move { recorder.publish(event, reference).await }
        });
        if let Err(failure) = sent.await {
            let hint = "grant the agent `create` on events of events.k8s.io";
            self.tell(object, &failure, "cannot publish a Kubernetes event", hint);
        }
    }

    /// Tells the log of a failure once: more of the same says nothing new, and what events are about, the log knows.
    fn tell(&mut self, object: &Regarding, failure: &Failure, what: &'static str, hint: &str) {
        let hint = if failure.code() == Some(403) { hint } else { "serving goes on without it" };
        if self.told.insert((what, failure.code())) {
            tracing::warn!(%object, error = %failure, hint, "{what}; this is said once");
        } else {
            tracing::debug!(%object, error = %failure, "{what}");
        }
    }
}

/// Tries a request a few times, if it fails in a way that may pass.
async fn retried<T, F>(request: impl Fn() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, kube::Error>>,
{
    let attempt = || async {
        match tokio::time::timeout(REQUEST_LIMIT, request()).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(kube::Error::Api(status))) => Err(Failure::Refused(status)),
            Ok(Err(error)) => Err(Failure::Other(error)),
            Err(_elapsed) => Err(Failure::Timeout),
        }
    };
    attempt.retry(ExponentialBuilder::default().with_jitter()).when(Failure::is_passing).await
}

/// The kind of an object, as the API has it.
fn resource(kind: Kind) -> ApiResource {
    match kind {
        Kind::Services => ApiResource::erase::<Service>(&()),
        Kind::Slices => ApiResource::erase::<EndpointSlice>(&()),
        Kind::Nodes => ApiResource::erase::<Node>(&()),
        Kind::ServiceCidrs => ApiResource::erase::<ServiceCIDR>(&()),
    }
}

/// The uid of an object, without which `kubectl describe` does not find its events. `None` for an object that is gone.
async fn uid(client: &Client, object: &Regarding) -> Result<Option<String>, kube::Error> {
    let Regarding { kind, name } = object;
    let resource = resource(*kind);
    let api: Api<DynamicObject> = match kind {
        Kind::Services | Kind::Slices => Api::namespaced_with(client.clone(), &name.namespace, &resource),
        Kind::Nodes | Kind::ServiceCidrs => Api::all_with(client.clone(), &resource),
    };
    Ok(api.get_metadata_opt(&name.name).await?.and_then(|found| found.metadata.uid))
}

fn reference(object: &Regarding, uid: Option<String>) -> ObjectReference {
    let ApiResource { api_version, kind, .. } = resource(object.kind);
    let ObjectName { namespace, name } = &object.name;
    ObjectReference {
        api_version: Some(api_version),
        kind: Some(kind),
        name: Some(name.to_string()),
        namespace: Some(namespace.to_string()).filter(|namespace| !namespace.is_empty()),
        uid,
        ..ObjectReference::default()
    }
}

/// At most `limit` bytes of a text; one that is cut ends with an ellipsis.
fn shortened(text: &str, limit: usize) -> String {
    const ELLIPSIS: &str = "…";
    if text.len() <= limit {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(limit - ELLIPSIS.len());
    format!("{}{ELLIPSIS}", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_too_long_is_cut_between_characters() {
        assert_eq!(shortened("short", 5), "short");
        assert_eq!(shortened("too long", 7), "too …");
        assert_eq!(shortened("ääää", 6), "ä…");
    }

    #[test]
    fn objects_are_referred_to_as_the_api_has_them() {
        let slice = reference(&Regarding::endpoint_slice(ObjectName::new("shop", "web-x")), Some("u".into()));
        let shown = (slice.api_version.as_deref(), slice.kind.as_deref(), slice.namespace.as_deref());
        assert_eq!(shown, (Some("discovery.k8s.io/v1"), Some("EndpointSlice"), Some("shop")));
        let node = reference(&Regarding::node("edge-1"), None);
        let shown = (node.api_version.as_deref(), node.kind.as_deref(), node.namespace.as_deref());
        assert_eq!(shown, (Some("v1"), Some("Node"), None));
        let cidr = reference(&Regarding::service_cidr("kubernetes"), None);
        let shown = (cidr.api_version.as_deref(), cidr.kind.as_deref(), cidr.namespace.as_deref());
        assert_eq!(shown, (Some("networking.k8s.io/v1"), Some("ServiceCIDR"), None));
    }
}
