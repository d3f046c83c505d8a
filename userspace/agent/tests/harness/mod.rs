//! A cluster in network namespaces: a real API server, nodes with a `weir-agent` each, pods that answer.

#![allow(dead_code, reason = "each test file uses its part of the harness")]
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

pub(crate) mod busy;
pub(crate) mod callers;
pub(crate) mod clients;
pub(crate) mod echo;
pub(crate) mod events;
pub(crate) mod http;
pub(crate) mod kernel;
pub(crate) mod matrix;
pub(crate) mod shared;
pub(crate) mod slots;
pub(crate) mod standalone;
pub(crate) mod traffic;

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use weir_datapath::PinDir;
use weir_testbed::apiserver::{ApiServer, User};
use weir_testbed::node::Pod;
use weir_testbed::objects::{self, Endpoint, Objects};
use weir_testbed::process::Process;
use weir_testbed::serve::{self, Server};
use weir_testbed::{Cgroup, World, address, bpffs, require_root, wait};

/// Patience with anything that should happen at once.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// Ports of the servers in every pod.
pub(crate) const HTTP: u16 = 8080;
pub(crate) const TCP: u16 = 7000;
pub(crate) const UDP: u16 = 7001;

/// What a test starts from: nodes with pods that serve, nothing else.
pub(crate) struct Cluster {
    // Agents go before the namespaces that they live in.
    pub(crate) agents: Vec<Agent>,
    pub(crate) api: ApiServer,
    pub(crate) objects: Objects,
    servers: Vec<Server>,
    pub(crate) world: World,
}

/// True when the machine can run these tests; else it has been said why not.
pub(crate) fn can_run(what: &str) -> bool {
    kernel::remember();
    require_root(what) && ApiServer::require(what)
}

impl Cluster {
    /// Nodes with pods, registered with the API server, an agent on each; returns when all are ready.
    pub(crate) fn start(nodes: u8, pods: u8, options: &[&str]) -> Self {
        let mut cluster = Self::without_agents(nodes, pods);
        for node in 1..=nodes {
            let agent = Agent::start(&cluster.world, &cluster.api, node, options);
            cluster.agents.push(agent);
        }
        cluster.agents.iter().for_each(|agent| agent.await_ready(&cluster.world));
        cluster
    }

    /// The same, no agent yet.
    pub(crate) fn without_agents(nodes: u8, pods: u8) -> Self {
        let world = Self::world(nodes, pods);
        let api = ApiServer::start(Some(world.router())).unwrap();
        Self::around(world, api, |_| true)
    }

    /// The nodes and pods of a cluster to come.
    pub(crate) fn world(nodes: u8, pods: u8) -> World {
        World::sweep().unwrap();
        Cgroup::sweep().unwrap();
        bpffs::ensure_mounted().unwrap();
        World::builder().nodes(nodes).pods_per_node(pods).build().unwrap()
    }

    /// A world whose pods serve and whose nodes are registered with those of their addresses that `told` picks; no agent
    /// yet.
    pub(crate) fn around(world: World, api: ApiServer, told: fn(&IpAddr) -> bool) -> Self {
        let objects = api.objects().unwrap();
        let mut servers = Vec::new();
        for node in world.nodes() {
            let addresses: Vec<_> = node.address().both().into_iter().filter(told).collect();
            let object = objects::node(&node.name(), &addresses, None);
            objects.apply(&object).unwrap();
            objects.apply_status(&object).unwrap();
            for pod in node.pods() {
                servers.extend(serve_in(&pod));
            }
        }
        Self { agents: Vec::new(), api, objects, servers, world }
    }

    /// A Service in both families with its slices, of endpoints in these pods, on the pods' `port`.
    pub(crate) fn publish(&self, service: &Service, port: u16, pods: &[Pod]) -> Service {
        let made = self.objects.apply(service).unwrap();
        self.set_endpoints(service, port, pods);
        made
    }

