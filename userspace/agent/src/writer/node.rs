//! This node: its addresses, and whether it is to get traffic.

use std::net::IpAddr;

use anyhow::Result;
use tracing::{info, warn};
use weir_abi as abi;
use weir_core::cluster::Cluster;
use weir_core::interfaces::Interface;
use weir_core::model::Family;

use super::Writer;
use crate::node_ports;

impl Writer {
    /// Addresses of this node: what the cluster says, or else what its interfaces carry.
    pub(super) fn node_addresses(&self) -> Vec<IpAddr> {
        let known = self.cluster.node(&self.settings.plan.node).map(|node| node.addresses.clone()).unwrap_or_default();
        let mut addresses = known.clone();
        for family in [Family::V4, Family::V6] {
            if !known.iter().any(|address| Family::of(*address) == family) {
                addresses.extend(carried(&self.interfaces, family, self.source_address(family)));
            }
        }
        addresses
    }

    /// Takes over the node's addresses where they changed.
    pub(super) fn node_changed(&mut self) -> Result<()> {
        let node = self.node_addresses();
        // Until the cluster has named the node's addresses those of the agent before are right: connections carry them.
        if node.is_empty() || !self.cluster.synced() {
            return Ok(());
        }
        self.configure(&node)?;
        self.publish_nodes();
        self.update_other_nodes();
        self.update_direct()?;
        let served = node_ports::served(&self.settings.nodeport_addresses, &node, &self.interfaces);
        if served != self.settings.plan.node_port_addresses {
            info!(addresses = ?served, "serving node ports");
            self.settings.plan.node_port_addresses = served;
            self.dirty.services.extend(self.cluster.services().map(|service| service.name.clone()));
        }
        Ok(())
    }

    /// Leaves in force what the agent before has found, networks and tunnels, until more is known, unless that was of another layout.
    pub(super) fn adopt_found(&mut self, known: &abi::Config) {
        if known.abi_version == abi::ABI_VERSION {
            let abi::Config { service_networks, service_network, tunnel4, tunnel6, .. } = *known;
            let own = self.settings.config;
            self.settings.config = abi::Config { service_networks, service_network, tunnel4, tunnel6, ..own };
        }
    }

    /// Puts a configuration in force, and says whether it is another one than before.
    pub(super) fn reconfigure(&mut self, config: abi::Config) -> Result<bool> {
        let changed = config != self.settings.config;
        if changed {
            self.datapath.configure(&config)?;
            self.settings.config = config;
        }
        Ok(changed)
    }

    /// The address of a family that leaves with connections to other nodes.
    const fn source_address(&self, family: Family) -> abi::Addr {
        match family {
            Family::V4 => self.settings.config.node4,
            Family::V6 => self.settings.config.node6,
        }
    }

    pub(super) fn configure(&mut self, node: &[IpAddr]) -> Result<()> {
        let source = |family| source(node, family, self.source_address(family));
        let (node4, node6) = (source(Family::V4), source(Family::V6));
        for (old, new) in [(self.settings.config.node4, node4), (self.settings.config.node6, node6)] {
            if old != new && old != abi::Addr::UNSET {
                warn!(from = %old.ip(), to = %new.ip(), "the node has another address: connections by it to other nodes' endpoints end");
            }
        }
        self.settings.config = abi::Config { node4, node6, ..self.settings.config };
        self.datapath.configure(&self.settings.config)?;
        Ok(())
    }

    /// This node's name, if it is none of the cluster's.
    pub(super) fn unknown_node(&self) -> Option<&str> {
        if self.cluster.synced() { unknown(&self.cluster, &self.settings.plan.node) } else { None }
    }

    /// Whether load balancers outside should send traffic here. What an earlier agent served goes on until the cluster
    /// tells more.
    pub(super) fn node_eligible(&self) -> bool {
        if self.cluster.synced() { is_eligible(&self.cluster, &self.settings.plan.node) } else { self.was_served }
    }
}

/// What the interfaces carry of a family: the address in use, wherever it is, or else the first one that leads out.
fn carried(interfaces: &[Interface], family: Family, current: abi::Addr) -> Option<IpAddr> {
    let all = interfaces.iter().flat_map(|interface| &interface.addresses);
    let out = interfaces.iter().filter(|interface| interface.default_route).flat_map(|interface| &interface.addresses);
    let is_current = |address: &&IpAddr| abi::Addr::from(**address) == current;
    all.copied()
        .find(|address| is_current(&address))
        .or_else(|| out.copied().find(|address| Family::of(*address) == family))
}

