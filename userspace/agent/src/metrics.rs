//! All metrics of the agent. Names begin with `weir_`; what kube-proxy's dashboards ask for keeps kube-proxy's names.

use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use weir_abi as abi;
use weir_abi::names::{hook_name, reason_name};
use weir_core::model::Family as IpFamily;
use weir_datapath::Counters;
use weir_kube_watch::status::{Kind, Status};
use weir_telemetry::metrics::Metrics;

use crate::writer::{NoLocal, Waiting};

/// What the writer counts.
#[derive(Clone, Debug)]
pub(crate) struct WriterMetrics {
    programming: Histogram,
    full_sync: Gauge<f64, AtomicU64>,
    map_ops: Counter,
    services: Counter,
    interfaces: Gauge,
    refused: Gauge,
    unsteered: Gauge,
    source_ports: Gauge,
}

impl WriterMetrics {
    /// Metrics at zero, registered.
    pub(crate) fn register(metrics: &mut Metrics) -> Self {
        let new = Self {
            // From 50 microseconds to 1.6 seconds.
            programming: Histogram::new(exponential_buckets(0.000_05, 2.0, 16)),
            full_sync: Gauge::default(),
            map_ops: Counter::default(),
            services: Counter::default(),
            interfaces: Gauge::default(),
            refused: Gauge::default(),
            unsteered: Gauge::default(),
            source_ports: Gauge::default(),
        };
        let registry = metrics.weir();
        registry.register(
            "programming_duration_seconds",
            "From an event's arrival to the last map operation that it caused",
            new.programming.clone(),
        );
        registry.register("full_sync_seconds", "What the first full sync took", new.full_sync.clone());
        registry.register("map_operations", "Operations on maps", new.map_ops.clone());
        registry.register("services_programmed", "Services planned and written", new.services.clone());
        registry.register("attached_interfaces", "Interfaces with programs attached", new.interfaces.clone());
        registry.register("refused_ports", "Ports of services that cannot be served as asked", new.refused.clone());
        registry.register(
            "unsteered_ports",
            "Service ports whose new shares could not be written: their last ones stay in force",
            new.unsteered.clone(),
        );
        let source_ports = "Ports that new connections to an endpoint on another node may take as their source";
        registry.register("source_ports", source_ports, new.source_ports.clone());
        new
    }

    /// Services were written.
    pub(crate) fn programmed(&self, took: Duration, services: usize) {
        self.programming.observe(took.as_secs_f64());
        self.services.inc_by(services as u64);
    }

    /// The first sync is done.
    pub(crate) fn synced(&self, took: Duration) {
        self.full_sync.set(took.as_secs_f64());
    }

    /// Map operations were applied.
    pub(crate) fn map_ops(&self, count: usize) {
        self.map_ops.inc_by(count as u64);
    }

