//! Services.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use k8s_openapi::api::core::v1 as k8s;
use weir_core::model::{Family, Service, ServicePort, TrafficPolicy};
use weir_core::settings::Annotations;

use super::address::parse_range;
use super::{HEADLESS_LABEL, Problem, address, label, object_name, port, protocol, proxy, text};

/// Seconds of session affinity for a Service that does not say how many.
pub const DEFAULT_AFFINITY_SECONDS: u32 = 10_800;
/// Seconds of session affinity that Kubernetes allows: up to a day.
pub(crate) const AFFINITY_SECONDS: RangeInclusive<u32> = 1..=86_400;

/// Source ranges that admit nobody, one per family: no packet comes from the unspecified address.
pub const NOBODY: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 32)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 128)),
];

/// The part of a Service that planning needs, or `None` if nobody is to serve it: headless, ExternalName, or not yet
/// given an address. `proxy_name` is our own, see [`proxy`]: a Service of another proxy is one of `Proxy::Other`.
#[must_use]
pub fn service(object: &k8s::Service, proxy_name: &str, problems: &mut Vec<Problem>) -> Option<Service> {
    let spec = object.spec.as_ref()?;
    let cluster_ip = spec.cluster_ip.as_deref().unwrap_or_default();
    if spec.type_.as_deref() == Some("ExternalName")
        || matches!(cluster_ip, "" | "None")
        || label(&object.metadata, HEADLESS_LABEL).is_some()
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
    let Annotations { overrides, own_series, wrong } = annotations(object);
    problems.extend(wrong.into_iter().map(Problem::Annotation));
    Some(Service {
        name: object_name(&object.metadata),
        cluster_ips,
        external_ips: addresses("spec.externalIPs", spec.external_ips.iter().flatten().map(String::as_str), problems),
        load_balancer_ips: addresses("status.loadBalancer.ingress[].ip", ingress_ips(object), problems),
        ports: spec.ports.iter().flatten().filter_map(|port| service_port(port, problems)).collect(),
        internal_policy: traffic_policy(spec.internal_traffic_policy.as_deref()),
        external_policy: traffic_policy(spec.external_traffic_policy.as_deref()),
        affinity: affinity(spec, problems),
        source_ranges: source_ranges(spec, problems),
        health_check_port: health_check_port(spec, problems),
        proxy: proxy(&object.metadata, proxy_name),
        overrides,
        own_series,
    })
}

/// What the annotations want.
fn annotations(object: &k8s::Service) -> Annotations {
    let annotations = object.metadata.annotations.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()));
    Annotations::of(&object_name(&object.metadata), annotations)
}

/// For how many seconds a client keeps its endpoint.
fn affinity(spec: &k8s::ServiceSpec, problems: &mut Vec<Problem>) -> Option<u32> {
    if spec.session_affinity.as_deref() != Some("ClientIP") {
        return None;
    }
    let config = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    let Some(written) = config.and_then(|client_ip| client_ip.timeout_seconds) else {
        return Some(DEFAULT_AFFINITY_SECONDS);
    };
    let seconds = u32::try_from(written).ok().filter(|seconds| AFFINITY_SECONDS.contains(seconds));
    if seconds.is_none() {
        problems.push(Problem::AffinityTimeout(written));
    }
    Some(seconds.unwrap_or(DEFAULT_AFFINITY_SECONDS))
}

/// Whom the load balancer addresses admit. The API server lets white space around a range pass, so that is no mistake.
///
/// A family without a range is open to all, as kube-proxy has it. But where a range cannot be read, which may have been
/// one of that family, a family without another range admits nobody.
fn source_ranges(spec: &k8s::ServiceSpec, problems: &mut Vec<Problem>) -> Vec<IpNet> {
    let written = spec.load_balancer_source_ranges.iter().flatten().map(|range| range.trim());
    let mut ranges = Vec::new();
    let mut refused = false;
    for text in written.filter(|text| !text.is_empty()) {
        match parse_range(text) {
            Some(range) if ranges.contains(&range) => {}
            Some(range) => ranges.push(range),
            None => {
                refused = true;
                problems.push(Problem::SourceRange(text.to_owned()));
            }
        }
    }
    if refused {
        if ranges.is_empty() {
            problems.push(Problem::NoSourceRange);
        }
        let family = |range: &IpNet| Family::of(range.addr());
        let unguarded = NOBODY.into_iter().filter(|nobody| !ranges.iter().any(|range| family(range) == family(nobody)));
        let unguarded: Vec<_> = unguarded.collect();
        ranges.extend(unguarded);
    }
    ranges
}

/// Where load balancers outside ask whether this node has endpoints: only with the external policy Local do they care.
fn health_check_port(spec: &k8s::ServiceSpec, problems: &mut Vec<Problem>) -> Option<u16> {
    let balanced = spec.type_.as_deref() == Some("LoadBalancer");
    let written = spec.health_check_node_port.filter(|port| *port != 0)?;
    if !balanced || traffic_policy(spec.external_traffic_policy.as_deref()) != TrafficPolicy::Local {
        return None;
    }
    let port = u16::try_from(written).ok();
    if port.is_none() {
        problems.push(Problem::HealthCheckPort(written));
    }
    port
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
}

fn addresses<'a>(
    field: &'static str,
    values: impl IntoIterator<Item = &'a str>,
    problems: &mut Vec<Problem>,
) -> Vec<IpAddr> {
    let mut found = Vec::new();
    // The API server does not check everything that it stores; kube-proxy is silent about empty ones, too.
    let written = values.into_iter().filter(|value| !value.trim().is_empty());
    for ip in written.filter_map(|value| address(field, value, problems)) {
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
