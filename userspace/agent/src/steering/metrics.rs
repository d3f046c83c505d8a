//! What the steering counts, read at each scrape. Series by node are bounded: a cluster may have thousands.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use weir_abi as abi;
use weir_core::load::{NodeLoad, Sample, Share};
use weir_core::steering::Facts;
use weir_datapath::View;
use weir_mesh::Refusal;
use weir_signals::FailureKind;

use super::{Brain, Shared, locked};
use crate::metrics::encode;

/// Nodes that have series of their own: this one and the nearest that are probed. The others share [`OTHER`].
const NODES: usize = 32;
/// What the others are called together.
const OTHER: &str = "other";

type Number = Gauge<f64, AtomicU64>;

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct PerTier {
    tier: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct PerNode {
    node: String,
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
    selected: Mutex<Selected>,
}

impl fmt::Debug for SteeringCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SteeringCollector").finish_non_exhaustive()
    }
}

impl SteeringCollector {
    pub(super) fn new(brain: Shared, view: View) -> Self {
        Self { brain, view, selected: Mutex::default() }
    }
}

impl Collector for SteeringCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (local, remote) = self.selected.lock().unwrap_or_else(PoisonError::into_inner).count(&self.view);
        let selections = Family::<PerTier, Counter>::default();
        selections.get_or_create(&PerTier { tier: "local" }).inc_by(local);
        selections.get_or_create(&PerTier { tier: "remote" }).inc_by(remote);
        encode(&mut encoder, "selections", "New flows by where they went: this node or another one", &selections)?;
        let brain = locked(&self.brain);
        decisions(&brain, &mut encoder)?;
        signals(&brain, &mut encoder)?;
        mesh(&brain, &mut encoder)
    }
}

/// New flows of all services, summed up over the owners of a slot. Those between the last scrape and the end of a service
/// are lost.
#[derive(Debug, Default)]
struct Selected {
    seen: HashMap<u32, (u64, u64)>,
    local: u64,
    remote: u64,
}

impl Selected {
    fn count(&mut self, view: &View) -> (u64, u64) {
        let slots = (1..).map_while(|slot| Some((slot, view.service_counters(slot).ok()?)));
        for (slot, abi::ServiceCounters { local, remote, rejected: _, dropped: _ }) in slots {
            let (before_local, before_remote) = self.seen.get(&slot).copied().unwrap_or_default();
            if (local, remote) == (before_local, before_remote) {
                continue;
            }
            // A slot that changed hands counts from zero.
            let since = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
            self.local += since(local, before_local);
            self.remote += since(remote, before_remote);
            self.seen.insert(slot, (local, remote));
        }
        (self.local, self.remote)
    }
}

fn decisions(brain: &Brain, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let own = own_series(brain);
    let named = |node: &str| if own.contains(node) { node.to_owned() } else { OTHER.to_owned() };
    let (mut offered, mut spilled) = (0.0, 0.0);
    let mut weights: BTreeMap<String, f64> = BTreeMap::new();
    for state in brain.steering.states() {
        // Of several sets no one knows which flows are whose; the first is that of the cluster IP.
        let (Some(set), rate) = (state.sets.first(), state.rates.offered()) else { continue };
        offered += rate;
        spilled += rate * set.spill;
        for endpoint in &set.endpoints {
            *weights.entry(named(&endpoint.member.node)).or_default() += rate * endpoint.share;
        }
    }
    let ratio = |part: f64| if offered > 0.0 { part / offered } else { 0.0 };
    let help = "Part of the new flows of steered services that is to leave the node, by the last decision";
    encode(encoder, "spill_ratio", help, &ConstGauge::new(ratio(spilled)))?;
    let family = Family::<PerNode, Number>::default();
    for (node, weight) in weights {
        family.get_or_create(&PerNode { node }).set(ratio(weight));
    }
    encode(encoder, "weight", "Part of the new flows of steered services that is to go to a node", &family)?;
    encode(encoder, "steered_ports", "Service ports whose shares follow the load", &number(brain.steering.len()))?;
    encode(encoder, "weight_updates", "Decisions that moved shares", &ConstCounter::new(brain.decisions))?;
    let help = "Endpoints that failed, or whose node is silent, and get no new flows";
    encode(encoder, "ejected_endpoints", help, &number(brain.steering.ejected()))?;
    encode(encoder, "ejections", "Times that an endpoint was ejected", &ConstCounter::new(brain.steering.ejections()))
}

