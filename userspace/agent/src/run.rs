//! Starts the parts, waits for a signal or the end of one of them, and stops: programs and maps stay where they are.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::FutureExt;
use futures::future::{self, BoxFuture, OptionFuture};
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};
use weir_abi as abi;
use weir_abi::ticks::TickClock;
use weir_core::cluster::Event;
use weir_core::interfaces::Patterns;
use weir_core::ops::Capacity;
use weir_core::plan::PlanConfig;
use weir_core::pod_sockets::HookedPods as WantedPods;
use weir_core::source_ports::PortSet;
use weir_datapath::{AttachOptions, Counters, Datapath, HookedPods, PinDir, Sockets, View};
use weir_kube_watch::client::{self, ClientOptions};
use weir_kube_watch::events::Events;
use weir_kube_watch::status::StatusWriter;
use weir_kube_watch::watch as kube;
use weir_kube_watch::watch::{WatchOptions, pods};
use weir_signals::NodeOptions;
use weir_signals::cgroup::kubelet::KubeletRoot;
use weir_signals::metrics_api::MetricsApi;
use weir_telemetry::effective::Value;
use weir_telemetry::listeners::{Limits, Listeners, Room};
use weir_telemetry::metrics::Metrics;
use weir_telemetry::server::{ProbeCounters, Probes, health_router, metrics_router};

use crate::args::{DatapathOptions, ExternalModeArg, MasqueradeArg, Options, PodSocketsArg, SourceOptions};
use crate::configuration::{self, Configuration};
use crate::endpoint_checks::{self, CheckMetrics};
use crate::health_checks::{HealthCheckServers, HealthChecks};
use crate::metrics::{KubeProxyMetrics, WriterMetrics, register_collectors};
use crate::node_ports::NodePortAddresses;
use crate::pod_sockets::PodSockets;
use crate::pressure::{PressureMetrics, PressureWatch};
use crate::probes::{AgentProbes, WriterStatus};
use crate::sockets::{SocketMetrics, SocketSweeper};
use crate::source_ports::PortWatch;
use crate::stage::{CurrentStage, StageFile};
use crate::steering::{Ends, Key, SteeringLoop, SteeringOptions};
use crate::writer::{Outlets, Settings, Steered, Writer};
use crate::{admin, args, effective, host, netlink, page, service_manager};

/// Events that wait for the writer. A watch that is ahead of it waits, and the API server with it.
const QUEUE: usize = 1024;

/// After a connection has ended, how long a silence says that nothing of it comes again: a last FIN that was lost does within
/// 0.2, 0.4, 0.8, … seconds (RFC 6298).
const TCP_LINGER: Duration = Duration::from_secs(4);

/// How long the pieces of a packet may be under way, as hosts have it: `net.ipv4.ipfrag_time`.
const FRAGMENT_IDLE: Duration = Duration::from_secs(30);

/// The agent's life.
pub(crate) fn run(options: Options, values: Vec<Value>) -> Result<()> {
    // One thread for everybody but the writer.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.context("cannot start the runtime")?.block_on(serve(options, values))
}

