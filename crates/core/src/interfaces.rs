//! Which interfaces are the node's, and which have a pod behind them: decided from what netlink reports.

use std::cmp::Reverse;
use std::net::IpAddr;

use crate::model::Family;

/// One interface, as netlink reports it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Interface {
    /// Index.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Administratively up.
    pub up: bool,
    /// A loopback device.
    pub loopback: bool,
    /// What its frames begin with.
    pub header: LinkHeader,
    /// `IFLA_INFO_KIND`: `veth`, `bridge`, `vlan`...; empty for hardware.
    pub kind: String,
    /// Its peer is in another network namespace (`IFLA_LINK_NETNSID`).
    pub peer_elsewhere: bool,
    /// Index of the bridge or bond that it belongs to.
    pub master: Option<u32>,
    /// Addresses of global scope.
    pub addresses: Vec<IpAddr>,
    /// A default route leaves through it.
    pub default_route: bool,
}

/// What the frames of an interface begin with.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum LinkHeader {
    /// An Ethernet header.
    #[default]
    Ethernet,
    /// The IP header: WireGuard, IP in IP, tun, PPP.
    None,
    /// What the programs cannot read: GRE, Infiniband, IEEE 802.15.4.
    Other,
}

/// Whom an interface leads to.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Attachment {
    /// Clients outside the node.
    Nic,
    /// One pod.
    Pod,
    /// Pods of other nodes by an overlay network, or clients of a private one.
    Tunnel,
}

/// Kinds of interfaces that carry Ethernet frames between nodes, as CNIs have them for overlay networks.
const OVERLAYS: [&str; 4] = ["vxlan", "geneve", "gretap", "ip6gretap"];

impl Interface {
    /// Whether it leads to hosts beyond the node's network: an overlay network's that has an address of its own, so that it is no
    /// bridge's port and not waiting for one, or any without link headers, which need no address.
    #[must_use]
    pub fn is_tunnel(&self) -> bool {
        let leads = match self.header {
            LinkHeader::Ethernet => OVERLAYS.contains(&self.kind.as_str()) && !self.addresses.is_empty(),
            // Those that the kernel makes by itself where it knows their kind, such as tunl0, are down.
            LinkHeader::None => self.up,
            LinkHeader::Other => false,
        };
        leads && self.master.is_none()
    }
}

/// What people say about it. Patterns are names in which a `*` at the end stands for any rest.
#[derive(Clone, Debug, Default)]
pub struct Patterns {
    /// The node's interfaces; empty: found by themselves.
    pub nics: Vec<String>,
    /// Interfaces with a pod behind them, besides those that are found.
    pub pods: Vec<String>,
    /// Interfaces to keep away from.
    pub ignored: Vec<String>,
}

fn matches(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => pattern == name,
    })
}

/// Decides for one interface; `node` are the node's own addresses.
///
/// Found as the node's is what carries one of its addresses or a default route. Found as a pod's is a veth whose peer
/// lives in another network namespace, unless it is the node's itself, as in a node that is a container. Found as a tunnel is one
/// ([`Interface::is_tunnel`]) that is neither.
#[must_use]
pub fn attachment(interface: &Interface, node: &[IpAddr], patterns: &Patterns) -> Option<Attachment> {
    let name = interface.name.as_str();
    let header = interface.header;
    if interface.loopback || header == LinkHeader::Other || matches(&patterns.ignored, name) {
        return None;
    }
    if matches(&patterns.nics, name) {
        return Some(Attachment::Nic);
    }
    // There are no programs for pods without link headers.
    if matches(&patterns.pods, name) && header == LinkHeader::Ethernet {
        return Some(Attachment::Pod);
    }
    let carries_node = interface.addresses.iter().any(|address| node.contains(address));
    if patterns.nics.is_empty() && (carries_node || interface.default_route) {
        return Some(Attachment::Nic);
    }
    if interface.is_tunnel() && !carries_node {
        return Some(Attachment::Tunnel);
    }
    (interface.kind == "veth" && interface.peer_elsewhere && !carries_node).then_some(Attachment::Pod)
}

/// What an interface that has been attached to stays, whatever it would be if it came now: the node's card is that while its address or
/// its default route are away, as when a link or a BGP session is down for a moment, or when a driver begins anew because XDP has come or gone. Who
/// gives it away, to a bond or a bridge, or takes it down has it back.
#[must_use]
pub fn stays(interface: &Interface, before: Attachment, patterns: &Patterns) -> Option<Attachment> {
    // What else these may be is told by their ports and addresses alone.
    let is_card = interface.kind != "bridge" && !OVERLAYS.contains(&interface.kind.as_str());
    let is_free = interface.up && interface.master.is_none();
    let is_named = [&patterns.ignored, &patterns.pods].iter().any(|names| matches(names, &interface.name));
    (before == Attachment::Nic && patterns.nics.is_empty() && is_card && is_free && !is_named).then_some(before)
}

