//! Which clients load balancer addresses admit, as kube-proxy reads `loadBalancerSourceRanges`
//! (pkg/proxy/serviceport.go and the firewall chains of pkg/proxy/nftables/proxier.go).

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::model::{Family, Service};

/// The ranges of one family, sorted and without host bits; empty admits everybody. So does a range of all addresses,
/// and so does a service whose ranges are all of the other family: each family is filtered on its own.
///
/// A node that is admitted may have the load balancer address as its own and connect from it, so that is admitted, too.
pub(super) fn source_ranges(service: &Service, family: Family, node: Option<IpAddr>) -> Vec<IpNet> {
    let of_family = service.source_ranges.iter().filter(|range| Family::of(range.addr()) == family);
    let mut ranges: BTreeSet<IpNet> = of_family.map(IpNet::trunc).collect();
    if ranges.iter().any(|range| range.prefix_len() == 0) {
        return Vec::new();
    }
    if node.is_some_and(|node| ranges.iter().any(|range| range.contains(&node))) {
        let own = service.load_balancer_ips.iter().filter(|ip| Family::of(**ip) == family);
        ranges.extend(own.map(|ip| IpNet::from(*ip)));
    }
    ranges.into_iter().collect()
}
