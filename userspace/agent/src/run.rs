//! Starts the parts, waits for a signal or the end of one of them, and stops: programs and maps stay where they are.

mod settings;
mod signals;
mod source;

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use futures::future::{self, OptionFuture};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};
use weir_datapath::{Counters, Datapath, HookedPods, PinDir, Sockets, View};
use weir_kube_watch::events::Events;
use weir_kube_watch::status::StatusWriter;
use weir_signals::NodeOptions;
use weir_signals::cgroup::kubelet::KubeletRoot;
use weir_signals::metrics_api::MetricsApi;
use weir_telemetry::effective::Value;
use weir_telemetry::listeners::{Limits, Listeners, Room};
use weir_telemetry::metrics::Metrics;
use weir_telemetry::server::{ProbeCounters, Probes, health_router, metrics_router};

use crate::args::{ExternalModeArg, MasqueradeArg, Options};
use crate::configuration::{self, Configuration};
use crate::endpoint_checks::CheckMetrics;
use crate::health_checks::{HealthCheckServers, HealthChecks};
use crate::metrics::{KubeProxyMetrics, WriterMetrics, register_collectors};
use crate::pod_sockets::PodSockets;
use crate::pressure::{PressureMetrics, PressureWatch};
use crate::probes::{AgentProbes, WriterStatus};
use crate::sockets::{SocketMetrics, SocketSweeper};
use crate::source_ports::PortWatch;
use crate::stage::StageFile;
use crate::steering::{Ends, Key, SteeringLoop, SteeringOptions};
use crate::writer::{Outlets, Steered, Writer};
use crate::{admin, args, effective, host, netlink, page, service_manager};
use source::Source;

/// Events that wait for the writer. A watch that is ahead of it waits, and the API server with it.
const QUEUE: usize = 1024;

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
    let signals = signals::stop()?;
    // Wrong options are refused before anything of the node is touched.
    check_external_mode(&options)?;
    let node = match &options.node_name {
        Some(name) => name.clone(),
        None => host::name()?,
    };
    let (configuration, in_force) = Configuration::open(options.service.config.as_deref()).await?;
    let [reload_services, reload_configuration] = signals::reload()?;
    let (changes, inbox) = mpsc::channel(QUEUE);
    let (source_status, source) = StatusWriter::new();
    let (pod_watch, hooked) = source::pod_sockets(&options)?.unzip();
    let checks = CheckMetrics::new();
    let feeding = (changes, source_status, reload_services);
    let opened = source::open(options.source.clone(), &node, feeding, checks.clone(), pod_watch);
    let Source { events, feed, metrics_api } = opened.await?;
    let cgroup = settings::cgroup_dir(options.datapath.cgroup.clone())?;
    let for_host = options.service.nodeport_addresses.iter().find(|item| item.names_loopback());
    if let (None, Some(item)) = (&cgroup, for_host) {
        warn!("--nodeport-addresses {item} is not for processes on the host without socket hooks; see --cgroup");
    }
    // A room of its own: whatever happens at the ports of Services, the kubelet gets its answers.
    let health = Listeners::bind("health checks", &options.process.health_address)?.in_room(&Room::new(Limits::PROBES));
    let scrapes = Listeners::bind("metrics", &options.process.metrics_address)?;
    let capacity = options.sizes.capacity(host::memory()?, weir_datapath::running_cpus()?);

    let pins = PinDir::new(&options.datapath.pin_dir);
    let datapath = Datapath::open(pins.clone(), &capacity)?;
    let capacity = *datapath.capacity();
    info!(node, pins = %pins.root().display(), adopted = datapath.adopted(), "weir-agent starts");

    let mut metrics = Metrics::new();
    checks.register(&mut metrics);
    let writer_metrics = WriterMetrics::register(&mut metrics);
    let kube_proxy = KubeProxyMetrics::register(&mut metrics);
    let probe_counters = ProbeCounters::register(&mut metrics);
    let configuration = configuration.follow(reload_configuration, configuration::good(&mut metrics));
    let (status, writer) = watch::channel(WriterStatus::default());
    let (health_checks, wanted_health_checks) = watch::channel(HealthChecks::default());
    let sweeper = SocketSweeper::new(Sockets::open(&pins, cgroup.is_some())?, SocketMetrics::register(&mut metrics));
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
    let counters = Counters::open(pins.clone())?;
    register_collectors(&mut metrics, counters, datapath.programs(), source.clone(), events.clone());

    let (steering, Ends { feed: steer, writes, open, direct }) =
        steering(&options, &node, &pins, metrics_api, events.clone())?;
    steering.register(&mut metrics, View::open(pins.clone())?);
    let values = effective::found(values, &effective::on_node(&node, cgroup.as_deref(), &capacity));
    let file = options.service.config.as_deref();
    let weights = steering.router().merge(effective::router(values, file, in_force.clone(), steering.in_force()));

    let pressure = PressureMetrics::register(&mut metrics);
    let pressure = PressureWatch::open(&pins, pressure, events.clone(), &node)?;
    let (stage_file, stage) = StageFile::open(&options.stage, !options.source.service_proxy_name.is_empty())?;
    let wanted = options.datapath.snat_ports.0..=options.datapath.snat_ports.1;
    let (port_watch, host_ports) =
        PortWatch::begin(Counters::open(pins.clone())?, events.clone(), &node, wanted, stage.clone());
    let settings = settings::of(&options, &node, cgroup, capacity, &datapath, (host_ports, stage))?;
    let all = options.steering.mesh_key_file.is_some() || options.service.config.is_some();
    let series = options.process.metrics.metrics_services;
    let steered = Steered::new(steer, in_force, (open, direct), all, options.service.spread.into(), series);
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
        metrics_api,
        events,
        by_service: options.process.metrics.metrics_services > 0,
    };
    let key = mesh_key_file.map(|file| Key { file, port: mesh_port });
    SteeringLoop::new(steering, || View::open(pins.clone()), key)
}
