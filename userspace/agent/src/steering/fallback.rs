//! What metrics-server says of nodes that run no agent. It is asked only while there are such nodes: each answer is about
//! all nodes of the cluster.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::watch;
use weir_core::load::NodeLoad;
use weir_core::model::NodeCapacity;
use weir_signals::Counts;
use weir_signals::metrics_api::{Capacity, Fallback, MetricsApi, SHORTEST};

/// Nodes of which the mesh knows nothing, with what they have.
pub(super) type Strangers = HashMap<Arc<str>, NodeCapacity>;

/// The last answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    /// Of strangers. Samples are as old as they were at `at`.
    pub(super) loads: HashMap<Arc<str>, NodeLoad>,
    pub(super) at: Option<Instant>,
    /// How often there is one.
    pub(super) interval: Duration,
    pub(super) counts: Counts,
    pub(super) problem: Option<String>,
}

/// The asking task.
pub(super) struct FallbackReader {
    /// None where there is no API server.
    api: Option<MetricsApi>,
    strangers: watch::Receiver<Strangers>,
    latest: watch::Sender<Answer>,
}

impl FallbackReader {
    pub(super) fn new(
        api: Option<MetricsApi>,
        strangers: watch::Receiver<Strangers>,
    ) -> (Self, watch::Receiver<Answer>) {
        let (latest, answers) = watch::channel(Answer::default());
        (Self { api, strangers, latest }, answers)
    }

    /// Asks for ever, as long as there are strangers. `phase`, 0 to 1, is this agent's own: all ask one server, and
    /// neither begin together nor stay together.
    pub(super) async fn run(self, phase: f64) {
        let Self { api, mut strangers, latest } = self;
        let Some(api) = api else { return };
        let mut told = Fallback::default();
        let mut next = tokio::time::Instant::now() + SHORTEST.mul_f64(phase);
        loop {
            if strangers.wait_for(|strangers| !strangers.is_empty()).await.is_err() {
                return;
            }
            tokio::time::sleep_until(next).await;
            let answer = api.nodes().await;
            let now = Instant::now();
            let known = strangers.borrow().clone();
            told.update(answer, |node| known.get(node).and_then(capacity), now, Timestamp::now());
            next = tokio::time::Instant::now() + told.pace().pause(phase);
            let load = |node: Arc<str>| told.node(&node, now).map(|load| (node, load));
            latest.send_replace(Answer {
                loads: known.into_keys().filter_map(load).collect(),
                at: Some(now),
                interval: told.pace().interval(),
                counts: told.counts(),
                problem: told.problem().map(ToString::to_string),
            });
        }
    }
}

/// None if the node did not tell.
fn capacity(of: &NodeCapacity) -> Option<Capacity> {
    let NodeCapacity { millicores, bytes } = *of;
    #[expect(clippy::cast_precision_loss, reason = "exact to 8 PiB")]
    let bytes = bytes as f64;
    (millicores > 0 && bytes > 0.0).then(|| Capacity { cores: f64::from(millicores) / 1000.0, bytes })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

    use axum::Router;
    use axum::http::{StatusCode, Uri};
    use kube::{Client, Config};
    use tokio::net::TcpListener;

    use super::*;

    const FOUR_CORES: NodeCapacity = NodeCapacity { millicores: 4000, bytes: 1000 };

    /// An API server that gives one answer to everything about metrics of nodes.
    async fn api(status: StatusCode, body: String) -> MetricsApi {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answer = move |uri: Uri| {
            let right = uri.path() == "/apis/metrics.k8s.io/v1beta1/nodes";
            let (status, body) = if right { (status, body.clone()) } else { (StatusCode::BAD_REQUEST, String::new()) };
            std::future::ready((status, body))
        };
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await });
        let mut config = Config::new(url.parse().unwrap());
        config.default_retry = false;
        MetricsApi::new(Client::try_from(config).unwrap())
    }

    async fn answer_of(api: MetricsApi, strangers: Strangers) -> Answer {
        let (_wanted, strangers) = watch::channel(strangers);
        let (reader, mut answers) = FallbackReader::new(Some(api), strangers);
        let asking = tokio::spawn(reader.run(0.0));
        let answer = answers.wait_for(|answer| answer.at.is_some()).await.unwrap().clone();
        asking.abort();
        answer
    }

    #[tokio::test]
    async fn of_nodes_without_an_agent_the_share_of_what_they_have_is_known_and_how_old_it_is() {
        let measured = Timestamp::now() - Duration::from_secs(20);
        let usage = r#""usage": {"cpu": "1", "memory": "600"}"#;
        let item = |name: &str| format!(r#"{{"metadata": {{"name": "{name}"}}, "timestamp": "{measured}", {usage}}}"#);
        let body = format!(r#"{{"items": [{}, {}, {}]}}"#, item("far"), item("agent"), item("untold"));
        let strangers = HashMap::from([("far".into(), FOUR_CORES), ("untold".into(), NodeCapacity::default())]);
        let answer = answer_of(api(StatusCode::OK, body).await, strangers).await;
        assert_eq!(answer.loads.keys().map(|node| &**node).collect::<Vec<_>>(), ["far"], "{answer:?}");
        let NodeLoad { cpu, memory, capacity, .. } = answer.loads["far"];
        assert!((cpu.unwrap().value.get() - 0.25).abs() < 1e-9 && (memory.unwrap().value.get() - 0.6).abs() < 1e-9);
        assert!(cpu.unwrap().age >= Duration::from_secs(20), "{cpu:?}");
        assert!((capacity - 4.0).abs() < 1e-9);
        assert_eq!((answer.problem, answer.interval), (None, SHORTEST));
    }

    #[tokio::test]
    async fn without_a_metrics_server_nothing_is_known_and_the_reason_is() {
        for status in [StatusCode::NOT_FOUND, StatusCode::SERVICE_UNAVAILABLE] {
            let answer = answer_of(api(status, String::new()).await, [("far".into(), FOUR_CORES)].into()).await;
            assert!(answer.loads.is_empty());
            assert!(answer.problem.unwrap().contains("no metrics-server"), "{status}");
        }
    }
}
