//! The image of the Dockerfile's last stage, run by containerd as the chart's DaemonSet runs it: nothing but two programs, the
//! three capabilities, a root file system that nobody can write to.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use weir_datapath::PinDir;
use weir_deploy_tests::chart::Helm;
use weir_deploy_tests::image::{Stage, default_name};
use weir_deploy_tests::manifest::{objects, only};
use weir_deploy_tests::programs::{HELM, make, require, root, run};
use weir_testbed::process::{self, Process};
use weir_testbed::serve::{self, Server};
use weir_testbed::{Cgroup, World, address, ask, bpffs, require_root, wait};

const DOCKERFILE: &str = include_str!("../../docker/Dockerfile");
const IMAGE: &str = "example.org/weir:test";
/// The container's name, and its task's.
const AGENT: &str = "agent";

/// Patience with containerd, which is slow on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// What containerd gives a container that asks for nothing (`defaultUnixCaps` in its oci package). The chart drops all.
const DEFAULT_CAPABILITIES: [&str; 14] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// A node with a containerd of its own, and a pod that serves.
struct Node {
    containerd: Option<Process>,
    pins: PinDir,
    cgroup: Cgroup,
    directory: TempDir,
    _server: Server,
    world: World,
}

impl Node {
    fn start() -> Self {
        Cgroup::sweep().unwrap();
        bpffs::ensure_mounted().unwrap();
        let world = World::builder().nodes(1).pods_per_node(1).build().unwrap();
        let name = format!("{}image", world.prefix());
        let pins = PinDir::new(Path::new(bpffs::PATH).join(&name));
        let cgroup = Cgroup::create(&name).unwrap();
        let directory = tempfile::Builder::new().prefix("weir-image-").tempdir().unwrap();
        let server = serve::http(world.node(1).pod(1).netns(), "pod", 8080).unwrap();
        let mut node = Self { containerd: None, pins, cgroup, directory, _server: server, world };
        node.start_containerd();
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn start_containerd(&mut self) {
        let config = format!(
            "version = 2\nroot = {:?}\nstate = {:?}\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
             [grpc]\n  address = {:?}\n[plugins.\"io.containerd.internal.v1.opt\"]\n  path = {:?}\n",
            self.path("containerd"),
            self.path("containerd-state"),
            self.path("containerd.sock"),
            self.path("opt"),
        );
        fs::write(self.path("containerd.toml"), config).unwrap();
        // What it runs on the host's network is on the network of its own place.
        let mut command = self.world.node(1).netns().command("containerd");
        command.arg("--config").arg(self.path("containerd.toml"));
        self.containerd = Some(Process::start(command, "containerd", &self.path("containerd.log")).unwrap());
        wait::until_some("containerd", SOON, || self.ctr(&["version"]).map_err(|error| error.to_string())).unwrap();
    }

    fn ctr(&self, words: &[&str]) -> weir_testbed::Result<String> {
        run(Command::new("ctr").arg("--address").arg(self.path("containerd.sock")).args(words))
    }

    /// `ctr run` with all that the chart's container has, and these options and words after the image.
    fn run(&self, capabilities: &[String], options: &[&str], words: &[&str]) -> weir_testbed::Result<String> {
        let mut all: Vec<String> =
            ["run", "--net-host", "--read-only", "--seccomp", "--cgroup", "", "--env", "NODE_NAME=node1"]
                .map(str::to_owned)
                .to_vec();
        all.extend(DEFAULT_CAPABILITIES.iter().flat_map(|name| ["--cap-drop".to_owned(), format!("CAP_{name}")]));
        all.extend(capabilities.iter().flat_map(|name| ["--cap-add".to_owned(), format!("CAP_{name}")]));
        for (from, to, how) in [
            (Path::new(bpffs::PATH), bpffs::PATH, "rw"),
            (Path::new("/sys/fs/cgroup"), "/sys/fs/cgroup", "ro"),
            (&self.path("run"), "/run/weir", "rw"),
            (&self.path("etc"), "/etc/weir", "ro"),
        ] {
            let mount = format!("type=bind,src={},dst={to},options=rbind:{how}", from.display());
            all.extend(["--mount".to_owned(), mount]);
        }
        let pins = format!("WEIR_PIN_DIR={}", self.pins.root().display());
        let cgroup = format!("WEIR_CGROUP={}", self.cgroup.path().display());
        all.extend(["--env".to_owned(), pins, "--env".to_owned(), cgroup]);
        let all: Vec<&str> = all
            .iter()
            .map(String::as_str)
            .chain(options.iter().copied())
            .chain([IMAGE])
            .chain(words.iter().copied())
            .collect();
        self.ctr(&all)
    }

    /// The agent's log and containerd's.
    fn log(&self) -> String {
        let read = |name| fs::read_to_string(self.path(name)).unwrap_or_default();
        format!("{}\n{}", read("agent.log"), read("containerd.log"))
    }

    fn await_ready(&self) {
        let look = || match self.readiness() {
            Ok(answer) if answer.contains(" 200 ") => Ok(()),
            other => Err(format!("{other:?}")),
        };
        wait::until_some("readiness", SOON, look).unwrap_or_else(|error| panic!("{error}\n{}", self.log()));
    }

    fn readiness(&self) -> std::io::Result<String> {
        self.world.node(1).netns().enter(|| {
            let mut stream = TcpStream::connect(("127.0.0.1", 10256))?;
            stream.set_read_timeout(Some(SOON))?;
            write!(stream, "GET /readyz HTTP/1.0\r\nHost: node1\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        })
    }

    fn assert_served(&self) {
        for target in ["10.96.0.1:80", "[fd00:96::1]:80"] {
            let target: SocketAddr = target.parse().unwrap();
            let answer = self.world.client().enter(|| ask::http_ask(target));
            assert!(answer.is_ok(), "{target}: {answer:?}\n{}", self.log());
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Containers outlive containerd; where there is none these say so.
        let _ = self.ctr(&["tasks", "kill", "--signal", "SIGKILL", AGENT]);
        let _ = wait::until("the container's end", SOON, || self.ctr(&["tasks", "delete", AGENT]).is_err());
        let _ = self.ctr(&["containers", "delete", AGENT]);
        self.containerd = None;
        if let Err(error) = self.pins.remove_all(false) {
            eprintln!("{error}");
        }
    }
}

/// A Service of the pod on node 1.
fn services() -> String {
    let (node, pod) = (address::node(1), address::pod(1, 1));
    format!(
        "nodes: [{{name: node1, addresses: [{}, \"{}\"]}}]\nservices: [{{name: web, clusterIPs: [10.96.0.1, \"fd00:96::1\"], \
         ports: [{{port: 80, targetPort: 8080}}], endpoints: [{{address: {}, node: node1}}, {{address: \"{}\", node: node1}}]}}]\n",
        node.v4, node.v6, pod.v4, pod.v6
    )
}

/// What the chart's container may do.
fn capabilities() -> Vec<String> {
    let manifest = Helm::find().unwrap().render("apiServer: {host: 192.0.2.1}\n").unwrap();
    let objects = objects(&manifest).unwrap();
    let context = &only(&objects, "DaemonSet").unwrap()["spec"]["template"]["spec"]["containers"][0]["securityContext"];
    assert_eq!(context["capabilities"]["drop"], serde_json::json!(["ALL"]));
    context["capabilities"]["add"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

/// A field of /proc/PID/status.
fn status_of(process: &str, field: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
    line.trim().to_owned()
}

#[test]
fn the_last_stage_has_both_programs_where_the_chart_looks_for_them() {
    let stage = Stage::last(DOCKERFILE).unwrap();
    for name in ["weir-agent", "weir"] {
        let target = Path::new("/usr/local/bin").join(name);
        assert!(stage.copies.iter().any(|(_, to)| *to == target), "{name}");
    }
    assert_eq!(stage.entrypoint, ["/usr/local/bin/weir-agent"]);
    assert_eq!(stage.user, "0:0");
    for label in ["title", "description", "licenses", "version", "revision"] {
        assert!(!stage.labels[&format!("org.opencontainers.image.{label}")].is_empty());
    }
    assert_eq!(stage.labels["org.opencontainers.image.version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn an_image_that_is_made_without_a_name_has_the_one_that_the_chart_asks_for() {
    if !require("the image's name", &[HELM]) {
        return;
    }
    let manifest = Helm::find().unwrap().render("apiServer: {host: 192.0.2.1}\n").unwrap();
    let objects = objects(&manifest).unwrap();
    let image = &only(&objects, "DaemonSet").unwrap()["spec"]["template"]["spec"]["containers"][0]["image"];
    // A name without a registry is one of Docker's own, to container runtimes.
    assert_eq!(format!("docker.io/library/{}", image.as_str().unwrap()), default_name());
}

#[test]
fn the_stage_of_tools_brings_what_a_migration_runs_and_is_not_the_last() {
    let (_, stage) = DOCKERFILE.split_once(" AS tools\n").unwrap();
    let (stage, _) = stage.split_once("\nFROM scratch\n").unwrap();
    let (_, packages) = stage.split_once("apt-get install --yes --no-install-recommends ").unwrap();
    let (packages, _) = packages.split_once(" && ").unwrap();
    assert_eq!(packages.split(' ').collect::<Vec<_>>(), ["ipset", "iptables", "ipvsadm", "nftables"]);
    assert!(stage.contains("\nCOPY --from=build /out/weir /usr/local/bin/weir\n"), "{stage}");
}

#[test]
#[ignore = "minutes: make test-deploy"]
fn the_image_serves_with_three_capabilities_and_what_it_pins_outlives_it() {
    let what = "the image";
    let missing = ["containerd", "ctr", "runc"].into_iter().find_map(|name| process::installed(name).err());
    if let Some(error) = missing {
        eprintln!("SKIPPED: {what}: {error}");
        return;
    }
    if !require_root(what) || !require(what, &[HELM]) {
        return;
    }
    make(&["image", &format!("IMAGE={IMAGE}")]).unwrap();
    let node = Node::start();
    node.ctr(&["images", "import", &root().join("target/image/weir.tar").display().to_string()]).unwrap();
    for directory in ["run", "etc"] {
        fs::create_dir(node.path(directory)).unwrap();
    }
    fs::write(node.path("etc/weir.yaml"), services()).unwrap();

    let version = node.run(&[], &["--rm"], &["version", "/usr/local/bin/weir", "version"]).unwrap();
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");

    let agent_log = format!("file://{}", node.path("agent.log").display());
    let pid_file = node.path("pid").display().to_string();
    let options = ["--detach", "--log-uri", &agent_log, "--pid-file", &pid_file];
    let words = [AGENT, "/usr/local/bin/weir-agent", "--static=/etc/weir/weir.yaml", "--max-flows=16384"];
    node.run(&capabilities(), &options, &words).unwrap();
    node.await_ready();
    node.assert_served();
    let pid = fs::read_to_string(&pid_file).unwrap();
    // NET_ADMIN is bit 12, PERFMON 38, BPF 39 (linux/capability.h).
    let three = format!("{:016x}", 1_u64 << 12 | 1 << 38 | 1 << 39);
    for field in ["CapBnd", "CapEff", "CapPrm"] {
        assert_eq!(status_of(&pid, field), three, "{field}");
    }
    assert_eq!([status_of(&pid, "NoNewPrivs"), status_of(&pid, "Seccomp")], ["1", "2"]);
    let weir = ["tasks", "exec", "--exec-id", "status", AGENT, "/usr/local/bin/weir", "status"];
    let status = node.ctr(&weir).unwrap_or_else(|error| panic!("{error}\n{}", node.log()));
    assert!(status.contains("static-file"), "{status}");

    node.ctr(&["tasks", "kill", "--signal", "SIGTERM", AGENT]).unwrap();
    let ended = || node.ctr(&["tasks", "list"]).is_ok_and(|list| list.contains("STOPPED"));
    wait::until("the agent's end", SOON, ended).unwrap_or_else(|error| panic!("{error}\n{}", node.log()));
    node.assert_served();
}
