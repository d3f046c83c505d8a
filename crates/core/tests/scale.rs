//! A big cluster stays within its budgets of time and memory. The times hold for optimised builds only.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use peak_alloc::PeakAlloc;
use weir_abi::ticks::TickClock;
use weir_core::cluster::{Cluster, Event};
use weir_core::load::{Inbound, NodeLoad, PeerReport, Sample, ServiceId, Share};
use weir_core::model::{
    Endpoint, Family, Node, NodeCapacity, ObjectName, PodUid, Protocol, Service, ServicePort, Slice, SlicePort,
};
use weir_core::ops::Capacity;
use weir_core::plan::{PlanConfig, Spread, plan};
use weir_core::settings::Settings;
use weir_core::steering::{BackendCounts, Facts, OpenCounts, PodUse, ServiceCounts, Steering, Target};
use weir_core::tables::Tables;

const SERVICES: u32 = 10_000;
const ENDPOINTS: u32 = 10;
const NODES: u32 = 500;
const MIB: usize = 1 << 20;

#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

fn name(index: u32) -> ObjectName {
    ObjectName::new(format!("team-{}", index % 40), format!("service-{index}"))
}

fn address(base: [u8; 4], index: u32) -> IpAddr {
    Ipv4Addr::from(u32::from(Ipv4Addr::from(base)) + index).into()
}

fn service(index: u32) -> Service {
    Service {
        cluster_ips: vec![address([10, 96, 0, 0], index)],
        ports: vec![ServicePort { name: "http".into(), protocol: Protocol::Tcp, port: 80, node_port: None }],
        ..Service::new(name(index))
    }
}

fn slice(index: u32) -> Slice {
    let endpoint = |n| {
        let node = Some(format!("node-{}", (index + n) % NODES).into());
        Endpoint { node, ..Endpoint::new(address([10, 128, 0, 0], index * ENDPOINTS + n)) }
    };
    let service = name(index);
    Slice {
        name: ObjectName::new(Arc::clone(&service.namespace), format!("{}-x7k2p", service.name)),
        service,
        family: Family::V4,
        ports: vec![SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: 8080 }],
        endpoints: (0..ENDPOINTS).map(endpoint).collect(),
        triggered: None,
    }
}

fn cluster() -> Cluster {
    let mut cluster = Cluster::default();
    (0..SERVICES).for_each(|index| drop(cluster.apply(Event::Service(service(index)))));
    (0..SERVICES).for_each(|index| drop(cluster.apply(Event::Slice(slice(index)))));
    for index in 0..NODES {
        let zone = format!("zone-{}", index % 3).into();
        let addresses = vec![address([192, 168, 0, 0], index)];
        let (name, capacity) = (format!("node-{index}").into(), NodeCapacity::default());
        cluster.apply(Event::Node(Node { name, zone, addresses, eligible: true, capacity }));
    }
    cluster
}

fn within(limit: Duration, what: &str, elapsed: Duration) {
    println!("{what}: {elapsed:?}");
    assert!(cfg!(debug_assertions) || elapsed < limit, "{what} took {elapsed:?}, more than {limit:?}");
}

#[test]
fn ten_thousand_services_of_ten_endpoints_fit_the_budget() {
    let config = PlanConfig {
        node: "node-1".into(),
        node_port_addresses: vec![],
        carried_addresses: BTreeSet::new(),
        external_ips: true,
        spread: Spread::LocalFirst,
        clock: TickClock::new(Duration::from_millis(4)),
        handing_over: BTreeSet::new(),
    };
    let start = ALLOCATED.current_usage();
    let mut cluster = cluster();
    let snapshot = ALLOCATED.current_usage() - start;
    println!("snapshot: {} KiB", snapshot / 1024);
    assert!(snapshot < 20 * MIB, "the snapshot takes {snapshot} bytes");

    let mut tables = Tables::new(Capacity::default());
    let clock = Instant::now();
    let mut ops = 0;
    for index in 0..SERVICES {
        let name = name(index);
        ops += tables.replace(&name, &plan(&cluster, &config, &name), 1).unwrap().ops.len();
    }
    within(Duration::from_millis(500), "plan and replace everything", clock.elapsed());
    assert!(ops > (SERVICES * ENDPOINTS) as usize);
    let ledger = ALLOCATED.current_usage() - start - snapshot;
    println!("ledger: {} KiB", ledger / 1024);
    assert!(ledger < 16 * MIB, "the ledger takes {ledger} bytes");

    let clock = Instant::now();
    for index in 0..SERVICES {
        let name = name(index);
        assert_eq!(tables.replace(&name, &plan(&cluster, &config, &name), 1).unwrap().ops, []);
    }
    within(Duration::from_millis(500), "the same again", clock.elapsed());

    let mut changed = slice(77);
    changed.endpoints.pop();
    let clock = Instant::now();
    for name in cluster.apply(Event::Slice(changed)).services {
        tables.replace(&name, &plan(&cluster, &config, &name), 1).unwrap();
    }
    within(Duration::from_millis(1), "one endpoint less", clock.elapsed());
    steer(&cluster, &config, &tables);
}

