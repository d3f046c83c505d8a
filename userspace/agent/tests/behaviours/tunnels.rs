//! Endpoints on other nodes that are reached by a tunnel to all of them, as Calico's IPIP has it: such a device names no other end, and
//! takes it from the route of each packet.

use std::net::IpAddr;

use weir_testbed::{Node, address};

use crate::harness::echo::{Member, Talk, echo};
use crate::harness::{self, Cluster, SOON};

/// Devices by the family of what they carry: name and kind. IPv4 carries both.
const TUNNELS: [(&str, &str); 2] = [("tunl9", "ipip"), ("sit9", "sit")];

/// Makes the tunnels' end at a node.
fn add_tunnels(node: &Node) -> weir_testbed::Result<()> {
    let local = node.address().v4;
    let add = |(name, kind)| node.netns().ip(&format!("link add {name} type {kind} local {local}\nlink set {name} up"));
    TUNNELS.into_iter().try_for_each(add)
}

#[test]
fn endpoints_behind_a_tunnel_to_many_nodes_answer_in_both_families() {
    const WHAT: &str = "endpoints behind a tunnel to many nodes";
    if !harness::can_run(WHAT) {
        return;
    }
    let cluster = Cluster::start(2, 1, &[]);
    let [here, there] = [1, 2].map(|number| cluster.world.node(number));
    if let Err(error) = add_tunnels(here).and_then(|()| add_tunnels(there)) {
        eprintln!("SKIPPED: {WHAT}: {error}; `deploy/dev/vm.sh` runs it on a kernel that has them");
        return;
    }
    // Answers come back without a tunnel.
    for device in ["all", TUNNELS[0].0] {
        there.netns().sysctl(&format!("net/ipv4/conf/{device}/rp_filter"), "0").unwrap();
    }
    let node = there.address().v4;
    let next_hops: [IpAddr; 2] = [node.into(), node.to_ipv6_compatible().into()];
    for ((pods, next_hop), (device, _)) in address::pod_cidrs(2).into_iter().zip(next_hops).zip(TUNNELS) {
        here.netns().ip(&format!("route replace {pods} via {next_hop} dev {device} onlink")).unwrap();
    }
    let served = cluster.serve_echo(&echo("far", "NodePort"), &[Member::ready(&there.pod(1))]);
    for talk in Talk::ALL {
        for target in served.node_ports(here, talk) {
            let answer = cluster.world.client().enter(|| talk.ask(target, SOON));
            assert!(answer.is_ok(), "{talk:?} at {target}: {answer:?}\n{}", cluster.agents[0].log());
        }
    }
}
