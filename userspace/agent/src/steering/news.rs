//! Tells what is worth telling of the steering: in the log and as Kubernetes events.

use std::time::{Duration, Instant};

use tracing::{info, warn};
use weir_core::steering::News;
use weir_kube_watch::events::{Events, Regarding};

use super::Brain;

/// Ticks between two looks: a second.
const TICKS: u64 = 4;

impl Brain {
    /// What is to be told after a tick.
    pub(super) fn look_for_news(&mut self, now: Instant) -> Vec<News> {
        if !self.ticks.is_multiple_of(TICKS) {
            return Vec::new();
        }
        self.reporter.look(now, self.steering.spills(), self.steering.out(&self.world))
    }
}

/// Tells one thing. `here` is this node's name.
pub(super) fn tell(events: &Events, here: &str, news: News) {
    match news {
        News::SpillBegan { service, share } => {
            info!(%service, percent = percent(share), "new flows leave this node: it has no room for them");
            let note = format!(
                "{} % of the new flows that begin on node {here} go to other nodes: it has no room for them",
                percent(share)
            );
            events.inform(Regarding::service(service), "SpillStarted", note);
        }
        News::SpillCeased { service, lasted, most } => {
            info!(%service, seconds = lasted.as_secs(), percent_at_most = percent(most), "new flows stay again");
            let note = format!(
                "new flows that begin on node {here} stay there again; for {} up to {} % went to other nodes",
                words(lasted),
                percent(most)
            );
            events.inform(Regarding::service(service), "SpillEnded", note);
        }
        News::Ejected { service, address, node } => {
            warn!(%service, %address, %node, "the endpoint fails and gets no new flows for now");
            // Without numbers: the same words about the same endpoint are told once.
            let place = if node.is_empty() { String::new() } else { format!(" on node {node}") };
            let note = format!("endpoint {address}{place} fails: clients of node {here} are sent elsewhere for now");
            events.warn(Regarding::service(service), "EndpointEjected", note);
        }
        News::Silent { node } => {
            warn!(%node, "the node does not answer: its endpoints get no new flows from here");
            let note = format!("does not answer node {here}: its endpoints get no new flows from there until it does");
            events.warn(Regarding::node(&node), "NodeSilent", note);
        }
    }
}

/// Whole per cent; a part that is not nothing is at least one.
fn percent(share: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share is 0 to 1")]
    let percent = (share * 100.0).round() as u32;
    percent.clamp(u32::from(share > 0.0), 100)
}

/// A time as people say it.
fn words(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} minutes", seconds / 60),
        seconds => format!("{} hours", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

    use k8s_openapi::api::events::v1::Event;
    use kube::Api;
    use kube::api::ListParams;
    use weir_core::model::ObjectName;
    use weir_testbed::{ApiServer, objects, wait};

    use super::*;

    /// It lasts half a minute until a running agent tells it, which `tests/steering/events.rs` waits for only if asked to.
    #[test]
    fn the_end_of_a_spill_is_an_event_of_the_service_that_asks_for_nothing() {
        if !ApiServer::require("the event about the end of a spill") {
            return;
        }
        let api = ApiServer::start(None).unwrap();
        let admin = api.objects().unwrap();
        let web = admin.apply(&objects::service("web", 80, "TCP")).unwrap();
        let client = admin.client();
        let events = admin.run(async { Events::start(client, "edge-1") });
        let (service, lasted) = (ObjectName::new("default", "web"), Duration::from_secs(150));
        tell(&events, "edge-1", News::SpillCeased { service, lasted, most: 0.4 });

        let uid = web.metadata.uid;
        let event = wait::until_some("the event", Duration::from_secs(20), || {
            let all: Api<Event> = Api::namespaced(admin.client(), "default");
            let told = admin.run(async move { all.list(&ListParams::default()).await }).unwrap();
            // The API server has events of its own about a Service that it has just made.
            let is_ours = |event: &Event| {
                event.reporting_controller.as_deref() == Some("weir")
                    && event.regarding.as_ref().is_some_and(|object| object.uid == uid)
            };
            told.into_iter().find(is_ours).ok_or_else(String::new)
        });
        let event = event.unwrap();
        assert_eq!((event.type_.as_deref(), event.reason.as_deref()), (Some("Normal"), Some("SpillEnded")));
        let note = "new flows that begin on node edge-1 stay there again; for 2 minutes up to 40 % went to other nodes";
        assert_eq!(event.note.as_deref(), Some(note));
    }

    #[test]
    fn a_small_part_is_not_nothing() {
        assert_eq!([0.0, 0.001, 0.054, 0.5, 1.0, 1.2].map(percent), [0, 1, 5, 50, 100, 100]);
    }

    #[test]
    fn times_are_told_in_the_unit_that_fits() {
        assert_eq!(
            [51, 119, 150, 7300].map(|seconds| words(Duration::from_secs(seconds))),
            ["51 s", "119 s", "2 minutes", "2 hours"]
        );
    }
}
