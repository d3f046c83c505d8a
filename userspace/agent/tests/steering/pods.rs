//! What a pod uses is read from its control group, where kubelet puts it.

use serde_json::Value;
use weir_testbed::address;

use crate::bed::SETTLED;
use crate::harness::machine::Machine;
use crate::harness::standalone::{self, Standalone};
use crate::harness::{HTTP, SOON};

const UID: &str = "9b7b5d0a-3f6e-4f0c-8d57-0a1b2c3d4e5f";

/// A Service with two endpoints, the first of which is a Pod that the API server knows.
fn yaml() -> String {
    let node = address::node(1).v4;
    let [first, second] = [1, 2].map(|pod| address::pod(1, pod).v4);
    format!(
        "nodes: [{{name: node1, addresses: [{node}]}}]\nservices:\n  - name: web\n    clusterIPs: [10.96.0.1]\n    \
         annotations: {{weir.dev/policy: random}}\n    ports: [{{port: 80, targetPort: {HTTP}}}]\n    endpoints:\n      \
         - {{address: {first}, node: node1, pod: {UID}}}\n      - {{address: {second}, node: node1}}\n"
    )
}

#[test]
fn the_load_of_a_pod_is_what_its_group_uses_of_its_quota() {
    let what = "the load of a pod";
    if !standalone::can_run(what) || !Machine::require(what) {
        return;
    }
    let mut node = Standalone::prepared(2, &yaml(), &[]);
    let group = format!("kubepods/burstable/pod{UID}");
    let mut pod = Machine::of_pod(&format!("{}kubelet/{group}", node.world.prefix()));
    let root = pod.name().trim_end_matches(&group);
    node.agent.set_option(&format!("--kubelet-cgroup-root=/{root}"));
    node.agent.start_again(&node.world);
    node.agent.await_ready(&node.world);

    let cpus = || {
        let weights: Value = serde_json::from_str(&node.agent.told("/weights")).unwrap();
        let endpoints = weights["services"][0]["sets"][0]["endpoints"].as_array().cloned().unwrap_or_default();
        endpoints.iter().map(|endpoint| endpoint["cpu"].as_f64()).collect::<Vec<_>>()
    };
    let await_cpu = |what: &str, limit, good: fn(f64) -> bool| {
        let look = || match cpus()[..] {
            // Nobody knows what the other one is.
            [Some(cpu), None] if good(cpu) => Ok(()),
            ref other => Err(format!("{other:?}")),
        };
        weir_testbed::wait::until_some(what, limit, look).unwrap_or_else(|e| panic!("{e}\n{}", node.agent.log()));
    };
    await_cpu("a pod that is idle", SOON, |cpu| cpu < 0.2);
    pod.work();
    await_cpu("a pod that uses all that it may", SETTLED, |cpu| cpu > 0.8);
    pod.rest();
    await_cpu("a pod that is idle again", SETTLED, |cpu| cpu < 0.2);
}