async fn serve(options: Options, values: Vec<Value>) -> Result<()> {
    let stop = CancellationToken::new();
    host::raise_file_limit();
    // From here on a signal is no sudden death; what is under way gets done first.
    let signals = stop_signal()?;
    // Wrong options are refused before anything of the node is touched.
    check_external_mode(&options)?;
    let node = match &options.node_name {
        Some(name) => name.clone(),
        None => host::name()?,
    };
    let (configuration, in_force) = Configuration::open(options.service.config.as_deref()).await?;
    let [reload_services, reload_configuration] = reload_signals()?;
    let (changes, inbox) = mpsc::channel(QUEUE);
    let (source_status, source) = StatusWriter::new();
    let (pod_watch, hooked) = pod_sockets(&options)?.unzip();
    let checks = CheckMetrics::new();
    let feeding = (changes, source_status, reload_services);
    let opened = open_source(options.source.clone(), &node, feeding, checks.clone(), pod_watch);
    let Source { events, feed, metrics_api } = opened.await?;
    let cgroup = cgroup_dir(options.datapath.cgroup.clone())?;
    if cgroup.is_none() && options.service.nodeport_addresses.contains(&NodePortAddresses::Localhost) {
        warn!("--nodeport-addresses localhost does nothing without socket hooks; see --cgroup");
    }
    // A room of its own: whatever happens at the ports of Services, the kubelet gets its answers.
    let health = Listeners::bind("health checks", &options.process.health_address)?.in_room(&Room::new(Limits::PROBES));
    let scrapes = Listeners::bind("metrics", &options.process.metrics_address)?;
    let capacity = options.sizes.capacity(host::memory()?);

    let pins = PinDir::new(&options.datapath.pin_dir);
    let datapath = Datapath::open(pins.clone(), &capacity)?;
    info!(node, pins = %pins.root().display(), adopted = datapath.adopted(), "weir-agent starts");

    let mut metrics = Metrics::new();
    checks.register(&mut metrics);
    let writer_metrics = WriterMetrics::register(&mut metrics);
    let kube_proxy = KubeProxyMetrics::register(&mut metrics);
    let probe_counters = ProbeCounters::register(&mut metrics);
    let configuration = configuration.follow(reload_configuration, configuration::good(&mut metrics));
    let (status, writer) = watch::channel(WriterStatus::default());
    let (health_checks, wanted_health_checks) = watch::channel(HealthChecks::default());
    let sweeper = SocketSweeper::new(Sockets::open(&pins)?, SocketMetrics::register(&mut metrics));
    let pod_sockets = match (hooked, cgroup.as_ref().and_then(|_| host::cgroup_root())) {
        (Some(hooked), Some(mount)) => {
            let root = KubeletRoot::new(&options.steering.kubelet_cgroup_root);
            Some(PodSockets::new(HookedPods::open(&pins)?, mount, root, hooked).run(stop.clone()))
        }
        (Some(_), None) => {
            warn!("--pod-sockets on does nothing without socket hooks; see --cgroup");
            None
        }
        (None, _) => None,
    };
    let programs = datapath.programs()?;
    register_collectors(&mut metrics, Counters::open(pins.clone())?, programs, source.clone(), events.clone());

    let (steering, Ends { feed: steer, writes, open, direct }) =
        steering(&options, &node, &pins, metrics_api, events.clone())?;
    steering.register(&mut metrics, View::open(pins.clone())?);
    let values = effective::found(values, &effective::on_node(&node, cgroup.as_deref(), &capacity));
    let file = options.service.config.as_deref();
    let weights = steering.router().merge(effective::router(values, file, in_force.clone(), steering.in_force()));

    let pressure = PressureMetrics::register(&mut metrics);
    let pressure = PressureWatch::new(View::open(pins.clone())?, pressure, events.clone(), &node);
    let (stage_file, stage) = StageFile::open(&options.stage, !options.source.service_proxy_name.is_empty())?;
    let (port_watch, host_ports) =
        PortWatch::begin(Counters::open(pins.clone())?, events.clone(), &node, stage.clone());
    let settings = settings(&options, &node, cgroup, capacity, &datapath, host_ports, stage)?;
    let all = options.steering.mesh_key_file.is_some() || options.service.config.is_some();
    let steered = Steered::new(steer, in_force, (open, direct), all, options.service.spread.into());
    let stranded = Arc::new(Notify::new());
    let sweeper = sweeper.run(Arc::clone(&stranded), stop.clone());
    let port_watch = future::join(port_watch.run(stop.clone()), stage_file.run(stop.clone()));
    let pressure = pressure.run(stop.clone());
    let outlets = Outlets {
        status,
        health_checks,
        events: events.clone(),
        metrics: writer_metrics,
        kube_proxy,
        stranded,
        steered,
    };
    let writer_task = Writer::new(datapath, settings, outlets)?;
    let (found, interfaces) = watch::channel(Vec::new());

    let source_name = if options.source.static_file.is_some() { "static-file" } else { "api-server" };
    let probes: Arc<dyn Probes> = Arc::new(AgentProbes { source, writer, source_name });
    let admin = admin::open(&options.process.admin, &pins);
    let admin = admin::serve(admin, Arc::clone(&probes), weights, stop.clone());
    let manager = service_manager::tell(Arc::clone(&probes), stop.clone())?;
    let service_health = HealthCheckServers::new(&node, Arc::clone(&probes), events);
    let service_health = service_health.run(wanted_health_checks, stop.clone());
    let health = health.serve(health_router(probes, &probe_counters), stop.clone());
    let scrapes = scrapes.serve(metrics_router(Arc::new(metrics), "weir"), stop.clone());
    let page = page::serve(options.page.clone(), steering.picture(), stop.clone());
    let pod_sockets = OptionFuture::from(pod_sockets);
    let servers = tokio::spawn(async move {
        tokio::join!(health, scrapes, admin, page, service_health, sweeper, pod_sockets, port_watch, pressure, manager)
    });

    // A thread of its own: whatever system call holds the writer up, health checks are answered and tell of it.
    let (threads, writer_stop) = (TaskTracker::new(), stop.clone());
    let write = move || Handle::current().block_on(writer_task.run(inbox, interfaces, writes, writer_stop));

    let result = tokio::select! {
        done = flatten(threads.spawn_blocking(write)) => done,
        done = flatten(tokio::spawn(feed)) => done,
        done = flatten(tokio::spawn(configuration)) => done,
        done = flatten(tokio::spawn(steering.run(stop.clone()))) => done,
        done = flatten(tokio::spawn(netlink::follow(found))) => done,
        name = signals => { info!("{name}: stopping; traffic goes on"); Ok(()) }
    };
    stop.cancel();
    let _ = servers.await;
    threads.close();
    threads.wait().await;
    result
}

