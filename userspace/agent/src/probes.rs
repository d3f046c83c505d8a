//! What health checks are told.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::watch;
use weir_kube_watch::status::Status;
use weir_telemetry::server::{Component, Probes, ProxyHealth};

/// For so long a change may wait until it is written, and the writer be silent: twice kube-proxy's sync period, as
/// there.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(60);

/// How the writer fares.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct WriterStatus {
    /// Everything was written once.
    pub(crate) synced: bool,
    /// Interfaces of the node with programs attached.
    pub(crate) nics: usize,
    /// Interfaces of pods with programs attached.
    pub(crate) pods: usize,
    /// An interface that could not be attached to, and why.
    pub(crate) unattached: Option<String>,
    /// Services that could not be written for want of room.
    pub(crate) failed: usize,
    /// One that could not be written, and why.
    pub(crate) failure: Option<String>,
    /// Ports of services that cannot be served as asked.
    pub(crate) refused: usize,
    /// One of them, why, and what to do.
    pub(crate) refusal: Option<String>,
    /// Ports of services whose new shares could not be written.
    pub(crate) unsteered: usize,
    /// One of them, and why.
    pub(crate) unsteered_cause: Option<String>,
    /// When the writer last showed that it is not stuck. It does so every few seconds; none before it runs.
    pub(crate) heartbeat: Option<Instant>,
    /// Since when something that is known of the cluster waits to be written.
    pub(crate) pending_since: Option<Instant>,
    /// When everything that was known was last written.
    pub(crate) last_updated: Option<Timestamp>,
    /// Load balancers outside should send traffic to this node.
    pub(crate) node_eligible: bool,
    /// This node's name, if the cluster has nodes and none of that name.
    pub(crate) unknown_node: Option<String>,
}

/// The two statuses that health is made of.
#[derive(Debug)]
pub(crate) struct AgentProbes {
    pub(crate) source: watch::Receiver<Status>,
    pub(crate) writer: watch::Receiver<WriterStatus>,
    /// `api-server` or `static-file`.
    pub(crate) source_name: &'static str,
}

impl Probes for AgentProbes {
    fn components(&self) -> Vec<Component> {
        let source = self.source.borrow();
        let writer = self.writer.borrow();
        let unknown_node = writer.unknown_node.as_ref().map(|node| {
            format!(
                "there is no node called {node}, so no endpoint counts as local: tell this node's name by --node-name"
            )
        });
        let attached = format!("{} interfaces of the node, {} of pods", writer.nics, writer.pods);
        vec![
            Component {
                name: self.source_name,
                ready: source.synced() && source.connected() && unknown_node.is_none(),
                reason: source.problem().or(unknown_node),
            },
            Component { name: "maps", ready: writer.synced && writer.failed == 0, reason: maps_reason(&writer) },
            Component {
                name: "interfaces",
                ready: writer.nics > 0 && writer.unattached.is_none(),
                reason: Some(writer.unattached.clone().unwrap_or(attached)),
            },
        ]
    }

    /// Whatever becomes of the API server: traffic goes on from what is known.
    fn proxy_health(&self) -> ProxyHealth {
        let WriterStatus { heartbeat, pending_since, last_updated, node_eligible, .. } = *self.writer.borrow();
        ProxyHealth { healthy: is_healthy(pending_since, heartbeat, Instant::now()), node_eligible, last_updated }
    }
}