/// The tunnel by which pods of other nodes are reached in a family, and its address. `sources` are the addresses that the kernel itself
/// would send from to such pods. The tunnel of before, by its index, stays for as long as one of them is its address, as open
/// connections have it. Else it is the one whose address most of them are, the one of before, one with Ethernet headers, as that is
/// an overlay network for sure, or the first.
pub fn tunnel<'a>(
    interfaces: &'a [Interface],
    attached: impl Fn(u32) -> Option<Attachment>,
    family: Family,
    sources: &[IpAddr],
    before: u32,
) -> Option<(&'a Interface, IpAddr)> {
    let tunnels = interfaces.iter().filter(|interface| attached(interface.index) == Some(Attachment::Tunnel));
    let with_address = tunnels.filter_map(|tunnel| {
        let address = tunnel.addresses.iter().find(|address| Family::of(**address) == family);
        Some((tunnel, *address?))
    });
    with_address.min_by_key(|(tunnel, address)| {
        let reached = sources.iter().filter(|source| *source == address).count();
        let is_other = tunnel.index != before;
        let header = tunnel.header != LinkHeader::Ethernet;
        (is_other || reached == 0, Reverse(reached), is_other, header, tunnel.index)
    })
}

/// Driver of the cards of Xen's guests (`xen-netfront`), as the bus calls it.
const XEN: &str = "vif";

/// Whether XDP may run on an interface. Packets that reach a veth from the same machine, or a guest of Xen from another one there, carry partial
/// checksums, as if a card were to complete them; XDP cannot tell, and what it sends on is broken. `driver`: of hardware; `on_veth`: the peers' offloads
/// are known to be off.
#[must_use]
pub fn runs_xdp(interface: &Interface, driver: Option<&str>, on_veth: bool) -> bool {
    (on_veth || interface.kind != "veth") && driver != Some(XEN)
}