    /// That many interfaces are attached to.
    pub(crate) fn attached(&self, count: usize) {
        self.interfaces.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// That many ports of services cannot be served as asked.
    pub(crate) fn refused(&self, ports: usize) {
        self.refused.set(i64::try_from(ports).unwrap_or(i64::MAX));
    }

    /// That many service ports keep their last shares, since new ones could not be written.
    pub(crate) fn unsteered(&self, ports: usize) {
        self.unsteered.set(i64::try_from(ports).unwrap_or(i64::MAX));
    }

    /// New flows to other nodes may take that many ports as their source.
    pub(crate) fn source_ports(&self, ports: u32) {
        self.source_ports.set(i64::from(ports));
    }
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct PerFamily {
    ip_family: &'static str,
}

impl PerFamily {
    const ALL: [Self; 2] = [Self::of(IpFamily::V4), Self::of(IpFamily::V6)];

    /// As Kubernetes names it.
    const fn of(family: IpFamily) -> Self {
        Self { ip_family: family_name(family) }
    }
}

const fn family_name(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "IPv4",
        IpFamily::V6 => "IPv6",
    }
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct PerPolicy {
    traffic_policy: &'static str,
    ip_family: &'static str,
}

/// What kube-proxy counts, under its names (pkg/proxy/metrics/metrics.go). It has a proxy for each family, and each of
/// them takes in every change; ours writes both at once, which counts for both.
#[derive(Clone, Debug)]
pub(crate) struct KubeProxyMetrics {
    network_programming: Family<PerFamily, Histogram, fn() -> Histogram>,
    sync: Family<PerFamily, Histogram, fn() -> Histogram>,
    last_sync: Family<PerFamily, Gauge<f64, AtomicU64>>,
    last_queued: Family<PerFamily, Gauge<f64, AtomicU64>>,
    endpoint_changes: Counter,
    endpoint_changes_pending: Gauge,
    service_changes: Counter,
    service_changes_pending: Gauge,
    no_local_endpoints: Family<PerPolicy, Gauge>,
}

impl KubeProxyMetrics {
    /// Metrics at zero, registered.
    pub(crate) fn register(metrics: &mut Metrics) -> Self {
        let new = Self {
            network_programming: Family::new_with_constructor(|| Histogram::new(network_programming_buckets())),
            sync: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 15))),
            last_sync: Family::default(),
            last_queued: Family::default(),
            endpoint_changes: Counter::default(),
            endpoint_changes_pending: Gauge::default(),
            service_changes: Counter::default(),
            service_changes_pending: Gauge::default(),
            no_local_endpoints: Family::default(),
        };
        let registry = metrics.root().sub_registry_with_prefix("kubeproxy");
        let programming = "In Cluster Network Programming Latency in seconds";
        registry.register("network_programming_duration_seconds", programming, new.network_programming.clone());
        let registry = registry.sub_registry_with_prefix("sync_proxy_rules");
        registry.register("duration_seconds", "SyncProxyRules latency in seconds", new.sync.clone());
        let last = "The last time proxy rules were successfully synced";
        registry.register("last_timestamp_seconds", last, new.last_sync.clone());
        let queued = "The last time a sync of proxy rules was queued";
        registry.register("last_queued_timestamp_seconds", queued, new.last_queued.clone());
        // The library appends `_total` to the names of counters.
        let endpoints = "Cumulative proxy rules Endpoint changes";
        registry.register("endpoint_changes", endpoints, new.endpoint_changes.clone());
        let pending = "Pending proxy rules Endpoint changes";
        registry.register("endpoint_changes_pending", pending, new.endpoint_changes_pending.clone());
        registry.register("service_changes", "Cumulative proxy rules Service changes", new.service_changes.clone());
        let pending = "Pending proxy rules Service changes";
        registry.register("service_changes_pending", pending, new.service_changes_pending.clone());
        // A gauge, whatever its name says.
        let no_local = "Number of services with a Local traffic policy and no endpoints";
        registry.register("no_local_endpoints_total", no_local, new.no_local_endpoints.clone());
        new.no_local(NoLocal::default());
        // A family without members is not told at all.
        for family in &PerFamily::ALL {
            drop(new.network_programming.get_or_create(family));
            drop(new.sync.get_or_create(family));
            drop(new.last_sync.get_or_create(family));
            drop(new.last_queued.get_or_create(family));
        }
        new
    }

    /// Changes came that are to be written.
    pub(crate) fn queued(&self, changes: Waiting) {
        let Waiting { services, endpoints } = changes;
        self.service_changes.inc_by(services);
        self.endpoint_changes.inc_by(endpoints);
        let gauge = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.service_changes_pending.inc_by(gauge(services));
        self.endpoint_changes_pending.inc_by(gauge(endpoints));
        PerFamily::ALL.iter().for_each(|family| set_now(&self.last_queued.get_or_create(family)));
    }

    /// All of them are written.
    pub(crate) fn synced(&self, took: Duration) {
        self.service_changes_pending.set(0);
        self.endpoint_changes_pending.set(0);
        for family in &PerFamily::ALL {
            self.sync.get_or_create(family).observe(took.as_secs_f64());
            set_now(&self.last_sync.get_or_create(family));
        }
    }

    /// The network follows what triggered a change of endpoints, in milliseconds since the epoch. Clocks of two machines
    /// are compared: what seems to lie in the future took no time.
    pub(crate) fn programmed(&self, family: IpFamily, triggered: i64) {
        let seconds = (now() - seconds(triggered)).max(0.0);
        self.network_programming.get_or_create(&PerFamily::of(family)).observe(seconds);
    }

    /// Service ports that cannot be reached from here for want of endpoints on this node.
    pub(crate) fn no_local(&self, counts: NoLocal) {
        let NoLocal { internal, external } = counts;
        for (traffic_policy, by_family) in [("internal", internal), ("external", external)] {
            for (family, count) in [IpFamily::V4, IpFamily::V6].into_iter().zip(by_family) {
                let labels = PerPolicy { traffic_policy, ip_family: family_name(family) };
                self.no_local_endpoints.get_or_create(&labels).set(i64::from(count));
            }
        }
    }
}