/// What keeps services from being served, or only ports of them. Those, and services that ask for more than any node gives, make nobody unready,
/// since no restart and no other node would help.
fn maps_reason(writer: &WriterStatus) -> Option<String> {
    let pending = (!writer.synced).then(|| "waiting for the first sync".to_owned());
    let refused = writer.refusal.as_ref().map(|example| match writer.refused {
        1 => format!("1 port is not served as asked: {example}"),
        more => format!("{more} ports are not served as asked, among them {example}"),
    });
    let unsteered = writer.unsteered_cause.as_ref().map(|example| match writer.unsteered {
        1 => format!("1 port does not follow the load: {example}"),
        more => format!("{more} ports do not follow the load, among them {example}"),
    });
    let reasons: Vec<String> = writer.failure.clone().or(pending).into_iter().chain(refused).chain(unsteered).collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// As kube-proxy: nothing waits, or not for too long. A writer that is stuck takes nothing in, so nothing would seem to
/// wait: it has to give signs of life as well. It is healthy while it starts.
fn is_healthy(pending_since: Option<Instant>, heartbeat: Option<Instant>, now: Instant) -> bool {
    let recent = |since: Instant| now.saturating_duration_since(since) < HEALTH_TIMEOUT;
    pending_since.is_none_or(recent) && heartbeat.is_none_or(recent)
}

#[cfg(test)]
mod tests {
    use weir_kube_watch::status::KindStatus;

    use super::*;

    #[test]
    fn a_change_that_has_waited_for_a_minute_is_unhealthy() {
        let start = Instant::now();
        let after = |seconds| {
            let now = start + Duration::from_secs(seconds);
            is_healthy(Some(start), Some(now), now)
        };
        assert_eq!([after(0), after(59), after(60)], [true, true, false]);
    }

    #[test]
    fn a_writer_that_has_been_silent_for_a_minute_is_unhealthy_even_if_nothing_seems_to_wait() {
        let start = Instant::now();
        let after = |seconds| is_healthy(None, Some(start), start + Duration::from_secs(seconds));
        assert_eq!([after(0), after(59), after(60)], [true, true, false]);
    }

    #[test]
    fn who_has_nothing_to_do_or_is_still_starting_is_healthy() {
        assert!(is_healthy(None, Some(Instant::now()), Instant::now()));
        assert!(is_healthy(None, None, Instant::now()));
    }

    #[test]
    fn whoever_asks_learns_of_a_writer_that_is_silent_and_of_one_that_is_back() {
        let (status, writer) = watch::channel(WriterStatus::default());
        let source = watch::channel(Status::default()).1;
        let probes = AgentProbes { source, writer, source_name: "static-file" };
        let healthy = |heartbeat: Option<Instant>| {
            status.send_modify(|status| status.heartbeat = heartbeat);
            probes.proxy_health().healthy
        };
        let long_ago = Instant::now().checked_sub(HEALTH_TIMEOUT);
        assert_eq!(
            [healthy(Some(Instant::now())), healthy(long_ago), healthy(Some(Instant::now()))],
            [true, false, true]
        );
    }

    #[test]
    fn a_node_that_the_cluster_does_not_know_is_named() {
        let source = |unknown_node: Option<&str>| {
            let listed = || KindStatus { connected: true, synced: true, ..KindStatus::default() };
            let status = Status { services: listed(), slices: listed(), nodes: listed(), service_cidrs: listed() };
            let source = watch::channel(status).1;
            let unknown_node = unknown_node.map(str::to_owned);
            let writer = watch::channel(WriterStatus { unknown_node, ..WriterStatus::default() }).1;
            AgentProbes { source, writer, source_name: "static-file" }.components().remove(0)
        };
        let unknown = source(Some("edge-9"));
        assert!(!unknown.ready);
        assert!(unknown.reason.unwrap().contains("no node called edge-9"));
        assert_eq!(source(None), Component { name: "static-file", ready: true, reason: None });
    }

    /// The component `maps` of a writer that has synced.
    fn maps(writer: WriterStatus) -> Component {
        let source = watch::channel(Status::default()).1;
        let writer = watch::channel(WriterStatus { synced: true, ..writer }).1;
        let components = AgentProbes { source, writer, source_name: "static-file" }.components();
        components.into_iter().find(|component| component.name == "maps").unwrap()
    }

    fn refusing(refused: usize) -> WriterStatus {
        let refusal = Some("shop/cart port \"sctp\": SCTP ports cannot be translated".to_owned());
        WriterStatus { refused, refusal, ..WriterStatus::default() }
    }

    #[test]
    fn ports_that_are_refused_are_told_and_leave_the_maps_ready() {
        let one = "1 port is not served as asked: shop/cart port \"sctp\": SCTP ports cannot be translated";
        let more =
            "3 ports are not served as asked, among them shop/cart port \"sctp\": SCTP ports cannot be translated";
        for (refused, reason) in [(1, one), (3, more)] {
            assert_eq!(
                maps(refusing(refused)),
                Component { name: "maps", ready: true, reason: Some(reason.to_owned()) }
            );
        }
        assert_eq!(maps(WriterStatus::default()).reason, None);
    }

    #[test]
    fn ports_whose_shares_find_no_room_are_told_and_leave_the_maps_ready() {
        let cause = "shop/web: map lines is full (16 entries): raise --max-lines";
        let one = format!("1 port does not follow the load: {cause}");
        let more = format!("3 ports do not follow the load, among them {cause}");
        for (unsteered, reason) in [(1, one), (3, more)] {
            let status = WriterStatus { unsteered, unsteered_cause: Some(cause.to_owned()), ..WriterStatus::default() };
            assert_eq!(maps(status), Component { name: "maps", ready: true, reason: Some(reason) });
        }
    }

    #[test]
    fn services_that_are_not_written_come_before_ports_that_are_refused() {
        let failure = Some("shop/web: services is full".to_owned());
        let Component { ready, reason, .. } = maps(WriterStatus { failed: 1, failure, ..refusing(1) });
        assert!(!ready);
        assert!(reason.unwrap().starts_with("shop/web: services is full; 1 port is not served as asked: shop/cart"));
    }
}
