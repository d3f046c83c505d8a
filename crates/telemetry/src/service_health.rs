//! The health-check node port of a Service: whether a load balancer outside should send the Service's traffic to this
//! node. Every answer is kube-proxy's (pkg/proxy/healthcheck/service_health.go), byte for byte: cloud providers read it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};

use crate::server::{NO_SNIFF, Probes, code};

/// Tells load balancers how many endpoints are behind this node.
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// A Service and the number of its endpoints on this node that are ready. Clones share the number.
#[derive(Clone, Debug)]
pub struct LocalEndpoints {
    namespace: Arc<str>,
    name: Arc<str>,
    count: Arc<AtomicU32>,
}

impl LocalEndpoints {
    /// Of a Service by its namespace and name.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>, count: u32) -> Self {
        Self { namespace: namespace.into(), name: name.into(), count: Arc::new(AtomicU32::new(count)) }
    }

    /// From now on there are that many.
    pub fn set(&self, count: u32) {
        self.count.store(count, Ordering::Relaxed);
    }
}

/// Answers every path and method: 200 if an endpoint of this node is ready and the proxy is healthy, else 503.
pub fn service_health_router(endpoints: LocalEndpoints, probes: Arc<dyn Probes>) -> Router {
    let answer = move || async move { answer(&endpoints, probes.proxy_health().healthy) };
    Router::new().fallback(answer)
}

fn answer(endpoints: &LocalEndpoints, healthy: bool) -> Response {
    let count = endpoints.count.load(Ordering::Relaxed);
    let headers = [(header::CONTENT_TYPE, "application/json"), NO_SNIFF];
    let weight = [(WEIGHT, count.to_string())];
    (code(count > 0 && healthy), headers, weight, body(endpoints, count, healthy)).into_response()
}

/// With tabs and without a last line break, as kube-proxy's template comes out.
fn body(endpoints: &LocalEndpoints, count: u32, healthy: bool) -> String {
    let LocalEndpoints { namespace, name, count: _ } = endpoints;
    format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": {namespace:?},\n\t\t\"name\": {name:?}\n\t}},\n\
         \t\"localEndpoints\": {count},\n\t\"serviceProxyHealthy\": {healthy}\n}}"
    )
}
