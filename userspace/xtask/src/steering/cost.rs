//! CPU time of an agent with a thousand services, some of them in use: not steered, steered, and with peers, in turns.

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use serde::Serialize;
use tokio::sync::oneshot;
use weir_core::load::{NodeLoad, Sample, ServiceId, ServiceLoad, Share};
use weir_mesh::{Config, KeyFile, Link, Mesh, Socket, now};
use weir_testbed::load::{Load, RunningLoad};
use weir_testbed::node::NIC;
use weir_testbed::serve::{self, Server};
use weir_testbed::{World, address};

use crate::demo::agent::{self, Agent, Tables};
use crate::guard::Stop;
use crate::mesh_key;
use crate::progress::Step;
use crate::requirements::Programs;
use crate::spread::Spread;

/// Services.
const SERVICES: u16 = 1000;
/// Those that have flows, one or two a second each.
const IN_USE: u16 = 100;
const FLOWS: u32 = 2;
/// Other nodes with an agent.
const PEERS: u8 = 16;
/// How long CPU time is counted, of each way in each round.
const TIME: Duration = Duration::from_secs(20);
/// How often each way has its turn: a machine may be slower for minutes.
const ROUNDS: usize = 3;
/// How long everything is left to settle before.
const SETTLE: Duration = Duration::from_secs(6);
/// Of the mesh, as the agent has it by default.
const MESH_PORT: u16 = 10299;
/// Port of the pods, and of the services.
const PORT: u16 = 8080;
/// How often peers publish what they are doing, as agents do.
const TICK: Duration = Duration::from_millis(250);

/// What was measured: parts of one core, in each round.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Figures {
    pub(super) services: u16,
    pub(super) in_use: u16,
    pub(super) peers: u8,
    pub(super) seconds: f64,
    /// Nothing is steered.
    pub(super) fixed: Spread,
    /// All services are: what that adds.
    pub(super) ticking: Spread,
    /// The same with a key and peers that answer and probe: what these add.
    pub(super) meshed: Spread,
}

/// Measures one way after the other, under the same load.
///
/// # Errors
/// When a part of the world fails.
pub(super) fn measure(programs: &Programs, directory: &Path, stop: &Stop) -> Result<Figures> {
    let world = World::builder().nodes(2).pods_per_node(1).build()?;
    let _client = world.add_pod(1)?;
    let files = Files::write(directory)?;
    let _servers = [1, 2]
        .map(|node| serve::http(world.node(node).pod(1).netns(), &world.node(node).pod(1).name(), PORT))
        .into_iter()
        .collect::<weir_testbed::Result<Vec<Server>>>()?;
    let _peers = Peers::start(&world, &files.key)?;
    let ways = [
        agent::Spread::LocalFirst,
        agent::Spread::ByLoad { key: None, config: Some(files.config.clone()), group: None },
        agent::Spread::ByLoad { key: Some(files.key.clone()), config: Some(files.config.clone()), group: None },
    ];
    let mut agent = Agent::start(&world, 1, &ways[0], &programs.agent, &files.services, directory, Tables::Small)?;
    agent.await_ready(&world)?;
    let _loads = load(&world)?;
    let mut used = [vec![], vec![], vec![]];
    for _ in 0..ROUNDS {
        let step = Step::begin("CPU time of an agent");
        for (way, used) in ways.iter().zip(&mut used) {
            agent = agent.restart(&world, way)?;
            stop.sleep(SETTLE)?;
            let before = cpu_time(&agent)?;
            stop.sleep(TIME)?;
            used.push((cpu_time(&agent)? - before).as_secs_f64() / TIME.as_secs_f64());
        }
        step.done();
    }
    let [fixed, ticking, meshed] = used;
    let added =
        |with: &[f64], without: &[f64]| with.iter().zip(without).map(|(with, without)| with - without).collect();
    let spread = |figures| Spread::of(figures).context("there was no round");
    let (ticking, meshed) = (spread(added(&ticking, &fixed))?, spread(added(&meshed, &ticking))?);
    let seconds = TIME.as_secs_f64();
    Ok(Figures { services: SERVICES, in_use: IN_USE, peers: PEERS, seconds, fixed: spread(fixed)?, ticking, meshed })
}

/// User's and system's of all its threads, to the nanosecond.
fn cpu_time(agent: &Agent) -> Result<Duration> {
    let pid = Pid::from_raw(agent.id().cast_signed());
    let clock = ClockId::pid_cpu_clock_id(pid).context("cannot find the clock of weir-agent")?;
    Ok(clock_gettime(clock).context("cannot read the clock of weir-agent")?.into())
}

/// A few flows of each service that is in use.
fn load(world: &World) -> Result<Vec<RunningLoad>> {
    let client = world.node(1).pod(2);
    let start = |service| Load::http(cluster_ip(service)).concurrency(1).rate(FLOWS).start(client.netns());
    Ok((0..IN_USE).map(start).collect::<weir_testbed::Result<_>>()?)
}

