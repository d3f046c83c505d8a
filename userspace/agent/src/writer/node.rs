//! This node: its addresses, and whether it is to get traffic.

use std::collections::BTreeSet;
use std::mem;
use std::net::IpAddr;

use anyhow::Result;
use tracing::{info, warn};
use weir_abi as abi;
use weir_core::cluster::{Cluster, Places};
use weir_core::model::Family;
use weir_core::node_address;

use super::Writer;
use crate::node_ports;

impl Writer {
    /// Addresses of this node: what the cluster says, or else what its interfaces carry.
    pub(super) fn node_addresses(&self) -> Vec<IpAddr> {
        let known = self.cluster.node(&self.settings.plan.node).map(|node| node.addresses.clone()).unwrap_or_default();
        let mut addresses = known.clone();
        for family in [Family::V4, Family::V6] {
            if !known.iter().any(|address| Family::of(*address) == family) {
                addresses.extend(node_address::carried(&self.interfaces, family, self.source_address(family)));
            }
        }
        addresses
    }

    /// Families in which pods and other nodes are reached: those that the cluster knows this node by, or else those that its interfaces carry. None
    /// while nobody has told.
    pub(super) fn families(&self) -> BTreeSet<Family> {
        let of = |addresses: &[IpAddr]| addresses.iter().map(|address| Family::of(*address)).collect();
        match self.cluster.node(&self.settings.plan.node) {
            Some(node) if !node.addresses.is_empty() => of(&node.addresses),
            _ if self.synced => of(&self.node_addresses()),
            _ => BTreeSet::new(),
        }
    }

    /// Takes over the node's addresses where they changed, and other nodes where one of them may have.
    pub(super) fn node_changed(&mut self, others: bool) -> Result<()> {
        let node = self.node_addresses();
        // Until the cluster has named the node's addresses, and the kernel its interfaces', those of the agent before are right: connections
        // carry them.
        if node.is_empty() || !self.is_informed() {
            // Peers may have changed as well.
            self.known_as.clear();
            return Ok(());
        }
        self.configure(&node)?;
        if others || node != self.known_as {
            self.publish_nodes();
            self.update_other_nodes();
            self.update_direct()?;
            self.known_as.clone_from(&node);
        }
        let served = node_ports::served(&self.settings.nodeport_addresses, &node, &self.interfaces);
        let unmatched = node_ports::unmatched(&self.settings.nodeport_addresses, &node, &self.interfaces);
        if unmatched != self.unmatched {
            for item in &unmatched {
                warn!("--nodeport-addresses {item}: the node has no such address, no node port is served there");
            }
            self.unmatched = unmatched;
        }
        if served != self.settings.plan.node_port_addresses {
            info!(addresses = ?served, "serving node ports");
            self.settings.plan.node_port_addresses = served;
            self.dirty.services.extend(self.cluster.services().map(|service| service.name.clone()));
        }
        self.carry(node_ports::carried(&self.interfaces));
        Ok(())
    }

    /// Takes over which addresses the node's interfaces carry: endpoints at those that came or went are planned anew.
    fn carry(&mut self, carried: BTreeSet<IpAddr>) {
        let before = mem::replace(&mut self.settings.plan.carried_addresses, carried);
        let changed: BTreeSet<_> =
            before.symmetric_difference(&self.settings.plan.carried_addresses).copied().collect();
        if changed.is_empty() {
            return;
        }
        let places = Places { nodes: BTreeSet::new(), addresses: changed };
        self.dirty.services.extend(self.cluster.services_at(&places));
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
        let source = |family| node_address::source(node, family, self.source_address(family));
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
