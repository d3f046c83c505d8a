//! What serves Services: the agent under test, or kube-proxy to compare with.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use weir_testbed::{Process, World, wait};

use super::Options;
use super::control_plane::ControlPlane;
use super::node::{Node, Place};
use super::programs::Programs;
use crate::{guard, health};

/// Patience with a proxy that starts.
const SOON: Duration = Duration::from_secs(60);

/// Port of the health checks of both.
const HEALTH: u16 = 10256;

/// The programs to choose from.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
#[expect(clippy::enum_variant_names, reason = "kube-proxy is called so")]
pub(super) enum Proxy {
    /// weir-agent
    Weir,
    /// kube-proxy in its mode nftables
    KubeProxy,
    /// weir-agent as the chart installs it, in pods
    Chart,
}

impl Proxy {
    /// As on the command line and in results.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Weir => "weir",
            Self::KubeProxy => "kube-proxy",
            Self::Chart => "chart",
        }
    }

    /// The name of the file with the results.
    pub(super) const fn summary(self) -> &'static str {
        match self {
            Self::Weir => "summary.json",
            Self::KubeProxy => "summary-kube-proxy.json",
            Self::Chart => "summary-chart.json",
        }
    }

    const fn health_path(self) -> &'static str {
        match self {
            Self::Weir | Self::Chart => "/readyz",
            Self::KubeProxy => "/healthz",
        }
    }

    /// Starts it on a node, unless it runs in pods. The node must have its addresses: kube-proxy serves node ports on those that it finds.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn start(
        self,
        node: &Node,
        control_plane: &ControlPlane,
        programs: &Programs,
        options: &Options,
    ) -> Result<Option<Process>> {
        let place = node.place();
        let command = match self {
            Self::Weir => {
                let mut command = place.command(programs.agent())?;
                command.arg("--kubeconfig").arg(control_plane.agent_kubeconfig());
                command.args(["--node-name", place.name()]);
                command.arg("--pin-dir").arg(guard::pin_dir(node.number()).root());
                command.arg("--cgroup").arg(place.cgroup());
                // The tests expect kube-proxy's spread. The NICs' peers have no checksum offload: see the world.
                command.args(["--spread=random", "--xdp-on-veth"]);
                // Three sets of maps on one machine.
                command.args(["--max-flows=65536", "--max-sockets=16384"]);
                command.args(options.agent_options.split_whitespace());
                command
            }
            Self::Chart => return Ok(None),
            Self::KubeProxy => {
                let mut command = place.command(programs.built("kube-proxy"))?;
                command.arg(format!("--kubeconfig={}", control_plane.kubeconfig().display()));
                command.arg(format!("--hostname-override={}", place.name()));
                command.args(["--proxy-mode=nftables", "--cluster-cidr=10.244.0.0/16,fd00:244::/32"]);
                // These limits are the machine's, not the node's.
                command.args(["--conntrack-max-per-core=0", "--conntrack-min=0"]);
                command
            }
        };
        Ok(Some(Process::start(command, self.name(), &place.log(self.name()))?))
    }

    /// Waits until it serves what the API server has told it.
    ///
    /// # Errors
    /// When it ends or takes too long; the error quotes its log.
    pub(super) fn await_ready(self, world: &World, place: &Place, node: u8, process: &mut Process) -> Result<()> {
        let what = format!("the readiness of {} on {}", self.name(), place.name());
        let mut ended = None;
        let ready = wait::until_some(&what, SOON, || {
            ended = process.exit_status().map_err(|error| error.to_string())?;
            match health::status_line(world.node(node).netns(), HEALTH, self.health_path()) {
                _ if ended.is_some() => Ok(()),
                Ok(line) if line.contains(" 200 ") => Ok(()),
                Ok(line) => Err(line),
                Err(error) => Err(error.to_string()),
            }
        });
        if let Some(status) = ended {
            bail!("{} on {} has ended ({status}), its log says:\n{}", self.name(), place.name(), process.log_tail());
        }
        ready.with_context(|| format!("its log says:\n{}", process.log_tail()))
    }
}
