//! EndpointSlices.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::discovery::v1 as k8s;
use weir_core::model::{Endpoint, Family, ObjectName, PodUid, Slice, SlicePort};

use super::{HEADLESS_LABEL, Problem, SERVICE_NAME_LABEL, address, label, object_name, port, protocol, text};

/// Annotation of an EndpointSlice: when that happened which made its controller write it, in RFC 3339.
pub const TRIGGER_TIME_ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// The part of an EndpointSlice that planning needs, or `None` if it belongs to no Service or to a headless one.
///
/// Which proxy serves it is not asked: the Service decides, and flows of one that has moved to another proxy go on.
#[must_use]
pub fn endpoint_slice(object: &k8s::EndpointSlice, problems: &mut Vec<Problem>) -> Option<Slice> {
    let service = label(&object.metadata, SERVICE_NAME_LABEL).filter(|name| !name.is_empty())?;
    if label(&object.metadata, HEADLESS_LABEL).is_some() {
        return None;
    }
    let family = match object.address_type.as_str() {
        "IPv4" => Family::V4,
        "IPv6" => Family::V6,
        other => {
            problems.push(Problem::AddressType(other.to_owned()));
            return None;
        }
    };
    let name = object_name(&object.metadata);
    Some(Slice {
        service: ObjectName { namespace: Arc::clone(&name.namespace), name: Arc::from(service) },
        name,
        family,
        ports: object.ports.iter().flatten().filter_map(|port| slice_port(port, problems)).collect(),
        endpoints: object.endpoints.iter().filter_map(|one| endpoint(one, family, object, problems)).collect(),
        triggered: triggered(object),
    })
}

/// Nothing but a metric depends on it, so one that cannot be read is not worth a word.
fn triggered(object: &k8s::EndpointSlice) -> Option<i64> {
    let written = object.metadata.annotations.as_ref()?.get(TRIGGER_TIME_ANNOTATION)?;
    written.parse::<Timestamp>().ok().map(Timestamp::as_millisecond)
}

/// A port without a number stands for all ports, which a Service cannot use.
fn slice_port(object: &k8s::EndpointPort, problems: &mut Vec<Problem>) -> Option<SlicePort> {
    let name = object.name.as_deref().unwrap_or_default();
    let number = object.port?;
    Some(SlicePort {
        name: text(object.name.as_deref()),
        protocol: protocol("ports[].protocol", name, object.protocol.as_deref(), problems)?,
        port: port("ports[].port", name, number, problems)?,
    })
}

/// A uid of another form finds no cgroup either.
fn pod(target: &ObjectReference) -> Option<PodUid> {
    target.uid.as_deref().filter(|_| target.kind.as_deref() == Some("Pod"))?.parse().ok()
}

fn endpoint(
    object: &k8s::Endpoint,
    family: Family,
    slice: &k8s::EndpointSlice,
    problems: &mut Vec<Problem>,
) -> Option<Endpoint> {
    let Some(first) = object.addresses.first() else {
        problems.push(Problem::NoAddress);
        return None;
    };
    let address = address("endpoints[].addresses", first, problems)?;
    if Family::of(address) != family {
        problems.push(Problem::Family { address, address_type: slice.address_type.clone() });
        return None;
    }
    let conditions = object.conditions.as_ref();
    let ready = conditions.and_then(|conditions| conditions.ready).unwrap_or(true);
    let hints = object.hints.as_ref();
    let zones = hints.and_then(|hints| hints.for_zones.as_deref()).unwrap_or_default();
    let nodes = hints.and_then(|hints| hints.for_nodes.as_deref()).unwrap_or_default();
    Some(Endpoint {
        address,
        node: object.node_name.as_deref().filter(|name| !name.is_empty()).map(Arc::from),
        ready,
        serving: conditions.and_then(|conditions| conditions.serving).unwrap_or(true),
        terminating: conditions.and_then(|conditions| conditions.terminating).unwrap_or(false),
        zone_hints: zones.iter().map(|zone| Arc::from(zone.name.as_str())).collect(),
        node_hints: nodes.iter().map(|node| Arc::from(node.name.as_str())).collect(),
        pod: object.target_ref.as_ref().and_then(pod),
    })
}
