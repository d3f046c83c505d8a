//! The whole cluster: control plane, nodes, proxies, DNS.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use weir_testbed::objects::{self, Objects};
use weir_testbed::{Process, World, address, role, wait};

use super::chart::{Chart, Tag};
use super::control_plane::ControlPlane;
use super::node::{DNS, Node};
use super::programs::Programs;
use super::proxy::Proxy;
use super::template::fill;
use super::{Options, images};
use crate::guard::{self, Stop};
use crate::progress::Step;

/// Nodes of the cluster, each in a zone of its own: some tests want three zones.
pub(super) const NODES: u8 = 3;

/// Patience with nodes and pods that start.
const SOON: Duration = Duration::from_secs(120);

const COREDNS: &str = include_str!("../../../../deploy/dev/conformance/coredns.yaml");

/// The running cluster. Everything but pins is gone on drop.
#[derive(Debug)]
pub(super) struct Cluster {
    proxy: Proxy,
    proxies: Vec<Process>,
    nodes: Vec<Node>,
    control_plane: ControlPlane,
    directory: PathBuf,
    agent_options: String,
    world: World,
}

impl Cluster {
    /// Starts it with its files in `directory`, and waits until nodes, proxies and DNS are ready.
    ///
    /// # Errors
    /// When a part of it does not get ready, or at the stop sign.
    pub(super) fn start(options: &Options, programs: &Programs, directory: &Path, stop: &Stop) -> Result<Self> {
        let step = Step::begin("images");
        let archive = images::archive(programs)?;
        step.done();
        let step = Step::begin("control plane");
        let world = World::builder().nodes(NODES).pods_per_node(0).build()?;
        let control_plane = ControlPlane::start(&world, programs, directory)?;
        let objects = control_plane.objects()?;
        register(&objects, &world)?;
        step.done();
        stop.check()?;
        let step = Step::begin("nodes");
        let nodes = start_nodes(&world, &control_plane, programs, &archive, directory)?;
        await_nodes(&objects, &nodes)?;
        step.done();
        stop.check()?;
        let step = Step::begin(options.proxy.name());
        role::allow_agent(&objects, [role::to_watch(), role::to_report()].concat())?;
        let start = |node| options.proxy.start(node, &control_plane, programs, options);
        let proxies = nodes.iter().filter_map(|node| start(node).transpose()).collect::<Result<Vec<_>>>()?;
        let (directory, agent_options) = (directory.to_owned(), options.agent_options.clone());
        let mut cluster = Self { proxy: options.proxy, proxies, nodes, control_plane, directory, agent_options, world };
        for (node, process) in cluster.nodes.iter().zip(&mut cluster.proxies) {
            options.proxy.await_ready(&cluster.world, node.place(), node.number(), process)?;
        }
        cluster.chart(programs).equip()?;
        if options.proxy == Proxy::Chart {
            cluster.deliver(programs)?;
            cluster.install(programs)?;
        }
        step.done();
        stop.check()?;
        let step = Step::begin("cluster DNS");
        cluster.start_dns(programs)?;
        step.done();
        Ok(cluster)
    }

    /// Helm and kubectl for it.
    pub(super) fn chart<'a>(&'a self, programs: &'a Programs) -> Chart<'a> {
        let Self { world, directory, agent_options, nodes, .. } = self;
        Chart {
            programs,
            world,
            kubeconfig: self.kubeconfig(),
            directory,
            port: self.control_plane.port(),
            cgroup: nodes.first().map(|node| node.place().cgroup_name()).unwrap_or_default(),
            options: agent_options,
        }
    }

    /// Gives every node the chart's image.
    ///
    /// # Errors
    /// When a node does not take it.
    pub(super) fn deliver(&self, programs: &Programs) -> Result<()> {
        self.chart(programs).deliver(&self.nodes)
    }