/// Whether what XDP has got by another interface may be sent by this one. Who cannot take a frame drops it, and nobody counts that: a card has to have
/// a queue for each CPU, as `mlx5e_xdp_xmit()` in drivers/net/ethernet/mellanox has it, and other drivers; those of a bond are not known, and of some the driver sends
/// none. `driver`: of hardware; `queues`: for sending.
#[must_use]
pub fn takes_redirects(interface: &Interface, driver: Option<&str>, queues: usize, cpus: usize) -> bool {
    match driver {
        // It takes turns at its queues.
        Some("virtio_net") => true,
        Some("mlx4_core") => false,
        Some(_) => queues >= cpus,
        None => interface.kind != "bond",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn veth(name: &str) -> Interface {
        Interface { name: name.to_owned(), kind: "veth".to_owned(), peer_elsewhere: true, ..Interface::default() }
    }

    fn node() -> Vec<IpAddr> {
        vec!["172.30.0.10".parse().unwrap()]
    }

    #[test]
    fn a_veth_with_a_peer_in_another_namespace_leads_to_a_pod() {
        assert_eq!(attachment(&veth("veth1"), &node(), &Patterns::default()), Some(Attachment::Pod));
        let local = Interface { peer_elsewhere: false, ..veth("veth1") };
        assert_eq!(attachment(&local, &node(), &Patterns::default()), None);
    }

    #[test]
    fn what_carries_the_nodes_address_or_a_default_route_leads_outside_even_if_it_is_a_veth() {
        let addressed = Interface { addresses: node(), ..veth("eth0") };
        assert_eq!(attachment(&addressed, &node(), &Patterns::default()), Some(Attachment::Nic));
        let routed = Interface { default_route: true, ..veth("eth0") };
        assert_eq!(attachment(&routed, &node(), &Patterns::default()), Some(Attachment::Nic));
    }

    #[test]
    fn bridges_and_loopback_are_left_alone() {
        let bridge = Interface { name: "cni0".to_owned(), kind: "bridge".to_owned(), ..Interface::default() };
        assert_eq!(attachment(&bridge, &node(), &Patterns::default()), None);
        let loopback = Interface { loopback: true, addresses: node(), ..Interface::default() };
        assert_eq!(attachment(&loopback, &node(), &Patterns::default()), None);
    }

    #[test]
    fn xdp_keeps_away_from_veths_unless_it_is_told_that_their_checksums_are_complete() {
        assert!(!runs_xdp(&veth("eth0"), None, false));
        assert!(runs_xdp(&veth("eth0"), None, true));
        assert!(runs_xdp(&Interface::default(), None, false));
    }

    #[test]
    fn xdp_keeps_away_from_guests_of_xen() {
        let on = |driver| runs_xdp(&Interface::default(), Some(driver), false);
        assert_eq!(["vif", "virtio_net", "ixgbe"].map(on), [false, true, true]);
    }

    #[test]
    fn a_card_with_a_queue_for_each_cpu_takes_what_xdp_sends_on_from_another() {
        let takes = |driver, queues| takes_redirects(&Interface::default(), Some(driver), queues, 8);
        assert_eq!([takes("mlx5_core", 8), takes("mlx5_core", 7)], [true, false]);
        assert_eq!([takes("virtio_net", 1), takes("mlx4_core", 8)], [true, false]);
        let bond = Interface { kind: "bond".to_owned(), ..Interface::default() };
        assert_eq!([&veth("eth0"), &bond].map(|found| takes_redirects(found, None, 1, 8)), [true, false]);
    }

    #[test]
    fn the_nodes_card_stays_while_its_address_and_route_are_away() {
        let bare = Interface { name: "eth1".to_owned(), up: true, ..Interface::default() };
        let is = |interface: &Interface, before, patterns: &Patterns| {
            stays(interface, before, patterns).or_else(|| attachment(interface, &node(), patterns))
        };
        let found = Patterns::default();
        assert_eq!(is(&bare, Attachment::Nic, &found), Some(Attachment::Nic));
        assert_eq!(is(&bare, Attachment::Tunnel, &found), None, "its address is what a tunnel is known by");
        let bridge = Interface { kind: "bridge".to_owned(), ..bare.clone() };
        for gone in [Interface { up: false, ..bare.clone() }, Interface { master: Some(7), ..bare.clone() }, bridge] {
            assert_eq!(is(&gone, Attachment::Nic, &found), None, "{gone:?}");
        }
        let ignored = Patterns { ignored: vec!["eth*".to_owned()], ..Patterns::default() };
        let others = Patterns { nics: vec!["eth0".to_owned()], ..Patterns::default() };
        assert_eq!([ignored, others].map(|patterns| is(&bare, Attachment::Nic, &patterns)), [None, None]);
        let container = Interface { up: true, ..veth("eth1") };
        assert_eq!(is(&container, Attachment::Nic, &found), Some(Attachment::Nic), "a node's that is a container");
        let pods = Patterns { pods: vec!["eth1".to_owned()], ..Patterns::default() };
        assert_eq!(is(&container, Attachment::Nic, &pods), Some(Attachment::Pod));
    }

    #[test]
    fn interfaces_whose_frames_begin_with_something_unknown_are_left_alone() {
        let gre = Interface { header: LinkHeader::Other, default_route: true, ..overlay(4, "gre1", &["10.0.0.1"]) };
        let named = Patterns { nics: vec!["gre1".to_owned()], ..Patterns::default() };
        assert_eq!(attachment(&gre, &node(), &Patterns::default()), None);
        assert_eq!(attachment(&gre, &node(), &named), None);
    }

    fn wireguard(index: u32, addresses: &[&str]) -> Interface {
        let wireguard = overlay(index, "wg0", addresses);
        Interface { kind: "wireguard".to_owned(), header: LinkHeader::None, up: true, ..wireguard }
    }

    #[test]
    fn what_has_no_link_headers_leads_outside_or_is_a_tunnel_but_never_a_pod() {
        let found = |interface: &Interface| attachment(interface, &node(), &Patterns::default());
        assert_eq!(found(&wireguard(4, &["10.8.0.1"])), Some(Attachment::Tunnel));
        assert_eq!(found(&wireguard(4, &[])), Some(Attachment::Tunnel));
        let of_the_kernel = Interface { kind: "ipip".to_owned(), up: false, ..wireguard(4, &[]) };
        assert_eq!(found(&of_the_kernel), None);
        assert_eq!(found(&wireguard(4, &["172.30.0.10"])), Some(Attachment::Nic));
        let uplink = Interface { kind: "ppp".to_owned(), default_route: true, ..wireguard(4, &["192.0.2.1"]) };
        assert_eq!(found(&uplink), Some(Attachment::Nic));
        let pods = Patterns { pods: vec!["wg0".to_owned()], ..Patterns::default() };
        assert_eq!(attachment(&wireguard(4, &[]), &node(), &pods), Some(Attachment::Tunnel));
    }

    #[test]
    fn of_several_tunnels_one_that_the_kernel_sends_to_endpoints_by_is_taken_then_the_one_in_use_then_an_overlay_network()
     {
        let all = [wireguard(3, &["10.8.0.1"]), overlay(4, "vxlan0", &["10.7.0.1"]), wireguard(5, &["10.42.0.0"])];
        let chosen = |all: &[Interface], sources: &[&str], before| {
            let sources: Vec<IpAddr> = sources.iter().map(|ip| ip.parse().unwrap()).collect();
            let attached = |_| Some(Attachment::Tunnel);
            tunnel(all, attached, Family::V4, &sources, before).map(|(tunnel, _)| tunnel.index)
        };
        assert_eq!(chosen(&all, &["10.42.0.0", "10.42.0.0", "10.7.0.1", "172.30.0.10"], 3), Some(5));
        assert_eq!(chosen(&all, &["10.42.0.0", "10.42.0.0", "10.7.0.1"], 4), Some(4), "connections have its address");
        assert_eq!(chosen(&all, &["172.30.0.10"], 3), Some(3), "no endpoint says more");
        assert_eq!(chosen(&all, &[], 0), Some(4), "WireGuard may be a private network of clients");
        assert_eq!(chosen(&all[..1], &[], 0), Some(3));
    }

    fn overlay(index: u32, name: &str, addresses: &[&str]) -> Interface {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        Interface { index, name: name.to_owned(), kind: "vxlan".to_owned(), addresses, ..Interface::default() }
    }

    #[test]
    fn an_overlay_networks_interface_with_an_address_leads_to_other_nodes_pods() {
        let flannel = overlay(4, "flannel.1", &["10.42.0.0"]);
        assert_eq!(attachment(&flannel, &node(), &Patterns::default()), Some(Attachment::Tunnel));
        let named = Patterns { nics: vec!["eth0".to_owned()], ..Patterns::default() };
        assert_eq!(
            attachment(&flannel, &node(), &named),
            Some(Attachment::Tunnel),
            "named cards say nothing of tunnels"
        );
        let ignored = Patterns { ignored: vec!["flannel.*".to_owned()], ..Patterns::default() };
        assert_eq!(attachment(&flannel, &node(), &ignored), None);
    }

    #[test]
    fn a_tunnel_without_an_address_on_a_bridge_or_with_the_nodes_own_is_no_overlay_of_pods() {
        assert_eq!(attachment(&overlay(4, "vxlan0", &[]), &node(), &Patterns::default()), None);
        let port = Interface { master: Some(7), ..overlay(4, "vxlan0", &["10.0.0.1"]) };
        assert_eq!(attachment(&port, &node(), &Patterns::default()), None);
        let cable = overlay(4, "vxlan0", &["172.30.0.10"]);
        assert_eq!(attachment(&cable, &node(), &Patterns::default()), Some(Attachment::Nic));
        let uplink = Interface { default_route: true, ..overlay(4, "vxlan0", &["10.0.0.1"]) };
        assert_eq!(attachment(&uplink, &node(), &Patterns::default()), Some(Attachment::Nic));
    }

    #[test]
    fn each_family_has_the_first_attached_tunnel_with_an_address_of_it() {
        let all = [
            overlay(5, "flannel-v6.1", &["fd42::"]),
            overlay(4, "flannel.1", &["10.42.0.0"]),
            overlay(6, "vxlan9", &["10.9.0.1", "fd09::1"]),
            overlay(3, "unattached", &["10.3.0.1"]),
        ];
        let attached = |index| Some(if index == 3 { Attachment::Nic } else { Attachment::Tunnel });
        let found = |family| {
            tunnel(&all, attached, family, &[], 0).map(|(tunnel, address)| (tunnel.index, address.to_string()))
        };
        assert_eq!(found(Family::V4), Some((4, "10.42.0.0".to_owned())));
        assert_eq!(found(Family::V6), Some((5, "fd42::".to_owned())));
        assert_eq!(tunnel(&all[..2], |_| None, Family::V4, &[], 0), None);
    }

    #[test]
    fn patterns_have_the_last_word() {
        let patterns = Patterns {
            nics: vec!["lan*".to_owned()],
            pods: vec!["tap0".to_owned()],
            ignored: vec!["veth9".to_owned()],
        };
        let named = |name: &str| Interface { name: name.to_owned(), ..Interface::default() };
        assert_eq!(attachment(&named("lan3"), &node(), &patterns), Some(Attachment::Nic));
        assert_eq!(attachment(&named("tap0"), &node(), &patterns), Some(Attachment::Pod));
        assert_eq!(attachment(&veth("veth9"), &node(), &patterns), None);
        let routed = Interface { default_route: true, ..named("eth0") };
        assert_eq!(attachment(&routed, &node(), &patterns), None, "named interfaces replace the ones that are found");
    }
}
