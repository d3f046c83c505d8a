//! Four nodes with small machines, four services, and who asks for them.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use weir_datapath::PinDir;
use weir_deploy_tests::programs::ours;
use weir_testbed::load::{Load, RunningLoad};
use weir_testbed::process::Process;
use weir_testbed::{Cgroup, Machine, Pod, World, ask, bpffs, serve, wait};

/// Where the page is.
pub(crate) const PAGE: u16 = 10298;

const NODES: u8 = 4;
const PODS: u8 = 2;
/// What the machine of each node has.
const CORES: f64 = 0.25;
/// CPU time that a request costs its server.
const COST: Duration = Duration::from_millis(2);
/// Where pods listen.
const PORT: u16 = 8080;
/// Between two nodes that are near each other, and from any to the last one.
const NEAR: Duration = Duration::from_millis(2);
const FAR: Duration = Duration::from_millis(14);
const SOON: Duration = Duration::from_secs(30);
/// Names the pod, in the environment of its server.
const SERVER: &str = "WEIR_TEST_POD";
/// Requests that may wait at once.
const MANY: usize = 160;

/// Namespace, name, the last number of its address, and the nodes that have endpoints.
const SERVICES: [(&str, &str, u8, &[u8]); 4] = [
    ("shop", "web", 10, &[1, 2, 3, 4]),
    ("shop", "cart", 11, &[1, 2]),
    ("media", "frames", 12, &[3, 4]),
    ("auth", "tokens", 13, &[1]),
];

/// See the module's description. Everything is gone on drop.
pub(crate) struct Stage {
    web: Option<RunningLoad>,
    _background: Vec<RunningLoad>,
    agents: Vec<Option<Process>>,
    servers: Vec<Process>,
    machines: Vec<Machine>,
    cgroups: Vec<Cgroup>,
    client: Pod,
    directory: TempDir,
    pub(crate) world: World,
}

impl Stage {
    /// Builds everything, with agents that know each other. None where the machine has no CPU quotas.
    pub(crate) fn start() -> Option<Self> {
        World::sweep().unwrap();
        Cgroup::sweep().unwrap();
        bpffs::ensure_mounted().unwrap();
        let world = World::builder().nodes(NODES).pods_per_node(PODS).delay(NEAR).build().unwrap();
        world.node(NODES).link().unwrap().set_delay((FAR - NEAR / 2) / 2);
        let client = world.add_pod(1).unwrap();
        let other = world.add_pod(2).unwrap();
        let mut machines = Vec::new();
        for number in 1..=NODES {
            match Machine::create(&format!("page-node{number}"), CORES) {
                Ok(machine) => machines.push(machine),
                Err(error) => {
                    eprintln!("SKIPPED: the page in a browser: {error}");
                    return None;
                }
            }
        }
        let cgroups = (1..=NODES).map(|number| Cgroup::create(&format!("page-agent{number}")).unwrap()).collect();
        let directory = tempfile::Builder::new().prefix("weir-page-").tempdir().unwrap();
        let (agents, servers, background) = Default::default();
        let mut stage =
            Self { web: None, _background: background, agents, servers, machines, cgroups, client, directory, world };
        fs::write(stage.file("services.yaml"), stage.services()).unwrap();
        fs::write(stage.file("mesh.key"), format!("{:064x}\n", 0x5eed)).unwrap();
        stage.serve();
        stage.agents = (1..=NODES).map(|_| None).collect();
        (1..=NODES).for_each(|number| stage.launch(number));
        (1..=NODES).for_each(|number| stage.await_ready(number));
        let load = |pod: &Pod, service: usize, rate: u32| {
            Load::http(address(service)).concurrency(MANY).rate(rate).cost(COST).start(pod.netns()).unwrap()
        };
        stage.ask_for_web(30);
        stage._background = vec![load(&stage.client, 1, 14), load(&stage.client, 2, 9), load(&other, 3, 12)];
        Some(stage)
    }

    /// From now on a pod of node 1 opens so many connections to shop/web in a second.
    pub(crate) fn ask_for_web(&mut self, rate: u32) {
        drop(self.web.take());
        let load = Load::http(address(0)).concurrency(MANY).rate(rate).cost(COST);
        self.web = Some(load.start(self.client.netns()).unwrap());
    }

    /// Ends an agent; traffic goes on.
    pub(crate) fn stop_agent(&mut self, number: u8) {
        self.agents[usize::from(number) - 1].take().unwrap().terminate(SOON).unwrap();
    }

    /// Starts it again.
    pub(crate) fn start_agent(&mut self, number: u8) {
        self.launch(number);
        self.await_ready(number);
    }

