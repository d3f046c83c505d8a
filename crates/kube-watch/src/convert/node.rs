//! Nodes.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as k8s;
use weir_core::model::{Node, NodeCapacity};
use weir_core::quantity;

use super::{Problem, ZONE_LABEL, address, label, text};

/// Taint with which the cluster autoscaler marks a Node that it is about to delete.
pub const TO_BE_DELETED_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// The part of a Node that planning needs. Its addresses are the internal ones; a node that has none is known by its
/// external ones. It is eligible for traffic from load balancers unless it is deleted or marked for it (KEP-3836).
#[must_use]
pub fn node(object: &k8s::Node, problems: &mut Vec<Problem>) -> Node {
    let internal = addresses(object, "InternalIP", problems);
    Node {
        name: name(object),
        zone: text(label(&object.metadata, ZONE_LABEL)),
        addresses: if internal.is_empty() { addresses(object, "ExternalIP", problems) } else { internal },
        eligible: object.metadata.deletion_timestamp.is_none() && !is_to_be_deleted(object),
        capacity: capacity(object),
    }
}

/// Usage is of all of the node, so this is not `status.allocatable`. What is no number is unknown: it only weighs a load.
fn capacity(object: &k8s::Node) -> NodeCapacity {
    let all = object.status.as_ref().and_then(|status| status.capacity.as_ref());
    let amount = |resource: &str, scale: f64| {
        let number = all.and_then(|all| quantity::parse(&all.get(resource)?.0));
        number.map_or(0.0, |number| (number * scale).round().max(0.0))
    };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and the largest fits")]
    NodeCapacity { millicores: amount("cpu", 1000.0) as u32, bytes: amount("memory", 1.0) as u64 }
}

/// The taint counts with any value and any effect.
fn is_to_be_deleted(object: &k8s::Node) -> bool {
    let taints = object.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.into_iter().flatten().any(|taint| taint.key == TO_BE_DELETED_TAINT)
}

/// The name of a Node.
pub(crate) fn name(object: &k8s::Node) -> Arc<str> {
    text(object.metadata.name.as_deref())
}

fn addresses(object: &k8s::Node, kind: &str, problems: &mut Vec<Problem>) -> Vec<IpAddr> {
    let all = object.status.as_ref().and_then(|status| status.addresses.as_ref());
    all.into_iter()
        .flatten()
        .filter(|one| one.type_ == kind)
        .filter_map(|one| address("status.addresses", &one.address, problems))
        .collect()
}
