//! The agents' pods, as kubectl lists them.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The agent's container, where a pod has several.
const CONTAINER: &str = "agent";

/// What kubectl says of pods, as far as it matters.
#[derive(Debug, Deserialize)]
pub(super) struct PodList {
    items: Vec<Pod>,
}

#[derive(Debug, Deserialize)]
struct Pod {
    metadata: Metadata,
    spec: PodSpec,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    namespace: String,
    #[serde(default)]
    creation_timestamp: Option<String>,
    #[serde(default)]
    deletion_timestamp: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    #[serde(default)]
    node_name: String,
    containers: Vec<Container>,
}

#[derive(Debug, Deserialize)]
struct Container {
    name: String,
}

/// Where a node's agent is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Place {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) container: String,
}

/// One pod for each node: while one is replaced that is the newer one, and one that is to stay.
pub(super) fn places(list: PodList) -> BTreeMap<String, Place> {
    let mut pods = list.items;
    pods.sort_by_key(|pod| (pod.metadata.deletion_timestamp.is_none(), pod.metadata.creation_timestamp.clone()));
    let place = |pod: Pod| {
        let Pod { metadata, spec } = pod;
        let agent = spec.containers.iter().position(|container| container.name == CONTAINER).unwrap_or(0);
        let container = spec.containers.into_iter().nth(agent)?.name;
        Some((spec.node_name, Place { namespace: metadata.namespace, pod: metadata.name, container }))
    };
    // The last one of a node stays.
    pods.into_iter().filter_map(place).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn each_node_has_one_agent_the_newest_that_is_to_stay() {
        let pod = |name: &str, node: &str, created: &str, deleted: Option<&str>, containers: &[&str]| {
            let containers: Vec<Value> = containers.iter().map(|name| serde_json::json!({"name": name})).collect();
            serde_json::json!({
                "metadata": {"name": name, "namespace": "kube-system", "creationTimestamp": created, "deletionTimestamp": deleted},
                "spec": {"nodeName": node, "containers": containers},
            })
        };
        let list = serde_json::json!({"items": [
            pod("new", "edge-1", "2026-01-02T00:00:00Z", None, &["log", "agent"]),
            pod("old", "edge-1", "2026-01-01T00:00:00Z", None, &["agent"]),
            pod("going", "edge-2", "2026-01-03T00:00:00Z", Some("2026-01-04T00:00:00Z"), &["agent"]),
            pod("staying", "edge-2", "2026-01-01T00:00:00Z", None, &["weir"]),
        ]});
        let places = places(serde_json::from_value(list).unwrap());
        let seen: Vec<_> =
            places.iter().map(|(node, place)| (node.as_str(), place.pod.as_str(), place.container.as_str())).collect();
        assert_eq!(seen, [("edge-1", "new", "agent"), ("edge-2", "staying", "weir")]);
    }
}
