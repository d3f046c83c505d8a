//! Frames with a tag that says how urgent they are and names no VLAN (IEEE 802.1Q, VLAN 0). Some switches and hypervisors deliver all of
//! theirs so, and a host takes them for frames without a tag.

use std::net::SocketAddr;

use weir_testbed::packet::{Mac, Packet};
use weir_testbed::{Netns, address};

use crate::harness::callers::Caller;
use crate::harness::clients::{link_of, send_frame};
use crate::harness::echo::{Member, Talk, echo};
use crate::harness::{self, Cluster};

/// Priority 3, no VLAN.
const URGENT: u16 = 3 << 13;

#[test]
fn a_datagram_with_a_priority_tag_is_sent_on_to_another_node_and_answered() {
    if !harness::can_run("priority tags") {
        return;
    }
    // XDP is not shown a tag that was taken off the frame.
    let cluster = Cluster::start(2, 1, &["--no-xdp"]);
    let served = cluster.serve_echo(&echo("urgent", "NodePort"), &[Member::ready(&cluster.world.node(2).pod(1))]);
    let (router, node) = (cluster.world.router(), cluster.world.node(1));
    let mac = |netns: &Netns| Mac(netns.enter(|| link_of("eth0")).unwrap().addr().unwrap());
    let (source_mac, destination_mac) = (mac(router), mac(node.netns()));
    for target in served.node_ports(node, Talk::Udp) {
        let socket = cluster.socket(&Caller::Outside, target);
        let client = SocketAddr::new(address::CLIENT.like(target.ip()), socket.local_addr().unwrap().port());
        let asked = Packet::udp(client, target, b"who");
        let asked = Packet { source_mac, destination_mac, vlans: vec![URGENT], ..asked };
        router.enter(|| send_frame("eth0", &asked.to_bytes())).unwrap();
        let mut buffer = [0; 256];
        let (length, from) = socket.recv_from(&mut buffer).unwrap_or_else(|e| panic!("{target}: {e}"));
        let answer = String::from_utf8_lossy(&buffer[..length]);
        assert!(from == target && answer.starts_with("node2-pod1 "), "{from}: {answer}");
    }
}
