//! One node without Kubernetes: its Services come from a file.

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use weir_testbed::ask::{self, Answer};
use weir_testbed::serve::Server;
use weir_testbed::{Cgroup, World, bpffs, require_root};

use super::{Agent, HTTP, kernel, serve_in};

/// True when the machine can run tests with a standalone node; else it has been said why not.
pub(crate) fn can_run(what: &str) -> bool {
    kernel::remember();
    require_root(what)
}

/// A node with pods that serve, and an agent that reads a file.
pub(crate) struct Standalone {
    // The agent goes before the namespace that it lives in.
    pub(crate) agent: Agent,
    pub(crate) file: PathBuf,
    servers: Vec<Server>,
    pub(crate) world: World,
}

impl Standalone {
    /// Starts everything, and returns when the agent is ready.
    pub(crate) fn start(pods: u8, text: &str, options: &[&str]) -> Self {
        let mut node = Self::prepared(pods, text, options);
        node.agent.start_again(&node.world);
        node.agent.await_ready(&node.world);
        node
    }

    /// The same, the agent not started yet.
    pub(crate) fn prepared(pods: u8, text: &str, options: &[&str]) -> Self {
        World::sweep().unwrap();
        Cgroup::sweep().unwrap();
        bpffs::ensure_mounted().unwrap();
        let world = World::builder().nodes(1).pods_per_node(pods).build().unwrap();
        let servers = world.node(1).pods().iter().flat_map(serve_in).collect();
        let file = std::env::temp_dir().join(format!("{}services.yaml", world.prefix()));
        fs::write(&file, text).unwrap();
        let source = ["--static".to_owned(), file.display().to_string()];
        let agent = Agent::prepared(&world, 1, source, options);
        Self { agent, file, servers, world }
    }

    /// Puts a new file in the old one's place, as editors and configuration management do.
    pub(crate) fn write(&self, text: &str) {
        let new = self.file.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, &self.file).unwrap();
    }

    /// Asks from outside, over HTTP.
    pub(crate) fn ask(&self, target: SocketAddr) -> weir_testbed::Result<Answer> {
        self.world.client().enter(|| ask::http_ask(target))
    }

    /// Asserts that a Service of [`yaml`] answers in both families.
    pub(crate) fn assert_served(&self, service: &Web) {
        for target in service.sockets() {
            let answer = self.ask(target);
            assert!(answer.is_ok(), "{} at {target}: {answer:?}\n{}", service.name, self.agent.log());
        }
    }
}

impl Drop for Standalone {
    fn drop(&mut self) {
        // The directory of temporary files outlives the test.
        let _ = fs::remove_file(&self.file);
    }
}

/// An HTTP Service in both families, at port 80 of addresses that its number makes.
#[derive(Clone, Debug)]
pub(crate) struct Web {
    pub(crate) name: String,
    number: u8,
    /// Numbers of node 1's pods.
    pods: Vec<u8>,
}

impl Web {
    pub(crate) fn new(name: &str, number: u8, pods: &[u8]) -> Self {
        Self { name: name.to_owned(), number, pods: pods.to_vec() }
    }

    pub(crate) fn sockets(&self) -> [SocketAddr; 2] {
        let number = self.number;
        let addresses = [format!("10.96.0.{number}"), format!("fd00:96::{number}")];
        addresses.map(|address| SocketAddr::new(address.parse::<IpAddr>().unwrap(), 80))
    }
}

/// A file with node 1 and these Services.
pub(crate) fn yaml(services: &[Web]) -> String {
    let node = weir_testbed::address::node(1);
    let mut text = format!("nodes:\n  - {{name: node1, addresses: [{}, \"{}\"]}}\n", node.v4, node.v6);
    text.push_str(if services.is_empty() { "services: []\n" } else { "services:\n" });
    for service in services {
        let [v4, v6] = service.sockets().map(|socket| socket.ip());
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "  - name: {}\n    clusterIPs: [{v4}, \"{v6}\"]\n    ports: [{{port: 80, targetPort: {HTTP}}}]\n    endpoints:",
            service.name
        );
        for pod in &service.pods {
            for address in weir_testbed::address::pod(1, *pod).both() {
                let _ = writeln!(text, "      - {{address: \"{address}\", node: node1}}");
            }
        }
    }
    text
}
