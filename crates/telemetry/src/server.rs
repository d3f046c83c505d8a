//! HTTP for health checks and scrapers, with the ports, paths and answers of kube-proxy.
//!
//! A cloud's load balancer asks `/healthz` on port 10256 whether to send new connections to this node; the kubelet asks
//! `/livez` whether to restart us and `/readyz` whether we do our work; Prometheus asks `/metrics` on port 10249.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use serde::Serialize;

use crate::catalogue;
use crate::metrics::{CONTENT_TYPE, Metrics};

/// Where kube-proxy answers health checks: at all addresses of both families, although it calls them 0.0.0.0 (`favoriteAddrFamily()` in Go's net package).
pub const HEALTH_ADDRESSES: [SocketAddr; 2] = [
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, HEALTH_PORT)),
    SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, HEALTH_PORT, 0, 0)),
];
const HEALTH_PORT: u16 = 10256;
/// Where kube-proxy answers scrapers.
pub const METRICS_ADDRESS: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 10249));

/// How kube-proxy writes a time that never was.
const NEVER: &str = "0001-01-01T00:00:00Z";
/// Keeps browsers from guessing another type.
pub(crate) const NO_SNIFF: (HeaderName, &str) = (header::X_CONTENT_TYPE_OPTIONS, "nosniff");

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

/// Health in kube-proxy's sense (pkg/proxy/healthcheck/proxy_health.go, KEP-3836).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ProxyHealth {
    /// No change of the cluster has waited too long to be programmed.
    pub healthy: bool,
    /// The node is to get traffic: it is not being deleted or drained by the autoscaler.
    pub node_eligible: bool,
    /// When everything that was known of the cluster was last programmed; none before the first time.
    pub last_updated: Option<Timestamp>,
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
    /// Counters at zero, registered.
    pub fn register(metrics: &mut Metrics) -> Self {
        let counters = Self::default();
        catalogue::PROXY_HEALTHZ.register(metrics, counters.healthz.clone());
        catalogue::PROXY_LIVEZ.register(metrics, counters.livez.clone());
        // A family without members is not told at all.
        for answers in [&counters.healthz, &counters.livez] {
            for code in [code(true), code(false)] {
                drop(answers.get_or_create(&Code { code: code.as_u16() }));
            }
        }
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
            json(code, &ProxyHealthBody::new(&health, code, true))
        }
    };
    let livez = {
        let (probes, answers) = (Arc::clone(&probes), counters.livez.clone());
        move || async move {
            let health = probes.proxy_health();
            let code = code(health.healthy);
            count(&answers, code);
            json(code, &ProxyHealthBody::new(&health, code, false))
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

/// kube-proxy's answer, with its fields in its order. `/livez` does not speak of the node.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProxyHealthBody {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Families>,
}

/// kube-proxy has a proxy for each family; ours programs both at once.
#[derive(Serialize)]
struct Families {
    #[serde(rename = "IPv4")]
    v4: FamilyHealth,
    #[serde(rename = "IPv6")]
    v6: FamilyHealth,
}

#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyHealth {
    last_updated: String,
    healthy: bool,
}

impl ProxyHealthBody {
    /// `code` is the answer's: who is content has always been updated just now, as kube-proxy has it for those who look
    /// at the time alone.
    fn new(health: &ProxyHealth, code: StatusCode, with_node: bool) -> Self {
        let ProxyHealth { healthy, node_eligible, last_updated } = *health;
        let now = Timestamp::now().to_string();
        let status = last_updated.map(|updated| {
            let family = FamilyHealth { last_updated: updated.to_string(), healthy };
            Families { v4: family.clone(), v6: family }
        });
        let never = || NEVER.to_owned();
        let updated = last_updated.map_or_else(never, |updated| updated.to_string());
        Self {
            last_updated: if code == StatusCode::OK { now.clone() } else { updated },
            current_time: now,
            node_eligible: with_node.then_some(node_eligible),
            healthy,
            status,
        }
    }
}

#[derive(Serialize)]
struct Readiness {
    ready: bool,
    components: Vec<Component>,
}

pub(crate) const fn code(good: bool) -> StatusCode {
    if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

fn count(answers: &Family<Code, Counter>, code: StatusCode) {
    answers.get_or_create(&Code { code: code.as_u16() }).inc();
}

fn json(code: StatusCode, body: &impl Serialize) -> axum::response::Response {
    match serde_json::to_string(body) {
        Ok(text) => (code, [(header::CONTENT_TYPE, "application/json"), NO_SNIFF], text).into_response(),
        Err(cause) => failed(&cause),
    }
}
