//! metrics.k8s.io: what metrics-server says of nodes and pods. Its news are a quarter of a minute old and more: it is
//! the fallback for nodes that run no agent, and never drives the loop alone.

mod fallback;
mod pace;

use std::time::Duration;

use http::{Request, StatusCode};
use jiff::Timestamp;
use kube::Client;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use weir_core::load::Lie;
use weir_core::quantity;

pub use fallback::{Capacity, Fallback, SKEW};
pub use pace::{CROWD, JITTER, LONGEST, Pace, SHORTEST};

use crate::source::Failure;

/// Longer silence is a failure: the next request is due by then.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(10);

const GROUP: &str = "/apis/metrics.k8s.io/v1beta1";

/// What something used when it was measured. Finite and not negative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// Cores, as a mean over metrics-server's window.
    pub cores: f64,
    /// Bytes of memory: the working set.
    pub bytes: f64,
    /// When it was measured, on metrics-server's clock.
    pub at: Timestamp,
}

/// A pod's usage, all containers together.
#[derive(Debug)]
pub struct PodUsage {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// What it used, or why that cannot be true.
    pub usage: Result<Usage, Failure>,
}

/// A node's usage.
#[derive(Debug)]
pub struct NodeUsage {
    /// Name.
    pub name: String,
    /// What it used, or why that cannot be true.
    pub usage: Result<Usage, Failure>,
}

/// The API. Requests are the only I/O; what becomes of answers is decided in [`Fallback`].
#[derive(Clone)]
pub struct MetricsApi {
    client: Client,
}

impl MetricsApi {
    /// By way of this client.
    #[must_use]
    pub const fn new(client: Client) -> Self {
        Self { client }
    }

    /// Usage of all nodes.
    ///
    /// # Errors
    /// [`Failure::Missing`] if there is no metrics-server (404, 503) or it may not be asked, [`Failure::Stalled`] if it
    /// does not answer within [`ANSWER_WITHIN`], [`Failure::Malformed`] if it answers something else.
    pub async fn nodes(&self) -> Result<Vec<NodeUsage>, Failure> {
        let list: List<NodeMetrics> = self.get("nodes").await?;
        let usage = |node: NodeMetrics| {
            let NodeMetrics { metadata: Metadata { namespace: _, name }, timestamp, usage } = node;
            let usage = total(&[usage], timestamp).map_err(|wrong| wrong.failure(format!("metrics of node {name}")));
            NodeUsage { name, usage }
        };
        Ok(list.items.into_iter().map(usage).collect())
    }

    /// Usage of the pods of a namespace that have these labels, in the words of a label selector; all if it is empty.
    ///
    /// # Errors
    /// As [`MetricsApi::nodes`].
    pub async fn pods(&self, namespace: &str, labels: &str) -> Result<Vec<PodUsage>, Failure> {
        let resource = format!("namespaces/{}/pods?labelSelector={}", encoded(namespace), encoded(labels));
        let list: List<PodMetrics> = self.get(&resource).await?;
        let usage = |pod: PodMetrics| {
            let PodMetrics { metadata: Metadata { namespace, name }, timestamp, containers } = pod;
            let containers: Vec<_> = containers.into_iter().map(|container| container.usage).collect();
            let object = || format!("metrics of pod {namespace}/{name}");
            let usage = total(&containers, timestamp).map_err(|wrong| wrong.failure(object()));
            PodUsage { namespace, name, usage }
        };
        Ok(list.items.into_iter().map(usage).collect())
    }

    async fn get<T: DeserializeOwned>(&self, resource: &str) -> Result<List<T>, Failure> {
        let url = format!("{GROUP}/{resource}");
        let object = url.clone();
        let request = match Request::get(url).body(Vec::new()) {
            Ok(request) => request,
            Err(cause) => return Err(Failure::Missing { object, cause: cause.into() }),
        };
        match tokio::time::timeout(ANSWER_WITHIN, self.client.request(request)).await {
            Ok(Ok(list)) => Ok(list),
            Ok(Err(error)) => Err(failure(object, error)),
            Err(_elapsed) => Err(Failure::Stalled { object, silence: ANSWER_WITHIN }),
        }
    }
}

fn failure(object: String, error: kube::Error) -> Failure {
    match error {
        kube::Error::SerdeError(_) => Failure::Malformed { object, what: "list of metrics" },
        kube::Error::Api(status) if absent(status.code) => {
            Failure::Missing { object, cause: "the cluster has no metrics-server, or it is not ready".into() }
        }
        cause => Failure::Missing { object, cause: cause.into() },
    }
}

/// 404 without the API, 503 while nothing stands behind it or nothing was measured yet.
fn absent(code: u16) -> bool {
    code == StatusCode::NOT_FOUND || code == StatusCode::SERVICE_UNAVAILABLE
}

/// For a path or a query: all but letters, digits and `-._~` (RFC 3986, 2.3) in hexadecimal.
fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// What is wrong with a usage.
enum Wrong {
    Malformed,
    Lie(Lie),
}

impl Wrong {
    fn failure(self, object: String) -> Failure {
        match self {
            Self::Malformed => Failure::Malformed { object, what: "quantities of cpu and memory" },
            Self::Lie(cause) => Failure::Lie { object, cause },
        }
    }
}

/// All containers together. No containers at all would be idle, which nobody knows.
fn total(usages: &[Resources], at: Timestamp) -> Result<Usage, Wrong> {
    if usages.is_empty() {
        return Err(Wrong::Malformed);
    }
    let mut sum = Usage { cores: 0.0, bytes: 0.0, at };
    for Resources { cpu, memory } in usages {
        sum.cores += amount(cpu, "cores in use")?;
        sum.bytes += amount(memory, "bytes in use")?;
    }
    Ok(sum)
}

fn amount(text: &str, what: &'static str) -> Result<f64, Wrong> {
    let claimed = quantity::parse(text).ok_or(Wrong::Malformed)?;
    if claimed < 0.0 { Err(Wrong::Lie(Lie::Amount { what, claimed })) } else { Ok(claimed) }
}

#[derive(Deserialize)]
struct List<T> {
    items: Vec<T>,
}

#[derive(Deserialize)]
struct NodeMetrics {
    metadata: Metadata,
    #[serde(deserialize_with = "timestamp")]
    timestamp: Timestamp,
    usage: Resources,
}

#[derive(Deserialize)]
struct PodMetrics {
    metadata: Metadata,
    #[serde(deserialize_with = "timestamp")]
    timestamp: Timestamp,
    containers: Vec<ContainerMetrics>,
}

#[derive(Deserialize)]
struct ContainerMetrics {
    usage: Resources,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
struct Resources {
    cpu: String,
    memory: String,
}

fn timestamp<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}
