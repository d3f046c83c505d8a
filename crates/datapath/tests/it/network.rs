//! The namespaces of a node and of what is around it: devices, addresses, routes and neighbours; see [`crate::node`].

use std::net::{Ipv4Addr, Ipv6Addr};

use weir_testbed::address::{self, Pair};
use weir_testbed::packet::Mac;
use weir_testbed::{Netns, Result};

use crate::node::{ETH0_MAC, ETH1_MAC, ETH2_MAC, NODE2_MAC, NODE3_MAC, ROUTER_MAC};
use crate::pins::unique_name;

/// Address of this node (host 11) or of a neighbour in the network of eth`device`.
pub(crate) const fn nic(device: u8, host: u8) -> Pair {
    let v6 = Ipv6Addr::new(0xfd00, 0x30 + device as u16, 0, 0, 0, 0, 0, (host / 10 * 16 + host % 10) as u16);
    Pair { v4: Ipv4Addr::new(172, 30 + device, 0, host), v6 }
}

/// The node's namespace and the one with the other ends of its cables, which are silent.
pub(crate) fn network() -> Result<(Netns, Netns)> {
    let netns = Netns::create(&unique_name())?;
    let peers = Netns::create(&unique_name())?;
    let mut script = String::new();
    let mut peer_script = String::new();
    for (name, mac) in [("eth0", ETH0_MAC), ("eth1", ETH1_MAC), ("eth2", ETH2_MAC), ("pod1", Mac([2, 0, 0, 0, 1, 3]))] {
        script += &format!("link add {name} address {mac} type veth peer name peer-{name} netns {}\n", peers.name());
        // Without link-local addresses nobody says anything unasked.
        script += &format!("link set {name} addrgenmode none\nlink set {name} up\n");
        peer_script += &format!("link set peer-{name} addrgenmode none\nlink set peer-{name} up\n");
    }
    netns.ip(&script)?;
    peers.ip(&peer_script)?;
    netns.sysctls(&[("net/ipv4/ip_forward", "1"), ("net/ipv6/conf/all/forwarding", "1")])?;
    // Nor does anybody ask for a neighbour that is not there, seconds after a packet to it.
    for device in ["eth0", "eth1", "eth2", "pod1"] {
        for family in ["ipv4", "ipv6"] {
            netns.sysctls(&[(&format!("net/{family}/neigh/{device}/mcast_solicit"), "0")])?;
        }
    }
    netns.ip(&addresses())?;
    Ok((netns, peers))
}

fn addresses() -> String {
    let mut script = String::new();
    for device in 0..3 {
        let Pair { v4, v6 } = nic(device, 11);
        script += &format!("addr add {v4}/24 dev eth{device}\naddr add {v6}/64 dev eth{device} nodad\n");
    }
    let neighbours = [(0, 1, ROUTER_MAC), (0, 12, NODE2_MAC), (1, 13, NODE3_MAC), (2, 14, Mac([2, 0, 0, 0, 2, 4]))];
    for (device, host, mac) in neighbours {
        for ip in nic(device, host).both() {
            script += &format!("neigh add {ip} lladdr {mac} dev eth{device} nud permanent\n");
        }
    }
    for ip in nic(0, 1).both() {
        script += &format!("route add default via {ip}\n");
    }
    for (node, gateway) in [(2, nic(0, 12)), (3, nic(1, 13)), (4, nic(2, 14)), (5, nic(0, 15))] {
        for (net, gateway) in address::pod_cidrs(node).into_iter().zip(gateway.both()) {
            script += &format!("route add {net} via {gateway}\n");
        }
    }
    for ip in address::pod(1, 1).both() {
        script += &format!("route add {ip} dev pod1\nneigh add {ip} lladdr 02:00:00:00:02:11 dev pod1 nud permanent\n");
    }
    script
}
