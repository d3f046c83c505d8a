//! Which interfaces packets may take past the host's stack: those that have our programs on them, and the bridges in between.

use std::collections::BTreeMap;

use weir_abi as abi;

use crate::interfaces::{Attachment, Interface, LinkHeader};

/// Kinds of interfaces whose other end a packet can be handed to, where that is in another namespace (`ndo_get_peer_dev`).
const PAIRS: [&str; 2] = ["veth", "netkit"];

/// What the map `shortcuts` is to hold, by index: the interfaces that are attached to, as `attached` has them, and the bridges
/// of pods among them.
///
/// An interface without programs is none: the answers that come by it would go the host's way. So do those that come by one
/// without link headers. Nor is a pod's that is a port of anything but a bridge, as of Open vSwitch: packets to the pod are routed elsewhere.
#[must_use]
pub fn shortcuts(
    interfaces: &[Interface],
    attached: impl Fn(u32) -> Option<Attachment>,
) -> BTreeMap<u32, abi::Shortcut> {
    let bridge_of = |port: &Interface| {
        let master = port.master?;
        interfaces.iter().any(|other| other.index == master && other.kind == "bridge").then_some(master)
    };
    let mut all = BTreeMap::new();
    let mut bridges = BTreeMap::new();
    for interface in interfaces {
        let Some(attachment) = attached(interface.index) else { continue };
        if interface.header != LinkHeader::Ethernet {
            continue;
        }
        if attachment == Attachment::Pod && is_port_of_others(interface, interfaces) {
            continue;
        }
        let bridge = bridge_of(interface);
        let kind = match attachment {
            Attachment::Pod if interface.peer_elsewhere && PAIRS.contains(&interface.kind.as_str()) => {
                abi::SHORTCUT_PEER
            }
            Attachment::Pod | Attachment::Nic | Attachment::Tunnel => abi::SHORTCUT_NEIGHBOUR,
        };
        all.insert(interface.index, abi::Shortcut { kind, bridge: bridge.unwrap_or(0) });
        if attachment == Attachment::Pod
            && let Some(bridge) = bridge
        {
            bridges.insert(bridge, abi::Shortcut { kind: abi::SHORTCUT_BRIDGE, bridge: 0 });
        }
    }
    // A bridge may be the node's own interface, too: to whom no pod is known behind it, it leads as any other does.
    all.append(&mut bridges);
    all
}

/// Whether it belongs to a device that packets to it do not come by. A VRF is a table of routes, which lead to it.
fn is_port_of_others(port: &Interface, interfaces: &[Interface]) -> bool {
    let kind_of = |master| interfaces.iter().find(|other| other.index == master).map(|other| other.kind.as_str());
    port.master.is_some_and(|master| !matches!(kind_of(master), Some("bridge" | "vrf")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_at_a_virtual_switch_is_none() {
        for (kind, listed) in [("openvswitch", true), ("bridge", false)] {
            let mut all = vec![interface(6, "veth", Some(5), true)];
            if listed {
                all.push(interface(5, kind, None, false));
            }
            assert_eq!(shortcuts(&all, |index| (index == 6).then_some(Attachment::Pod)), BTreeMap::new(), "{kind}");
        }
    }

    fn interface(index: u32, kind: &str, master: Option<u32>, peer_elsewhere: bool) -> Interface {
        Interface { index, kind: kind.to_owned(), master, peer_elsewhere, ..Interface::default() }
    }

    fn entry(kind: u32, bridge: u32) -> abi::Shortcut {
        abi::Shortcut { kind, bridge }
    }

    #[test]
    fn cards_and_tunnels_lead_outside_and_pairs_to_their_pod() {
        let all = [
            interface(2, "", None, false),
            interface(3, "veth", None, true),
            interface(4, "netkit", None, true),
            interface(5, "vxlan", None, false),
        ];
        let attached = |index| {
            Some(match index {
                2 => Attachment::Nic,
                5 => Attachment::Tunnel,
                _ => Attachment::Pod,
            })
        };
        let expected = [
            (2, entry(abi::SHORTCUT_NEIGHBOUR, 0)),
            (3, entry(abi::SHORTCUT_PEER, 0)),
            (4, entry(abi::SHORTCUT_PEER, 0)),
            (5, entry(abi::SHORTCUT_NEIGHBOUR, 0)),
        ];
        assert_eq!(shortcuts(&all, attached), BTreeMap::from(expected));
    }

    #[test]
    fn a_bridge_leads_to_the_pods_at_its_ports_whatever_else_it_is() {
        let all = [interface(5, "bridge", None, false), interface(6, "veth", Some(5), true)];
        let expected = [(5, entry(abi::SHORTCUT_BRIDGE, 0)), (6, entry(abi::SHORTCUT_PEER, 5))];
        for of_bridge in [None, Some(Attachment::Nic)] {
            let attached = |index| if index == 5 { of_bridge } else { Some(Attachment::Pod) };
            assert_eq!(shortcuts(&all, attached), BTreeMap::from(expected));
        }
    }

    #[test]
    fn masters_that_do_not_look_at_addresses_are_no_bridges() {
        let all = [interface(5, "vrf", None, false), interface(6, "veth", Some(5), true)];
        let attached = |index| (index == 6).then_some(Attachment::Pod);
        assert_eq!(shortcuts(&all, attached), BTreeMap::from([(6, entry(abi::SHORTCUT_PEER, 0))]));
    }

    #[test]
    fn a_pod_whose_end_is_not_elsewhere_or_no_pair_is_reached_by_its_neighbour_entry() {
        let all = [interface(7, "tun", None, false), interface(8, "veth", None, false)];
        let expected = [7, 8].map(|index| (index, entry(abi::SHORTCUT_NEIGHBOUR, 0)));
        assert_eq!(shortcuts(&all, |_| Some(Attachment::Pod)), BTreeMap::from(expected));
    }

    #[test]
    fn what_has_no_link_headers_is_no_shortcut() {
        let wireguard = Interface { header: LinkHeader::None, ..interface(5, "wireguard", None, false) };
        assert_eq!(shortcuts(&[wireguard], |_| Some(Attachment::Tunnel)), BTreeMap::new());
    }

    #[test]
    fn what_has_no_programs_is_no_shortcut_and_makes_none_of_its_bridge() {
        let all = [interface(5, "bridge", None, false), interface(6, "veth", Some(5), true)];
        assert_eq!(shortcuts(&all, |_| None), BTreeMap::new());
    }
}
