//! What the agent counts: the writer's part, and what is read at each scrape. Names and meanings are the
//! [`catalogue`]'s.

mod kube_proxy;

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use clap::Args;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use tokio::sync::watch;
use weir_abi as abi;
use weir_abi::names::{hook_name, reason_name, verdict_name};
use weir_core::ops::MapOp;
use weir_datapath::{Counters, Programs};
use weir_kube_watch::events::Events;
use weir_kube_watch::status::{Change, Kind, KindStatus, Status};
use weir_telemetry::catalogue;
use weir_telemetry::metrics::Metrics;

use crate::host;
pub(crate) use kube_proxy::KubeProxyMetrics;

/// What is told to scrapers.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct MetricsOptions {
    /// Most Services that have series of their own: new flows and open ones, for autoscaling. Those with the annotation
    /// `weir.dev/metrics: own` come first, then the others by name; all that are left share one. 0: none
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) metrics_services: usize,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Operation {
    map: &'static str,
    op: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Map {
    map: &'static str,
}

/// What the writer counts.
#[derive(Clone, Debug)]
pub(crate) struct WriterMetrics {
    programming: Histogram,
    full_sync: Gauge<f64, AtomicU64>,
    map_ops: Family<Operation, Counter>,
    map_entries: Family<Map, Gauge>,
    services: Counter,
    interfaces: Gauge,
    unattached: Gauge,
    unwritten: Gauge,
    refused: Gauge,
    unsteered: Gauge,
    last_resort: Gauge,
    source_ports: Gauge,
}

impl WriterMetrics {
    /// Metrics at zero, registered.
    pub(crate) fn register(metrics: &mut Metrics) -> Self {
        let new = Self {
            // From 50 microseconds to 1.6 seconds.
            programming: Histogram::new(exponential_buckets(0.000_05, 2.0, 16)),
            full_sync: Gauge::default(),
            map_ops: Family::default(),
            map_entries: Family::default(),
            services: Counter::default(),
            interfaces: Gauge::default(),
            unattached: Gauge::default(),
            unwritten: Gauge::default(),
            refused: Gauge::default(),
            unsteered: Gauge::default(),
            last_resort: Gauge::default(),
            source_ports: Gauge::default(),
        };
        catalogue::PROGRAMMING_DURATION.register(metrics, new.programming.clone());
        catalogue::FULL_SYNC.register(metrics, new.full_sync.clone());
        catalogue::MAP_OPS.register(metrics, new.map_ops.clone());
        catalogue::MAP_ENTRIES.register(metrics, new.map_entries.clone());
        catalogue::SERVICES_PROGRAMMED.register(metrics, new.services.clone());
        catalogue::ATTACHED_INTERFACES.register(metrics, new.interfaces.clone());
        catalogue::UNATTACHED_INTERFACES.register(metrics, new.unattached.clone());
        catalogue::UNWRITTEN_SERVICES.register(metrics, new.unwritten.clone());
        catalogue::REFUSED_PORTS.register(metrics, new.refused.clone());
        catalogue::UNSTEERED_PORTS.register(metrics, new.unsteered.clone());
        catalogue::LAST_RESORT_PORTS.register(metrics, new.last_resort.clone());
        catalogue::SOURCE_PORTS.register(metrics, new.source_ports.clone());
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
    pub(crate) fn map_ops(&self, ops: &[MapOp]) {
        for operation in ops {
            let (map, op) = operation.names();
            self.map_ops.get_or_create(&Operation { map, op }).inc();
        }
    }

    /// So many entries of maps are taken, by their names.
    pub(crate) fn map_entries(&self, uses: impl IntoIterator<Item = (&'static str, u32)>) {
        for (map, taken) in uses {
            self.map_entries.get_or_create(&Map { map }).set(i64::from(taken));
        }
    }

    /// That many interfaces are attached to, and that many others should be.
    pub(crate) fn attached(&self, attached: usize, unattached: usize) {
        set(&self.interfaces, attached);
        set(&self.unattached, unattached);
    }

    /// That many services are not written as planned.
    pub(crate) fn unwritten(&self, services: usize) {
        set(&self.unwritten, services);
    }

    /// That many ports of services cannot be served as asked.
    pub(crate) fn refused(&self, ports: usize) {
        set(&self.refused, ports);
    }

    /// That many service ports keep their last shares, since new ones could not be written.
    pub(crate) fn unsteered(&self, ports: usize) {
        set(&self.unsteered, ports);
    }

    /// That many service ports are served by endpoints on their way out alone.
    pub(crate) fn last_resort(&self, ports: usize) {
        set(&self.last_resort, ports);
    }

    /// New flows to other nodes may take that many ports as their source.
    pub(crate) fn source_ports(&self, ports: u32) {
        self.source_ports.set(i64::from(ports));
    }
}

fn set(gauge: &Gauge, count: usize) {
    gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
}

/// Registers what is read at each scrape: the kernel's counters, the source's status, lost events.
pub(crate) fn register_collectors(
    metrics: &mut Metrics,
    counters: Counters,
    programs: Programs,
    source: watch::Receiver<Status>,
    events: Events,
) {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let build = Info::new(vec![("version", version), ("abi_version", abi::ABI_VERSION.to_string())]);
    catalogue::BUILD.register(metrics, build);
    let registry = metrics.root();
    registry.register_collector(Box::new(KernelCollector { counters, programs }));
    registry.register_collector(Box::new(SourceCollector { source, events }));
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Packet {
    hook: &'static str,
    verdict: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Dropped {
    hook: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Link {
    hook: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Program {
    program: String,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Watched {
    kind: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Changed {
    kind: &'static str,
    r#type: &'static str,
}

/// Counters by hook and reason, sizes of maps, links, and times of programs.
#[derive(Debug)]
struct KernelCollector {
    counters: Counters,
    programs: Programs,
}

impl Collector for KernelCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.packets(&mut encoder)?;
        let lost = ConstCounter::new(self.counters.lost().unwrap_or_default());
        catalogue::FLOW_EVICTIONS_SEEN.encode(&mut encoder, &lost)?;
        let adopted = ConstCounter::new(self.counters.adopted().unwrap_or_default());
        catalogue::FLOWS_ADOPTED.encode(&mut encoder, &adopted)?;
        catalogue::FLOODED_CPUS.encode(&mut encoder, &ConstGauge::new(self.flooded().unwrap_or_default()))?;
        let sizes = Family::<Map, Gauge>::default();
        for map in self.counters.maps().unwrap_or_default() {
            sizes.get_or_create(&Map { map: map.name }).set(i64::from(map.max_entries));
        }
        catalogue::MAP_MAX_ENTRIES.encode(&mut encoder, &sizes)?;
        let links = Family::<Link, Gauge>::default();
        for (hook, count) in self.counters.links().unwrap_or_default() {
            links.get_or_create(&Link { hook }).set(i64::from(count));
        }
        catalogue::ATTACHED_LINKS.encode(&mut encoder, &links)?;
        self.programs(&mut encoder)
    }
}

impl KernelCollector {
    /// None: nobody knows.
    fn flooded(&self) -> Option<i64> {
        let tick = weir_datapath::tick_clock().ok()?.at(host::uptime());
        i64::try_from(self.counters.flooded(tick).ok()?).ok()
    }

    fn packets(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        const DROPPED: &str = verdict_name(abi::REASON_COUNT);
        const UNUSED: &str = reason_name(abi::REASON_COUNT);
        let (packets, bytes) = (Family::<Packet, Counter>::default(), Family::<Packet, Counter>::default());
        let drops = Family::<Dropped, Counter>::default();
        for (hook, number) in (0..abi::HOOK_COUNT).zip(0u32..) {
            for reason in 0..abi::REASON_COUNT {
                let Ok(counter) = self.counters.counter(hook, reason) else { continue };
                let (hook, verdict, reason) = (hook_name(number), verdict_name(reason), reason_name(reason));
                if counter.packets > 0 {
                    let labels = Packet { hook, verdict, reason };
                    packets.get_or_create(&labels).inc_by(counter.packets);
                    bytes.get_or_create(&labels).inc_by(counter.bytes);
                }
                // The first drop counts in a rate only if none was told before.
                if verdict == DROPPED && reason != UNUSED {
                    drops.get_or_create(&Dropped { hook, reason }).inc_by(counter.packets);
                }
            }
        }
        catalogue::PACKETS.encode(encoder, &packets)?;
        catalogue::BYTES.encode(encoder, &bytes)?;
        catalogue::DROPS.encode(encoder, &drops)
    }

    fn programs(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let runs = Family::<Program, Counter>::default();
        let seconds = Family::<Program, Counter<f64, AtomicU64>>::default();
        // The kernel counts only when it is told to.
        for used in self.programs.uses().unwrap_or_default().into_iter().filter(|used| used.runs > 0) {
            let labels = Program { program: used.name };
            runs.get_or_create(&labels).inc_by(used.runs);
            seconds.get_or_create(&labels).inc_by(used.time.as_secs_f64());
        }
        catalogue::PROGRAM_RUNS.encode(encoder, &runs)?;
        catalogue::PROGRAM_RUN_SECONDS.encode(encoder, &seconds)
    }
}

/// Watches, and what could not be told of what they brought.
#[derive(Debug)]
struct SourceCollector {
    source: watch::Receiver<Status>,
    events: Events,
}

impl Collector for SourceCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let status = self.source.borrow().clone();
        let connected = Family::<Watched, Gauge>::default();
        let events = Family::<Changed, Counter>::default();
        for kind in Kind::ALL {
            let (kind, KindStatus { connected: is_connected, events: counts, .. }) =
                (kind.resource(), status.kind(kind));
            connected.get_or_create(&Watched { kind }).set(i64::from(*is_connected));
            for change in Change::ALL {
                events.get_or_create(&Changed { kind, r#type: change.name() }).inc_by(counts.of(change));
            }
        }
        catalogue::WATCH_CONNECTED.encode(&mut encoder, &connected)?;
        catalogue::WATCH_EVENTS.encode(&mut encoder, &events)?;
        catalogue::WATCH_SYNCED.encode(&mut encoder, &ConstGauge::new(i64::from(status.synced())))?;
        catalogue::EVENTS_DROPPED.encode(&mut encoder, &ConstCounter::new(self.events.dropped()))
    }
}

#[cfg(test)]
mod tests {
    use weir_telemetry::catalogue::Series;

    use super::*;

    /// What a series says in an answer to a scrape.
    pub(super) fn value<'a>(text: &'a str, series: &str) -> &'a str {
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {series} in\n{text}"))
    }

    #[test]
    fn the_catalogue_has_room_for_every_reason_at_every_hook() {
        let given_out = |reason: &usize| reason_name(*reason) != reason_name(abi::REASON_COUNT);
        let is_drop = |reason: &usize| verdict_name(*reason) == verdict_name(abi::REASON_COUNT);
        let series = |reasons: usize| Series::Most(u32::try_from(abi::HOOK_COUNT * reasons).unwrap());
        let reasons: Vec<_> = (0..abi::REASON_COUNT).filter(given_out).collect();
        assert_eq!([catalogue::PACKETS.series, catalogue::BYTES.series], [series(reasons.len()); 2]);
        assert_eq!(catalogue::DROPS.series, series(reasons.into_iter().filter(is_drop).count()));
    }

    #[test]
    fn the_catalogue_has_every_operation_on_every_map() {
        assert_eq!(catalogue::MAP_OPS.series, Series::Most(u32::try_from(MapOp::NAMES.len()).unwrap()));
        let meaning = catalogue::LABELS.iter().find(|label| label.key == "op").unwrap().meaning;
        for (_, op) in MapOp::NAMES {
            assert!(meaning.contains(&format!("`{op}`")), "{op} is not in: {meaning}");
        }
    }

    #[test]
    fn the_catalogue_has_every_change_of_every_kind() {
        let pairs = Kind::ALL.len() * Change::ALL.len();
        assert_eq!(catalogue::WATCH_EVENTS.series, Series::Most(u32::try_from(pairs).unwrap()));
        let meaning = catalogue::LABELS.iter().find(|label| label.key == "type").unwrap().meaning;
        for change in Change::ALL {
            assert!(meaning.contains(&format!("`{}`", change.name())), "{change:?} is not in: {meaning}");
        }
    }

    #[test]
    fn ports_that_are_refused_are_one_gauge() {
        let mut metrics = Metrics::new();
        WriterMetrics::register(&mut metrics).refused(3);
        assert_eq!(value(&metrics.encode().unwrap(), "weir_refused_ports"), "3");
    }

    #[test]
    fn operations_are_counted_by_map_and_kind_and_entries_are_as_last_told() {
        let mut metrics = Metrics::new();
        let writer = WriterMetrics::register(&mut metrics);
        writer.map_ops(&[
            MapOp::DeleteNodeName { id: 1 },
            MapOp::DeleteNodeName { id: 2 },
            MapOp::PutBase { id: 1, base: 0 },
        ]);
        writer.map_entries([("lines", 7)]);
        writer.map_entries([("lines", 3)]);
        let text = metrics.encode().unwrap();
        for (series, expected) in [
            (r#"weir_map_ops_total{map="node_names",op="delete"}"#, "2"),
            (r#"weir_map_ops_total{map="backend_counters",op="put"}"#, "1"),
            (r#"weir_map_entries{map="lines"}"#, "3"),
        ] {
            assert_eq!(value(&text, series), expected, "{series}");
        }
    }
}