    /// Replaces the endpoints of a Service.
    pub(crate) fn set_endpoints(&self, service: &Service, port: u16, pods: &[Pod]) {
        let name = service.metadata.name.as_deref().unwrap();
        let spec = service.spec.as_ref().unwrap();
        let protocol = spec.ports.as_ref().unwrap()[0].protocol.as_deref().unwrap();
        for (suffix, v6) in [("v4", false), ("v6", true)] {
            let endpoints: Vec<_> = pods
                .iter()
                .map(|pod| Endpoint {
                    ip: if v6 { pod.address().v6.into() } else { pod.address().v4.into() },
                    node: format!("node{}", pod.node()),
                    ready: true,
                })
                .collect();
            let mut slice = objects::endpoint_slice(name, suffix, port, protocol, &endpoints);
            slice.address_type = if v6 { "IPv6".into() } else { "IPv4".into() };
            self.objects.apply(&slice).unwrap();
        }
    }

    /// Starts the servers in a pod that came later.
    pub(crate) fn serve(&mut self, pod: &Pod) {
        self.servers.extend(serve_in(pod));
    }

    /// Waits until an agent's maps hold this many frontends of an address and port.
    pub(crate) fn await_frontend(&self, address: IpAddr, port: u16) {
        for agent in &self.agents {
            agent.await_frontend(address, port, true);
        }
    }
}

/// The servers of a pod.
pub(crate) fn serve_in(pod: &Pod) -> [Server; 3] {
    let name = pod.name();
    [
        serve::http(pod.netns(), &name, HTTP).unwrap(),
        serve::tcp_echo(pod.netns(), &name, TCP).unwrap(),
        serve::udp_echo(pod.netns(), &name, UDP).unwrap(),
    ]
}

/// Cluster IPs that the API server gave a Service, with its first port.
pub(crate) fn cluster_sockets(service: &Service) -> Vec<SocketAddr> {
    let spec = service.spec.as_ref().unwrap();
    let port = u16::try_from(spec.ports.as_ref().unwrap()[0].port).unwrap();
    let ips = spec.cluster_ips.as_ref().unwrap();
    ips.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), port)).collect()
}

/// The node port of a Service's first port.
pub(crate) fn node_port(service: &Service) -> u16 {
    let port = service.spec.as_ref().unwrap().ports.as_ref().unwrap()[0].node_port.unwrap();
    u16::try_from(port).unwrap()
}

/// The status code, and of each part its name, whether it is ready, and a reason.
pub(crate) type Readiness = (u16, Vec<(String, bool, String)>);

/// One node's agent. Its programs and maps are removed on drop; in between it may be killed and started.
pub(crate) struct Agent {
    node: u8,
    process: Option<Process>,
    pub(crate) pins: PathBuf,
    pub(crate) cgroup: Cgroup,
    log: PathBuf,
    /// Bytes of the log that are of earlier processes.
    earlier: usize,
    arguments: Vec<String>,
}

impl Agent {
    pub(crate) fn start(world: &World, api: &ApiServer, node: u8, options: &[&str]) -> Self {
        Self::with_source(world, node, Self::source(api), options)
    }

    /// The option that leads to an API server.
    pub(crate) fn source(api: &ApiServer) -> [String; 2] {
        let url = api.url_at(address::ROUTER_INSIDE.v4.into());
        let kubeconfig = api.kubeconfig(User::Admin, &url).unwrap();
        ["--kubeconfig".to_owned(), kubeconfig.display().to_string()]
    }

    pub(crate) fn with_source(world: &World, node: u8, source: [String; 2], options: &[&str]) -> Self {
        let mut agent = Self::prepared(world, node, source, options);
        agent.start_again(world);
        agent
    }

    /// The same, not started yet.
    pub(crate) fn prepared(world: &World, node: u8, source: [String; 2], options: &[&str]) -> Self {
        let name = format!("{}node{node}", world.prefix());
        let pins = Path::new("/sys/fs/bpf").join(&name);
        let cgroup = Cgroup::create(&name).unwrap();
        let log = std::env::temp_dir().join(format!("{name}-agent.log"));
        let mut arguments: Vec<String> = source.into();
        for argument in [
            "--node-name",
            &format!("node{node}"),
            "--pin-dir",
            &pins.display().to_string(),
            "--cgroup",
            &cgroup.path().display().to_string(),
            // The worlds switch the offloads of the NICs' peers off.
            "--xdp-on-veth",
            "--max-flows=16384",
            "--max-sockets=4096",
            "--max-backends=16384",
            "--max-services=4096",
        ] {
            arguments.push(argument.to_owned());
        }
        let mut agent = Self { node, process: None, pins, cgroup, log, earlier: 0, arguments };
        options.iter().for_each(|option| agent.set_option(option));
        agent
    }

