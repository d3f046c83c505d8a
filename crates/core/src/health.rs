//! What the health-check node ports answer: load balancers outside ask them which nodes have endpoints of a service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::cluster::Cluster;
use crate::endpoints;
use crate::model::{Family, ObjectName, Service, TrafficPolicy};
use crate::plan::has_family;

/// The health-check node port of a service.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct HealthCheck {
    /// `spec.healthCheckNodePort`, at the addresses that answer at node ports.
    pub port: u16,
    /// Endpoints of this node that are ready, IPv4 and IPv6: 0 keeps load balancers away from its addresses of that family. None: the service has
    /// none of the family, and nothing answers there.
    pub local_endpoints: [Option<u32>; 2],
}

impl HealthCheck {
    /// What is answered at addresses of a family, if anything is.
    #[must_use]
    pub const fn at(&self, family: Family) -> Option<u32> {
        let [v4, v6] = self.local_endpoints;
        match family {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }
}

/// The health checks that a node serves, by service.
#[must_use]
pub fn health_checks(cluster: &Cluster, node: &str) -> BTreeMap<ObjectName, HealthCheck> {
    let check = |service: &Service| {
        let served = cluster.serves(service) && service.external_policy == TrafficPolicy::Local;
        let port = service.health_check_port.filter(|_| served)?;
        Some((service.name.clone(), HealthCheck { port, local_endpoints: local_endpoints(cluster, service, node) }))
    };
    cluster.services().filter_map(check).collect()
}

/// As kube-proxy's `LocalReadyEndpoints`, by family, for the listeners of that family alone: a node may have endpoints of one that it has not of the
/// other. Every address counts once, however many ports it has, and whatever drains does not count although it may still get traffic.
fn local_endpoints(cluster: &Cluster, service: &Service, node: &str) -> [Option<u32>; 2] {
    let count = |family| has_family(service, family).then(|| local_endpoints_of(cluster, service, family, node));
    [Family::V4, Family::V6].map(count)
}

fn local_endpoints_of(cluster: &Cluster, service: &Service, family: Family, node: &str) -> u32 {
    let ports = cluster.slices(&service.name).flat_map(|slice| &slice.ports);
    let ports: BTreeSet<_> = ports.map(|port| (&port.name, port.protocol)).collect();
    let mut ready = BTreeSet::<IpAddr>::new();
    for (name, protocol) in ports {
        let merged = endpoints::merge(cluster.slices(&service.name), family, name, protocol);
        ready.extend(merged.iter().filter(|endpoint| endpoint.ready && endpoint.is_on(node)).map(|e| e.address));
    }
    u32::try_from(ready.len()).unwrap_or(u32::MAX)
}
