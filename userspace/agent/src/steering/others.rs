//! The other nodes of the cluster, and which of them are probed.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use weir_core::model::NodeCapacity;

/// Another node of the cluster.
#[derive(Clone, Debug)]
pub(crate) struct OtherNode {
    pub(crate) name: Arc<str>,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) capacity: NodeCapacity,
}

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Others {
    nodes: Vec<OtherNode>,
    /// Not in the cluster any more, but endpoints of theirs are: a Node may be deleted before its endpoints, and who is
    /// not probed is never silent.
    deleted: Vec<OtherNode>,
    /// Addresses of this node.
    own: Vec<IpAddr>,
}

impl Others {
    /// These are the nodes now. `used` are those that have endpoints.
    pub(super) fn replace(&mut self, nodes: Vec<OtherNode>, own: Vec<IpAddr>, used: &BTreeSet<&str>) {
        let before = std::mem::replace(&mut self.nodes, nodes);
        self.deleted.extend(before);
        self.own = own;
        let now: BTreeSet<&str> = self.nodes.iter().map(|node| &*node.name).collect();
        self.deleted.retain(|node| used.contains(&*node.name) && !now.contains(&*node.name));
    }

    /// Forgets deleted nodes that have no endpoints any more. True if there was one.
    pub(super) fn forget(&mut self, used: &BTreeSet<&str>) -> bool {
        let before = self.deleted.len();
        self.deleted.retain(|node| used.contains(&*node.name));
        before != self.deleted.len()
    }

    /// Whether there are nodes that [`Others::forget`] may forget.
    pub(super) const fn has_deleted(&self) -> bool {
        !self.deleted.is_empty()
    }

    /// The nodes of the cluster.
    pub(super) fn iter(&self) -> impl Iterator<Item = &OtherNode> {
        self.nodes.iter()
    }

    /// Where each peer is probed: at its first address of IPv4 if this node has one too, else of IPv6.
    pub(super) fn peers(&self, port: u16) -> impl Iterator<Item = (Arc<str>, SocketAddr)> {
        let has = [self.own.iter().any(IpAddr::is_ipv4), self.own.iter().any(IpAddr::is_ipv6)];
        self.nodes.iter().chain(&self.deleted).filter_map(move |OtherNode { name, addresses, capacity: _ }| {
            let v4 = addresses.iter().find(|ip| ip.is_ipv4() && has[0]);
            let address = v4.or_else(|| addresses.iter().find(|ip| ip.is_ipv6() && has[1]))?;
            Some((Arc::clone(name), SocketAddr::new(*address, port)))
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

    use std::time::Duration;

    use weir_mesh::{Arrival, Config, KeyRing, Mesh, Now};

    use super::*;

    const PORT: u16 = 10299;

    fn node(name: &str, address: &str) -> OtherNode {
        let addresses = vec![address.parse().unwrap()];
        OtherNode { name: name.into(), addresses, capacity: NodeCapacity::default() }
    }

    fn own() -> Vec<IpAddr> {
        vec!["10.0.0.1".parse().unwrap()]
    }

    fn names(others: &Others) -> Vec<String> {
        others.peers(PORT).map(|(name, _)| name.to_string()).collect()
    }

    fn mesh(name: &str) -> Mesh {
        let keys = KeyRing::parse("0123456789abcdef0123456789abcdef").unwrap();
        Mesh::new(name, Config::default(), keys, 1, moment(Duration::ZERO))
    }

    fn moment(steady: Duration) -> Now {
        Now { steady, wall: Duration::from_secs(1_800_000_000) + steady }
    }

    /// Probes until `end`; "there" answers until `dies`.
    fn run(here: &mut Mesh, there: &mut Mesh, begin: u64, dies: u64, end: u64) -> Now {
        for millis in begin..end {
            let now = moment(Duration::from_millis(millis));
            while let Some(probe) = here.probe(now).filter(|_| millis < dies) {
                let arrived = Arrival { bytes: &probe.bytes, from: probe.to, stamp: None };
                let Ok(Some(reply)) = there.receive(arrived, now) else { continue };
                here.receive(Arrival { bytes: &reply.bytes, from: probe.to, stamp: None }, now).unwrap();
            }
        }
        moment(Duration::from_millis(end))
    }

    #[test]
    fn a_node_that_is_deleted_before_its_endpoints_becomes_silent_and_stays_so_until_they_are_gone() {
        let (mut others, used) = (Others::default(), BTreeSet::from(["there"]));
        let (mut here, mut there) = (mesh("here"), mesh("there"));
        others.replace(vec![node("there", "10.0.0.2")], own(), &used);
        here.set_peers(others.peers(PORT));
        let now = run(&mut here, &mut there, 0, 5000, 5000);
        assert!(here.peers(now)[0].runs_agent() && !here.peers(now)[0].is_silent());

        others.replace(vec![], own(), &used);
        here.set_peers(others.peers(PORT));
        let now = run(&mut here, &mut there, 5000, 5000, 8000);
        assert!(here.peers(now)[0].is_silent(), "{:?}", here.peers(now));
        assert_eq!(others.iter().count(), 0, "it is no node of the cluster any more");

        assert!(others.has_deleted() && !others.forget(&used));
        assert!(others.forget(&BTreeSet::new()));
        here.set_peers(others.peers(PORT));
        assert!(here.peers(now).is_empty());
    }

    #[test]
    fn a_node_without_endpoints_is_forgotten_at_once_and_one_that_comes_back_is_where_it_says() {
        let (mut others, used) = (Others::default(), BTreeSet::from(["used"]));
        others.replace(vec![node("used", "10.0.0.2"), node("unused", "10.0.0.3")], own(), &used);
        others.replace(vec![], own(), &used);
        assert_eq!(names(&others), ["used"]);
        others.replace(vec![node("used", "10.0.0.9")], own(), &used);
        let peers: Vec<_> = others.peers(PORT).collect();
        assert_eq!(peers, [("used".into(), SocketAddr::new("10.0.0.9".parse().unwrap(), PORT))]);
        assert!(!others.has_deleted());
    }

    #[test]
    fn a_peer_is_probed_in_the_first_family_that_both_nodes_have() {
        let both = OtherNode {
            name: "both".into(),
            addresses: vec!["fd00::2".parse().unwrap(), "10.0.0.2".parse().unwrap()],
            capacity: NodeCapacity::default(),
        };
        let at = |own: &str| {
            let mut others = Others::default();
            others.replace(vec![both.clone(), node("v4", "10.0.0.3")], vec![own.parse().unwrap()], &BTreeSet::new());
            others.peers(PORT).map(|(_, address)| address.ip().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(at("10.0.0.1"), ["10.0.0.2", "10.0.0.3"]);
        assert_eq!(at("fd00::1"), ["fd00::2"]);
    }
}
