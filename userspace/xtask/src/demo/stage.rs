//! The stage: three nodes, two HTTP pods each, the service that they are the endpoints of, and a client pod on node 1.
//! Later each node gets a machine of its own, a small one, and the third node is far away.

use std::fmt::Write;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use weir_datapath::View;
use weir_testbed::process::Process;
use weir_testbed::serve::{self, Server};
use weir_testbed::{Machine, Pod, World, ask, wait};

use super::NODES;
use super::agent::{Agent, Spread, Tables};
use super::traffic::Traffic;
use crate::mesh_key;
use crate::requirements::Programs;

/// Round-trip time between any two nodes.
pub(crate) const ROUND_TRIP: Duration = Duration::from_millis(10);

/// The same between the third node and the others once it is far away.
pub(crate) const FAR: Duration = Duration::from_millis(30);

/// Patience with a server that starts, and with agents that get to know each other.
const SOON: Duration = Duration::from_secs(20);

/// HTTP pods on each node.
pub(crate) const PODS: u8 = 2;

/// Name of the service.
pub(crate) const SERVICE: &str = "web";

/// Port that the pods listen on.
const TARGET_PORT: u16 = 8080;

/// The service's addresses, one of each family.
pub(crate) const ADDRESSES: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 96, 0, 80)), 80),
    SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0x80)), 80),
];

/// Everything that the play needs. Processes, threads and namespaces are gone on drop, pins are not.
#[derive(Debug)]
pub(crate) struct Stage {
    // Agents go before the namespaces that they live in.
    agents: Vec<Agent>,
    /// The HTTP servers that run, with the number of their node.
    servers: Vec<(u8, Server)>,
    /// Those that run in machines instead.
    limited: Vec<Process>,
    machines: Vec<Machine>,
    client: Pod,
    services: PathBuf,
    logs: PathBuf,
    key: PathBuf,
    world: World,
}

