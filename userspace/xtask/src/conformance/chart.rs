//! The chart in `deploy/helm/weir`, installed into the cluster by the real Helm: agents are pods there.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use weir_testbed::{World, address};

use super::cluster::NODES;
use super::node::Node;
use super::programs::Programs;
use super::{images, readme};
use crate::guard;

/// The release and its namespace.
pub(super) const RELEASE: &str = "weir";
pub(super) const NAMESPACE: &str = "kube-system";

const CHART: &str = "deploy/helm/weir";
/// What nodes call the image that `make image` has made and the chart asks for, without its tag.
const IMAGE: &str = "docker.io/library/weir";

/// How long a rollout may take on a busy machine.
const ROLLOUT: &str = "--timeout=300s";

/// The tags of the image that every node has: an upgrade is one from the first to the second.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Tag {
    Before,
    After,
}

impl Tag {
    pub(super) const fn name(self) -> &'static str {
        match self {
            // The chart's own.
            Self::Before => env!("CARGO_PKG_VERSION"),
            Self::After => "after",
        }
    }
}

/// Helm for the cluster.
#[derive(Debug)]
pub(super) struct Chart<'a> {
    pub(super) programs: &'a Programs,
    pub(super) world: &'a World,
    /// The administrator's.
    pub(super) kubeconfig: &'a Path,
    /// For files.
    pub(super) directory: &'a Path,
    /// The API server's port, at the router's address.
    pub(super) port: u16,
    /// The first node's cgroup; the others' are called alike.
    pub(super) cgroup: String,
    /// More options for agents, separated by spaces.
    pub(super) options: &'a str,
}

