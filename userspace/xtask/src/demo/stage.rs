//! The stage: three nodes, two HTTP pods each, the service that they are the endpoints of, and a client pod on node 1.

use std::fmt::Write;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use weir_testbed::serve::{self, Server};
use weir_testbed::{Pod, World};

use super::agent::{Agent, Spread};
use super::traffic::Traffic;
use super::{NODES, Programs};

/// Round-trip time between any two nodes.
pub(super) const ROUND_TRIP: Duration = Duration::from_millis(10);

/// HTTP pods on each node.
pub(super) const PODS: u8 = 2;

/// Name of the service.
pub(super) const SERVICE: &str = "web";

/// Port that the pods listen on.
const TARGET_PORT: u16 = 8080;

/// The service's addresses, one of each family.
pub(super) const ADDRESSES: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 96, 0, 80)), 80),
    SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0x80)), 80),
];

/// Everything that the play needs. Processes, threads and namespaces are gone on drop, pins are not.
#[derive(Debug)]
pub(super) struct Stage {
    // Agents go before the namespaces that they live in.
    agents: Vec<Agent>,
    /// The HTTP servers that run, with the number of their node.
    servers: Vec<(u8, Server)>,
    client: Pod,
    services: PathBuf,
    logs: PathBuf,
    world: World,
}

impl Stage {
    /// Builds the world with its pods serving and the service in a file in `directory`; no agents yet.
    ///
    /// # Errors
    /// When a part of it cannot be made.
    pub(super) fn build(directory: &Path) -> Result<Self> {
        let world = World::builder().nodes(NODES).pods_per_node(PODS).delay(ROUND_TRIP).build()?;
        let client = world.add_pod(1)?;
        // Apart: agents look at their file whenever something changes beside it.
        let (services, logs) = (directory.join("config"), directory.join("logs"));
        for directory in [&services, &logs] {
            fs::create_dir(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        }
        let services = services.join("services.yaml");
        let mut stage = Self { agents: Vec::new(), servers: Vec::new(), client, services, logs, world };
        (1..=NODES).try_for_each(|node| stage.serve(node))?;
        stage.publish()?;
        Ok(stage)
    }

    /// Starts an agent on each node and waits until all are ready.
    ///
    /// # Errors
    /// When one does not get ready.
    pub(super) fn start_agents(&mut self, programs: &Programs, spread: Spread) -> Result<()> {
        for node in 1..=NODES {
            let agent = Agent::start(&self.world, node, spread, &programs.agent, &self.services, &self.logs)?;
            self.agents.push(agent);
        }
        self.agents.iter_mut().try_for_each(|agent| agent.await_ready(&self.world))
    }

    /// Restarts the agents one after the other.
    ///
    /// # Errors
    /// When one does not end or does not get ready again.
    pub(super) fn restart_agents(&mut self, spread: Spread) -> Result<()> {
        for agent in std::mem::take(&mut self.agents) {
            self.agents.push(agent.restart(&self.world, spread)?);
        }
        Ok(())
    }

    /// Starts requests from the client pod to the service.
    ///
    /// # Errors
    /// When threads cannot be started.
    pub(super) fn start_traffic(&self) -> Result<Traffic> {
        Traffic::start(self.client.netns(), ADDRESSES)
    }

    /// Starts the HTTP servers of a node's pods; [`Stage::publish`] makes them endpoints.
    ///
    /// # Errors
    /// When a server cannot be started.
    pub(super) fn serve(&mut self, node: u8) -> Result<()> {
        for pod in 1..=PODS {
            let pod = self.world.node(node).pod(pod);
            self.servers.push((node, serve::http(pod.netns(), &pod.name(), TARGET_PORT)?));
        }
        Ok(())
    }

    /// Ends the HTTP servers of a node's pods: from now on their ports are closed.
    pub(super) fn kill_servers(&mut self, node: u8) {
        self.servers.retain(|(own, _)| *own != node);
    }

    /// Writes the file anew: the pods that serve are the endpoints.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn publish(&self) -> Result<()> {
        let serving: Vec<_> = (1..=NODES).filter(|node| self.servers.iter().any(|(own, _)| own == node)).collect();
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
                    let _ = writeln!(text, "      - {{address: \"{ip}\", node: {}}}", node.name());
                }
            }
        }
        text
    }

    /// What to type to look around while the world is up.
    pub(super) fn guide(&self, programs: &Programs) -> String {
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