impl Stage {
    /// Builds the world with its pods serving and the service in a file in `directory`; no agents yet.
    ///
    /// # Errors
    /// When a part of it cannot be made.
    pub(crate) fn build(directory: &Path) -> Result<Self> {
        let world = World::builder().nodes(NODES).pods_per_node(PODS).delay(ROUND_TRIP).build()?;
        let client = world.add_pod(1)?;
        // Apart: agents look at their file whenever something changes beside it.
        let (services, logs) = (directory.join("config"), directory.join("logs"));
        for directory in [&services, &logs] {
            fs::create_dir(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        }
        let services = services.join("services.yaml");
        let key = directory.join("mesh.key");
        let (agents, servers, limited, machines) = Default::default();
        let mut stage = Self { agents, servers, limited, machines, client, services, logs, key, world };
        (1..=NODES).try_for_each(|node| stage.serve(node))?;
        stage.publish()?;
        Ok(stage)
    }

    /// Starts an agent on each node and waits until all are ready.
    ///
    /// # Errors
    /// When one does not get ready.
    pub(crate) fn start_agents(&mut self, programs: &Programs, spread: &Spread) -> Result<()> {
        for node in 1..=NODES {
            let agent =
                Agent::start(&self.world, node, spread, &programs.agent, &self.services, &self.logs, Tables::Small)?;
            self.agents.push(agent);
        }
        self.agents.iter_mut().try_for_each(|agent| agent.await_ready(&self.world))
    }

    /// Restarts the agents one after the other.
    ///
    /// # Errors
    /// When one does not end or does not get ready again.
    pub(crate) fn restart_agents(&mut self, spread: &Spread) -> Result<()> {
        for agent in std::mem::take(&mut self.agents) {
            self.agents.push(agent.restart(&self.world, spread)?);
        }
        Ok(())
    }

    /// Gives each node a machine with this many cores and starts its pods anew in it; moves the third node away.
    ///
    /// # Errors
    /// When a part of it cannot be made.
    pub(crate) fn limit(&mut self, cores: f64) -> Result<()> {
        self.servers.clear();
        for node in self.world.nodes() {
            let machine = Machine::create(&format!("machine-{}", node.name()), cores)?;
            for pod in (1..=PODS).map(|number| node.pod(number)) {
                let own = std::env::current_exe().context("cannot tell where this program lies")?;
                let mut command = pod.netns().command(own);
                command.args(["serve-http", "--name", &pod.name(), "--port", &TARGET_PORT.to_string()]);
                machine.attach(&uid(&pod), &mut command)?;
                let log = self.logs.join(format!("{}.log", pod.name()));
                self.limited.push(Process::start(command, "the server", &log)?);
            }
            self.machines.push(machine);
        }
        let far = self.world.node(3).link().context("the world has links with delay")?;
        far.set_delay((FAR - ROUND_TRIP / 2) / 2);
        for pod in self.world.nodes().iter().flat_map(|node| (1..=PODS).map(|number| node.pod(number))) {
            let what = format!("an answer of {}", pod.name());
            let target = SocketAddr::new(pod.address().v4.into(), TARGET_PORT);
            let look = || ask::http_ask(target).map_err(|error| error.to_string());
            self.world.router().enter(|| wait::until_some(&what, SOON, look))?;
        }
        self.publish()
    }

    /// Waits until each node's maps have its own pods. Endpoints that an agent finds there are nothing new to it; those that
    /// come while it steers begin with a part of their share.
    ///
    /// # Errors
    /// When an agent does not write them.
    pub(crate) fn await_own_endpoints(&self) -> Result<()> {
        let own = usize::from(PODS) * ADDRESSES.len();
        for node in 1..=NODES {
            let maps = self.maps(node)?;
            let look = || {
                let mut found = 0;
                let count = |_, backend: &weir_abi::Backend, _: &_| {
                    found += usize::from(backend.flags & weir_abi::BACKEND_LOCAL != 0);
                };
                maps.visit_endpoints(count).map_err(|error| error.to_string())?;
                if found == own { Ok(()) } else { Err(format!("{found} of {own}")) }
            };
            wait::until_some(&format!("node {node}'s own endpoints in its maps"), SOON, look)?;
        }
        Ok(())
    }

    /// Starts the agents, anew if need be, so that they follow the load of their machines and tell each other theirs.
    /// Returns when the first node knows both others.
    ///
    /// # Errors
    /// When an agent does not get ready, or does not get to know the others.
    pub(crate) fn follow_the_load(&mut self, programs: &Programs) -> Result<()> {
        mesh_key::write(&self.key)?;
        let by_load = |machine: &Machine| Spread::ByLoad {
            key: Some(self.key.clone()),
            config: None,
            group: Some(machine.group()),
        };
        let spreads: Vec<Spread> = self.machines.iter().map(by_load).collect();
        let mut before = std::mem::take(&mut self.agents).into_iter();
        for (node, spread) in (1..=NODES).zip(&spreads) {
            let agent = match before.next() {
                Some(agent) => agent.restart(&self.world, spread)?,
                None => {
                    let (program, services) = (&programs.agent, &self.services);
                    let mut agent =
                        Agent::start(&self.world, node, spread, program, services, &self.logs, Tables::Small)?;
                    agent.await_ready(&self.world)?;
                    agent
                }
            };
            self.agents.push(agent);
        }
        let knows = || {
            let weights = self.weights(1).map_err(|error| format!("{error:#}"))?;
            let peers = weights["peers"].as_array().cloned().unwrap_or_default();
            let known = peers.iter().filter(|peer| peer["rtt"].is_f64() && peer["load"]["cpu"]["share"].is_f64());
            if known.count() + 1 == usize::from(NODES) { Ok(()) } else { Err(format!("{peers:?}")) }
        };
        wait::until_some("node 1 to know how far and how busy the others are", SOON, knows)?;
        Ok(())
    }

    /// What a node's agent says of its decisions.
    ///
    /// # Errors
    /// When it does not answer.
    pub(crate) fn weights(&self, node: u8) -> Result<Value> {
        let text = self.agent(node).weights()?;
        serde_json::from_str(&text).with_context(|| format!("weir-agent on node {node} says {text:?}"))
    }

    /// The agent of a node.
    pub(crate) fn agent(&self, node: u8) -> &Agent {
        &self.agents[usize::from(node) - 1]
    }

    /// The world that all is in.
    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    /// The maps of a node.
    ///
    /// # Errors
    /// When they cannot be opened.
    pub(crate) fn maps(&self, node: u8) -> Result<View> {
        Ok(View::open(crate::guard::pin_dir(node))?)
    }

    /// The CPU time that the pods of each node have used in their machines.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub(crate) fn cpu_times(&self) -> Result<Vec<Duration>> {
        Ok(self.machines.iter().map(Machine::cpu_time).collect::<weir_testbed::Result<_>>()?)
    }

    /// The client pod on node 1.
    pub(crate) fn client(&self) -> &Pod {
        &self.client
    }