    /// What an agent has logged.
    pub(crate) fn log(&self, number: u8) -> String {
        fs::read_to_string(self.file(&format!("agent{number}.log"))).unwrap_or_default()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn pins(&self, number: u8) -> PinDir {
        PinDir::new(Path::new(bpffs::PATH).join(format!("{}page{number}", self.world.prefix())))
    }

    fn services(&self) -> String {
        let mut text = String::from("nodes:\n");
        for node in self.world.nodes() {
            let [v4, v6] = node.address().both();
            writeln!(text, "  - {{name: {}, addresses: [{v4}, \"{v6}\"]}}", node.name()).unwrap();
        }
        text.push_str("services:\n");
        for (number, (namespace, name, _, nodes)) in SERVICES.iter().enumerate() {
            let ip = address(number).ip();
            writeln!(text, "  - namespace: {namespace}\n    name: {name}\n    clusterIPs: [{ip}]").unwrap();
            writeln!(text, "    ports: [{{name: http, port: 80, targetPort: {PORT}}}]\n    endpoints:").unwrap();
            for pod in nodes.iter().flat_map(|node| self.pods(*node)) {
                let (ip, node, id) = (pod.address().v4, pod.node(), uid(&pod));
                writeln!(text, "      - {{address: {ip}, node: node{node}, pod: {id}}}").unwrap();
            }
        }
        text
    }

    fn pods(&self, node: u8) -> impl Iterator<Item = Pod> {
        (1..=PODS).map(move |number| self.world.node(node).pod(number))
    }

    /// Starts the servers of all pods, in the machines of their nodes.
    fn serve(&mut self) {
        let own = std::env::current_exe().unwrap();
        let start = |machine: &Machine, pod: &Pod| {
            let mut command = pod.netns().command(&own);
            command.args(["--ignored", "--exact", "stage::a_pod_of_the_stage_serves"]).env(SERVER, pod.name());
            machine.attach(&uid(pod), &mut command).unwrap();
            Process::start(command, "the server", &self.file(&format!("{}.log", pod.name()))).unwrap()
        };
        let machines = (1..=NODES).zip(&self.machines);
        let pods = machines.flat_map(|(node, machine)| self.pods(node).map(move |pod| (machine, pod)));
        self.servers = pods.map(|(machine, pod)| start(machine, &pod)).collect();
        for pod in (1..=NODES).flat_map(|node| self.pods(node)) {
            let target = SocketAddr::new(pod.address().v4.into(), PORT);
            let look = || ask::http_ask(target).map_err(|error| error.to_string());
            let what = format!("an answer of {}", pod.name());
            self.world.router().enter(|| wait::until_some(&what, SOON, look)).unwrap();
        }
    }

    fn launch(&mut self, number: u8) {
        let at = usize::from(number) - 1;
        let node = self.world.node(number);
        let group = self.machines[at].group();
        let mut command = node.netns().command(ours("weir-agent", "weir-agent").unwrap());
        command.arg("--static").arg(self.file("services.yaml")).args(["--node-name", &node.name()]);
        command.arg("--mesh-key-file").arg(self.file("mesh.key"));
        command.args([format!("--node-cgroup={group}"), format!("--kubelet-cgroup-root={group}")]);
        command.arg("--pin-dir").arg(self.pins(number).root()).arg("--cgroup").arg(self.cgroups[at].path());
        command.args(["--max-flows=65536", "--max-sockets=4096", "--max-backends=4096", "--max-services=2048"]);
        command.arg("--state-dir").arg(self.directory.path());
        let log = self.file(&format!("agent{number}.log"));
        self.agents[at] = Some(Process::start(command, "weir-agent", &log).unwrap());
    }

    fn await_ready(&mut self, number: u8) {
        let ready = || match self.world.node(number).netns().enter(readiness) {
            Ok(answer) if answer.starts_with("HTTP/1.0 200 ") => Ok(()),
            other => Err(format!("{other:?}")),
        };
        let what = format!("the agent of node {number} to be ready");
        wait::until_some(&what, SOON, ready).unwrap_or_else(|error| panic!("{error}\n{}", self.log(number)));
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.agents.clear();
        for number in 1..=NODES {
            if let Err(error) = self.pins(number).remove_all(false) {
                eprintln!("{error}");
            }
        }
    }
}

/// The server of a pod: a process of its own, since it runs in the machine of its node.
#[test]
#[ignore = "not a test: what the stage runs in its pods"]
fn a_pod_of_the_stage_serves() {
    if let Ok(name) = std::env::var(SERVER) {
        serve::http_here(&name, PORT).unwrap();
    }
}

/// What an agent on the loopback says of itself.
fn readiness() -> std::io::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, 10256))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(b"GET /readyz HTTP/1.0\r\nHost: node\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The cluster IP of a service.
fn address(service: usize) -> SocketAddr {
    SocketAddr::new(IpAddr::from([10, 96, 0, SERVICES[service].2]), 80)
}

/// The uid of a pod, after which its group is called.
fn uid(pod: &Pod) -> String {
    let digits =
        pod.name().bytes().filter(u8::is_ascii_digit).fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
    format!("00000000-0000-4000-8000-{digits:012}")
}