    /// Gives an option of the form `--name=value` another value, from the next start on; without `=` it is a switch.
    pub(crate) fn set_option(&mut self, option: &str) {
        self.remove_option(option.split_once('=').map_or(option, |(name, _)| name));
        self.arguments.push(option.to_owned());
    }

    /// Takes an option away, from the next start on.
    pub(crate) fn remove_option(&mut self, name: &str) {
        // Some were given as two words.
        if let Some(at) = self.arguments.iter().position(|argument| argument == name) {
            let value = self.arguments.get(at + 1).filter(|value| !value.starts_with("--"));
            self.arguments.drain(at..=at + usize::from(value.is_some()));
        }
        self.arguments.retain(|argument| !argument.starts_with(&format!("{name}=")));
    }

    /// Starts it after an end, with the same options.
    pub(crate) fn start_again(&mut self, world: &World) {
        self.start_through(world, &[]);
    }

    /// Starts it by a program that becomes it, such as `setpriv` with its options.
    pub(crate) fn start_through(&mut self, world: &World, wrapper: &[&str]) {
        self.earlier = self.log().len();
        let words: Vec<&str> = wrapper.iter().copied().chain([env!("CARGO_BIN_EXE_weir-agent")]).collect();
        let mut command = world.node(self.node).netns().command(words[0]);
        command.args(&words[1..]).args(&self.arguments);
        self.process = Some(Process::start(command, "weir-agent", &self.log).unwrap());
    }

    /// Waits until it ends by itself.
    pub(crate) fn await_end(&mut self) -> std::process::ExitStatus {
        let process = self.process.as_mut().unwrap();
        let end = wait::until_some("the agent's end", SOON, || process.exit_status().unwrap().ok_or_else(String::new));
        let status = end.unwrap_or_else(|e| panic!("{e}\n{}", self.log()));
        self.process = None;
        status
    }

    /// What it says on `/readyz`.
    pub(crate) fn readiness(&self, world: &World) -> Option<Readiness> {
        let (code, body) = self.get(world, 10256, "/readyz")?;
        let answer: serde_json::Value = serde_json::from_str(&body).unwrap();
        let part = |part: &serde_json::Value| {
            let text = |name: &str| part[name].as_str().unwrap_or_default().to_owned();
            (text("name"), part["ready"].as_bool().unwrap(), text("reason"))
        };
        Some((code, answer["components"].as_array().unwrap().iter().map(part).collect()))
    }

    /// Waits until a part is not ready for a reason with this text, and returns the reason.
    pub(crate) fn await_complaint(&self, world: &World, part: &str, text: &str) -> String {
        let look = || {
            let seen = self.readiness(world);
            let parts = seen.iter().filter(|(code, _)| *code == 503).flat_map(|(_, parts)| parts);
            let mut reasons = parts.filter(|(name, ready, _)| name == part && !ready).map(|(.., reason)| reason);
            let reason = reasons.find(|reason| reason.contains(text));
            reason.cloned().ok_or_else(|| format!("{seen:?}"))
        };
        let what = format!("{part} not ready because of {text:?}");
        wait::until_some(&what, SOON, look).unwrap_or_else(|e| panic!("{e}\n{}", self.log()))
    }

    /// Waits until the log has this text.
    pub(crate) fn await_log(&self, text: &str) {
        let what = format!("{text:?} in the log");
        wait::until(&what, SOON, || self.log().contains(text)).unwrap_or_else(|e| panic!("{e}\n{}", self.log()));
    }

    /// The value of a metric without labels.
    pub(crate) fn metric(&self, world: &World, name: &str) -> f64 {
        let (_, text) = self.get(world, 10249, "/metrics").unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or_else(|| panic!("no metric {name} in\n{text}"))
    }