/// kube-proxy's: finest where the service level objective of SIG Scalability looks.
fn network_programming_buckets() -> impl Iterator<Item = f64> {
    let linear = |first: f64, width: f64, count: u32| (0..count).map(move |i| first + width * f64::from(i));
    linear(0.25, 0.25, 2).chain(linear(1.0, 1.0, 59)).chain(linear(60.0, 5.0, 12)).chain(linear(120.0, 30.0, 7))
}

fn set_now(gauge: &Gauge<f64, AtomicU64>) {
    gauge.set(now());
}

/// Seconds since the epoch.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds of this millennium fit into a double")]
fn seconds(milliseconds: i64) -> f64 {
    milliseconds as f64 / 1000.0
}

/// Registers what is read at each scrape: the kernel's counters and the source's status.
pub(crate) fn register_collectors(metrics: &mut Metrics, counters: Counters, source: watch::Receiver<Status>) {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let build = Info::new(vec![("version", version), ("abi_version", abi::ABI_VERSION.to_string())]);
    let registry: &mut Registry = metrics.weir();
    registry.register("build", "Version of the agent", build);
    registry.register_collector(Box::new(KernelCollector(counters)));
    registry.register_collector(Box::new(SourceCollector(source)));
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Packet {
    hook: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Map {
    map: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Watched {
    kind: &'static str,
}

/// Counters by hook and reason, sizes of maps.
#[derive(Debug)]
struct KernelCollector(Counters);

impl Collector for KernelCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let packets = Family::<Packet, Counter>::default();
        let bytes = Family::<Packet, Counter>::default();
        for (hook, number) in (0..abi::HOOK_COUNT).zip(0u32..) {
            for reason in 0..abi::REASON_COUNT {
                let Ok(counter) = self.0.counter(hook, reason) else { continue };
                if counter.packets > 0 {
                    let labels = Packet { hook: hook_name(number), reason: reason_name(reason) };
                    packets.get_or_create(&labels).inc_by(counter.packets);
                    bytes.get_or_create(&labels).inc_by(counter.bytes);
                }
            }
        }
        encode(&mut encoder, "packets", "Packets by hook and by the reason why they left it", &packets)?;
        encode(&mut encoder, "bytes", "Bytes of those packets", &bytes)?;
        let lost = Counter::<u64>::default();
        lost.inc_by(self.0.lost().unwrap_or_default());
        let help = "Entries for answers of open flows that a full table had evicted and a client's packet brought back: for want of \
                    room, of which weir_flow_entries tells";
        encode(&mut encoder, "flow_evictions_seen", help, &lost)?;
        let sizes = Family::<Map, Gauge>::default();
        for map in self.0.maps().unwrap_or_default() {
            sizes.get_or_create(&Map { map: map.name }).set(i64::from(map.max_entries));
        }
        encode(&mut encoder, "map_max_entries", "Entries that a map can hold", &sizes)
    }
}

/// Watches.
#[derive(Debug)]
struct SourceCollector(watch::Receiver<Status>);

impl Collector for SourceCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let status = self.0.borrow().clone();
        let connected = Family::<Watched, Gauge>::default();
        let events = Family::<Watched, Counter>::default();
        for kind in Kind::ALL {
            let labels = Watched { kind: kind.resource() };
            connected.get_or_create(&labels).set(i64::from(status.kind(kind).connected));
            events.get_or_create(&labels).inc_by(status.kind(kind).events);
        }
        encode(&mut encoder, "watch_connected", "Whether the source of a kind can be reached", &connected)?;
        encode(&mut encoder, "watch_events", "Events of a kind", &events)?;
        let synced = ConstGauge::new(i64::from(status.synced()));
        encode(&mut encoder, "watch_synced", "Whether every kind was listed", &synced)
    }
}

