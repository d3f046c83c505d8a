//! Where the programs run: XDP does the outside's packets; without it, and without TCX links, everything works the same.

use weir_abi as abi;
use weir_datapath::PinDir;
use weir_testbed::ask::PATIENCE;
use weir_testbed::{Node, node, serve, wait};

use crate::harness::callers::Caller;
use crate::harness::echo::{Echo, Member, Talk, echo, ready};
use crate::harness::matrix::{Kind, assert_serves};
use crate::harness::shared::Shared;
use crate::harness::{self, Agent, Cluster, HTTP, SOON, TCP, UDP};

static DEFAULT: Shared = Shared::new(&[]);

/// Connections in each count; the smallest of them has a SYN, an ACK, a request and a FIN from the client.
const COUNT: u64 = 20;
const FROM_CLIENT: u64 = 4 * COUNT;

#[test]
fn xdp_translates_what_comes_from_outside_and_what_comes_back_from_other_nodes() {
    let Some(cluster) = DEFAULT.join("XDP") else { return };
    for agent in &cluster.agents {
        assert!(links(agent).iter().any(|name| name.starts_with("xdp-")), "{:?}\n{}", links(agent), agent.log());
    }
    for (name, node, reason) in [("xdp-near", 1, abi::REASON_TO_LOCAL), ("xdp-far", 2, abi::REASON_TO_REMOTE)] {
        let pod = cluster.world.node(node).pod(1);
        let served = cluster.serve_echo(&echo(name, "NodePort"), &[Member::ready(&pod)]);
        // The node learns its neighbours; until it knows them, packets are left to tc.
        ask_from_outside(&cluster, &served, 1);
        let agent = &cluster.agents[0];
        let seen = |hook| agent.packets(hook, reason);
        let back = || agent.packets(abi::HOOK_XDP, abi::REASON_BACK);
        let before = (seen(abi::HOOK_XDP), seen(abi::HOOK_NIC_INGRESS), back());
        ask_from_outside(&cluster, &served, COUNT);
        // Both families, all three ports; a UDP question is one packet.
        let translated = seen(abi::HOOK_XDP) - before.0;
        assert!(translated >= 2 * (2 * FROM_CLIENT + COUNT), "{name}: {translated}");
        assert_eq!(seen(abi::HOOK_NIC_INGRESS), before.1, "{name}: tc had to help");
        if node == 2 {
            assert!(back() >= before.2 + 2 * (2 * 3 * COUNT + COUNT), "{name}: {}", back() - before.2);
        }
    }
}

#[test]
fn tc_leaves_alone_what_xdp_has_translated_for_a_process_of_the_node_or_a_pod() {
    let Some(cluster) = DEFAULT.join("the handover from XDP to tc") else { return };
    let node = cluster.world.node(1);
    let _servers = [
        serve::http(node.netns(), "on-host", HTTP).unwrap(),
        serve::tcp_echo(node.netns(), "on-host", TCP).unwrap(),
        serve::udp_echo(node.netns(), "on-host", UDP).unwrap(),
    ];
    let agent = &cluster.agents[0];
    let done = || agent.packets(abi::HOOK_NIC_INGRESS, abi::REASON_XDP_DONE);
    for (name, members) in [("xdp-host", vec![Member::on_host(node)]), ("xdp-pod", ready(&[node.pod(1)]))] {
        let served = cluster.serve_echo(&echo(name, "NodePort"), &members);
        let before = done();
        ask_from_outside(&cluster, &served, COUNT);
        assert!(done() >= before + 2 * (2 * FROM_CLIENT + COUNT), "{name}: {}", done() - before);
    }
}

#[test]
fn everything_is_served_without_xdp() {
    let Some(cluster) = start("no XDP", &["--no-xdp"]) else { return };
    assert_main_kinds(&cluster);
    for agent in &cluster.agents {
        assert!(!links(agent).iter().any(|name| name.starts_with("xdp-")), "{:?}", links(agent));
        let packets = |reason: usize| agent.packets(abi::HOOK_XDP, reason.try_into().unwrap());
        assert_eq!((0..abi::REASON_COUNT).map(packets).sum::<u64>(), 0);
        assert!(agent.packets(abi::HOOK_NIC_INGRESS, abi::REASON_TO_LOCAL) > 0);
    }
}