    /// What it has done to maps since its start.
    pub(crate) fn map_ops(&self, world: &World) -> f64 {
        let (_, text) = self.get(world, 10249, "/metrics").unwrap();
        let of_map = text.lines().filter(|line| line.starts_with("weir_map_ops_total{"));
        of_map.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    /// Ends it as a crash would.
    pub(crate) fn kill(&mut self) {
        self.process.take().unwrap().kill().unwrap();
    }

    /// Ends it as an operator would.
    pub(crate) fn stop(&mut self) -> std::process::ExitStatus {
        self.process.take().unwrap().terminate(SOON).unwrap()
    }

    pub(crate) fn process(&mut self) -> &mut Process {
        self.process.as_mut().unwrap()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The log of the process that was started last.
    pub(crate) fn last_log(&self) -> String {
        self.log().split_off(self.earlier)
    }

    /// The answer of a health or metrics path, status code and body.
    pub(crate) fn get(&self, world: &World, port: u16, path: &str) -> Option<(u16, String)> {
        world.node(self.node).netns().enter(|| {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
            stream.set_read_timeout(Some(SOON)).ok()?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").ok()?;
            let mut text = String::new();
            stream.read_to_string(&mut text).ok()?;
            let (head, body) = text.split_once("\r\n\r\n")?;
            Some((head.split_whitespace().nth(1)?.parse().ok()?, body.to_owned()))
        })
    }

    /// Its admin socket.
    pub(crate) fn socket(&self) -> PathBuf {
        weir_telemetry::admin::default_path(&self.pins)
    }

    /// What it says at its admin socket.
    pub(crate) fn told(&self, path: &str) -> String {
        let reply = http::get_at(&self.socket(), path).unwrap_or_else(|e| panic!("{path}: {e}\n{}", self.log()));
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
        reply.body
    }

    pub(crate) fn await_ready(&self, world: &World) {
        let ready = wait::until_some("the agent to be ready", SOON, || match self.get(world, 10256, "/readyz") {
            Some((200, _)) => Ok(()),
            other => Err(format!("{other:?}\n{}", self.log())),
        });
        ready.unwrap();
    }

    pub(crate) fn view(&self) -> weir_datapath::View {
        weir_datapath::View::open(PinDir::new(&self.pins)).unwrap()
    }

    /// Waits until the maps have (or no longer have) a frontend.
    pub(crate) fn await_frontend(&self, address: IpAddr, port: u16, present: bool) {
        let view = self.view();
        let what = format!("frontend {address}:{port} on node {}", self.node);
        let there = || view.dump().unwrap().frontends.iter().any(|(key, _)| key.address == address && key.port == port);
        wait::until(&what, SOON, || there() == present).unwrap_or_else(|e| panic!("{e}\n{}", self.log()));
    }

    /// Waits until the maps hold exactly these backends of a service, by address.
    pub(crate) fn await_backends(&self, service: &str, mut addresses: Vec<IpAddr>) {
        addresses.sort();
        let view = self.view();
        let what = format!("backends {addresses:?} of {service} on node {}", self.node);
        let backends = || {
            let dump = view.dump().unwrap();
            let named =
                |id: u32| dump.service_names.iter().any(|(known, name)| *known == id && text(&name.name) == service);
            let used = dump.backends.iter().filter(|(_, backend)| backend.flags & weir_abi::BACKEND_USED != 0);
            let mut found: Vec<_> = used.filter(|(_, b)| named(b.service)).map(|(_, b)| b.addr.ip()).collect();
            found.sort();
            found
        };
        let same = || {
            let found = backends();
            if found == addresses { Ok(()) } else { Err(format!("{found:?}")) }
        };
        wait::until_some(&what, SOON, same).unwrap_or_else(|e| panic!("{e}\n{}", self.log()));
    }
}

/// The text of a name in a map.
pub(crate) fn text(bytes: &[u8]) -> &str {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..end]).unwrap()
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.process = None;
        if std::thread::panicking() {
            eprintln!("---- log of the agent on node {}\n{}", self.node, self.log());
        }
        if let Err(error) = PinDir::new(&self.pins).remove_all(false) {
            eprintln!("{error}");
        }
        let _ = fs::remove_file(&self.log);
        // One that was killed leaves it.
        let _ = fs::remove_file(self.socket());
    }
}
