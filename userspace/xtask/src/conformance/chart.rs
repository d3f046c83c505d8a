//! The chart in `deploy/helm/weir`, installed into the cluster by the real Helm: agents are pods there.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs, iter};

use anyhow::{Context, Result, bail};
use serde_json::json;
use weir_testbed::{World, address};

use super::cluster::NODES;
use super::images;
use super::node::Node;
use super::programs::Programs;
use crate::guard;

/// The release and its namespace.
pub(super) const RELEASE: &str = "weir";
pub(super) const NAMESPACE: &str = "kube-system";

const CHART: &str = "deploy/helm/weir";
const REPOSITORY: &str = "example.org/weir";
/// Where the chart looks for both programs.
const BIN: &str = "usr/local/bin";

/// How long a rollout may take on a busy machine.
pub(super) const ROLLOUT: &str = "--timeout=300s";

/// The tags of the image that every node has: an upgrade is one from the first to the second.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Tag {
    Before,
    After,
}

impl Tag {
    const ALL: [Self; 2] = [Self::Before, Self::After];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
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
    /// More options for agents, separated by spaces.
    pub(super) options: &'a str,
}

impl Chart<'_> {
    /// Gives every node the image under both tags.
    ///
    /// # Errors
    /// When it cannot be packed or a node does not take it.
    pub(super) fn deliver(&self, nodes: &[Node]) -> Result<()> {
        self.plug_in()?;
        let archive = self.pack()?;
        let words = ["ctr", "--namespace", "k8s.io", "images", "import", &archive.display().to_string()];
        nodes.iter().try_for_each(|node| node.place().run(&words))
    }

    /// Installs the release, or upgrades it, with the image of this tag, and waits until every node has it.
    ///
    /// # Errors
    /// When Helm refuses or a node's agent does not get ready.
    pub(super) fn upgrade(&self, tag: Tag, cgroup: &str) -> Result<()> {
        let path = self.directory.join("values.yaml");
        // JSON is YAML.
        write(&path, &self.values(tag, cgroup)?.to_string())?;
        let chart = std::path::absolute(CHART).context("cannot tell where the chart lies")?;
        let [path, chart] = [path, chart].map(|path| path.display().to_string());
        self.helm(&["upgrade", "--install", RELEASE, &chart, "--namespace", NAMESPACE, "--values", &path])?;
        self.kubectl(&["--namespace", NAMESPACE, "rollout", "status", "daemonset/weir", ROLLOUT]).map(drop)
    }

    /// Runs `helm test`.
    ///
    /// # Errors
    /// When it fails.
    pub(super) fn test(&self) -> Result<()> {
        self.helm(&["test", RELEASE, "--namespace", NAMESPACE, "--logs"]).map(drop)
    }

    /// The name of the image that every node has under this tag.
    pub(super) fn image(tag: Tag) -> String {
        format!("{REPOSITORY}:{}", tag.name())
    }

    /// What the release's notes say.
    ///
    /// # Errors
    /// When it is not installed.
    pub(super) fn notes(&self) -> Result<String> {
        self.helm(&["get", "notes", RELEASE, "--namespace", NAMESPACE])
    }

    /// Removes the release, and waits until no agent is left.
    ///
    /// # Errors
    /// When it fails.
    pub(super) fn uninstall(&self) -> Result<()> {
        self.helm(&["uninstall", RELEASE, "--namespace", NAMESPACE, "--cascade=foreground", "--wait", ROLLOUT])
            .map(drop)
    }

    /// Runs kubectl and returns what it prints.
    ///
    /// # Errors
    /// When it fails; the error quotes it.
    pub(super) fn kubectl(&self, words: &[&str]) -> Result<String> {
        self.run("kubectl", words)
    }

    /// Makes `kubectl weir` a command of [`Self::kubectl`].
    fn plug_in(&self) -> Result<()> {
        let bin = self.bin();
        fs::create_dir(&bin).with_context(|| format!("cannot make {}", bin.display()))?;
        for (program, name) in [(self.programs.cli(), "kubectl-weir"), (&*self.programs.built("kubectl"), "kubectl")] {
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

    /// Values for nodes that share a machine: pins and cgroups are each node's own. An upgrade brings another way to the API
    /// server, and the init container, which finds everything mounted.
    fn values(&self, tag: Tag, cgroup: &str) -> Result<serde_json::Value> {
        let pins = guard::pin_dir(1);
        let pins = pins.root().display().to_string().replace("node1", "$(NODE_NAME)");
        let cgroup = cgroup.replace("node1", "$(NODE_NAME)");
        let own = ["--xdp-on-veth".into(), "--max-sockets=16384".into(), format!("--kubelet-cgroup-root=/{cgroup}")];
        let options: Vec<_> = own.into_iter().chain(self.options.split_whitespace().map(str::to_owned)).collect();
        let architecture = images::goarch()?;
        Ok(json!({
            "image": {
                "repository": REPOSITORY, "tag": tag.name(), "architecture": architecture, "pullPolicy": "Never",
            },
            "apiServer": match tag {
                Tag::Before => json!({"kubeconfig": {"configMap": "kube-proxy"}}),
                Tag::After => json!({"host": address::ROUTER_INSIDE.v4, "port": self.port}),
            },
            "spread": "random",
            "datapath": {"maxFlows": 65536},
            "minReadySeconds": 2,
            "mountFilesystems": tag == Tag::After,
            "extraArgs": options,
            "extraEnv": [
                {"name": "WEIR_PIN_DIR", "value": pins},
                {"name": "WEIR_CGROUP", "value": format!("/sys/fs/cgroup/unified/{cgroup}")},
            ],
        }))
    }

    fn helm(&self, words: &[&str]) -> Result<String> {
        self.run("helm", words)
    }

    fn run(&self, program: &str, words: &[&str]) -> Result<String> {
        let mut command: Command = self.world.router().command(self.programs.built(program));
        command.env("KUBECONFIG", self.kubeconfig).env("KUBECACHEDIR", self.directory.join("kubectl-cache"));
        let path = env::var_os("PATH").unwrap_or_default();
        let paths = iter::once(self.bin()).chain(env::split_paths(&path));
        command.env("PATH", env::join_paths(paths).context("the path cannot be put together")?);
        for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(variable, self.directory);
        }
        let output = command.args(words).stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("cannot run {program}"))?;
        let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        if !output.status.success() {
            bail!("{program} {} failed: {}\n{}", words.join(" "), err.trim(), out.trim());
        }
        Ok(out)
    }

    /// The image: what the test pods' images have, for the C library, and both programs.
    fn pack(&self) -> Result<PathBuf> {
        let draft = self.directory.join("weir-image");
        let bin = draft.join("root").join(BIN);
        fs::create_dir_all(&bin).with_context(|| format!("cannot make {}", bin.display()))?;
        for (program, name) in [(self.programs.agent(), "weir-agent"), (self.programs.cli(), "weir")] {
            fs::copy(program, bin.join(name)).with_context(|| format!("cannot copy {}", program.display()))?;
        }
        let layers = ["base.tar", "programs.tar"];
        fs::copy(self.programs.base_layer(), draft.join(layers[0])).context("cannot copy the base layer")?;
        let root = draft.join("root");
        images::run(Command::new("tar").arg("-cf").arg(draft.join(layers[1])).arg("-C").arg(root).arg("."))?;
        let sums = layers.iter().map(|layer| images::sha256(&draft.join(layer))).collect::<Result<Vec<_>>>()?;
        let mut manifest = Vec::new();
        for tag in Tag::ALL {
            let config = json!({
                "architecture": images::goarch()?,
                "os": "linux",
                // Images that are the same in everything are one.
                "config": {"Labels": {"tag": tag.name()}},
                "rootfs": {"type": "layers", "diff_ids": sums},
            });
            let file = format!("{}.json", tag.name());
            write(&draft.join(&file), &config.to_string())?;
            manifest.push(json!({
                "Config": file, "RepoTags": [format!("{REPOSITORY}:{}", tag.name())], "Layers": layers,
            }));
        }
        write(&draft.join("manifest.json"), &serde_json::Value::from(manifest).to_string())?;
        let archive = self.directory.join("weir-image.tar");
        let members = Tag::ALL.map(|tag| format!("{}.json", tag.name()));
        let mut command = Command::new("tar");
        command.arg("-C").arg(&draft).arg("-cf").arg(&archive).arg("manifest.json").args(members).args(layers);
        images::run(&mut command)?;
        Ok(archive)
    }
}

/// How many nodes an agent must be on.
pub(super) const AGENTS: usize = NODES as usize;

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