#[test]
fn everything_is_served_with_clsact_filters_in_place_of_tcx_links() {
    let Some(cluster) = start("clsact", &["--no-tcx"]) else { return };
    assert_main_kinds(&cluster);
    for (agent, node) in cluster.agents.iter().zip(cluster.world.nodes()) {
        let tcx = ["nic_in-", "nic_out-", "pod_in-", "pod_out-"];
        assert!(!links(agent).iter().any(|name| tcx.iter().any(|kind| name.starts_with(kind))), "{:?}", links(agent));
        for device in [node::NIC.to_owned(), node.pod(1).host_interface()] {
            assert_eq!(filters(node, &device), [1, 1], "{device}");
        }
        assert!(agent.packets(abi::HOOK_POD_INGRESS, abi::REASON_TO_LOCAL) > 0);
    }
}

/// No pin tells of filters.
#[test]
fn filters_that_an_agent_with_other_options_has_left_are_taken_away() {
    let Some(mut cluster) = start("clsact filters that are not wanted", &["--no-tcx"]) else { return };
    assert_serves(&cluster, Kind::ClusterIp, 10);
    let node = cluster.world.node(1);
    let (pod, others) = (node.pod(1).host_interface(), [node::NIC.to_owned(), node.pod(2).host_interface()]);
    let agent = &mut cluster.agents[0];
    agent.stop();
    agent.set_option(&format!("--ignore-interface={pod}"));
    agent.start_again(&cluster.world);
    agent.await_ready(&cluster.world);
    wait::until("no filter at what is ignored", SOON, || filters(node, &pod) == [0, 0]).unwrap();
    for device in others {
        assert_eq!(filters(node, &device), [1, 1], "{device}");
    }
}

/// How many filters there are of what comes in by a device, and of what goes out.
fn filters(node: &Node, device: &str) -> [usize; 2] {
    ["ingress", "egress"].map(|direction| {
        let shown = node.netns().command("tc").args(["filter", "show", "dev", device, direction]).output().unwrap();
        String::from_utf8(shown.stdout).unwrap().matches("direct-action").count()
    })
}

#[test]
fn beside_another_proxy_what_leaves_in_the_nodes_name_by_tc_is_not_taken_for_the_hosts() {
    let Some(cluster) = start("tc beside another proxy", &["--no-xdp", "--service-proxy-name=weir"]) else { return };
    let mut service = echo("marked", "NodePort");
    let label = ("service.kubernetes.io/service-proxy-name".to_owned(), "weir".to_owned());
    service.metadata.labels = Some([label].into());
    let served = cluster.serve_echo(&service, &[Member::ready(&cluster.world.node(2).pod(1))]);
    ask_from_outside(&cluster, &served, COUNT);
    let agent = &cluster.agents[0];
    assert!(agent.packets(abi::HOOK_NIC_INGRESS, abi::REASON_BACK) >= 2 * 3 * COUNT, "answers came by tc");
    let (v4, v6) = (agent.view().replies4().unwrap(), agent.view().replies6().unwrap());
    let replies: Vec<_> = v4.iter().map(|(_, reply)| reply).chain(v6.iter().map(|(_, reply)| reply)).collect();
    assert!(!v4.is_empty() && !v6.is_empty(), "{replies:?}");
    assert!(replies.iter().all(|reply| reply.flags & abi::FLOW_LENT == 0), "{replies:?}");
}

fn start(what: &str, options: &[&str]) -> Option<Cluster> {
    harness::can_run(what).then(|| Cluster::start(2, 2, options))
}

fn assert_main_kinds(cluster: &Cluster) {
    assert_serves(cluster, Kind::ClusterIp, 10);
    assert_serves(cluster, Kind::NodePort, 20);
}

fn links(agent: &Agent) -> Vec<String> {
    PinDir::new(&agent.pins).link_names().unwrap()
}

/// So many times over each port and family, through node 1.
fn ask_from_outside(cluster: &Cluster, served: &Echo, count: u64) {
    for talk in Talk::ALL {
        for target in served.node_ports(cluster.world.node(1), talk) {
            for _ in 0..count {
                cluster.run_as(&Caller::Outside, || talk.ask(target, PATIENCE)).unwrap();
            }
        }
    }
}
