//! Kubernetes events that the agents write.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;
use weir_testbed::wait;

use super::{Cluster, SOON};

impl Cluster {
    /// Waits for an event on a Service with this reason, and returns it.
    pub(crate) fn await_event(&self, service: &Service, reason: &str) -> Event {
        self.await_event_about("Service", service.metadata.name.as_deref().unwrap(), reason)
    }

    /// The same on an object of any kind.
    pub(crate) fn await_event_about(&self, kind: &str, name: &str, reason: &str) -> Event {
        let look = || {
            let events = self.events_about(kind, name);
            let found = events.iter().find(|event| event.reason.as_deref() == Some(reason)).cloned();
            found.ok_or_else(|| format!("{:?}", events.iter().map(|e| (&e.reason, &e.note)).collect::<Vec<_>>()))
        };
        wait::until_some(&format!("an event {reason} on {kind} {name}"), SOON, look).unwrap_or_else(|e| panic!("{e}"))
    }

    /// The events on a Service so far.
    pub(crate) fn events_on(&self, service: &str) -> Vec<Event> {
        self.events_about("Service", service)
    }

    /// The agents' events on an object of any kind so far. The API server has some, too: it repairs cluster IPs that its own
    /// start has overtaken.
    pub(crate) fn events_about(&self, kind: &str, name: &str) -> Vec<Event> {
        let client = self.objects.client();
        let namespace = "default";
        let list = async move { Api::namespaced(client, namespace).list(&ListParams::default()).await };
        let regards = |event: &Event| {
            let object = event.regarding.as_ref();
            let is_it = object.is_some_and(|o| o.kind.as_deref() == Some(kind) && o.name.as_deref() == Some(name));
            is_it && event.reporting_controller.as_deref() == Some("weir")
        };
        self.objects.run(list).unwrap().items.into_iter().filter(regards).collect()
    }
}
