//! Beside a CNI's programs, which accept packets for good: those of tc's list behind them do not run.

use weir_testbed::Accept;

use crate::harness::agent::Agent;
use crate::harness::callers::Caller;
use crate::harness::echo::{Member, Talk, echo};
use crate::harness::{self, Cluster};

#[test]
fn programs_that_were_there_before_and_accept_everything_keep_no_client_from_a_service() {
    let what = "other programs at the same interfaces";
    if !harness::can_run(what) {
        return;
    }
    let mut cluster = Cluster::without_agents(2, 1);
    let node = cluster.world.node(1);
    let near = node.pod(1);
    let Some(_at_card) = Accept::last(what, node.netns(), "eth0").unwrap() else { return };
    let _at_pod = Accept::last(what, node.netns(), &near.host_interface()).unwrap();
    for number in [1, 2] {
        let agent = Agent::start(&cluster.world, &cluster.api, number, &["--no-xdp"]);
        cluster.agents.push(agent);
    }
    cluster.agents.iter().for_each(|agent| agent.await_ready(&cluster.world));
    let node = cluster.world.node(1);
    for pod in [near.clone(), cluster.world.node(2).pod(1)] {
        let served = cluster.serve_echo(&echo(&format!("beside-{}", pod.name()), "NodePort"), &[Member::ready(&pod)]);
        for talk in Talk::ALL {
            let outside = served.node_ports(node, talk).map(|target| (Caller::Outside, target));
            let inside = served.cluster_ips(talk).map(|target| (Caller::Pod(near.clone()), target));
            for (caller, target) in outside.into_iter().chain(inside) {
                assert_eq!(cluster.answer(&caller, talk, target).name, pod.name(), "{caller} at {talk:?} {target}");
            }
        }
    }
}