impl Chart<'_> {
    /// Gives every node the image, by the README's command, and its other tag, for upgrades.
    ///
    /// # Errors
    /// When it was not made, or a node does not take it.
    pub(super) fn deliver(&self, nodes: &[Node]) -> Result<()> {
        let import = readme::command(readme::INSTALL, "ctr ")?;
        let [before, after] = [Tag::Before, Tag::After].map(|tag| format!("{IMAGE}:{}", tag.name()));
        for node in nodes {
            node.place().give(self.programs.image()?)?;
            node.place().shell(import)?;
            let tagged = node.place().run(&["ctr", "--namespace", "k8s.io", "images", "tag", &before, &after]);
            tagged.context("target/image/weir.tar has another name: run `make image`")?;
        }
        Ok(())
    }

    /// Installs the release in kube-proxy's place, or upgrades it, with the image of this tag, and waits until every node has it.
    ///
    /// # Errors
    /// When Helm refuses or a node's agent does not get ready.
    pub(super) fn upgrade(&self, tag: Tag) -> Result<()> {
        let path = self.directory.join("values.yaml");
        // JSON is YAML.
        write(&path, &self.values(tag).to_string())?;
        let (machine, path) = (self.machine()?, path.display());
        self.shell(&format!(
            "helm upgrade --install {RELEASE} {CHART} --namespace {NAMESPACE} {machine} --values {path}"
        ))?;
        let ready = self.kubectl(&["--namespace", NAMESPACE, "rollout", "status", "daemonset/weir", ROLLOUT]);
        ready.map(drop).map_err(|error| {
            let logs = ["--namespace", NAMESPACE, "logs", "daemonset/weir", "--all-pods", "--prefix", "--tail=5"];
            let said = self.kubectl(&logs).unwrap_or_else(|error| format!("{error:#}"));
            error.context(format!("agents say:\n{said}"))
        })
    }

    /// Runs `helm test`.
    ///
    /// # Errors
    /// When it fails.
    pub(super) fn test(&self) -> Result<()> {
        self.shell(&format!("helm test {RELEASE} --namespace {NAMESPACE} --logs")).map(drop)
    }

    /// Runs kubectl and returns what it prints.
    ///
    /// # Errors
    /// When it fails; the error quotes it.
    pub(super) fn kubectl(&self, words: &[&str]) -> Result<String> {
        let command = self.command(&self.programs.built("kubectl"), words);
        run(command, &format!("kubectl {}", words.join(" ")))
    }

    /// Runs a line of a page in the source tree, as somebody with kubectl, `kubectl weir` and Helm, and returns what it prints.
    ///
    /// # Errors
    /// When it fails; the error quotes it.
    pub(super) fn shell(&self, line: &str) -> Result<String> {
        run(self.command(Path::new("bash"), &["-c", line]), line)
    }

    /// Helm's option for what the nodes need that share a machine.
    ///
    /// # Errors
    /// When it cannot be written down.
    pub(super) fn machine(&self) -> Result<String> {
        let path = self.directory.join("machine.yaml");
        write(&path, &self.shared()?.to_string())?;
        Ok(format!("--values {}", path.display()))
    }

    /// Makes the commands of [`Self::shell`], and `kubectl weir`.
    ///
    /// # Errors
    /// When they cannot be linked.
    pub(super) fn equip(&self) -> Result<()> {
        let bin = self.bin();
        fs::create_dir(&bin).with_context(|| format!("cannot make {}", bin.display()))?;
        let [kubectl, helm] = ["kubectl", "helm"].map(|name| self.programs.built(name));
        for (program, name) in [(self.programs.cli(), "kubectl-weir"), (&*kubectl, "kubectl"), (&*helm, "helm")] {
            symlink(program, bin.join(name)).with_context(|| format!("cannot link {}", program.display()))?;
        }
        Ok(())
    }

    /// What comes first in the path.
    fn bin(&self) -> PathBuf {
        self.directory.join("bin")
    }

    /// Tells agents, as kubeadm tells kube-proxy, where the API server is.
    ///
    /// # Errors
    /// When the API server refuses.
    pub(super) fn publish_address(&self) -> Result<()> {
        let account = "/var/run/secrets/kubernetes.io/serviceaccount";
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "default", "cluster": {
                "server": format!("https://{}:{}", address::ROUTER_INSIDE.v4, self.port),
                "certificate-authority": format!("{account}/ca.crt"),
            }}],
            "users": [{"name": "default", "user": {"tokenFile": format!("{account}/token")}}],
            "contexts": [{"name": "default", "context": {"cluster": "default", "user": "default"}}],
            "current-context": "default",
        });
        let path = self.directory.join("kubeconfig.conf");
        write(&path, &kubeconfig.to_string())?;
        let file = format!("--from-file={}", path.display());
        self.kubectl(&["--namespace", NAMESPACE, "create", "configmap", "kube-proxy", &file]).map(drop)
    }

    /// Values for nodes that share a machine: pins and cgroups are each node's own, tables are small, a rollout is quick.
    fn shared(&self) -> Result<serde_json::Value> {
        let pins = guard::pin_dir(1);
        let pins = pins.root().display().to_string().replace("node1", "$(NODE_NAME)");
        let cgroup = self.cgroup.replace("node1", "$(NODE_NAME)");
        let own = ["--xdp-on-veth".into(), "--max-sockets=16384".into(), format!("--kubelet-cgroup-root=/{cgroup}")];
        let options: Vec<_> = own.into_iter().chain(self.options.split_whitespace().map(str::to_owned)).collect();
        Ok(json!({
            "image": {"architecture": images::goarch()?},
            "datapath": {"maxFlows": 65536},
            "minReadySeconds": 2,
            "extraArgs": options,
            "extraEnv": [
                {"name": "WEIR_PIN_DIR", "value": pins},
                {"name": "WEIR_CGROUP", "value": format!("/sys/fs/cgroup/unified/{cgroup}")},
            ],
        }))
    }

    /// Values for agents in kube-proxy's place. An upgrade brings another way to the API server, and the init container, which
    /// finds everything mounted.
    fn values(&self, tag: Tag) -> serde_json::Value {
        json!({
            "image": {"tag": match tag {
                // The chart's own.
                Tag::Before => "",
                Tag::After => tag.name(),
            }},
            "apiServer": match tag {
                Tag::Before => json!({"kubeconfig": {"configMap": "kube-proxy"}}),
                Tag::After => json!({"host": address::ROUTER_INSIDE.v4, "port": self.port}),
            },
            "spread": "random",
            "mountFilesystems": tag == Tag::After,
        })
    }

    /// A command of the administrator's.
    fn command(&self, program: &Path, words: &[&str]) -> Command {
        let mut command: Command = self.world.router().command(program);
        command.args(words).stdin(Stdio::null());
        command.env("KUBECONFIG", self.kubeconfig).env("KUBECACHEDIR", self.directory.join("kubectl-cache"));
        let mut path = self.bin().into_os_string();
        if let Some(others) = env::var_os("PATH") {
            path.push(":");
            path.push(others);
        }
        command.env("PATH", path);
        for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(variable, self.directory);
        }
        command
    }
}

/// Runs a command that is called so, and returns what it prints.
fn run(mut command: Command, name: &str) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run `{name}`"))?;
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    ensure!(output.status.success(), "`{name}` failed: {}\n{}", err.trim(), out.trim());
    Ok(out)
}

/// How many nodes an agent must be on.
pub(super) const AGENTS: usize = NODES as usize;

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
