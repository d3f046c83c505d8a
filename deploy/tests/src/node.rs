//! One node of a cluster in a namespace, with the agent as a chart's DaemonSet runs it: its options, its service account,
//! its capabilities. Only what is a node's own lies elsewhere: pins, cgroup, files.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use weir_datapath::PinDir;
use weir_testbed::apiserver::{ApiServer, User};
use weir_testbed::objects::Objects;
use weir_testbed::process::Process;
use weir_testbed::{Cgroup, Error, Result, World, address, bpffs, wait};

use crate::manifest::{objects, only};
use crate::programs::{ours, run};
use crate::server::kubectl;

/// Patience with anything that should happen at once.
const SOON: Duration = Duration::from_secs(20);

/// What the API server's certificate is for, whatever its address.
const CERTIFICATE_NAME: &str = "kubernetes.default.svc";

/// A key of the mesh, as the chart's Secret holds one.
const MESH_KEY: &str = "0123456789abcdef0123456789abcdef\n";

/// A node and an API server that logs who asks for what.
pub struct Cluster {
    agent: Option<Process>,
    pins: PinDir,
    cgroup: Cgroup,
    directory: TempDir,
    /// A client of the administrator's.
    pub objects: Objects,
    /// The server, in the namespace of the world's router.
    pub api: ApiServer,
    /// The node and what is around it.
    pub world: World,
}

impl Cluster {
    /// Builds all but the agent.
    ///
    /// # Errors
    /// When a part of it cannot be built.
    pub fn start() -> Result<Self> {
        World::sweep()?;
        Cgroup::sweep()?;
        bpffs::ensure_mounted()?;
        let world = World::builder().nodes(1).pods_per_node(1).build()?;
        let api = ApiServer::start_audited(Some(world.router()))?;
        let name = format!("{}deploy", world.prefix());
        let pins = PinDir::new(Path::new(bpffs::PATH).join(&name));
        let directory = tempfile::Builder::new().prefix("weir-node-").tempdir();
        let directory = directory.map_err(|source| Error::Io { action: "make a directory".to_owned(), source })?;
        let cgroup = Cgroup::create(&name)?;
        Ok(Self { agent: None, pins, cgroup, directory, objects: api.objects()?, api, world })
    }

    /// Runs kubectl as the administrator.
    ///
    /// # Errors
    /// When it fails; the error quotes it.
    pub fn kubectl(&self, words: &[&str]) -> Result<String> {
        let kubeconfig = self.api.kubeconfig(User::Admin, &self.api.url())?;
        self.kubectl_with(&kubeconfig, words)
    }

    /// Runs kubectl with another kubeconfig.
    ///
    /// # Errors
    /// When it fails; the error quotes it.
    pub fn kubectl_with(&self, kubeconfig: &Path, words: &[&str]) -> Result<String> {
        let mut command = kubectl(kubeconfig)?;
        self.world.router().attach(&mut command);
        run(command.args(words))
    }

    /// Applies a manifest.
    ///
    /// # Errors
    /// When the server refuses.
    pub fn apply(&self, manifest: &str) -> Result<()> {
        let path = self.write("manifest.yaml", manifest)?;
        self.kubectl(&["apply", "--validate=strict", "--filename", &path.display().to_string()]).map(drop)
    }

