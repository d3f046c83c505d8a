//! A node: containerd and kubelet in namespaces of their own.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;
use weir_testbed::{Cgroup, Process, World, address, node, wait};

use super::control_plane::ControlPlane;
use super::images;
use super::programs::Programs;
use super::template::fill;

/// Where the cluster's DNS service is found.
pub(super) const DNS: &str = "10.96.0.10";

/// Patience with a part of a node that starts.
const SOON: Duration = Duration::from_secs(60);

const INIT: &str = include_str!("../../../../deploy/dev/conformance/node.sh");
const CONTAINERD: &str = include_str!("../../../../deploy/dev/conformance/containerd.toml");
const KUBELET: &str = include_str!("../../../../deploy/dev/conformance/kubelet.yaml");

/// A running node. Its processes are ended on drop.
#[derive(Debug)]
pub(super) struct Node {
    number: u8,
    _kubelet: Process,
    _containerd: Process,
    place: Place,
}

/// The namespaces, cgroup and files of a node.
#[derive(Debug)]
pub(super) struct Place {
    name: String,
    /// Process 1 of the node, as the machine counts.
    init_id: String,
    _init: Process,
    cgroup: Cgroup,
    directory: PathBuf,
}

impl Node {
    /// Starts the node with this number and all images; kubelet is not ready on return. The Node object must exist.
    ///
    /// # Errors
    /// When a part of it does not start.
    pub(super) fn start(
        world: &World,
        number: u8,
        control_plane: &ControlPlane,
        programs: &Programs,
        archive: &Path,
        directory: &Path,
    ) -> Result<Self> {
        let place = Place::make(world, number, directory.join(format!("node{number}")))?;
        place.write("cni/10-bridge.conflist", &network(number).to_string())?;
        let containerd = place.start_containerd(archive)?;
        let kubelet = place.start_kubelet(world, number, control_plane, programs)?;
        Ok(Self { number, _kubelet: kubelet, _containerd: containerd, place })
    }

    /// Its number, from 1.
    pub(super) fn number(&self) -> u8 {
        self.number
    }

    /// Its namespaces, cgroup and files.
    pub(super) fn place(&self) -> &Place {
        &self.place
    }
}

