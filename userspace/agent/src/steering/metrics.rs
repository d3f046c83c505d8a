//! What the steering counts, read at each scrape. Series by node are bounded: a cluster may have thousands.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use weir_abi as abi;
use weir_core::load::{NodeLoad, Sample, Share};
use weir_core::service_series::Split;
use weir_core::steering::{Facts, SetState};
use weir_datapath::View;
use weir_mesh::Refusal;
use weir_signals::FailureKind;
use weir_telemetry::catalogue;

use super::selections::{ByService, Selections, Tiers};
use super::{Brain, Shared, locked};

/// Nodes that have series of their own: this one and the nearest that are probed. The others share [`OTHER`].
const NODES: usize = 32;
/// What the others are called together.
const OTHER: &str = "other";
/// The signal that tells of waiting, not of room.
const PRESSURE: &str = "pressure";

type Number = Gauge<f64, AtomicU64>;

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct PerTier {
    tier: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct PerService {
    service_namespace: String,
    service_name: String,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct PerPeer {
    peer: String,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct PerInput {
    peer: String,
    signal: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct PerSignal {
    signal: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct PerFailure {
    signal: &'static str,
    kind: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct PerKind {
    kind: &'static str,
}

/// See the module's description.
pub(super) struct SteeringCollector {
    brain: Shared,
    view: View,
    selections: Mutex<Selections>,
}

impl fmt::Debug for SteeringCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SteeringCollector").finish_non_exhaustive()
    }
}

impl SteeringCollector {
    pub(super) fn new(brain: Shared, view: View, selections: Selections) -> Self {
        Self { brain, view, selections: Mutex::new(selections) }
    }
}

impl Collector for SteeringCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (zone, own) = {
            let brain = locked(&self.brain);
            (brain.zone.clone(), brain.own_series.clone())
        };
        // All endpoints are looked at, which must not hold up the loop.
        let mut counted = self.selections.lock().unwrap_or_else(PoisonError::into_inner);
        let (tiers, services) = counted.count(&self.view, zone.as_deref(), own.as_deref());
        drop(counted);
        selections(tiers, &mut encoder)?;
        if let Some(services) = services {
            by_service(&services, &mut encoder)?;
        }
        let brain = locked(&self.brain);
        decisions(&brain, &mut encoder)?;
        inputs(&brain, &mut encoder)?;
        signals(&brain, &mut encoder)?;
        mesh(&brain, &mut encoder)
    }
}

fn selections(tiers: Tiers, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let Tiers { node, zone, other } = tiers;
    let family = Family::<PerTier, Counter>::default();
    for (tier, flows) in [("node", node), ("zone", zone), ("other", other)] {
        family.get_or_create(&PerTier { tier }).inc_by(flows);
    }
    catalogue::SELECTIONS.encode(encoder, &family)
}

fn by_service(services: &ByService, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let ByService { flows, open } = services;
    let (counter, gauge) = (Family::<PerService, Counter>::default(), Family::<PerService, Gauge>::default());
    for (labels, flows) in labelled(flows) {
        counter.get_or_create(&labels).inc_by(flows);
    }
    for (labels, open) in labelled(open) {
        gauge.get_or_create(&labels).set(i64::try_from(open).unwrap_or(i64::MAX));
    }
    catalogue::SERVICE_FLOWS.encode(encoder, &counter)?;
    catalogue::SERVICE_OPEN_FLOWS.encode(encoder, &gauge)
}

/// No namespace has an empty name, so no Service is taken for the others.
fn labelled(split: &Split<u64>) -> impl Iterator<Item = (PerService, u64)> {
    let own = split.own.iter().map(|(service, number)| {
        let (service_namespace, service_name) = (service.namespace.to_string(), service.name.to_string());
        (PerService { service_namespace, service_name }, *number)
    });
    let others = PerService { service_namespace: String::new(), service_name: OTHER.to_owned() };
    own.chain([(others, split.others)])
}

fn decisions(brain: &Brain, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let own = own_series(brain);
    let named = |node: &str| if own.contains(node) { node.to_owned() } else { OTHER.to_owned() };
    let (mut offered, mut spilled) = (0.0, 0.0);
    let mut weights: BTreeMap<String, f64> = BTreeMap::new();
    for state in brain.steering.states() {
        // Of several sets no one knows which flows are whose: most are to the cluster IP.
        let is_internal = |set: &&SetState<'_>| set.classes & (1 << abi::CLASS_INTERNAL) != 0;
        let (Some(set), rate) = (state.sets.iter().find(is_internal), state.rates.offered()) else { continue };
        offered += rate;
        spilled += rate * set.spill;
        for endpoint in &set.endpoints {
            *weights.entry(named(&endpoint.member.node)).or_default() += rate * endpoint.share;
        }
    }
    let ratio = |part: f64| if offered > 0.0 { part / offered } else { 0.0 };
    catalogue::SPILL.encode(encoder, &ConstGauge::new(ratio(spilled)))?;
    let family = Family::<PerPeer, Number>::default();
    // Without flows no part of them is known.
    for (node, weight) in weights.into_iter().filter(|_| offered > 0.0) {
        family.get_or_create(&PerPeer { peer: node }).set(ratio(weight));
    }
    catalogue::WEIGHT.encode(encoder, &family)?;
    catalogue::STEERED_PORTS.encode(encoder, &number(brain.steering.len()))?;
    catalogue::WEIGHT_UPDATES.encode(encoder, &ConstCounter::new(brain.decisions))?;
    catalogue::SPILLING_SERVICES.encode(encoder, &number(brain.reporter.spilling()))?;
    catalogue::SPILLS.encode(encoder, &ConstCounter::new(brain.reporter.spills()))?;
    catalogue::EJECTED_ENDPOINTS.encode(encoder, &number(brain.steering.ejected()))?;
    catalogue::EJECTIONS.encode(encoder, &ConstCounter::new(brain.steering.ejections()))
}

/// How busy nodes are as this agent knows it; of those without series of their own the mean.
fn inputs(brain: &Brain, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let own = own_series(brain);
    let mut sums: BTreeMap<(String, &'static str), (f64, f64)> = BTreeMap::new();
    let mut levels: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    let reports = brain.world.peer_states().filter_map(|(peer, report, _)| Some((&*peer.node, report?.load)));
    for (node, load) in reports.chain([(brain.steering.here(), brain.world.own())]) {
        let node = if own.contains(node) { node } else { OTHER };
        let add = |sum: &mut (f64, f64), value: f64| *sum = (sum.0 + value, sum.1 + 1.0);
        for (signal, value) in ratios(&load) {
            add(sums.entry((node.to_owned(), signal)).or_default(), value);
        }
        let level = ratios(&load).filter(|(signal, _)| *signal != PRESSURE).map(|(_, value)| value).reduce(f64::max);
        if let Some(level) = level {
            add(levels.entry(node.to_owned()).or_default(), level);
        }
    }
    let (loads, full) = (Family::<PerInput, Number>::default(), Family::<PerPeer, Number>::default());
    for ((node, signal), (sum, count)) in sums {
        loads.get_or_create(&PerInput { peer: node, signal }).set(sum / count);
    }
    for (node, (sum, count)) in levels {
        full.get_or_create(&PerPeer { peer: node }).set(sum / count);
    }
    catalogue::WEIGHT_INPUTS.encode(encoder, &loads)?;
    catalogue::LEVEL.encode(encoder, &full)
}

/// What is known of a node's load.
fn samples(load: &NodeLoad) -> impl Iterator<Item = (&'static str, Sample<Share>)> {
    let NodeLoad { cpu, memory, network, pressure, capacity: _, bandwidth: _ } = *load;
    let all = [("cpu", cpu), ("memory", memory), ("network", network), (PRESSURE, pressure)];
    all.into_iter().filter_map(|(signal, sample)| Some((signal, sample?)))
}

fn ratios(load: &NodeLoad) -> impl Iterator<Item = (&'static str, f64)> {
    samples(load).map(|(signal, sample)| (signal, sample.value.get()))
}

fn signals(brain: &Brain, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    // They grow where sources fail, and where nobody asks them.
    let now = Instant::now();
    let ages = Family::<PerSignal, Number>::default();
    for (signal, age) in brain.world.ages(now) {
        ages.get_or_create(&PerSignal { signal }).set(age.as_secs_f64());
    }
    catalogue::SIGNAL_AGE.encode(encoder, &ages)?;
    let oldest = brain.world.ages(now).map(|(_, age)| age).max();
    if let Some(age) = oldest.filter(|_| !brain.steering.is_empty()) {
        catalogue::WEIGHT_STALENESS.encode(encoder, &ConstGauge::new(age.as_secs_f64()))?;
    }
    let (reads, failures) = (Family::<PerSignal, Counter>::default(), Family::<PerFailure, Counter>::default());
    for (signal, counts, _) in brain.world.sources() {
        reads.get_or_create(&PerSignal { signal }).inc_by(counts.reads());
        for kind in FailureKind::ALL {
            let labels = PerFailure { signal, kind: kind.label() };
            failures.get_or_create(&labels).inc_by(counts.failures(kind));
        }
    }
    catalogue::SIGNAL_READS.encode(encoder, &reads)?;
    catalogue::SIGNAL_FAILURES.encode(encoder, &failures)
}

fn mesh(brain: &Brain, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let Some(link) = &brain.link else { return Ok(()) };
    let own = own_series(brain);
    let (rtts, ages) = (Family::<PerPeer, Number>::default(), Family::<PerPeer, Number>::default());
    let seconds = |gauge: &Family<PerPeer, Number>, node: &str, time: Option<Duration>| {
        if let Some(time) = time {
            gauge.get_or_create(&PerPeer { peer: node.to_owned() }).set(time.as_secs_f64());
        }
    };
    let (mut peers, mut silent) = (0, 0);
    for (peer, _, is_missed) in brain.world.peer_states() {
        peers += 1;
        silent += usize::from(is_missed);
        if own.contains(&*peer.node) {
            seconds(&rtts, &peer.node, peer.rtt);
            seconds(&ages, &peer.node, peer.report_age);
        }
    }
    catalogue::PROBE_RTT.encode(encoder, &rtts)?;
    catalogue::REPORT_AGE.encode(encoder, &ages)?;
    catalogue::MESH_PEERS.encode(encoder, &number(peers))?;
    catalogue::MESH_SILENT_PEERS.encode(encoder, &number(silent))?;
    let counters = link.with(|mesh, _| *mesh.counters());
    let sent = Family::<PerKind, Counter>::default();
    for (kind, count) in counters.packets() {
        sent.get_or_create(&PerKind { kind }).inc_by(count);
    }
    catalogue::MESH_PACKETS.encode(encoder, &sent)?;
    catalogue::MESH_SENT_BYTES.encode(encoder, &ConstCounter::new(counters.bytes_sent))?;
    let refused = Family::<PerKind, Counter>::default();
    for reason in Refusal::ALL {
        refused.get_or_create(&PerKind { kind: reason.label() }).inc_by(counters.refused(reason));
    }
    catalogue::MESH_REFUSED.encode(encoder, &refused)
}

/// The nodes that have series of their own.
fn own_series(brain: &Brain) -> BTreeSet<&str> {
    let mut peers: Vec<_> = brain.world.peer_states().map(|(peer, _, _)| peer).collect();
    peers.sort_by_key(|peer| (!peer.near, peer.rtt.unwrap_or(Duration::MAX), &*peer.node));
    let nearest = peers.into_iter().take(NODES - 1).map(|peer| &*peer.node);
    nearest.chain([brain.steering.here()]).collect()
}

fn number(count: usize) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use weir_mesh::Counters;
    use weir_telemetry::catalogue::Series;

    use super::*;

    #[test]
    fn the_catalogue_has_room_for_every_node_signal_and_fate_of_a_packet() {
        let most = |series: usize| Series::Most(u32::try_from(series).unwrap());
        let nodes = most(NODES + 1);
        let by_node = [catalogue::WEIGHT, catalogue::LEVEL, catalogue::PROBE_RTT, catalogue::REPORT_AGE];
        assert_eq!(by_node.map(|metric| metric.series), [nodes; 4]);
        let sample = Some(Sample { value: Share::NONE, age: Duration::ZERO });
        let [cpu, memory, network, pressure] = [sample; 4];
        let load = NodeLoad { cpu, memory, network, pressure, ..NodeLoad::default() };
        let signals = samples(&load).count();
        assert_eq!(catalogue::WEIGHT_INPUTS.series, most((NODES + 1) * signals));
        assert_eq!(catalogue::SIGNAL_AGE.series, most(signals));
        assert_eq!(catalogue::MESH_PACKETS.series, most(Counters::default().packets().len()));
        assert_eq!(catalogue::MESH_REFUSED.series, most(Refusal::ALL.len()));
    }
}