fn cluster_ip(service: u16) -> SocketAddr {
    let [high, low] = (service + 1).to_be_bytes();
    SocketAddr::new(Ipv4Addr::new(10, 96, high, low).into(), 80)
}

struct Files {
    services: PathBuf,
    config: PathBuf,
    key: PathBuf,
}

impl Files {
    fn write(directory: &Path) -> Result<Self> {
        let write = |name: &str, text: &str| {
            // Apart: agents look at their file whenever something changes beside it.
            let own = directory.join(name);
            fs::create_dir(&own)
                .and_then(|()| fs::write(own.join(name), text))
                .with_context(|| format!("cannot write {name}"))?;
            Ok::<_, anyhow::Error>(own.join(name))
        };
        let (services, config) = (write("services.yaml", &services())?, write("config.yaml", "defaults: {}\n")?);
        let key = directory.join("mesh.key");
        mesh_key::write(&key)?;
        Ok(Self { services, config, key })
    }
}

fn services() -> String {
    let mut text = String::from("nodes:\n");
    // Writing to a string does not fail.
    let _ = writeln!(text, "  - {{name: node1, addresses: [{}]}}", address::node(1).v4);
    for (name, ip) in peers() {
        let _ = writeln!(text, "  - {{name: {name}, addresses: [{ip}]}}");
    }
    text.push_str("services:\n");
    for service in 0..SERVICES {
        let _ = writeln!(text, "  - name: s{service}\n    clusterIPs: [{}]", cluster_ip(service).ip());
        let _ = writeln!(text, "    ports: [{{port: 80, targetPort: {PORT}}}]\n    endpoints:");
        for node in [1, 2] {
            let _ = writeln!(text, "      - {{address: {}, node: node{node}}}", address::pod(node, 1).v4);
        }
    }
    text
}

/// Node 2 and others that have an agent each, all in the namespace of node 2.
fn peers() -> impl Iterator<Item = (String, IpAddr)> {
    (2..2 + PEERS).map(|node| (format!("node{node}"), address::node(node).v4.into()))
}

/// Ends them on drop.
struct Peers {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Peers {
    fn start(world: &World, key: &Path) -> Result<Self> {
        let netns = world.node(2).netns();
        let mut script = String::new();
        for (_, ip) in peers().skip(1) {
            let _ = writeln!(script, "addr add {ip}/24 dev {NIC}");
        }
        netns.ip(&script)?;
        let (stop, stopped) = oneshot::channel();
        let (ready, started) = std::sync::mpsc::channel();
        let key = key.to_owned();
        let thread = netns.spawn("peers", move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("cannot start the runtime")?;
            runtime.block_on(async {
                let running = peers().map(|(name, ip)| peer(&name, ip, &key)).collect::<Result<Vec<_>>>();
                let problem = running.as_ref().err().map(|error| format!("{error:#}"));
                // Who waits for it is gone only when nobody does any more.
                let _ = ready.send(problem);
                let _running = running?;
                let _ = stopped.await;
                Ok(())
            })
        })?;
        let new = Self { stop: Some(stop), thread: Some(thread) };
        match started.recv().context("the peers did not start")? {
            None => Ok(new),
            Some(problem) => anyhow::bail!("the peers did not start: {problem}"),
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(Ok(Err(error))) = self.thread.take().map(JoinHandle::join) {
            eprintln!("peers: {error:#}");
        }
    }
}

/// One that answers and probes the agent, and tells of as many services as its packets hold.
fn peer(name: &str, ip: IpAddr, key: &Path) -> Result<()> {
    let (mut file, keys) = KeyFile::open(key)?;
    let mut mesh = Mesh::new(name, Config::default().checked()?, keys, u64::from(MESH_PORT), now());
    let agent = SocketAddr::new(address::node(1).v4.into(), MESH_PORT);
    mesh.set_peers([(Arc::from("node1"), agent)]);
    let link = Link::new(mesh);
    link.add(Socket::bind(SocketAddr::new(ip, MESH_PORT))?);
    let speaker = link.clone();
    // Peers take their turns at different times.
    let phase = TICK.mul_f64(fastrand::f64());
    tokio::spawn(async move {
        let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + phase, TICK);
        loop {
            tick.tick().await;
            let load = NodeLoad { cpu: Some(Sample::fresh(Share::clamped(0.3))), capacity: 4.0, ..NodeLoad::default() };
            let services = (0..u64::from(IN_USE))
                .map(|id| (ServiceId(id), ServiceLoad { flows_per_second: 2.0, open_flows: 1, spare: 50.0 }));
            speaker.hear();
            speaker.with(|mesh, now| mesh.publish(load, services, now));
            speaker.speak();
        }
    });
    tokio::spawn(async move {
        let failed = link.watch(&mut file).await;
        eprintln!("a peer has ended: {failed}");
    });
    Ok(())
}
