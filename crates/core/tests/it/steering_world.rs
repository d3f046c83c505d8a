//! A service with endpoints on three nodes, and a world that says of them what it is told to.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use weir_core::cluster::Cluster;
use weir_core::load::{Inbound, NodeLoad, PeerReport, Sample, ServiceId};
use weir_core::model::{Endpoint, PodUid, Service};
use weir_core::plan::plan;
use weir_core::policies::Kind;
use weir_core::settings::Settings;
use weir_core::steering::{
    BackendCounts, Facts, FlowRates, OpenCounts, PodUse, ServiceCounts, Steering, Target, Write,
};

use crate::build::{cluster, config, endpoint, name, service, slice};
use crate::policies_build::{TICK, node_load, peer};

/// A world that says what it is told to. Backends are known by slot; all flows go to the first one.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) own: NodeLoad,
    pub(crate) reports: BTreeMap<String, PeerReport>,
    pub(crate) silent: Vec<String>,
    /// Nodes without an agent.
    pub(crate) slow: Vec<String>,
    pub(crate) inbound: Inbound,
    /// Cores that each pod uses.
    pub(crate) cores: Option<f64>,
    pub(crate) rates: FlowRates,
    pub(crate) selected: RefCell<ServiceCounts>,
    pub(crate) alarmed: Cell<bool>,
    pub(crate) counts: RefCell<BTreeMap<u32, BackendCounts>>,
}

impl World {
    pub(crate) fn new(cpu: f64) -> Self {
        let report = |name: &str, rtt| (name.to_owned(), PeerReport { node: name.into(), ..peer(0, 0.1, 50.0, rtt) });
        let reports = [report("near", 1), report("far", 20)].into();
        Self { own: node_load(cpu), reports, ..Self::default() }
    }

    /// A tick's new flows.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "tens")]
    pub(crate) fn selects(&self) {
        let FlowRates { local, remote } = self.rates;
        let mut selected = self.selected.borrow_mut();
        selected.local += (local * TICK.as_secs_f64()) as u64;
        selected.remote += (remote * TICK.as_secs_f64()) as u64;
        selected.begun += ((local + remote) * TICK.as_secs_f64()) as u64;
    }

    pub(crate) fn flows(&self, backend: u32, new: u64, failed: u32) {
        let mut counts = self.counts.borrow_mut();
        let count = counts.entry(backend).or_default();
        count.flows += new;
        count.answered += u32::try_from(new).unwrap() - failed;
        count.gone_on += u32::try_from(new).unwrap() - failed;
        count.failed_over += failed;
    }
}

impl Facts for World {
    fn own(&self) -> NodeLoad {
        self.own
    }

    fn report(&self, node: &str) -> Option<&PeerReport> {
        self.reports.get(node)
    }

    fn report_interval(&self, node: &str) -> Duration {
        if self.slow.iter().any(|slow| slow == node) { Duration::from_secs(15) } else { Duration::from_secs(1) }
    }

    fn is_silent(&self, node: &str) -> bool {
        self.silent.iter().any(|silent| silent == node)
    }

    fn is_alarmed(&self) -> bool {
        self.alarmed.replace(false)
    }

    fn service(&self, _slot: u32) -> ServiceCounts {
        *self.selected.borrow()
    }

    fn backend(&self, slot: u32) -> BackendCounts {
        self.counts.borrow().get(&slot).copied().unwrap_or_default()
    }

    fn open_flows(&self, _slot: u32, _generation: u32) -> OpenCounts {
        OpenCounts::default()
    }

    fn pod(&self, _pod: PodUid) -> Option<PodUse> {
        self.cores.map(|cores| PodUse { cores: Some(Sample::fresh(cores)), ..PodUse::default() })
    }

    fn inbound(&self, _service: ServiceId) -> Inbound {
        self.inbound
    }
}

pub(crate) fn scene(change: impl FnOnce(&mut Service)) -> Cluster {
    let mut web = service("web", &["10.96.0.1"]);
    change(&mut web);
    let endpoints = [("10.0.0.1", "here"), ("10.0.0.2", "near"), ("10.0.0.3", "far")];
    let pod = "9b7b5d0a-3f6e-4f0c-8d57-0a1b2c3d4e5f".parse().ok();
    let endpoints = endpoints.map(|(address, node)| Endpoint { pod, ..endpoint(address, node) }).to_vec();
    cluster(vec![web], vec![slice("web-1", "web", endpoints)])
}

/// Slots are 11 and so on, in the order of addresses.
pub(crate) fn targets(cluster: &Cluster, kind: Kind, revision: u64) -> Vec<Target> {
    targets_held(cluster, kind, revision, 0)
}

pub(crate) fn targets_held(cluster: &Cluster, kind: Kind, revision: u64, held: u16) -> Vec<Target> {
    let here = Arc::from("here");
    let target = |plan| {
        let mut settings = Settings::default().of(&name("web"), None);
        settings.policy = kind;
        let backends: Vec<_> = (11..).take(plan_len(&plan)).map(|slot| (slot, 1)).collect();
        Target::new(&plan, &here, 7, &backends, settings, [held; 3], revision)
    };
    plan(cluster, &config(), &name("web")).into_iter().map(target).collect()
}

pub(crate) fn plan_len(plan: &weir_core::plan::ServicePlan) -> usize {
    plan.backends.len()
}

pub(crate) fn steering(cluster: &Cluster, kind: Kind, world: &World) -> Steering {
    let mut steering = Steering::new("here".into());
    steering.put(&name("web"), targets(cluster, kind, 1), world);
    steering
}

/// What is written within some time in which so many flows a second come to the backend here.
pub(crate) fn run(steering: &mut Steering, world: &World, seconds: u32) -> Vec<Write> {
    (0..seconds * 4).flat_map(|_| run_tick(steering, world)).collect()
}

pub(crate) fn run_tick(steering: &mut Steering, world: &World) -> Vec<Write> {
    world.flows(11, 25, 0);
    world.selects();
    steering.tick(TICK, world)
}

pub(crate) fn web_id() -> ServiceId {
    ServiceId::of(&name("web"), 80, weir_core::model::Protocol::Tcp)
}

/// Slots with a share of a class, this node's and those of others.
pub(crate) fn slots(write: &Write, class: usize) -> (Vec<usize>, Vec<usize>) {
    let tier = write.shares[class].as_ref().unwrap();
    let slots = |entries: &[(usize, u32)]| entries.iter().map(|(slot, _)| *slot).collect();
    (slots(&tier.local), slots(&tier.remote))
}
