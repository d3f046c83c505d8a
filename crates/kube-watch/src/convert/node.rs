//! Nodes.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as k8s;
use weir_core::model::Node;

use super::{Problem, ZONE_LABEL, address, label, text};

/// The part of a Node that planning needs. Its addresses are the internal ones; a node that has none is known by its
/// external ones.
#[must_use]
pub fn node(object: &k8s::Node, problems: &mut Vec<Problem>) -> Node {
    let internal = addresses(object, "InternalIP", problems);
    Node {
        name: name(object),
        zone: text(label(&object.metadata, ZONE_LABEL)),
        addresses: if internal.is_empty() { addresses(object, "ExternalIP", problems) } else { internal },
    }
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
