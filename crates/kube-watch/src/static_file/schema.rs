//! The file's form. Values stay as they are written, each with its place; their meaning is checked in `build`.

use std::collections::BTreeMap;

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_saphyr::Spanned;

/// The file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Document {
    pub(super) api_version: Option<Spanned<String>>,
    #[serde(default, deserialize_with = "listed")]
    pub(super) nodes: Vec<Node>,
    #[serde(deserialize_with = "listed")]
    pub(super) services: Vec<Service>,
}

/// A node: a machine that endpoints run on.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Node {
    pub(super) name: Spanned<String>,
    pub(super) zone: Option<String>,
    #[serde(default, deserialize_with = "listed")]
    pub(super) addresses: Vec<Spanned<String>>,
}

/// A Service with its endpoints.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Service {
    pub(super) namespace: Option<Spanned<String>>,
    pub(super) name: Spanned<String>,
    #[serde(default)]
    pub(super) annotations: BTreeMap<String, Spanned<String>>,
    /// What annotations say, without their prefix.
    #[serde(default)]
    pub(super) steering: BTreeMap<String, Spanned<String>>,
    #[serde(default, rename = "clusterIPs", deserialize_with = "listed")]
    pub(super) cluster_ips: Vec<Spanned<String>>,
    #[serde(default, rename = "externalIPs", deserialize_with = "listed")]
    pub(super) external_ips: Vec<Spanned<String>>,
    #[serde(default, rename = "loadBalancerIPs", deserialize_with = "listed")]
    pub(super) load_balancer_ips: Vec<Spanned<String>>,
    pub(super) internal_traffic_policy: Option<Spanned<String>>,
    pub(super) external_traffic_policy: Option<Spanned<String>>,
    pub(super) session_affinity: Option<Spanned<String>>,
    pub(super) session_affinity_seconds: Option<Spanned<i64>>,
    #[serde(default, deserialize_with = "listed")]
    pub(super) load_balancer_source_ranges: Vec<Spanned<String>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) health_check: Option<HealthCheck>,
    #[serde(deserialize_with = "listed")]
    pub(super) ports: Vec<Port>,
    #[serde(default, deserialize_with = "listed")]
    pub(super) endpoints: Vec<Endpoint>,
}

/// A port of a Service.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Port {
    pub(super) name: Option<Spanned<String>>,
    pub(super) protocol: Option<Spanned<String>>,
    pub(super) port: Spanned<i64>,
    pub(super) node_port: Option<Spanned<i64>>,
    pub(super) target_port: Option<Spanned<i64>>,
}

/// An endpoint of a Service.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Endpoint {
    pub(super) address: Spanned<String>,
    pub(super) node: Option<Spanned<String>>,
    pub(super) ready: Option<bool>,
    pub(super) serving: Option<bool>,
    pub(super) terminating: Option<bool>,
    /// Uid of the Pod that it is, after which its control groups are called.
    pub(super) pod: Option<Spanned<String>>,
    /// Where it serves a port of the Service, by the port's name, if not at the `targetPort`.
    #[serde(default)]
    pub(super) ports: BTreeMap<String, Spanned<i64>>,
}

/// How the endpoints of a Service are checked. All may be left out.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct HealthCheck {
    /// An HTTP request; without it they are connected to.
    #[serde(default, deserialize_with = "present")]
    pub(super) http: Option<HttpCheck>,
    /// A number, or the name of one of the Service's ports.
    pub(super) port: Option<Spanned<String>>,
    pub(super) interval: Option<Spanned<String>>,
    pub(super) timeout: Option<Spanned<String>>,
    pub(super) rise: Option<Spanned<i64>>,
    pub(super) fall: Option<Spanned<i64>>,
    pub(super) when_all_fail: Option<Spanned<String>>,
}

/// An HTTP request. All may be left out.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct HttpCheck {
    pub(super) path: Option<Spanned<String>>,
    pub(super) host: Option<Spanned<String>>,
    /// A code, or the first and the last one of a range.
    pub(super) status: Option<Spanned<String>>,
}

/// A field that is written with nothing after it is wanted, with all that may be left out left out.
fn present<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(field: D) -> Result<Option<T>, D::Error> {
    Ok(Some(Option::deserialize(field)?.unwrap_or_default()))
}

/// A list that is written with nothing after it is a template that has made nothing, or a file that is not whole yet: it must not take everything away.
fn listed<'de, D: Deserializer<'de>, T: Deserialize<'de>>(field: D) -> Result<Vec<T>, D::Error> {
    let list = Option::deserialize(field)?;
    list.ok_or_else(|| D::Error::custom("a list with nothing in it is written as `[]`"))
}