    /// A kubeconfig for a service account, with a token that the server gives out for it as it does for a pod. It has the
    /// form of the one that kubeadm makes for kube-proxy.
    ///
    /// # Errors
    /// When there is no such account.
    pub fn kubeconfig_of(&self, namespace: &str, account: &str) -> Result<PathBuf> {
        let token = self.kubectl(&["--namespace", namespace, "create", "token", account])?;
        let token = self.write("token", token.trim())?;
        let content = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "default", "cluster": {
                "server": self.api.url_at(address::ROUTER_INSIDE.v4.into()),
                "certificate-authority": self.api.certificate(),
                "tls-server-name": CERTIFICATE_NAME,
            }}],
            "users": [{"name": "default", "user": {"tokenFile": token}}],
            "contexts": [{"name": "default", "context": {"cluster": "default", "user": "default"}}],
            "current-context": "default",
        });
        self.write("kubeconfig.conf", &content.to_string())
    }

    /// Starts the agent of a manifest's DaemonSet as its service account.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_agent(&mut self, manifest: &str) -> Result<()> {
        let all = objects(manifest)?;
        let daemon_set = only(&all, "DaemonSet")?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let spec = &daemon_set["spec"]["template"]["spec"];
        let kubeconfig =
            self.kubeconfig_of(&text(&daemon_set["metadata"]["namespace"]), &text(&spec["serviceAccountName"]))?;
        let key = self.write("mesh-key", MESH_KEY)?.display().to_string();
        let container = &spec["containers"][0];
        let listed = |value: &Value| value.as_array().into_iter().flatten().map(text).collect::<Vec<_>>();
        let added = listed(&container["securityContext"]["capabilities"]["add"]).join(",+").to_lowercase();
        let mut command: Command = self.world.node(1).netns().command("setpriv");
        command.args([&format!("--bounding-set=-all,+{added}"), "--inh-caps=-all"]);
        command.arg(ours("weir-agent", "weir-agent")?);
        command.args(listed(&container["args"]).iter().map(|option| option.replace("/etc/weir/mesh/key", &key)));
        command.arg("--pin-dir").arg(self.pins.root()).arg("--cgroup").arg(self.cgroup.path());
        command.arg("--state-dir").arg(self.directory.path());
        command.env("NODE_NAME", "node1").env("WEIR_KUBECONFIG", kubeconfig);
        self.agent = Some(Process::start(command, "weir-agent", &self.directory.path().join("agent.log"))?);
        Ok(())
    }

    /// Ends the agent.
    ///
    /// # Errors
    /// When it does not end.
    pub fn stop_agent(&mut self) -> Result<()> {
        self.agent.take().map_or(Ok(()), |agent| agent.terminate(SOON).map(drop))
    }

    /// What the agent has logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("agent.log")).unwrap_or_default()
    }

    /// Waits until `/readyz` has this status code, and returns its body.
    ///
    /// # Errors
    /// When it has another one for long; the error quotes the last answer and the log.
    pub fn await_readiness(&self, code: u16) -> Result<String> {
        let look = || {
            let answer = self.ask("/readyz").unwrap_or_else(|error| error.to_string());
            let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
            if head.contains(&format!(" {code} ")) { Ok(body.to_owned()) } else { Err(answer.clone()) }
        };
        wait::until_some(&format!("{code} from /readyz"), SOON, look)
            .map_err(|error| Error::Invalid(format!("{error}\n{}", self.log())))
    }

    /// Waits until the log has this text.
    ///
    /// # Errors
    /// When it does not come; the error quotes the log.
    pub fn await_log(&self, text: &str) -> Result<()> {
        wait::until(&format!("{text:?} in the log"), SOON, || self.log().contains(text))
            .map_err(|error| Error::Invalid(format!("{error}\n{}", self.log())))
    }

    fn ask(&self, path: &str) -> std::io::Result<String> {
        self.world.node(1).netns().enter(|| {
            let mut stream = TcpStream::connect(("127.0.0.1", 10256))?;
            stream.set_read_timeout(Some(SOON))?;
            write!(stream, "GET {path} HTTP/1.0\r\nHost: node1\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        })
    }

    fn write(&self, name: &str, content: &str) -> Result<PathBuf> {
        let path = self.directory.path().join(name);
        fs::write(&path, content).map_err(|source| Error::Io { action: format!("write {name}"), source })?;
        Ok(path)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.agent = None;
        if let Err(error) = self.pins.remove_all(false) {
            eprintln!("{error}");
        }
        // An agent that was killed leaves it.
        let _ = fs::remove_file(weir_telemetry::admin::default_path(self.pins.root()));
    }
}
