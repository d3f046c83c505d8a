//! Services.

use std::net::IpAddr;

use k8s_openapi::api::core::v1 as k8s;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use weir_core::model::{Service, ServicePort, TrafficPolicy};

use super::{HEADLESS_LABEL, PROXY_NAME_LABEL, Problem, address, label, object_name, port, protocol, text};

/// The part of a Service that planning needs, or `None` if this proxy is not to serve it: headless, ExternalName, not
/// yet given an address, or labelled for another proxy than `proxy_name` (empty: serve those that name no proxy).
#[must_use]
pub fn service(object: &k8s::Service, proxy_name: &str, problems: &mut Vec<Problem>) -> Option<Service> {
    let spec = object.spec.as_ref()?;
    let cluster_ip = spec.cluster_ip.as_deref().unwrap_or_default();
    if spec.type_.as_deref() == Some("ExternalName")
        || matches!(cluster_ip, "" | "None")
        || !is_labelled_for(&object.metadata, proxy_name)
    {
        return None;
    }
    // `clusterIPs` is what counts; a writer that knows only the old field leaves it empty.
    let cluster_ips = match spec.cluster_ips.as_deref() {
        Some(ips) if !ips.is_empty() => addresses("spec.clusterIPs", ips.iter().map(String::as_str), problems),
        _ => addresses("spec.clusterIP", [cluster_ip], problems),
    };
    if cluster_ips.is_empty() {
        return None;
    }
    let mut load_balancer_ips = addresses("status.loadBalancer.ingress[].ip", ingress_ips(object), problems);
    if !load_balancer_ips.is_empty() && spec.load_balancer_source_ranges.as_ref().is_some_and(|all| !all.is_empty()) {
        problems.push(Problem::SourceRanges);
        load_balancer_ips.clear();
    }
    if spec.session_affinity.as_deref() == Some("ClientIP") {
        problems.push(Problem::SessionAffinity);
    }
    Some(Service {
        name: object_name(&object.metadata),
        cluster_ips,
        external_ips: addresses("spec.externalIPs", spec.external_ips.iter().flatten().map(String::as_str), problems),
        load_balancer_ips,
        ports: spec.ports.iter().flatten().filter_map(|port| service_port(port, problems)).collect(),
        internal_policy: traffic_policy(spec.internal_traffic_policy.as_deref()),
        external_policy: traffic_policy(spec.external_traffic_policy.as_deref()),
    })
}

/// Whether the labels leave a Service to this proxy.
fn is_labelled_for(metadata: &ObjectMeta, proxy_name: &str) -> bool {
    let ours = match label(metadata, PROXY_NAME_LABEL) {
        None => proxy_name.is_empty(),
        Some(name) => !proxy_name.is_empty() && name == proxy_name,
    };
    ours && label(metadata, HEADLESS_LABEL).is_none()
}

/// Load balancer addresses at which the node itself must answer. `ipMode: Proxy` means that the load balancer wants its
/// traffic back, and an ingress with only a host name has nothing to match.
fn ingress_ips(object: &k8s::Service) -> impl Iterator<Item = &str> {
    let balancer = object.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    balancer
        .and_then(|balancer| balancer.ingress.as_ref())
        .into_iter()
        .flatten()
        .filter(|ingress| matches!(ingress.ip_mode.as_deref(), None | Some("" | "VIP")))
        .filter_map(|ingress| ingress.ip.as_deref())
        .filter(|ip| !ip.is_empty())
}

fn addresses<'a>(
    field: &'static str,
    values: impl IntoIterator<Item = &'a str>,
    problems: &mut Vec<Problem>,
) -> Vec<IpAddr> {
    let mut found = Vec::new();
    for ip in values.into_iter().filter_map(|value| address(field, value, problems)) {
        if !found.contains(&ip) {
            found.push(ip);
        }
    }
    found
}

fn service_port(object: &k8s::ServicePort, problems: &mut Vec<Problem>) -> Option<ServicePort> {
    let name = object.name.as_deref().unwrap_or_default();
    Some(ServicePort {
        name: text(object.name.as_deref()),
        protocol: protocol("spec.ports[].protocol", name, object.protocol.as_deref(), problems)?,
        port: port("spec.ports[].port", name, object.port, problems)?,
        node_port: match object.node_port {
            None | Some(0) => None,
            Some(value) => port("spec.ports[].nodePort", name, value, problems),
        },
    })
}

fn traffic_policy(value: Option<&str>) -> TrafficPolicy {
    // Anything that a later version may add falls back to the default, as in kube-proxy.
    if value == Some("Local") { TrafficPolicy::Local } else { TrafficPolicy::Cluster }
}
