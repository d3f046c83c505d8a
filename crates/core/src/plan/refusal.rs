//! What cannot be served, told in time: never a silent hole.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::{PlanConfig, is_ours};
use crate::cluster::Cluster;
use crate::endpoints::{self, ResolvedEndpoint};
use crate::model::{Family, ObjectName, Protocol, Service, ServicePort};

/// A part of a service that cannot be served. Its text names the service, the cause and the next step.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Refusal {
    /// Endpoints whose port is not the service's.
    SctpEndpoints {
        /// The service.
        service: ObjectName,
        /// Name of the port; may be empty.
        port_name: Arc<str>,
        /// Port of the service.
        port: u16,
        /// Address of the first endpoint that is left out.
        example: IpAddr,
        /// Its port.
        target_port: u16,
        /// How many endpoints are left out, in both families.
        left_out: usize,
        /// How many endpoints there are, in both families.
        endpoints: usize,
    },
    /// A node port that is not the service's port.
    SctpNodePort {
        /// The service.
        service: ObjectName,
        /// Name of the port; may be empty.
        port_name: Arc<str>,
        /// Port of the service.
        port: u16,
        /// The node port, which does not answer.
        node_port: u16,
    },
}

impl Refusal {
    /// The reason of a Kubernetes event.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::SctpEndpoints { .. } => "SctpPortMismatch",
            Self::SctpNodePort { .. } => "SctpNodePortNotServed",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SctpEndpoints { service, port_name, port, example, target_port, left_out, endpoints } => write!(
                f,
                "{service} port {port_name:?}: SCTP ports cannot be translated: {left_out} of {endpoints} endpoints \
                 are left out, since they listen on another port ({example} on {target_port}) than the service ({port}): \
                 give both the same port"
            ),
            Self::SctpNodePort { service, port_name, port, node_port } => write!(
                f,
                "{service} port {port_name:?}: SCTP ports cannot be translated: node port {node_port} does not answer, \
                 since the service's port is {port}: connect to the cluster IP or a load balancer IP, or give \
                 the service and its endpoints the port {node_port}, too"
            ),
        }
    }
}

/// Whether packets to the service's port may go to another port, or come from one. The checksum of SCTP covers the
/// whole packet with its ports, and reading all of a packet is too much for a program in the kernel: SCTP ports stay.
pub(super) fn can_translate(port: &ServicePort, other: u16) -> bool {
    match port.protocol {
        Protocol::Tcp | Protocol::Udp => true,
        Protocol::Sctp => other == port.port,
    }
}

/// What of a service cannot be served, and why. Nothing of a service that is another proxy's.
#[must_use]
pub fn refusals(cluster: &Cluster, config: &PlanConfig, name: &ObjectName) -> Vec<Refusal> {
    let Some(service) = cluster.service(name).filter(|service| is_ours(cluster, service, config)) else {
        return Vec::new();
    };
    let of_port =
        |port| endpoints_left_out(cluster, service, port).into_iter().chain(node_port_left_out(service, port));
    service.ports.iter().flat_map(of_port).collect()
}

fn endpoints_left_out(cluster: &Cluster, service: &Service, port: &ServicePort) -> Option<Refusal> {
    let of_family = |family| endpoints::merge(cluster.slices(&service.name), family, &port.name, port.protocol);
    let all: Vec<_> = [Family::V4, Family::V6].into_iter().flat_map(of_family).collect();
    let left_out: Vec<&ResolvedEndpoint<'_>> = all.iter().filter(|e| !can_translate(port, e.port)).collect();
    left_out.first().map(|first| Refusal::SctpEndpoints {
        service: service.name.clone(),
        port_name: Arc::clone(&port.name),
        port: port.port,
        example: first.address,
        target_port: first.port,
        left_out: left_out.len(),
        endpoints: all.len(),
    })
}

fn node_port_left_out(service: &Service, port: &ServicePort) -> Option<Refusal> {
    let node_port = port.node_port.filter(|node_port| !can_translate(port, *node_port))?;
    let (service, port_name) = (service.name.clone(), Arc::clone(&port.name));
    Some(Refusal::SctpNodePort { service, port_name, port: port.port, node_port })
}