    /// Gives the first node an image with `weir` and what a migration runs, and returns the image's name.
    ///
    /// # Errors
    /// When it cannot be packed or the node does not take it.
    pub(super) fn deliver_tools(&self, programs: &Programs) -> Result<&'static str> {
        let archive = images::tools(programs, &self.directory)?.display().to_string();
        let words = ["ctr", "--namespace", "k8s.io", "images", "import", &archive];
        self.nodes.iter().take(1).try_for_each(|node| node.place().run(&words))?;
        Ok(images::TOOLS)
    }

    /// Installs the chart's release in kube-proxy's place.
    ///
    /// # Errors
    /// When Helm refuses or a node's agent does not get ready.
    pub(super) fn install(&self, programs: &Programs) -> Result<()> {
        let chart = self.chart(programs);
        chart.publish_address()?;
        chart.upgrade(Tag::Before)
    }

    /// Ends kube-proxy on all nodes, and removes its rules.
    ///
    /// # Errors
    /// When it does not end or some are left.
    pub(super) fn remove_kube_proxy(&mut self, programs: &Programs) -> Result<()> {
        let program = programs.built("kube-proxy").display().to_string();
        for (node, mut process) in self.nodes.iter().zip(self.proxies.drain(..)) {
            // Within the node's own processes; the one that is known here only brought it there.
            node.place().run(&["pkill", "--exact", Proxy::KubeProxy.name()])?;
            let ended = || process.exit_status().is_ok_and(|status| status.is_some());
            wait::until(&format!("kube-proxy's end on {}", node.place().name()), SOON, ended)?;
            node.place().run(&[&program, "--cleanup", "--conntrack-max-per-core=0"])?;
        }
        Ok(())
    }

    /// The world that it lives in; tests run in its router.
    pub(super) fn world(&self) -> &World {
        &self.world
    }

    /// Where its files are.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The administrator's kubeconfig.
    pub(super) fn kubeconfig(&self) -> &Path {
        self.control_plane.kubeconfig()
    }

    /// The logs of the proxies; those in pods have none of their own.
    pub(super) fn proxy_logs(&self) -> Vec<(String, PathBuf)> {
        let logs = self.nodes.iter().map(|node| (node.place().name().into(), node.place().log(self.proxy.name())));
        logs.take(self.proxies.len()).collect()
    }

    /// Says which proxy has ended, if one has.
    ///
    /// # Errors
    /// When one has ended; the error quotes its log.
    pub(super) fn check_proxies(&mut self) -> Result<()> {
        for (node, process) in self.nodes.iter().zip(&mut self.proxies) {
            if let Some(status) = process.exit_status()? {
                let (proxy, name) = (self.proxy.name(), node.place().name());
                bail!("{proxy} on {name} has ended ({status}), its log says:\n{}", process.log_tail());
            }
        }
        Ok(())
    }

    fn start_dns(&self, programs: &Programs) -> Result<()> {
        let manifest = fill(COREDNS, &[("DNS", DNS), ("IMAGE", images::AGNHOST)])?;
        let path = self.directory.join("coredns.yaml");
        std::fs::write(&path, manifest).with_context(|| format!("cannot write {}", path.display()))?;
        self.kubectl(programs, &["apply", "-f", &path.display().to_string()])?;
        let limit = format!("--timeout={}s", SOON.as_secs());
        let ready = self.kubectl(programs, &["-n", "kube-system", "rollout", "status", "deployment/coredns", &limit]);
        ready.context(
            "CoreDNS did not get ready: its pods reach the API server at 10.96.0.1, so the proxy may be to blame",
        )
    }

    fn kubectl(&self, programs: &Programs, arguments: &[&str]) -> Result<()> {
        let mut command: Command = self.world.router().command(programs.built("kubectl"));
        command.arg("--kubeconfig").arg(self.kubeconfig()).args(arguments).stdin(Stdio::null());
        let output = command.output().context("cannot run kubectl")?;
        if !output.status.success() {
            bail!("kubectl {} failed: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    /// What to type to look around while the cluster is up.
    pub(super) fn guide(&self, programs: &Programs) -> String {
        use std::fmt::Write;
        let mut text = format!(
            "The cluster is up. As root, in another terminal:

  kubectl
    alias k='nsenter --net={} {} --kubeconfig={}'
  logs of everything
    ls {}/*.log {}/node*/*.log
  enter a node (its containers: ctr -n k8s.io containers list)\n",
            self.world.router().path().display(),
            programs.built("kubectl").display(),
            self.kubeconfig().display(),
            self.directory.display(),
            self.directory.display(),
        );
        // Writing to a string does not fail.
        for node in &self.nodes {
            let _ = writeln!(text, "    {}  # {}", node.place().enter(), node.place().name());
        }
        if self.proxy != Proxy::KubeProxy {
            let pins = guard::pin_dir(1);
            let (cli, pins) = (programs.cli().display(), pins.root().display());
            let _ = writeln!(text, "  what the kernel of node1 knows\n    {cli} --pin-dir {pins} services");
        }
        text + "\nCtrl-C removes everything."
    }
}

/// Makes the Node objects: kubelets find theirs, with zone and pod CIDRs.
fn register(objects: &Objects, world: &World) -> Result<()> {
    for node in world.nodes() {
        let number = node.number();
        let mut object = objects::node(&node.name(), &[], Some(&format!("zone{number}")));
        let cidrs = address::pod_cidrs(number).map(|cidr| cidr.to_string());
        let spec = object.spec.get_or_insert_default();
        spec.pod_cidr = Some(cidrs[0].clone());
        spec.pod_cidrs = Some(cidrs.into());
        objects.apply(&object)?;
    }
    Ok(())
}

/// Starts all nodes at the same time.
fn start_nodes(
    world: &World,
    control_plane: &ControlPlane,
    programs: &Programs,
    archive: &Path,
    directory: &Path,
) -> Result<Vec<Node>> {
    thread::scope(|scope| {
        let start = |number| Node::start(world, number, control_plane, programs, archive, directory);
        let threads: Vec<_> = (1..=NODES).map(|number| scope.spawn(move || start(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// Waits until every node has its addresses and is ready for pods.
fn await_nodes(objects: &Objects, nodes: &[Node]) -> Result<()> {
    for node in nodes {
        let name = node.place().name();
        let what = format!("the readiness of {name}");
        let ready = wait::until_some(&what, SOON, || {
            let object = objects.get(&objects::node(name, &[], None)).map_err(|error| error.to_string())?;
            let status = object.and_then(|object| object.status).unwrap_or_default();
            let addresses = status.addresses.unwrap_or_default();
            let addresses = addresses.iter().filter(|address| address.type_ == "InternalIP").count();
            let conditions = status.conditions.unwrap_or_default();
            let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
            match ready {
                Some(condition) if condition.status == "True" && addresses == 2 => Ok(()),
                Some(condition) => Err(condition.message.clone().unwrap_or_default()),
                None => Err("kubelet has not reported".to_owned()),
            }
        });
        ready.with_context(|| format!("see {}", node.place().log("kubelet").display()))?;
    }
    Ok(())
}