/// What the loop knows: the first of the services are used, and all nodes tell what they can take.
struct World {
    in_use: u32,
    flows: u64,
    reports: HashMap<Arc<str>, PeerReport>,
}

impl World {
    fn new() -> Self {
        let cpu = Some(Sample::fresh(Share::clamped(0.5)));
        let load = NodeLoad { cpu, capacity: 4.0, ..NodeLoad::default() };
        let report = |index| {
            let node: Arc<str> = format!("node-{index}").into();
            let rtt = Some(Duration::from_micros(200 + 50 * u64::from(index)));
            (Arc::clone(&node), PeerReport { node, load, services: vec![], rtt, age: Duration::ZERO })
        };
        Self { in_use: 0, flows: 0, reports: (0..NODES).map(report).collect() }
    }
}

impl Facts for World {
    fn own(&self) -> NodeLoad {
        self.reports["node-1"].load
    }

    fn report(&self, node: &str) -> Option<&PeerReport> {
        self.reports.get(node)
    }

    fn report_interval(&self, _node: &str) -> Duration {
        Duration::from_secs(1)
    }

    fn is_silent(&self, _node: &str) -> bool {
        false
    }

    fn is_alarmed(&self) -> bool {
        false
    }

    fn service(&self, slot: u32) -> ServiceCounts {
        let local = if slot <= self.in_use { self.flows } else { 0 };
        ServiceCounts { begun: local, local, remote: 0 }
    }

    fn backend(&self, slot: u32) -> BackendCounts {
        let flows = if slot <= self.in_use * ENDPOINTS { self.flows } else { 0 };
        let gone_on = u32::try_from(flows).expect("they are few");
        BackendCounts { flows, gone_on, answered: gone_on, ..BackendCounts::default() }
    }

    fn open_flows(&self, _slot: u32, _generation: u32) -> OpenCounts {
        OpenCounts::default()
    }

    fn pod(&self, _pod: PodUid) -> Option<PodUse> {
        None
    }

    fn inbound(&self, _service: ServiceId) -> Inbound {
        Inbound::default()
    }
}

/// The loop over all services: its memory, and its part of a core while nobody and while a thousand are used.
fn steer(cluster: &Cluster, config: &PlanConfig, tables: &Tables) {
    const TICK: Duration = Duration::from_millis(250);
    const TICKS: u32 = 40;
    let mut world = World::new();
    let start = ALLOCATED.current_usage();
    let mut steering = Steering::new(Arc::clone(&config.node));
    for index in 0..SERVICES {
        let name = name(index);
        let target = |plan| {
            let (slot, backends) = tables.slots_of(&plan).expect("it was written");
            let backends: Vec<_> = backends.into_iter().map(|id| (id, tables.generation(id))).collect();
            let settings = Settings::default().of(&name, None);
            Target::new(&plan, &config.node, slot, &backends, settings, [0; 3], 1)
        };
        let targets = plan(cluster, config, &name).into_iter().map(target).collect();
        steering.put(&name, targets, &world);
    }
    let idle = ALLOCATED.current_usage() - start;
    println!("steering of {SERVICES} services: {} KiB", idle / 1024);
    assert!(idle < 24 * MIB, "steering takes {idle} bytes");

    for (in_use, budget) in [(0, 2), (1000, 10)] {
        world.in_use = in_use;
        let clock = Instant::now();
        for _ in 0..TICKS {
            world.flows += 2;
            drop(steering.tick(TICK, &world));
        }
        let part = clock.elapsed() / TICKS;
        // In thousandths of a core.
        within(TICK * budget / 1000, &format!("a tick with {in_use} services in use"), part);
    }
    println!("with 1000 in use: {} KiB more", (ALLOCATED.current_usage() - start - idle) / 1024);
}
