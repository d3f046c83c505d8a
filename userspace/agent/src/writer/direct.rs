//! Direct server return: which nodes get clients' packets as they are, whose packets are opened here, and whether others may
//! send such.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::Result;
use tracing::{error, info};
use weir_core::interfaces::Attachment;
use weir_core::model::Family;
use weir_core::tables::DirectNodes;

use super::Writer;

impl Writer {
    /// Writes which endpoints' nodes get clients' packets as they are.
    pub(super) fn update_direct(&mut self) -> Result<()> {
        let told = self.steered.direct.borrow().clone();
        let here = self.cluster.node(&self.settings.plan.node);
        // The others open what comes from an address that the cluster knows, and from no other one of this node.
        let families = here.into_iter().flat_map(|node| &node.addresses).map(|address| Family::of(*address)).collect();
        // A connection may be the other proxy's, which only this node knows.
        let nodes = if self.settings.direct && !self.settings.stage.is_beside() { told } else { BTreeSet::new() };
        let ops = self.tables.set_direct(&DirectNodes { nodes, families });
        self.apply(&ops)
    }

    /// Takes over the addresses of the other nodes. What came wrapped before an option was changed goes on, and ports of theirs are not
    /// ours to judge, so these are written whatever it says.
    pub(super) fn update_other_nodes(&self) {
        let others = self.cluster.nodes().filter(|node| node.name != self.settings.plan.node);
        let others: Vec<&[IpAddr]> = others.map(|node| &node.addresses[..]).collect();
        let addresses = known_by(&others, self.datapath.other_nodes_most());
        if let Err(cause) = self.datapath.set_other_nodes(&addresses) {
            error!(%cause, "clients' packets that other nodes have wrapped may not be opened");
        }
    }

    /// Tells the others whether this node opens what they wrap: as soon as it can tell whose it is.
    pub(super) fn announce(&mut self) {
        let (node, families) = (self.node_addresses(), self.families());
        let mut own = firsts(&node).filter(|ip| families.contains(&Family::of(*ip))).peekable();
        let knows_node_ports =
            own.peek().is_some() && own.all(|ip| self.settings.plan.node_port_addresses.contains(&ip));
        let has_nic = self.attached.values().any(|(_, kind)| *kind == Attachment::Nic);
        // Of Services that it has given up a node cannot tell whose a wrapped packet is.
        let serves = !self.settings.stage.is_beside();
        let would = self.settings.direct && self.synced && has_nic && serves;
        let unwraps = would && knows_node_ports;
        self.complaints.lacks_node_ports(would && !knows_node_ports);
        if self.steered.announce(unwraps) {
            info!(unwraps, knows_node_ports, "told other nodes whether this one answers their clients itself");
        }
    }
}

/// The addresses by which other nodes know one: the first of each family.
fn firsts(addresses: &[IpAddr]) -> impl Iterator<Item = IpAddr> {
    let first = |family| addresses.iter().copied().find(|address| Family::of(*address) == family);
    [Family::V4, Family::V6].into_iter().filter_map(first)
}

/// The addresses by which nodes wrap what they send on, which is the one that a node has been using for as long as it has that, in whatever order
/// they are named: all of them, or of more than `most` the first ones.
fn known_by(nodes: &[&[IpAddr]], most: usize) -> BTreeSet<IpAddr> {
    let all: BTreeSet<_> = nodes.iter().copied().flatten().copied().collect();
    if all.len() <= most { all } else { nodes.iter().flat_map(|node| firsts(node)).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_known_by_its_first_address_of_each_family() {
        let addresses = ["2001:db8::1", "10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().expect("an address"));
        assert_eq!(firsts(&addresses).collect::<Vec<_>>(), [addresses[1], addresses[0]]);
        assert_eq!(firsts(&addresses[1..]).collect::<Vec<_>>(), [addresses[1]]);
    }

    #[test]
    fn what_nodes_wrap_is_opened_whichever_of_their_addresses_they_have_kept_where_there_is_room_for_all() {
        let [one, other] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().expect("an address"));
        let nodes = [&[one, other][..]];
        assert_eq!(known_by(&nodes, 2), BTreeSet::from([one, other]));
        assert_eq!(known_by(&nodes, 1), BTreeSet::from([one]));
    }
}
