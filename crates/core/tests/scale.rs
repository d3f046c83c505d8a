//! A big cluster stays within its budgets of time and memory. The times hold for optimised builds only.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use weir_abi::ticks::TickClock;
use weir_core::cluster::{Cluster, Event};
use weir_core::model::{
    Endpoint, Family, Node, ObjectName, Protocol, Proxy, Service, ServicePort, Slice, SlicePort, TrafficPolicy,
};
use weir_core::ops::Capacity;
use weir_core::plan::{PlanConfig, Spread, plan};
use weir_core::tables::Tables;

const SERVICES: u32 = 10_000;
const ENDPOINTS: u32 = 10;
const NODES: u32 = 500;
const MIB: usize = 1 << 20;

/// Counts the bytes that are allocated right now.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: both functions pass their arguments on to the system's allocator and only count beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same there.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the pointer came from `alloc` above with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn name(index: u32) -> ObjectName {
    ObjectName::new(format!("team-{}", index % 40), format!("service-{index}"))
}

fn address(base: [u8; 4], index: u32) -> IpAddr {
    Ipv4Addr::from(u32::from(Ipv4Addr::from(base)) + index).into()
}

fn service(index: u32) -> Service {
    Service {
        name: name(index),
        cluster_ips: vec![address([10, 96, 0, 0], index)],
        external_ips: vec![],
        load_balancer_ips: vec![],
        ports: vec![ServicePort { name: "http".into(), protocol: Protocol::Tcp, port: 80, node_port: None }],
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Cluster,
        affinity: None,
        source_ranges: vec![],
        health_check_port: None,
        proxy: Proxy::Ours,
    }
}

fn slice(index: u32) -> Slice {
    let endpoint = |n| Endpoint {
        address: address([10, 128, 0, 0], index * ENDPOINTS + n),
        node: Some(format!("node-{}", (index + n) % NODES).into()),
        ready: true,
        serving: true,
        terminating: false,
        zone_hints: Box::default(),
        node_hints: Box::default(),
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
        cluster.apply(Event::Node(Node { name: format!("node-{index}").into(), zone, addresses, eligible: true }));
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
        external_ips: true,
        spread: Spread::LocalFirst,
        clock: TickClock::new(Duration::from_millis(4)),
        handing_over: BTreeSet::new(),
    };
    let start = ALLOCATED.load(Ordering::Relaxed);
    let mut cluster = cluster();
    let snapshot = ALLOCATED.load(Ordering::Relaxed) - start;
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
    let ledger = ALLOCATED.load(Ordering::Relaxed) - start - snapshot;
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
}
