//! One `weir-agent` in a node of the world.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use weir_testbed::process::Process;
use weir_testbed::{Cgroup, World};

use crate::{guard, health};

/// Patience with an agent that starts or stops.
const SOON: Duration = Duration::from_secs(30);

/// How large an agent's tables are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tables {
    /// As a small world needs them, of several agents on one machine.
    Small,
    /// As the machine's memory makes them, of an agent that is the only one.
    OfMachine,
}

impl Tables {
    const fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Small => &["--max-flows=65536", "--max-sockets=4096", "--max-backends=4096", "--max-services=2048"],
            Self::OfMachine => &[],
        }
    }
}

/// How an agent divides new connections.
#[derive(Clone, Debug)]
pub(crate) enum Spread {
    /// As kube-proxy does.
    Random,
    /// The node's own endpoints as long as there are any.
    LocalFirst,
    /// The node's own endpoints up to the level of its machine.
    ByLoad {
        /// The file with the mesh's key; None: the agent follows its own load alone.
        key: Option<PathBuf>,
        /// The configuration file; without it and a key only services with annotations are steered.
        config: Option<PathBuf>,
        /// The control group that is the machine; None: all of the real one.
        group: Option<String>,
    },
}

impl Spread {
    /// As on the command line.
    fn arguments(&self) -> Vec<String> {
        match self {
            Self::Random => vec!["--spread=random".into()],
            Self::LocalFirst => vec!["--spread=local-first".into()],
            Self::ByLoad { key, config, group } => {
                let key = key.iter().map(|key| format!("--mesh-key-file={}", key.display()));
                let config = config.iter().map(|config| format!("--config={}", config.display()));
                let group = group.iter();
                let group = group
                    .flat_map(|group| [format!("--node-cgroup={group}"), format!("--kubelet-cgroup-root={group}")]);
                key.chain(config).chain(group).collect()
            }
        }
    }
}

/// An agent. Ended on drop; its pins stay until the demo's end.
#[derive(Debug)]
pub(crate) struct Agent {
    process: Process,
    start: Start,
}

/// What stays the same when it is started again.
#[derive(Debug)]
struct Start {
    node: u8,
    program: PathBuf,
    services: PathBuf,
    log: PathBuf,
    cgroup: Cgroup,
    tables: Tables,
}

impl Agent {
    /// Starts one that reads `services`, and logs to a file in `logs`. It is not ready yet.
    ///
    /// # Errors
    /// When its cgroup cannot be made or the program cannot be started.
    pub(crate) fn start(
        world: &World,
        node: u8,
        spread: &Spread,
        program: &Path,
        services: &Path,
        logs: &Path,
        tables: Tables,
    ) -> Result<Self> {
        let (program, services) = (program.to_owned(), services.to_owned());
        let cgroup = Cgroup::create(&format!("demo-node{node}"))?;
        let start = Start { node, program, services, log: logs.join(format!("node{node}.log")), cgroup, tables };
        start.launch(world, spread, &[])
    }

    /// Stops it as an operator would and starts it with another spread. Returns when the new one is ready.
    ///
    /// # Errors
    /// When it does not end or the new one does not get ready; the error quotes its log.
    pub(crate) fn restart(self, world: &World, spread: &Spread) -> Result<Self> {
        self.restart_with(world, spread, &[])
    }

    /// The same, where the new one gets more arguments.
    ///
    /// # Errors
    /// As [`Agent::restart`].
    pub(crate) fn restart_with(self, world: &World, spread: &Spread, arguments: &[&str]) -> Result<Self> {
        let Self { process, start } = self;
        process.terminate(SOON)?;
        let mut agent = start.launch(world, spread, arguments)?;
        agent.await_ready(world)?;
        Ok(agent)
    }

    /// What it says of its weights.
    ///
    /// # Errors
    /// When it does not answer.
    pub(crate) fn weights(&self) -> Result<String> {
        let answer = health::weights(&guard::pin_dir(self.start.node));
        answer.with_context(|| format!("weir-agent on node {} does not answer", self.start.node))
    }

    /// The id of its process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits until it has written everything that its file says.
    ///
    /// # Errors
    /// When it ends or takes too long; the error quotes its log.
    pub(crate) fn await_ready(&mut self, world: &World) -> Result<()> {
        let Self { process, start } = self;
        health::await_ready(world.node(start.node), process, SOON)
    }
}

impl Start {
    fn launch(self, world: &World, spread: &Spread, arguments: &[&str]) -> Result<Agent> {
        let mut command = world.node(self.node).netns().command(&self.program);
        command.arg("--static").arg(&self.services);
        command.arg("--node-name").arg(world.node(self.node).name());
        command.args(spread.arguments());
        command.arg("--pin-dir").arg(guard::pin_dir(self.node).root());
        command.arg("--cgroup").arg(self.cgroup.path());
        command.args(self.tables.arguments()).args(arguments);
        Ok(Agent { process: Process::start(command, "weir-agent", &self.log)?, start: self })
    }
}