async fn flatten(task: tokio::task::JoinHandle<Result<()>>) -> Result<()> {
    task.await.context("a part of the agent ended")?
}

/// Notes signals from now on; the future is done at the first of them.
fn stop_signal() -> Result<impl Future<Output = &'static str>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    })
}

/// Each is notified at every SIGHUP from now on: one for each file that is read again.
fn reload_signals() -> Result<[Arc<Notify>; 2]> {
    let mut hangup = signal(SignalKind::hangup()).context("cannot wait for SIGHUP")?;
    let readers: [Arc<Notify>; 2] = Default::default();
    let notified = readers.clone();
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            notified.iter().for_each(|reader| reader.notify_one());
        }
    });
    Ok(readers)
}

/// Whether what clients outside send may go to other nodes as it is.
fn check_external_mode(options: &Options) -> Result<()> {
    if options.service.external_mode != ExternalModeArg::Dsr {
        return Ok(());
    }
    if options.steering.mesh_key_file.is_none() {
        bail!("--external-mode dsr: agents tell each other over the mesh that they take part; set --mesh-key-file");
    }
    if !options.source.service_proxy_name.is_empty() {
        bail!(
            "--external-mode dsr: beside another proxy a connection may be its own, which only this node knows; leave \
             out --service-proxy-name or --external-mode"
        );
    }
    if options.service.masquerade != MasqueradeArg::Needed {
        bail!("--external-mode dsr keeps clients' addresses and --masquerade hides them; leave one of the two out");
    }
    Ok(())
}

/// Where the watch of pods tells which are hooked.
type PodWatch = watch::Sender<Option<WantedPods>>;

/// Both ends of the news of pods, if somebody wants them.
fn pod_sockets(options: &Options) -> Result<Option<(PodWatch, watch::Receiver<Option<WantedPods>>)>> {
    match (options.datapath.pod_sockets, &options.source.static_file) {
        (PodSocketsArg::Off, _) => Ok(None),
        (PodSocketsArg::On, None) => Ok(Some(watch::channel(None))),
        (PodSocketsArg::On, Some(_)) => {
            bail!("--pod-sockets on: a static file names no pods; leave one of the two out")
        }
    }
}

