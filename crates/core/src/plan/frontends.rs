//! What clients of a service connect to.

use std::collections::HashSet;
use std::net::IpAddr;

use weir_abi as abi;

use super::{PlanConfig, refusal};
use crate::model::{Family, Service, ServicePort};
use crate::ops::FrontendKey;

/// Whether a service has addresses in a family at all. One of a static file may have no cluster IP: then it has both.
pub(crate) fn has_family(service: &Service, family: Family) -> bool {
    service.cluster_ips.is_empty() || service.cluster_ips.iter().any(|ip| Family::of(*ip) == family)
}

/// The frontends of a port in a family, each with its `abi::KIND_*`. What is in `claimed` is another port's.
pub(super) fn frontends(
    service: &Service,
    port: &ServicePort,
    family: Family,
    config: &PlanConfig,
    claimed: &mut HashSet<FrontendKey>,
) -> Vec<(FrontendKey, u32)> {
    let mut frontends = Vec::new();
    if !has_family(service, family) {
        return frontends;
    }
    let mut claim = |addresses: &[IpAddr], port: u16, protocol: u8, kind: u32| {
        for address in addresses.iter().filter(|ip| Family::of(**ip) == family) {
            let key = FrontendKey { address: *address, port, protocol };
            if claimed.insert(key) {
                frontends.push((key, kind));
            }
        }
    };
    let protocol = port.protocol.number();
    claim(&service.cluster_ips, port.port, protocol, abi::KIND_CLUSTER_IP);
    // One for the whole address: the first port has it, and the next one when that port goes.
    claim(&service.cluster_ips, 0, 0, abi::KIND_UNUSED_PORT);
    if let Some(node_port) = port.node_port.filter(|node_port| refusal::can_translate(port, *node_port)) {
        claim(&config.node_port_addresses, node_port, protocol, abi::KIND_NODE_PORT);
    }
    // The datapath has to know these addresses without a port, too: of a cluster IP, the one of its unused ports says it.
    claim(&service.load_balancer_ips, port.port, protocol, abi::KIND_LOAD_BALANCER);
    claim(&service.load_balancer_ips, 0, 0, abi::KIND_ADDRESS);
    if config.external_ips {
        claim(&service.external_ips, port.port, protocol, abi::KIND_EXTERNAL_IP);
        claim(&service.external_ips, 0, 0, abi::KIND_ADDRESS);
    }
    frontends
}