    /// Starts requests from the client pod to the service.
    ///
    /// # Errors
    /// When threads cannot be started.
    pub(crate) fn start_traffic(&self) -> Result<Traffic> {
        Traffic::start(self.client.netns(), ADDRESSES)
    }

    /// Starts the HTTP servers of a node's pods; [`Stage::publish`] makes them endpoints.
    ///
    /// # Errors
    /// When a server cannot be started.
    pub(crate) fn serve(&mut self, node: u8) -> Result<()> {
        for pod in 1..=PODS {
            let pod = self.world.node(node).pod(pod);
            self.servers.push((node, serve::http(pod.netns(), &pod.name(), TARGET_PORT)?));
        }
        Ok(())
    }

    /// Ends the HTTP servers of a node's pods: from now on their ports are closed.
    pub(crate) fn kill_servers(&mut self, node: u8) {
        self.servers.retain(|(own, _)| *own != node);
    }

    /// Writes the file anew: the pods that serve are the endpoints.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn publish(&self) -> Result<()> {
        let serving: Vec<_> = (1..=NODES)
            .filter(|node| !self.limited.is_empty() || self.servers.iter().any(|(own, _)| own == node))
            .collect();
        let text = self.services_text(&serving);
        // In one step: an agent never sees half of it.
        let draft = self.services.with_extension("new");
        fs::write(&draft, text)
            .and_then(|()| fs::rename(&draft, &self.services))
            .with_context(|| format!("cannot write {}", self.services.display()))
    }

    fn services_text(&self, serving: &[u8]) -> String {
        let mut text = String::from("nodes:\n");
        // Writing to a string does not fail.
        for node in self.world.nodes() {
            let [v4, v6] = node.address().both();
            let _ = writeln!(text, "  - {{name: {}, addresses: [{v4}, \"{v6}\"]}}", node.name());
        }
        let [v4, v6] = ADDRESSES.map(|address| address.ip());
        let port = ADDRESSES[0].port();
        let _ = writeln!(text, "services:\n  - name: {SERVICE}\n    clusterIPs: [{v4}, \"{v6}\"]");
        let _ = writeln!(text, "    ports:\n      - {{name: http, port: {port}, targetPort: {TARGET_PORT}}}");
        text.push_str(if serving.is_empty() { "    endpoints: []\n" } else { "    endpoints:\n" });
        for node in serving.iter().map(|number| self.world.node(*number)) {
            for pod in (1..=PODS).map(|number| node.pod(number)) {
                for ip in pod.address().both() {
                    let (node, pod) = (node.name(), uid(&pod));
                    let _ = writeln!(text, "      - {{address: \"{ip}\", node: {node}, pod: {pod}}}");
                }
            }
        }
        text
    }

    /// What to type to look around while the world is up.
    pub(crate) fn guide(&self, programs: &Programs) -> String {
        let cli = programs.cli.display();
        let pins = crate::guard::pin_dir(1);
        let pins = pins.root().display();
        let enter = |netns: &weir_testbed::Netns| format!("nsenter --net={}", netns.path().display());
        let (client, node) = (enter(self.client.netns()), enter(self.world.node(1).netns()));
        let [v4, v6] = ADDRESSES;
        format!(
            "The world is up. As root, in another terminal:

  requests from the client pod on node 1
    {client} curl -s http://{v4}/
    {client} curl -s 'http://{v6}/'
  what the kernel of node 1 knows (node2 and node3 likewise)
    {cli} --pin-dir {pins} services
    {cli} --pin-dir {pins} endpoints {SERVICE}
    {cli} --pin-dir {pins} flows --service {SERVICE}
    {cli} --pin-dir {pins} drops --all
    {node} {cli} --pin-dir {pins} status
  how node 1 divides new connections by load, and why
    {cli} --pin-dir {pins} weights -w
    {cli} --pin-dir {pins} explain {SERVICE}
  the service and its endpoints: change the file, the agents follow
    {}
  logs of the agents
    {}
  all namespaces
    ip netns list | grep ^{}

Ctrl-C removes everything.",
            self.services.display(),
            self.logs.display(),
            self.world.prefix(),
        )
    }
}

/// The uid of a pod, after which its group is called.
fn uid(pod: &Pod) -> String {
    let number =
        pod.name().bytes().filter(u8::is_ascii_digit).fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
    format!("00000000-0000-4000-8000-{number:012}")
}