fn signals(brain: &Brain, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let NodeLoad { cpu, memory, network, pressure, capacity: _, bandwidth: _ } = brain.world.own();
    let (ages, loads) = (Family::<PerSignal, Number>::default(), Family::<PerSignal, Number>::default());
    for (signal, sample) in [("cpu", cpu), ("memory", memory), ("network", network), ("pressure", pressure)] {
        let Some(Sample::<Share> { value, age }) = sample else { continue };
        ages.get_or_create(&PerSignal { signal }).set(age.as_secs_f64());
        loads.get_or_create(&PerSignal { signal }).set(value.get());
    }
    encode(encoder, "signal_ratio", "How busy this node is, of what it has", &loads)?;
    encode(encoder, "signal_age_seconds", "Age of that; what is not told is unknown", &ages)?;
    let (reads, failures) = (Family::<PerSignal, Counter>::default(), Family::<PerFailure, Counter>::default());
    for (signal, counts, _) in brain.world.sources() {
        reads.get_or_create(&PerSignal { signal }).inc_by(counts.reads());
        for kind in FailureKind::ALL {
            let labels = PerFailure { signal, kind: kind.label() };
            failures.get_or_create(&labels).inc_by(counts.failures(kind));
        }
    }
    encode(encoder, "signal_reads", "Readings of a source", &reads)?;
    encode(encoder, "signal_failures", "Readings of a source that failed, and how", &failures)
}

fn mesh(brain: &Brain, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let Some(link) = &brain.link else { return Ok(()) };
    let own = own_series(brain);
    let (rtts, ages) = (Family::<PerNode, Number>::default(), Family::<PerNode, Number>::default());
    let seconds = |gauge: &Family<PerNode, Number>, node: &str, time: Option<Duration>| {
        if let Some(time) = time {
            gauge.get_or_create(&PerNode { node: node.to_owned() }).set(time.as_secs_f64());
        }
    };
    let (mut peers, mut silent) = (0, 0);
    for (peer, _, is_silent) in brain.world.peer_states() {
        peers += 1;
        silent += usize::from(is_silent);
        if own.contains(&*peer.node) {
            seconds(&rtts, &peer.node, peer.rtt);
            seconds(&ages, &peer.node, peer.report_age);
        }
    }
    encode(encoder, "probe_rtt_seconds", "Round-trip time to a node", &rtts)?;
    encode(encoder, "report_age_seconds", "Age of what a node told last", &ages)?;
    encode(encoder, "mesh_peers", "Nodes that may be probed", &number(peers))?;
    encode(encoder, "mesh_silent_peers", "Those of them that do not answer any more", &number(silent))?;
    let counters = link.with(|mesh, _| *mesh.counters());
    let sent = Family::<PerKind, Counter>::default();
    for (kind, count) in [
        ("probe", counters.probes_sent),
        ("reply", counters.replies_sent),
        ("answered", counters.replies_received),
        ("lost", counters.probes_lost),
        ("held_back", counters.probes_held_back),
        ("unsent", counters.unsent),
        ("clock_moved", counters.clocks_moved),
    ] {
        sent.get_or_create(&PerKind { kind }).inc_by(count);
    }
    encode(encoder, "mesh_packets", "Packets of the mesh, by what became of them", &sent)?;
    encode(encoder, "mesh_sent_bytes", "Bytes sent to other nodes", &ConstCounter::new(counters.bytes_sent))?;
    let refused = Family::<PerKind, Counter>::default();
    for reason in Refusal::ALL {
        refused.get_or_create(&PerKind { kind: reason.label() }).inc_by(counters.refused(reason));
    }
    encode(encoder, "mesh_refused", "Packets of the mesh that were dropped, and why", &refused)
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
