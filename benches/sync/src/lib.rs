//! From a real API server to the maps: a full sync, then single changes, at 10,000 services with 10 endpoints each.
//!
//! The full sync is timed by the agent: from the arrival of the last watch's list to the last map operation. A single
//! change is timed from outside: from the API server's answer to the request that made it, to the word in the map.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde::Serialize;
use serde_json::json;
use weir_abi as abi;
use weir_datapath::{PinDir, View};
use weir_testbed::apiserver::{ApiServer, User};
use weir_testbed::bulk::Bulk;
use weir_testbed::objects::{self, Objects};
use weir_testbed::process::Process;
use weir_testbed::{Cgroup, World, address, bpffs, require_root, wait};

/// Single changes, each at another service.
const CHANGES: u32 = 1000;
/// Patience with the first sync: ten thousand services and as many slices are read from a server on the same machine.
const SYNC_LIMIT: Duration = Duration::from_secs(180);
/// Patience with one change.
const CHANGE_LIMIT: Duration = Duration::from_secs(5);
/// Requests under way while the objects are made.
const CONCURRENCY: usize = 4;

/// How large the cluster is.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Services.
    pub services: u32,
    /// Endpoints of each.
    pub endpoints: u32,
}

/// The figures.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Services.
    pub services: u32,
    /// Endpoints of all services.
    pub endpoints: u32,
    /// Seconds from the last list's arrival to the last map operation.
    pub full_sync_s: f64,
    /// Seconds from the agent's start until it was ready, lists included.
    pub start_to_ready_s: f64,
    /// Milliseconds from the API server's answer to the map, of one endpoint's change: median.
    pub one_change_p50_ms: f64,
    /// The same, 99th percentile.
    pub one_change_p99_ms: f64,
    /// The agent's resident memory in MiB, after the changes.
    pub rss_mib: f64,
}

/// Measures with this agent, prints the figures and writes them as JSON.
///
/// # Errors
/// Without root or the API server's programs, and when something does not happen in time.
pub fn run(scale: Scale, agent: &Path, output: &Path) -> Result<()> {
    if !require_root("bench-sync") || !ApiServer::require("bench-sync") {
        bail!("the benchmark needs root and the API server: sudo make bench-sync");
    }
    World::sweep()?;
    Cgroup::sweep()?;
    bpffs::ensure_mounted()?;
    let world = World::builder().nodes(1).pods_per_node(1).build()?;
    let api = ApiServer::start(Some(world.router()))?;
    let objects = api.objects()?;
    populate(scale, &world, &objects)?;
    let figures = measure(scale, agent, &world, &api, &objects)?;
    println!("{figures:#?}");
    weir_testbed::figures::write(output, &figures)?;
    Ok(())
}

fn populate(scale: Scale, world: &World, objects: &Objects) -> Result<()> {
    let ip = world.node(1).address();
    let node = objects::node("node1", &[ip.v4.into(), ip.v6.into()], None);
    objects.apply(&node)?;
    objects.apply_status(&node)?;
    println!("making {} services with {} endpoints each", scale.services, scale.endpoints);
    let Scale { services, endpoints } = scale;
    let took = Bulk { services, endpoints, nodes: 100, concurrency: CONCURRENCY }.create(objects)?;
    println!("made in {:.0} s", took.as_secs_f64());
    Ok(())
}

/// Removes the agent's pins, whatever happens.
struct Pins(PathBuf);

impl Drop for Pins {
    fn drop(&mut self) {
        if let Err(error) = PinDir::new(&self.0).remove_all(false) {
            eprintln!("{error}");
        }
    }
}

