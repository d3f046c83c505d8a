//! All metrics of the agent. Names begin with `weir_`; what kube-proxy's dashboards ask for keeps kube-proxy's names.

use std::time::Duration;

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
use weir_datapath::Counters;
use weir_kube_watch::status::{Kind, Status};
use weir_telemetry::metrics::Metrics;

/// What the writer counts.
#[derive(Clone, Debug)]
pub(crate) struct WriterMetrics {
    programming: Histogram,
    full_sync: Gauge<f64, std::sync::atomic::AtomicU64>,
    map_ops: Counter,
    services: Counter,
    interfaces: Gauge,
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

fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> Result<(), std::fmt::Error> {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}