impl Place {
    fn make(world: &World, number: u8, directory: PathBuf) -> Result<Self> {
        let name = world.node(number).name();
        fs::create_dir_all(directory.join("cni")).with_context(|| format!("cannot make {}", directory.display()))?;
        let netns = world.node(number).netns();
        // Netfilter sees what the pods' bridge forwards: kube-proxy needs it, and many distributions have it so.
        netns.sysctls(&[("net/bridge/bridge-nf-call-iptables", "1"), ("net/bridge/bridge-nf-call-ip6tables", "1")])?;
        let cgroup = Cgroup::create_for_node(&format!("conformance-{name}"))?;
        let script = directory.join("node.sh");
        fs::write(&script, INIT).with_context(|| format!("cannot write {}", script.display()))?;
        let mut command = netns.command("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount", "--uts", "--propagation", "private", "bash"]);
        command.arg(&script).arg(&name).arg(&directory);
        cgroup.attach(&mut command)?;
        let mut init = Process::start(command, "node.sh", &directory.join("init.log"))?;
        let init_id = wait::until_some(&format!("the start of {name}"), SOON, || match init.exit_status() {
            Ok(None) => fs::read_to_string(directory.join("init")).map_err(|error| error.to_string()),
            Ok(Some(status)) => Err(format!("it has ended: {status}: {}", init.log_tail())),
            Err(error) => Err(error.to_string()),
        })?;
        Ok(Self { name, init_id: init_id.trim().to_owned(), _init: init, cgroup, directory })
    }

    /// Its Kubernetes name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The cgroup of everything on the node.
    pub(super) fn cgroup(&self) -> &Path {
        self.cgroup.path()
    }

    /// Its cgroup's name, below the root of each hierarchy.
    pub(super) fn cgroup_name(&self) -> String {
        self.cgroup.name()
    }

    /// A command that will run on the node.
    ///
    /// # Errors
    /// When its cgroup is gone.
    pub(super) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Result<Command> {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init_id, "--mount", "--uts", "--net", "--pid", "--"]).arg(program);
        self.cgroup.attach(&mut command)?;
        Ok(command)
    }

    /// How to get there by hand.
    pub(super) fn enter(&self) -> String {
        format!("nsenter --target {} --mount --uts --net --pid", self.init_id)
    }

    /// The file that a program of this name logs to.
    pub(super) fn log(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.log"))
    }

    fn start_containerd(&self, archive: &Path) -> Result<Process> {
        let directory = self.directory.display().to_string();
        let config = fill(CONTAINERD, &[("DIRECTORY", &directory), ("PAUSE", images::PAUSE)])?;
        let mut command = self.command("containerd")?;
        command.arg("--config").arg(self.write("containerd.toml", &config)?);
        let containerd = Process::start(command, "containerd", &self.log("containerd"))?;
        wait::until_some(&format!("the readiness of containerd on {}", self.name), SOON, || {
            self.run(&["ctr", "version"])
                .map_err(|error| format!("{error:#}; its log says:\n{}", containerd.log_tail()))
        })?;
        self.run(&["ctr", "--namespace", "k8s.io", "images", "import", &archive.display().to_string()])?;
        Ok(containerd)
    }

    fn start_kubelet(
        &self,
        world: &World,
        number: u8,
        control_plane: &ControlPlane,
        programs: &Programs,
    ) -> Result<Process> {
        // The router has no name server: what the cluster does not know is refused at once.
        let resolv_conf = self.write("resolv.conf", &format!("nameserver {}\n", address::ROUTER_INSIDE.v4))?;
        let values = [
            ("DNS", DNS),
            ("RESOLV_CONF", &resolv_conf.display().to_string()),
            ("CGROUP", &format!("/{}", self.cgroup.name())),
        ];
        let config = self.write("kubelet.yaml", &fill(KUBELET, &values)?)?;
        let [v4, v6] = world.node(number).address().both();
        let mut command = self.command(programs.built("kubelet"))?;
        command.arg("--config").arg(config).arg("--kubeconfig").arg(control_plane.kubeconfig());
        command.args([format!("--hostname-override={}", self.name), format!("--node-ip={v4},{v6}")]);
        Ok(Process::start(command, "kubelet", &self.log("kubelet"))?)
    }

    fn write(&self, name: &str, content: &str) -> Result<PathBuf> {
        let path = self.directory.join(name);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Puts a file into the directory of [`Self::shell`], under its own name.
    ///
    /// # Errors
    /// When it cannot be linked.
    pub(super) fn give(&self, file: &Path) -> Result<()> {
        let name = file.file_name().with_context(|| format!("{} is no file", file.display()))?;
        symlink(file, self.directory.join(name)).with_context(|| format!("cannot link {}", file.display()))
    }

    /// Runs a line of a page on the node.
    ///
    /// # Errors
    /// When it fails; the error quotes it.
    pub(super) fn shell(&self, line: &str) -> Result<()> {
        self.run(&["bash", "-ec", &format!("cd {}\n{line}", self.directory.display())])
    }

    /// Runs a command on the node to its end.
    ///
    /// # Errors
    /// When it fails; the error quotes it.
    pub(super) fn run(&self, words: &[&str]) -> Result<()> {
        let [program, arguments @ ..] = words else { bail!("no command to run on {}", self.name) };
        let mut command = self.command(program)?;
        let output = command.args(arguments).stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("cannot run {program} on {}", self.name))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("`{}` failed on {} ({}): {}", words.join(" "), self.name, output.status, said.trim());
        }
        Ok(())
    }
}

/// The pods' network: the bridge that the world has made, addresses of the node's ranges, host ports.
///
/// Nothing is masqueraded: all of the world has routes to pods, and tests look at the addresses that arrive.
fn network(number: u8) -> serde_json::Value {
    let gateway = address::gateway(number);
    let ranges = address::pod_cidrs(number)
        .map(|cidr| json!([{"subnet": cidr.to_string(), "gateway": gateway.like(cidr.addr()).to_string()}]));
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": node::POD_BRIDGE,
                "isDefaultGateway": true,
                "hairpinMode": true,
                "ipMasq": false,
                "ipam": {"type": "host-local", "ranges": ranges},
            },
            {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}},
        ],
    })
}