fn measure(scale: Scale, agent: &Path, world: &World, api: &ApiServer, objects: &Objects) -> Result<Figures> {
    let pins = Pins(format!("/sys/fs/bpf/{}sync", world.prefix()).into());
    let cgroup = Cgroup::create(&format!("{}sync", world.prefix()))?;
    let kubeconfig = api.kubeconfig(User::Admin, &api.url_at(address::ROUTER_INSIDE.v4.into()))?;
    let directory = fs::canonicalize(std::env::temp_dir())?;
    let log = directory.join(format!("{}sync.log", world.prefix()));
    let mut command = world.node(1).netns().command(agent);
    command.arg("--kubeconfig").arg(kubeconfig).arg("--pin-dir").arg(&pins.0);
    command.arg("--cgroup").arg(cgroup.path()).args(["--node-name", "node1"]);
    let started = Instant::now();
    let process = Process::start(command, "weir-agent", &log)?;
    let ready = || get(world, 10256, "/readyz").filter(|(code, _)| *code == 200).map(drop).ok_or_else(String::new);
    wait::until_some("the agent to be ready", SYNC_LIMIT, ready).with_context(|| process.log_tail())?;
    let start_to_ready_s = started.elapsed().as_secs_f64();
    let (_, metrics) = get(world, 10249, "/metrics").context("no metrics")?;
    let full_sync_s = metric(&metrics, "weir_full_sync_seconds")?;
    let view = View::open(PinDir::new(&pins.0))?;
    let mut times = changes(scale, &view, objects)?;
    times.sort_unstable();
    let quantile = |part: f64| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index below the length")]
        let index = ((times.len() - 1) as f64 * part).round() as usize;
        times[index].as_secs_f64() * 1e3
    };
    let rss_mib = resident(process.id())?;
    process.terminate(CHANGE_LIMIT)?;
    fs::remove_file(&log).with_context(|| format!("cannot remove {}", log.display()))?;
    Ok(Figures {
        services: scale.services,
        endpoints: scale.services * scale.endpoints,
        full_sync_s,
        start_to_ready_s,
        one_change_p50_ms: quantile(0.5),
        one_change_p99_ms: quantile(0.99),
        rss_mib,
    })
}

/// Makes one endpoint of a service after the other unready and watches the service's word in the map.
fn changes(scale: Scale, view: &View, objects: &Objects) -> Result<Vec<Duration>> {
    let dump = view.dump()?;
    ensure!(dump.services.len() >= scale.services as usize, "only {} services in the maps", dump.services.len());
    let changes = CHANGES.min(scale.services);
    let step = scale.services / changes;
    let mut times = Vec::new();
    for number in 0..changes {
        let name = format!("bulk-{}", number * step);
        let id = dump.service_names.iter().find(|(_, known)| text(&known.name) == name).map(|(id, _)| *id);
        let id = id.with_context(|| format!("{name} is not in the maps"))?;
        let before = view.service(id)?.endpoints;
        let answered = unready(objects, &name)?;
        let changed = || view.service(id).is_ok_and(|service| service.endpoints + 1 == before);
        while !changed() {
            ensure!(answered.elapsed() < CHANGE_LIMIT, "the change of {name} did not arrive");
            std::hint::spin_loop();
        }
        times.push(answered.elapsed());
    }
    Ok(times)
}

/// Makes the first endpoint of a service unready; returns when the API server answered.
fn unready(objects: &Objects, service: &str) -> Result<Instant> {
    let client = objects.client();
    let label = format!("{}={service}", objects::SERVICE_NAME_LABEL);
    objects.run(async move {
        let slices: Api<EndpointSlice> = Api::default_namespaced(client);
        let found = slices.list(&kube::api::ListParams::default().labels(&label)).await?;
        let slice = found.items.into_iter().next().context("the service has no slice")?;
        let name = slice.metadata.name.context("the slice has no name")?;
        let patch =
            json!([{"op": "add", "path": "/endpoints/0/conditions", "value": {"ready": false, "serving": false}}]);
        let patch: Patch<()> = Patch::Json(serde_json::from_value(patch)?);
        slices.patch(&name, &PatchParams::default(), &patch).await?;
        Ok(Instant::now())
    })
}

fn get(world: &World, port: u16, path: &str) -> Option<(u16, String)> {
    world.node(1).netns().enter(|| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(CHANGE_LIMIT)).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        Some((head.split_whitespace().nth(1)?.parse().ok()?, body.to_owned()))
    })
}

fn metric(text: &str, name: &str) -> Result<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.with_context(|| format!("no metric {name}"))?.parse().with_context(|| format!("metric {name}"))
}

/// Resident memory of a process in MiB.
fn resident(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().context("VmRSS")?;
    Ok(kib / 1024.0)
}

fn text(bytes: &[u8; abi::NAME_SIZE]) -> &str {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..end]).unwrap_or_default()
}
