//! The unit under a real systemd, which has namespaces, a cgroup and a bpffs of its own: that the agent serves there is
//! what the unit's hardening leaves it.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use weir_deploy_tests::machine::Machine;
use weir_deploy_tests::programs::ours;
use weir_testbed::serve::{self, Server};
use weir_testbed::{Cgroup, World, address, ask, wait};

const UNIT: &str = include_str!("../../systemd/weir-agent.service");
/// The cluster IP of the Service.
const TARGET: &str = "10.96.0.1:80";
/// Patience with the unit: a stuck agent is found after three seconds, and started again two later.
const SOON: Duration = Duration::from_secs(30);

/// What the unit is told here: a watchdog that barks within the test's patience.
const DROP_IN: &str = "[Service]\nWatchdogSec=3s\n";
const OPTIONS: &str = "WEIR_STATIC=/etc/weir/weir.yaml\nNODE_NAME=node1\nWEIR_OPTIONS=--max-flows=16384\n";

/// A node whose process 1 is systemd, and a pod that serves.
struct Node {
    machine: Machine,
    _server: Server,
    world: World,
}

impl Node {
    fn start() -> Self {
        Cgroup::sweep().unwrap();
        let world = World::builder().nodes(1).pods_per_node(1).build().unwrap();
        let server = serve::http(world.node(1).pod(1).netns(), "pod", 8080).unwrap();
        let machine = Machine::boot(world.node(1), "node1").unwrap();
        let (node, pod) = (address::node(1).v4, address::pod(1, 1).v4);
        let services = format!(
            "nodes: [{{name: node1, addresses: [{node}]}}]\nservices: [{{name: web, clusterIPs: [10.96.0.1], \
             ports: [{{port: 80, targetPort: 8080}}], endpoints: [{{address: {pod}, node: node1}}]}}]\n"
        );
        for (path, text) in [
            ("/etc/systemd/system/weir-agent.service", UNIT),
            ("/etc/systemd/system/weir-agent.service.d/test.conf", DROP_IN),
            ("/etc/default/weir-agent", OPTIONS),
            ("/etc/weir/weir.yaml", &services),
        ] {
            machine.write(path, text).unwrap();
        }
        fs::copy(ours("weir-agent", "weir-agent").unwrap(), machine.path("/usr/bin/weir-agent")).unwrap();
        machine.run(&["systemctl", "daemon-reload"]).unwrap();
        Self { machine, _server: server, world }
    }

    fn run(&self, words: &[&str]) -> String {
        self.machine.run(words).unwrap_or_else(|error| panic!("{error}\n{}", self.machine.log()))
    }

    /// A property of the service.
    fn property(&self, name: &str) -> String {
        self.run(&["systemctl", "show", "--value", "--property", name, "weir-agent"]).trim().to_owned()
    }

    fn await_property(&self, name: &str, value: &str) {
        let look = || match self.property(name) {
            found if found == value => Ok(()),
            found => Err(found),
        };
        wait::until_some(&format!("{name}={value}"), SOON, look)
            .unwrap_or_else(|error| panic!("{error}\n{}", self.machine.log()));
    }

    fn assert_served(&self) {
        let target: SocketAddr = TARGET.parse().unwrap();
        let answer = self.world.client().enter(|| ask::http_ask(target));
        assert!(answer.is_ok(), "{answer:?}\n{}", self.machine.log());
    }
}

#[test]
#[ignore = "minutes: make test-deploy"]
fn the_unit_serves_reloads_is_restarted_when_it_is_stuck_and_traffic_goes_on_without_it() {
    if !Machine::can_boot("the unit under systemd") {
        return;
    }
    let node = Node::start();
    node.run(&["systemctl", "start", "weir-agent"]);
    node.await_property("StatusText", "ready");
    node.assert_served();
    assert_eq!(node.property("NRestarts"), "0");
    let main = node.property("MainPID");
    let status = node.run(&["cat", &format!("/proc/{main}/status")]);
    // NET_ADMIN is bit 12, PERFMON 38, BPF 39 (linux/capability.h).
    assert!(status.contains(&format!("CapEff:\t{:016x}", 1_u64 << 12 | 1 << 38 | 1 << 39)), "{status}");
    assert!(status.contains("NoNewPrivs:\t1") && status.contains("Seccomp:\t2"), "{status}");
    let socket = node.run(&["stat", "--format=%a", "/run/weir", "/run/weir/agent.sock"]);
    assert_eq!(socket, "750\n600\n");

    node.run(&["systemctl", "reload", "weir-agent"]);
    node.await_property("ActiveState", "active");
    assert_eq!((node.property("NRestarts").as_str(), node.property("MainPID")), ("0", main));

    node.run(&["systemctl", "kill", "--signal=SIGSTOP", "weir-agent"]);
    node.await_property("NRestarts", "1");
    node.await_property("StatusText", "ready");
    node.assert_served();

    node.run(&["systemctl", "stop", "weir-agent"]);
    assert_eq!([node.property("ActiveState"), node.property("Result")], ["inactive", "success"]);
    node.assert_served();
}
