//! Kubernetes objects to the compact ones of the model. Plain functions: what they refuse, they return as [`Problem`]s.

mod address;
mod endpoint_slice;
mod node;
mod service;
mod service_cidr;

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use weir_core::model::{ObjectName, Protocol, Proxy};
use weir_core::settings::Wrong;

pub(crate) use address::parse_range;
pub use endpoint_slice::{TRIGGER_TIME_ANNOTATION, endpoint_slice};
pub use node::{TO_BE_DELETED_TAINT, node};
pub(crate) use service::AFFINITY_SECONDS;
pub use service::{DEFAULT_AFFINITY_SECONDS, NOBODY, service};
pub use service_cidr::service_cidr;

/// Label of a Service whose traffic nobody is to balance, whatever its cluster IP.
pub const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
/// Label that names the proxy that serves a Service.
pub const PROXY_NAME_LABEL: &str = "service.kubernetes.io/service-proxy-name";
/// Label of an EndpointSlice that names its Service.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// Label of a Node that names its zone.
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// A part of an object that was refused; the rest of the object is served.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Problem {
    /// Not an IP address.
    #[error("{field}: \"{value}\" is not an IP address; it is left out")]
    Address {
        /// Where in the object.
        field: &'static str,
        /// What stands there.
        value: String,
    },
    /// An address of a slice that is not of the slice's family.
    #[error("endpoints[].addresses: {address} is not of addressType {address_type}; it is left out")]
    Family {
        /// The address.
        address: IpAddr,
        /// The slice's type.
        address_type: String,
    },
    /// An endpoint with no address at all.
    #[error("endpoints[]: an endpoint has no address; it is left out")]
    NoAddress,
    /// A port number that no packet can carry.
    #[error("{field}: port {value} of \"{name}\" is not in 1..65535; it is left out")]
    Port {
        /// Where in the object.
        field: &'static str,
        /// Name of the port.
        name: String,
        /// What stands there.
        value: i32,
    },
    /// A protocol that Kubernetes does not know.
    #[error("{field}: protocol \"{value}\" of \"{name}\" is not TCP, UDP or SCTP; the port is left out")]
    Protocol {
        /// Where in the object.
        field: &'static str,
        /// Name of the port.
        name: String,
        /// What stands there.
        value: String,
    },
    /// Not a range of addresses.
    #[error("spec.loadBalancerSourceRanges: \"{0}\" is not a range such as 192.0.2.0/24; it admits nobody")]
    SourceRange(String),
    /// Of the source ranges none is left. Open to all would be the opposite of what was asked for.
    #[error("spec.loadBalancerSourceRanges: no valid range is left; the load balancer addresses admit nobody")]
    NoSourceRange,
    /// A time-out of the session affinity that Kubernetes does not allow.
    #[error(
        "spec.sessionAffinityConfig.clientIP.timeoutSeconds: {0} is not in 1..86400; {DEFAULT_AFFINITY_SECONDS} is used"
    )]
    AffinityTimeout(i32),
    /// A port for health checks that nobody can ask.
    #[error("spec.healthCheckNodePort: {0} is not in 1..65535; nothing answers health checks")]
    HealthCheckPort(i32),
    /// An annotation of ours that takes no effect.
    #[error(transparent)]
    Annotation(#[from] Wrong),
    /// Not a network.
    #[error("spec.cidrs: \"{0}\" is not a network such as 10.96.0.0/16; it is left out")]
    ServiceCidr(String),
    /// A slice of names, or of something unknown.
    #[error("addressType \"{0}\" is not IPv4 or IPv6; the whole slice is left out")]
    AddressType(String),
}

/// Namespace and name of an object.
#[must_use]
pub fn object_name(metadata: &ObjectMeta) -> ObjectName {
    ObjectName::new(metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
}

/// The value of a label.
fn label<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// Whose object it is by its label [`PROXY_NAME_LABEL`]. With an empty `proxy_name` ours is what has no such label at
/// all, otherwise what names us; what has none is told apart then.
///
/// The label of a Service decides. Its slices carry it, too, if a controller made them.
#[must_use]
pub fn proxy(metadata: &ObjectMeta, proxy_name: &str) -> Proxy {
    match label(metadata, PROXY_NAME_LABEL) {
        None if proxy_name.is_empty() => Proxy::Ours,
        None => Proxy::Unlabelled,
        Some(name) if !proxy_name.is_empty() && name == proxy_name => Proxy::Ours,
        Some(_) => Proxy::Other,
    }
}

/// An address.
fn address(field: &'static str, value: &str, problems: &mut Vec<Problem>) -> Option<IpAddr> {
    let parsed = address::parse_address(value);
    if parsed.is_none() {
        problems.push(Problem::Address { field, value: value.to_owned() });
    }
    parsed
}

/// A port number in 1..65535.
fn port(field: &'static str, name: &str, value: i32, problems: &mut Vec<Problem>) -> Option<u16> {
    let parsed = u16::try_from(value).ok().filter(|port| *port != 0);
    if parsed.is_none() {
        problems.push(Problem::Port { field, name: name.to_owned(), value });
    }
    parsed
}

/// A protocol; none means TCP.
fn protocol(field: &'static str, name: &str, value: Option<&str>, problems: &mut Vec<Problem>) -> Option<Protocol> {
    match value {
        None | Some("" | "TCP") => Some(Protocol::Tcp),
        Some("UDP") => Some(Protocol::Udp),
        Some("SCTP") => Some(Protocol::Sctp),
        Some(other) => {
            problems.push(Problem::Protocol { field, name: name.to_owned(), value: other.to_owned() });
            None
        }
    }
}

/// Shared text; the empty one of most objects costs nothing more than its count.
fn text(value: Option<&str>) -> Arc<str> {
    Arc::from(value.unwrap_or_default())
}
