//! HTTP for health checks and scrapers, with the ports, paths and answers of kube-proxy.
//!
//! A cloud's load balancer asks `/healthz` on port 10256 whether to send new connections to this node; the kubelet asks
//! `/livez` whether to restart us and `/readyz` whether we do our work; Prometheus asks `/metrics` on port 10249.

use std::fmt::Write as _;
use std::future::IntoFuture;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use serde::Serialize;
use socket2::{Domain, Socket, Type};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::metrics::{CONTENT_TYPE, Metrics};

/// Where kube-proxy answers health checks.
pub const HEALTH_ADDRESS: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 10256));
/// Where kube-proxy answers scrapers.
pub const METRICS_ADDRESS: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 10249));

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// How long answers that are under way may take after the stop.
const DRAIN: Duration = Duration::from_secs(2);

/// What health checks are told. Answers must be quick: they are given on the thread that asks.
pub trait Probes: Send + Sync + 'static {
    /// The parts of the process, in a fixed order. Ready is who has no part that is not.
    fn components(&self) -> Vec<Component>;
    /// Health in kube-proxy's sense.
    fn proxy_health(&self) -> ProxyHealth;
}

/// A part of the process.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Component {
    /// Its name.
    pub name: &'static str,
    /// Whether it does its work.
    pub ready: bool,
    /// Why not, or a detail worth knowing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Health in kube-proxy's sense.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ProxyHealth {
    /// No change of the cluster has waited too long to be programmed.
    pub healthy: bool,
    /// The node is to get traffic: it is not being deleted or drained by the autoscaler.
    pub node_eligible: bool,
    /// When the datapath last agreed with the cluster: now, if nothing waits.
    pub last_updated: Timestamp,
}

/// Counts answers of health checks, by status code, under kube-proxy's names.
#[derive(Clone, Debug, Default)]
pub struct ProbeCounters {
    healthz: Family<Code, Counter>,
    livez: Family<Code, Counter>,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Code {
    code: u16,
}

impl ProbeCounters {
    /// Counters at zero, registered at the root of the registry.
    pub fn register(registry: &mut Registry) -> Self {
        let counters = Self::default();
        let healthz = "Answers to /healthz by status code";
        registry.register("kubeproxy_proxy_healthz", healthz, counters.healthz.clone());
        registry.register("kubeproxy_proxy_livez", "Answers to /livez by status code", counters.livez.clone());
        counters
    }
}

/// `/healthz`, `/livez` and `/readyz`.
pub fn health_router(probes: Arc<dyn Probes>, counters: &ProbeCounters) -> Router {
    let healthz = {
        let (probes, answers) = (Arc::clone(&probes), counters.healthz.clone());
        move || async move {
            let health = probes.proxy_health();
            let code = code(health.healthy && health.node_eligible);
            count(&answers, code);
            json(code, &ProxyHealthBody::new(&health, true))
        }
    };
    let livez = {
        let (probes, answers) = (Arc::clone(&probes), counters.livez.clone());
        move || async move {
            let health = probes.proxy_health();
            let code = code(health.healthy);
            count(&answers, code);
            json(code, &ProxyHealthBody::new(&health, false))
        }
    };
    let readyz = move || async move {
        let components = probes.components();
        let ready = components.iter().all(|component| component.ready);
        json(code(ready), &Readiness { ready, components })
    };
    Router::new().route("/healthz", get(healthz)).route("/livez", get(livez)).route("/readyz", get(readyz))
}

/// `/metrics`, and `/proxyMode` as tests and tools ask of kube-proxy.
pub fn metrics_router(metrics: Arc<Metrics>, proxy_mode: &'static str) -> Router {
    let scrape = move || async move {
        // Collectors read kernel maps: not on the thread that serves everybody.
        let encoded = tokio::task::spawn_blocking(move || metrics.encode()).await;
        match encoded {
            Ok(Ok(text)) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
            Ok(Err(cause)) => failed(&cause),
            Err(cause) => failed(&cause),
        }
    };
    Router::new().route("/metrics", get(scrape)).route("/proxyMode", get(move || async move { proxy_mode }))
}

fn failed(cause: &dyn std::error::Error) -> axum::response::Response {
    let mut text = String::from("cannot collect metrics");
    // Writing to a string cannot fail.
    let _ = write!(text, ": {cause}");
    (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
}

/// kube-proxy's answer. `/livez` does not speak of the node.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProxyHealthBody {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
}

impl ProxyHealthBody {
    fn new(health: &ProxyHealth, with_node: bool) -> Self {
        Self {
            last_updated: health.last_updated.to_string(),
            current_time: Timestamp::now().to_string(),
            node_eligible: with_node.then_some(health.node_eligible),
        }
    }
}

#[derive(Serialize)]
struct Readiness {
    ready: bool,
    components: Vec<Component>,
}

const fn code(good: bool) -> StatusCode {
    if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

fn count(answers: &Family<Code, Counter>, code: StatusCode) {
    answers.get_or_create(&Code { code: code.as_u16() }).inc();
}

fn json(code: StatusCode, body: &impl Serialize) -> axum::response::Response {
    const NO_SNIFF: (HeaderName, &str) = (header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    match serde_json::to_string(body) {
        Ok(text) => (code, [(header::CONTENT_TYPE, "application/json"), NO_SNIFF], text).into_response(),
        Err(cause) => failed(&cause),
    }
}

/// An address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for {what}: {cause}")]
pub struct BindError {
    /// What for.
    pub what: &'static str,
    /// The address.
    pub address: SocketAddr,
    /// Why.
    pub cause: std::io::Error,
}

/// Sockets that listen; connections queue until they are [served](Self::serve).
#[derive(Debug)]
pub struct Listeners(Vec<TcpListener>);

impl Listeners {
    /// Listens on every address, or on none. `[::]` means IPv6 alone, so that it can stand beside `0.0.0.0`. `what` is
    /// for the error's text, such as `health checks`.
    ///
    /// # Errors
    /// If an address is used by somebody else or is not this machine's.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn bind(what: &'static str, addresses: &[SocketAddr]) -> Result<Self, BindError> {
        let bound =
            addresses.iter().map(|&address| listen(address).map_err(|cause| BindError { what, address, cause }));
        bound.collect::<Result<_, _>>().map(Self)
    }

    /// The addresses, with the ports that the kernel chose for port 0.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.0.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Answers until `stop`, then finishes what is under way, for at most two seconds.
    pub async fn serve(self, router: Router, stop: CancellationToken) {
        let mut servers = JoinSet::new();
        for listener in self.0 {
            let stopped = stop.clone().cancelled_owned();
            servers.spawn(axum::serve(listener, router.clone()).with_graceful_shutdown(stopped).into_future());
        }
        let all = async { while servers.join_next().await.is_some() {} };
        tokio::select! {
            () = all => {}
            () = async { stop.cancelled().await; tokio::time::sleep(DRAIN).await } => {}
        }
    }
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // A restart must not wait for the connections of the process before.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}