/// Where Services come from, and who is told what is wrong with them.
struct Source {
    /// Feeds the writer until it is gone.
    feed: BoxFuture<'static, Result<()>>,
    events: Events,
    /// Only of an API server.
    metrics_api: Option<MetricsApi>,
}

/// The file or the API server.
async fn open_source(
    options: SourceOptions,
    node: &str,
    (changes, status, reload): (mpsc::Sender<Event>, StatusWriter, Arc<Notify>),
    checks: CheckMetrics,
    pod_watch: Option<PodWatch>,
) -> Result<Source> {
    if let Some(path) = options.static_file {
        let feed = endpoint_checks::follow(path, changes, status, reload, checks).boxed();
        return Ok(Source { feed, events: Events::disabled(), metrics_api: None });
    }
    let client = ClientOptions {
        kubeconfig: options.kubeconfig.or_else(default_kubeconfig),
        context: options.context,
        api_servers: options.api_server,
    };
    let client = client::connect(&client).await?;
    let events = Events::start(client.clone(), node);
    let metrics_api = Some(MetricsApi::new(client.clone()));
    let watch = WatchOptions { service_proxy_name: options.service_proxy_name, ..WatchOptions::default() };
    let warnings = events.clone();
    let node = node.to_owned();
    let follow = async move {
        let pods = OptionFuture::from(pod_watch.map(|sink| pods::follow(client.clone(), &node, &watch, sink)));
        future::join(kube::run(client.clone(), watch.clone(), changes, status, warnings), pods).await;
        Ok(())
    };
    Ok(Source { feed: follow.boxed(), events, metrics_api })
}

