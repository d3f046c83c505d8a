//! The unit under a real systemd, which has namespaces, a cgroup and a bpffs of its own: that the agent serves there is
//! what the unit's hardening leaves it.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use weir_deploy_tests::programs::{ours, run};
use weir_testbed::process::{self, Process};
use weir_testbed::serve::{self, Server};
use weir_testbed::{Cgroup, World, address, ask, require_root, wait};

const UNIT: &str = include_str!("../../systemd/weir-agent.service");
const SYSTEMD: &str = "/lib/systemd/systemd";
/// The cluster IP of the Service.
const TARGET: &str = "10.96.0.1:80";
/// Patience with the unit: a stuck agent is found after three seconds, and started again two later.
const SOON: Duration = Duration::from_secs(30);

/// `setup DIRECTORY AGENT`: file systems as systemd has them on a host, no unit but ours, and no generator of units.
const SETUP: &str = r#"
from=$1 agent=$2
# Its number outside, which the proc of outside tells.
read -r id _ </proc/self/stat
mount -t proc proc /proc
umount --recursive --lazy /sys
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t bpf -o mode=0700 bpf /sys/fs/bpf
for path in /usr/{lib,local/lib}/systemd/system{,-generators} /etc/systemd/system{,-generators} /run /etc/default /var/lib; do
	[[ ! -d $path ]] || mount -t tmpfs -o mode=0755 tmpfs $path
done
touch /run/program
mount --bind "$agent" /run/program
cp "$from"/services.yaml /run/
cp "$from"/default /etc/default/weir-agent
mkdir /etc/systemd/system/weir-agent.service.d
cp "$from"/weir-agent.service /etc/systemd/system/
cp "$from"/test.conf /etc/systemd/system/weir-agent.service.d/
for name in sysinit basic shutdown umount network-pre multi-user; do
	printf '[Unit]\nDescription=%s\nDefaultDependencies=no\n' $name >/etc/systemd/system/$name.target
done
echo "$id" >"$from/id"
exec env -i container=weir-test PATH="$PATH" /lib/systemd/systemd --system --unit=multi-user.target
"#;

/// What the unit is told here: a watchdog that barks within the test's patience, and a file as its log, since there is no
/// journal.
const DROP_IN: &str = "[Service]\nWatchdogSec=3s\nStandardOutput=append:/run/log\nStandardError=append:/run/log\n";

/// A node whose process 1 is systemd, and a pod that serves.
struct Node {
    _systemd: Process,
    // Its processes end before it goes.
    _cgroup: Cgroup,
    directory: TempDir,
    _server: Server,
    world: World,
}

impl Node {
    fn start() -> Self {
        World::sweep().unwrap();
        Cgroup::sweep().unwrap();
        let world = World::builder().nodes(1).pods_per_node(1).build().unwrap();
        // systemd makes groups below it.
        let cgroup = Cgroup::create_for_node(&format!("{}systemd", world.prefix())).unwrap();
        let server = serve::http(world.node(1).pod(1).netns(), "pod", 8080).unwrap();
        let directory = tempfile::Builder::new().prefix("weir-systemd-").tempdir().unwrap();
        let (node, pod) = (address::node(1).v4, address::pod(1, 1).v4);
        let services = format!(
            "nodes: [{{name: node1, addresses: [{node}]}}]\nservices: [{{name: web, clusterIPs: [10.96.0.1], \
             ports: [{{port: 80, targetPort: 8080}}], endpoints: [{{address: {pod}, node: node1}}]}}]\n"
        );
        for (name, text) in [
            ("weir-agent.service", UNIT.replace("=/usr/bin/weir-agent", "=/run/program")),
            ("test.conf", DROP_IN.to_owned()),
            ("default", "WEIR_STATIC=/run/services.yaml\nNODE_NAME=node1\nWEIR_OPTIONS=--max-flows=16384\n".to_owned()),
            ("services.yaml", services),
        ] {
            fs::write(directory.path().join(name), text).unwrap();
        }
        let mut command = world.node(1).netns().command("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--uts", "--ipc", "--cgroup"]);
        command.args(["--propagation", "private", "bash", "-euo", "pipefail", "-c", SETUP, "setup"]);
        command.arg(directory.path()).arg(ours("weir-agent", "weir-agent").unwrap());
        cgroup.attach(&mut command).unwrap();
        let systemd = Process::start(command, "systemd", &directory.path().join("systemd.log")).unwrap();
        let node = Self { _systemd: systemd, _cgroup: cgroup, directory, _server: server, world };
        let idle = || match node.try_run(&["systemctl", "list-jobs"]) {
            Ok(said) if said.contains("No jobs") => Ok(()),
            other => Err(format!("{other:?}")),
        };
        wait::until_some("systemd", SOON, idle).unwrap_or_else(|error| panic!("{error}\n{}", node.log()));
        node
    }

    /// Process 1 of the node, as it is called here; empty before it is there.
    fn init(&self) -> String {
        fs::read_to_string(self.directory.path().join("id")).unwrap_or_default().trim().to_owned()
    }

    fn try_run(&self, words: &[&str]) -> weir_testbed::Result<String> {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init(), "--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--"]);
        run(command.args(words))
    }

    fn run(&self, words: &[&str]) -> String {
        self.try_run(words).unwrap_or_else(|error| panic!("{error}\n{}", self.log()))
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
            .unwrap_or_else(|error| panic!("{error}\n{}", self.log()));
    }

    /// What the agent and what systemd have said.
    fn log(&self) -> String {
        let agents = Path::new("/proc").join(self.init()).join("root/run/log");
        [agents, self.directory.path().join("systemd.log")].map(|f| fs::read_to_string(f).unwrap_or_default()).concat()
    }

    fn assert_served(&self) {
        let target: SocketAddr = TARGET.parse().unwrap();
        let answer = self.world.client().enter(|| ask::http_ask(target));
        assert!(answer.is_ok(), "{answer:?}\n{}", self.log());
    }
}

/// True when this machine can be such a node; else it has been said why not.
fn can_run(what: &str) -> bool {
    if !require_root(what) {
        return false;
    }
    let missing = ["systemctl", "nsenter", "unshare"].into_iter().find_map(|name| process::installed(name).err());
    let missing = missing.map(|error| error.to_string());
    let missing = missing.or_else(|| (!Path::new(SYSTEMD).exists()).then(|| format!("there is no {SYSTEMD}")));
    if let Some(missing) = &missing {
        eprintln!("SKIPPED: {what}: {missing}");
    }
    missing.is_none()
}

#[test]
#[ignore = "minutes: make test-deploy"]
fn the_unit_serves_reloads_is_restarted_when_it_is_stuck_and_traffic_goes_on_without_it() {
    if !can_run("the unit under systemd") {
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
