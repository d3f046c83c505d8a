//! The networks in which an address that no Service has is nobody's, as ServiceCIDRs (KEP-1880) tell them.
//!
//! Packets to such an address are dropped before they leave the node, as kube-proxy does it (nftables, KEP-3866). So a
//! network counts only where that cannot hit anything else: it must hold no node, and no other proxy may serve in it.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use weir_abi as abi;

use crate::cluster::Cluster;

/// What of the ServiceCIDRs is in force, and what is not.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ServiceNetworks {
    /// At most [`abi::SERVICE_NETWORKS`], in the order of their addresses, IPv4 first; none holds another one.
    pub in_force: Vec<IpNet>,
    /// In the order of the objects' names.
    pub left_out: Vec<LeftOut>,
}

/// A network that is not in force.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LeftOut {
    /// Name of the ServiceCIDR.
    pub name: Arc<str>,
    /// Its network.
    pub network: IpNet,
    /// Why.
    pub cause: Cause,
}

/// Why a network is not in force, and what to do.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Cause {
    /// Dropping there would cut the nodes off.
    #[error("it holds the address {0} of a node; give Services a network of their own")]
    HoldsNode(IpAddr),
    /// The kernel knows only so many.
    #[error("there are more than {} networks; join neighbouring ServiceCIDRs", abi::SERVICE_NETWORKS)]
    NoRoom,
}

impl ServiceNetworks {
    /// What the cluster's ServiceCIDRs come to. Doubles, networks inside others and neighbours are joined. Nothing is in
    /// force `beside` another proxy, nor while a Service is another's: its cluster IPs lie there, too.
    ///
    /// `None`: the ServiceCIDRs are not known yet.
    #[must_use]
    pub fn of(cluster: &Cluster, beside: bool) -> Option<Self> {
        if beside || cluster.has_other_proxy() {
            return Some(Self::default());
        }
        let mut left_out = Vec::new();
        let mut usable = Vec::new();
        for cidr in cluster.service_cidrs()? {
            for network in &cidr.networks {
                match held_node(cluster, network) {
                    Some(node) => {
                        let cause = Cause::HoldsNode(node);
                        left_out.push(LeftOut { name: Arc::clone(&cidr.name), network: *network, cause });
                    }
                    None => usable.push((&cidr.name, *network)),
                }
            }
        }
        let mut in_force = IpNet::aggregate(&usable.iter().map(|(_, network)| *network).collect());
        in_force.truncate(abi::SERVICE_NETWORKS);
        let without_room =
            usable.into_iter().filter(|(_, network)| !in_force.iter().any(|wide| wide.contains(network)));
        left_out.extend(without_room.map(|(name, network)| {
            let name = Arc::clone(name);
            LeftOut { name, network, cause: Cause::NoRoom }
        }));
        left_out.sort_by(|a, b| a.name.cmp(&b.name));
        Some(Self { in_force, left_out })
    }

    /// As the kernel has it: how many there are, and they.
    #[must_use]
    pub fn entries(&self) -> (u32, [abi::Network; abi::SERVICE_NETWORKS]) {
        let mut entries = [abi::Network::UNSET; abi::SERVICE_NETWORKS];
        let mut count = 0;
        for (entry, network) in entries.iter_mut().zip(&self.in_force) {
            *entry = abi::Network::new(network.addr(), network.prefix_len());
            count += 1;
        }
        (count, entries)
    }
}

/// The address of a node in a network. For the kernel an IPv6 network can hold IPv4 addresses, which are mapped there.
fn held_node(cluster: &Cluster, network: &IpNet) -> Option<IpAddr> {
    let holds = |address: &IpAddr| match (network, address) {
        (IpNet::V6(network), IpAddr::V4(v4)) => network.contains::<&Ipv6Addr>(&v4.to_ipv6_mapped()),
        (network, address) => network.contains(address),
    };
    cluster.nodes().flat_map(|node| &node.addresses).copied().find(holds)
}