/// The address of a family that connections are to leave with: the one in use for as long as the node has it, since open ones carry it, or the
/// first one. A node that has none for a moment keeps the one in use.
fn source(node: &[IpAddr], family: Family, current: abi::Addr) -> abi::Addr {
    let known = node.iter().filter(|address| Family::of(**address) == family && !address.is_unspecified());
    let mut known = known.map(|address| abi::Addr::from(*address)).peekable();
    let first = known.peek().copied().unwrap_or(current);
    known.find(|address| *address == current).unwrap_or(first)
}

/// The name, if the cluster has nodes and none is called so. A static file need not name any node.
fn unknown<'a>(cluster: &Cluster, node: &'a str) -> Option<&'a str> {
    (cluster.node(node).is_none() && cluster.nodes().next().is_some()).then_some(node)
}

/// KEP-3836, of a node that is known: a node without an object is gone. A static file need not name any node.
fn is_eligible(cluster: &Cluster, node: &str) -> bool {
    match cluster.node(node) {
        Some(node) => node.eligible,
        None => cluster.nodes().next().is_none(),
    }
}

#[cfg(test)]
mod tests {
    use weir_core::cluster::Event;
    use weir_core::model::{Node, NodeCapacity};

    use super::*;

    fn cluster(nodes: &[(&str, bool)]) -> Cluster {
        let mut cluster = Cluster::default();
        for (name, eligible) in nodes {
            let (eligible, capacity) = (*eligible, NodeCapacity::default());
            let node = Node { name: (*name).into(), zone: "".into(), addresses: Vec::new(), eligible, capacity };
            cluster.apply(Event::Node(node));
        }
        cluster
    }

    fn addresses<const N: usize>(of: [&str; N]) -> [IpAddr; N] {
        of.map(|address| address.parse().unwrap())
    }

    #[test]
    fn open_connections_keep_the_nodes_address_for_as_long_as_it_has_that() {
        let [old, new, v6] = addresses(["192.0.2.1", "192.0.2.2", "2001:db8::1"]);
        let source = |node: &[IpAddr], current| source(node, Family::V4, current).ip();
        assert_eq!(source(&[old, new, v6], abi::Addr::UNSET), old, "the first one");
        assert_eq!(source(&[new, old, v6], old.into()), old, "in whatever order they are named");
        assert_eq!(source(&[v6], old.into()), old, "also while there is none");
        assert_eq!(source(&[new, v6], old.into()), new, "it is gone");
    }

    #[test]
    fn where_nobody_names_an_address_the_one_in_use_counts_wherever_it_is_and_else_the_first_that_leads_out() {
        let [old, new, other] = addresses(["2001:db8::1", "2001:db8::2", "2001:db8::3"]);
        let interface = |addresses: &[IpAddr], default_route| Interface {
            addresses: addresses.to_vec(),
            default_route,
            ..Interface::default()
        };
        let all = [interface(&[other], false), interface(&[new, old], true)];
        assert_eq!(carried(&all, Family::V6, old.into()), Some(old));
        assert_eq!(carried(&all, Family::V6, other.into()), Some(other), "its default route is gone for a moment");
        assert_eq!(carried(&all, Family::V6, abi::Addr::UNSET), Some(new));
        assert_eq!(carried(&all, Family::V4, abi::Addr::UNSET), None);
    }

    #[test]
    fn a_node_that_goes_away_is_to_get_no_traffic_whatever_the_others_do() {
        assert!(is_eligible(&cluster(&[("here", true), ("there", false)]), "here"));
        assert!(!is_eligible(&cluster(&[("here", false), ("there", true)]), "here"));
    }

    #[test]
    fn a_node_that_is_gone_is_to_get_no_traffic() {
        assert!(!is_eligible(&cluster(&[("there", true)]), "here"));
    }

    #[test]
    fn a_static_file_without_nodes_says_nothing_against_this_one() {
        assert!(is_eligible(&cluster(&[]), "here"));
        assert_eq!(unknown(&cluster(&[]), "here"), None);
    }

    #[test]
    fn a_node_whose_name_nobody_has_is_told_of() {
        assert_eq!(unknown(&cluster(&[("there", true)]), "here"), Some("here"));
        assert_eq!(unknown(&cluster(&[("here", false)]), "here"), None);
    }
}