/// As kubectl does, for an agent that is run by hand.
fn default_kubeconfig() -> Option<PathBuf> {
    std::env::var_os("KUBECONFIG").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// The loop that follows the load.
fn steering(
    options: &Options,
    node: &str,
    pins: &PinDir,
    metrics_api: Option<MetricsApi>,
    events: Events,
) -> Result<(SteeringLoop, Ends)> {
    let args::SteeringOptions { mesh_key_file, mesh_port, node_cgroup, kubelet_cgroup_root } = options.steering.clone();
    let steering = SteeringOptions {
        node: node.into(),
        signals: NodeOptions { group: node_cgroup, ..NodeOptions::default() },
        kubelet_root: kubelet_cgroup_root,
        idle: host::tick_clock()?.ticks(Duration::from_secs(options.datapath.udp_idle.into())),
        metrics_api,
        events,
        metrics_services: options.process.metrics.metrics_services,
    };
    let key = mesh_key_file.map(|file| Key { file, port: mesh_port });
    SteeringLoop::new(steering, || View::open(pins.clone()), key)
}

fn settings(
    options: &Options,
    node: &str,
    cgroup: Option<PathBuf>,
    capacity: Capacity,
    datapath: &Datapath,
    host_ports: watch::Receiver<PortSet>,
    stage: CurrentStage,
) -> Result<Settings> {
    let DatapathOptions {
        pin_dir: _,
        nic,
        pod_interface,
        ignore_interface,
        no_xdp,
        xdp_on_veth,
        no_tcx,
        pod_sockets,
        host_bypass,
        cgroup: _,
        snat_ports,
        drop_stale,
        udp_idle,
        tcp_idle,
        tcp_half_closed,
        flood_rate,
    } = options.datapath.clone();
    let ticks = host::tick_clock()?;
    let idle = |seconds: u32| ticks.ticks(Duration::from_secs(seconds.into())).max(1);
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    // Whoever serves Services by name leaves the others to another proxy, and their connections, too.
    let beside = stage.is_beside();
    Ok(Settings {
        plan: PlanConfig {
            node: node.into(),
            node_port_addresses: Vec::new(),
            external_ips: !options.service.no_external_ips,
            echo_replies: options.service.echo_replies,
            spread: options.service.spread.into(),
            clock: ticks,
            handing_over: BTreeSet::new(),
        },
        nodeport_addresses: options.service.nodeport_addresses.clone(),
        patterns: Patterns { nics: nic, pods: pod_interface, ignored: ignore_interface },
        attach: AttachOptions { xdp: !no_xdp, tcx: !no_tcx },
        xdp_on_veth,
        cgroup,
        capacity,
        direct: options.service.external_mode == ExternalModeArg::Dsr,
        snat_ports: snat_ports.0..=snat_ports.1,
        host_ports,
        stage,
        config: abi::Config {
            netns_cookie: host::netns_cookie()?,
            hash_seed: hash_seed(datapath)?,
            node4: abi::Addr::UNSET,
            node6: abi::Addr::UNSET,
            flags: flag(!drop_stale, abi::CONFIG_RESET_STALE)
                | flag(beside, abi::CONFIG_BESIDE)
                | flag(options.service.echo_replies, abi::CONFIG_ECHO)
                | flag(pod_sockets == PodSocketsArg::On, abi::CONFIG_POD_SOCKETS)
                | flag(host_bypass, abi::CONFIG_HOST_BYPASS)
                | options.service.masquerade.flags(),
            udp_idle: idle(udp_idle),
            tcp_idle: idle(tcp_idle),
            abi_version: abi::ABI_VERSION,
            fragment_idle: ticks.ticks(FRAGMENT_IDLE).max(1),
            service_networks: 0,
            flood: flood(flood_rate, ticks),
            tcp_half_closed: idle(tcp_half_closed.min(tcp_idle)),
            tcp_linger: ticks.ticks(TCP_LINGER).max(1),
            held_pieces: capacity.held_pieces,
            service_network: [abi::Network::UNSET; abi::SERVICE_NETWORKS],
        },
    })
}

/// New flows in a tick that are a flood, from those in a second; 0 stays 0, which is never.
fn flood(rate: u32, ticks: TickClock) -> u32 {
    let tick = ticks.duration(1).as_millis();
    let flows = u128::from(rate) * tick / Duration::from_secs(1).as_millis();
    u32::try_from(flows).unwrap_or(u32::MAX).max(rate.min(1))
}

fn cgroup_dir(option: Option<PathBuf>) -> Result<Option<PathBuf>> {
    match option {
        Some(dir) if dir.as_os_str() == "none" => Ok(None),
        Some(dir) if !dir.is_dir() => bail!("--cgroup {}: there is no such directory", dir.display()),
        Some(dir) if !host::is_cgroup(&dir) => {
            bail!("--cgroup {}: not a directory of a cgroup v2 hierarchy; see `mount -t cgroup2`", dir.display())
        }
        Some(dir) => Ok(Some(dir)),
        // Where there is none the writer says what that means.
        None => Ok(host::cgroup_root()),
    }
}

/// Drawn once per boot: another seed would send retransmissions to other backends.
fn hash_seed(datapath: &Datapath) -> Result<u64> {
    let known = datapath.config()?;
    if known.abi_version == abi::ABI_VERSION && known.hash_seed != 0 {
        return Ok(known.hash_seed);
    }
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).map_err(|e| anyhow::anyhow!("no random numbers: {e}"))?;
    Ok(u64::from_ne_bytes(seed).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_as_many_flows_in_a_tick_as_in_its_part_of_a_second_and_never_with_0() {
        let [hz_250, hz_1000] = [4, 1].map(|jiffy| TickClock::new(Duration::from_millis(jiffy)));
        assert_eq!([flood(125_000, hz_250), flood(125_000, hz_1000)], [128_000, 32_000]);
        assert_eq!([flood(0, hz_1000), flood(1, hz_1000), flood(u32::MAX, hz_250)], [0, 1, u32::MAX]);
    }
}