pub(crate) fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> Result<(), std::fmt::Error> {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value<'a>(text: &'a str, series: &str) -> &'a str {
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {series} in\n{text}"))
    }

    #[test]
    fn changes_are_pending_until_they_are_synced_under_the_names_of_kube_proxy() {
        let mut metrics = Metrics::new();
        let kube_proxy = KubeProxyMetrics::register(&mut metrics);
        kube_proxy.queued(Waiting { services: 1, endpoints: 2 });
        kube_proxy.queued(Waiting { services: 0, endpoints: 3 });
        let text = metrics.encode().unwrap();
        assert_eq!(value(&text, "kubeproxy_sync_proxy_rules_service_changes_total"), "1");
        assert_eq!(value(&text, "kubeproxy_sync_proxy_rules_endpoint_changes_total"), "5");
        assert_eq!(value(&text, "kubeproxy_sync_proxy_rules_endpoint_changes_pending"), "5");
        assert!(text.contains("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family=\"IPv6\"} "));
        kube_proxy.synced(Duration::from_millis(3));
        let text = metrics.encode().unwrap();
        assert_eq!(value(&text, "kubeproxy_sync_proxy_rules_endpoint_changes_pending"), "0");
        assert_eq!(value(&text, "kubeproxy_sync_proxy_rules_endpoint_changes_total"), "5");
        assert_eq!(value(&text, "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}"), "1");
        assert!(text.contains("kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} "));
    }

    #[test]
    fn service_ports_without_local_endpoints_are_a_gauge_by_policy_and_family() {
        let mut metrics = Metrics::new();
        let kube_proxy = KubeProxyMetrics::register(&mut metrics);
        kube_proxy.no_local(NoLocal { internal: [1, 0], external: [0, 7] });
        let text = metrics.encode().unwrap();
        let name = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
        assert!(text.contains(&format!("# TYPE {name} gauge\n")), "{text}");
        assert_eq!(value(&text, &format!("{name}{{traffic_policy=\"internal\",ip_family=\"IPv4\"}}")), "1");
        assert_eq!(value(&text, &format!("{name}{{traffic_policy=\"external\",ip_family=\"IPv6\"}}")), "7");
        assert_eq!(value(&text, &format!("{name}{{traffic_policy=\"external\",ip_family=\"IPv4\"}}")), "0");
    }

    #[test]
    fn ports_that_are_refused_are_one_gauge() {
        let mut metrics = Metrics::new();
        WriterMetrics::register(&mut metrics).refused(3);
        assert_eq!(value(&metrics.encode().unwrap(), "weir_refused_ports"), "3");
    }

    #[test]
    fn network_programming_has_the_buckets_of_kube_proxy() {
        let buckets: Vec<f64> = network_programming_buckets().collect();
        assert_eq!(buckets.len(), 80);
        assert_eq!(buckets[..4], [0.25, 0.5, 1.0, 2.0]);
        assert_eq!(buckets[60..63], [59.0, 60.0, 65.0]);
        assert_eq!(buckets[72..], [115.0, 120.0, 150.0, 180.0, 210.0, 240.0, 270.0, 300.0]);
    }

    #[test]
    fn network_programming_takes_its_time_from_the_trigger_and_never_less_than_none() {
        let mut metrics = Metrics::new();
        let kube_proxy = KubeProxyMetrics::register(&mut metrics);
        let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap();
        kube_proxy.programmed(IpFamily::V6, now - 90_000);
        kube_proxy.programmed(IpFamily::V6, now + 90_000);
        let text = metrics.encode().unwrap();
        let bucket = |le: &str| {
            let name = "kubeproxy_network_programming_duration_seconds_bucket";
            value(&text, &format!("{name}{{le=\"{le}\",ip_family=\"IPv6\"}}")).to_owned()
        };
        assert_eq!([bucket("0.25"), bucket("85.0"), bucket("95.0"), bucket("+Inf")], ["1", "1", "2", "2"]);
    }
}
