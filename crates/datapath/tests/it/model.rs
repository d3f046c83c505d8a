//! The kernel's selection against the reference model in `weir_core::select`, on random services and flows.

use std::collections::HashMap;
use std::env;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use weir_abi as abi;
use weir_core::ops::{Dump, FrontendKey, MapOp};
use weir_core::plan::{Selector, Spread};
use weir_core::select::{Pick, Tier, flow_hash, pick};
use weir_datapath::{Hook, MapStore};

use crate::case::{BALANCER_IP, CASES, CLUSTER_IP, Case, PORT};
use crate::node::{Device, Node, TC_REDIRECT, TC_SHOT, web};

const TABLES: u32 = 24;
const FLOWS: usize = 200;

/// A service of so many endpoints here and elsewhere, and how flows spread over them.
#[derive(Clone, Debug)]
struct Table {
    seed: u64,
    local: u8,
    remote: u8,
    spread: Option<Spread>,
    /// Used in turn if the planner's spread is not.
    weights: Vec<u32>,
    spills: [u16; abi::CLASS_COUNT],
    selector: Selector,
    /// Open flows of the backends, used in turn.
    open: Vec<u32>,
    flows: Vec<Flow>,
}

#[derive(Clone, Debug)]
struct Flow {
    case: Case,
    class: usize,
    client: u32,
    port: u16,
}

fn tables() -> impl Strategy<Value = Table> {
    let count = || prop_oneof![Just(0u8), Just(1), 2u8..=17, 0u8..=150];
    let spread = prop_oneof![Just(Some(Spread::LocalFirst)), Just(Some(Spread::Random)), Just(None), Just(None)];
    let weight = prop_oneof![Just(0u32), Just(1), 1u32..1000, any::<u32>()];
    let spill = prop_oneof![Just(0u16), Just(u16::MAX), any::<u16>()];
    let spills = [spill.clone(), spill.clone(), spill];
    let selector = prop_oneof![Just(Selector::Weights), Just(Selector::LeastConn), Just(Selector::Maglev)];
    let open = prop_oneof![0u32..4, 0u32..1000, 0..=i32::MAX as u32];
    let kernel = (selector, vec(open, 1..40));
    (any::<u64>(), count(), count(), spread, vec(weight, 1..40), spills, kernel, vec(flows(), FLOWS)).prop_map(
        |(seed, local, remote, spread, weights, spills, (selector, open), flows)| Table {
            seed,
            local,
            remote,
            spread,
            weights,
            spills,
            selector,
            open,
            flows,
        },
    )
}

fn flows() -> impl Strategy<Value = Flow> {
    let case = prop::sample::select(CASES.as_slice());
    (case, 0..abi::CLASS_COUNT, any::<u32>(), 1u16..).prop_map(|(case, class, client, port)| Flow {
        case,
        class,
        client,
        port,
    })
}

impl Flow {
    /// No two flows of a run have the same client: what an earlier one selected would stick.
    fn client(&self, number: u16) -> SocketAddr {
        let [high, low] = number.to_be_bytes();
        let random = self.client.to_be_bytes();
        let ip: IpAddr = match self.case.ip(CLUSTER_IP) {
            IpAddr::V4(_) => Ipv4Addr::new(198, 18 + (random[0] & 1), high, low).into(),
            IpAddr::V6(_) => {
                let [a, b, c, d] = random.map(u16::from);
                Ipv6Addr::new(0x2001, 0xdb8, 0x100, number, a << 8 | b, 0, 0, c << 8 | d).into()
            }
        };
        SocketAddr::new(ip, self.port)
    }

    /// Where a client of the class sends to, and where its packets meet the node.
    fn way(&self) -> (SocketAddr, Hook, Device) {
        match self.class {
            abi::CLASS_INTERNAL => (self.case.at(CLUSTER_IP, PORT), Hook::NicIn, Device::Eth0),
            abi::CLASS_EXTERNAL => (self.case.at(BALANCER_IP, PORT), Hook::NicIn, Device::Eth0),
            _ => (self.case.at(BALANCER_IP, PORT), Hook::PodIn, Device::Pod1),
        }
    }
}

fn install(node: &mut Node, table: &Table) {
    let endpoints: Vec<_> = (1..=table.local).map(|n| (1, n)).chain((1..=table.remote).map(|n| (2, n))).collect();
    node.spread(table.spread.unwrap_or(Spread::Random));
    node.release();
    node.release();
    node.serve_changed(web(), &endpoints, &[], |plan| {
        plan.selector = table.selector;
        if table.spread.is_some() {
            return;
        }
        for (tier, spill) in plan.tiers.iter_mut().zip(table.spills) {
            tier.spill = spill;
            let entries = tier.local.iter_mut().chain(&mut tier.remote);
            entries.zip(table.weights.iter().cycle()).for_each(|((_, weight), new)| *weight = *new);
        }
    });
    let config = node.datapath.config().unwrap();
    node.datapath.configure(&abi::Config { hash_seed: table.seed, ..config }).unwrap();
    let mut bases = Vec::new();
    for ((slot, _), open) in node.view.dump().unwrap().backends.iter().zip(table.open.iter().cycle()) {
        let now = node.view.backend_counters(*slot).unwrap().begun_or_failed();
        bases.push(MapOp::PutBase { id: *slot, base: now.wrapping_sub(*open) });
    }
    node.datapath.store().apply(&bases).unwrap();
}

/// Flows that a backend has open, as the kernel sees it.
fn open_flows(node: &Node, slot: u32) -> u32 {
    let counters = node.view.backend_counters(slot).unwrap();
    u32::try_from(counters.begun_or_failed().wrapping_sub(counters.base).cast_signed()).unwrap_or_default()
}

/// What the maps say, indexed for the model.
struct Maps {
    services: HashMap<u32, abi::Service>,
    backends: HashMap<u32, abi::Backend>,
    lines: HashMap<u32, abi::Line>,
    frontends: HashMap<FrontendKey, abi::Frontend>,
}

impl Maps {
    fn read(node: &Node) -> Self {
        let Dump { services, backends, lines, frontends, .. } = node.view.dump().unwrap();
        Self {
            services: services.into_iter().collect(),
            backends: backends.into_iter().collect(),
            lines: lines.into_iter().collect(),
            frontends: frontends.into_iter().collect(),
        }
    }

    /// Whether its tiers are tables, which have no locality.
    fn has_tables(&self) -> bool {
        self.services.values().any(|service| service.flags & abi::SERVICE_MAGLEV != 0)
    }

    fn model(&self, node: &Node, seed: u64, flow: &Flow, from: SocketAddr, to: SocketAddr) -> Pick {
        let protocol = flow.case.protocol.number();
        let frontend = self.frontends[&FrontendKey { address: to.ip(), port: to.port(), protocol }];
        let service = &self.services[&frontend.service];
        let seed = if service.flags & abi::SERVICE_MAGLEV != 0 { abi::MAGLEV_SEED.into() } else { seed };
        let hash = flow_hash(seed, from.ip(), to.ip(), from.port(), to.port(), protocol);
        pick(service, flow.class, hash, |id| self.lines.get(&id).copied(), |id| open_flows(node, id))
    }
}

fn compare(node: &Node, maps: &Maps, seed: u64, flow: &Flow, number: u16) -> Result<(), TestCaseError> {
    let from = flow.client(number);
    let (to, hook, device) = flow.way();
    let model = maps.model(node, seed, flow, from, to);
    let outcome = node.send(hook, device, &flow.case.first(from, to));
    match model {
        Pick::Backend { id, tier } => {
            let backend = maps.backends[&id];
            let local = backend.flags & abi::BACKEND_LOCAL != 0;
            prop_assert!(maps.has_tables() || local == (tier == Tier::Local), "{:?}", model);
            let reason = if local { abi::REASON_TO_LOCAL } else { abi::REASON_TO_REMOTE };
            prop_assert_eq!(outcome.reason, reason, "{:?} of {:?} from {}", model, flow, from);
            let expected = SocketAddr::new(backend.addr.ip(), backend.port.get());
            prop_assert_eq!(outcome.packet().destination_socket(), expected, "{:?} of {:?}", model, flow);
        }
        Pick::NoEndpoints => {
            prop_assert_eq!((outcome.verdict, outcome.reason), (TC_REDIRECT, abi::REASON_NO_ENDPOINTS));
        }
        Pick::NoneAllowed => {
            prop_assert_eq!((outcome.verdict, outcome.reason), (TC_SHOT, abi::REASON_NO_LOCAL_ENDPOINTS));
        }
        Pick::Broken => prop_assert!(false, "the planner wrote a table that leads nowhere"),
    }
    Ok(())
}

/// `WEIR_TEST_SEED` repeats a run.
pub(crate) fn seed() -> u64 {
    let given = env::var("WEIR_TEST_SEED").ok().map(|text| text.parse().expect("WEIR_TEST_SEED is a number"));
    let seed = given.unwrap_or_else(|| RandomState::new().hash_one(0));
    eprintln!("WEIR_TEST_SEED={seed}");
    seed
}

#[test]
fn the_kernel_selects_the_backend_that_the_reference_model_selects() {
    let Some(mut node) = Node::new("the kernel against the reference model") else { return };
    node.refuses();
    // Some tables have a single backend for all their flows.
    node.configure((10000, 65000), true);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed().to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let config = Config { cases: TABLES, max_shrink_iters: 200, failure_persistence: None, ..Config::default() };
    let node = std::cell::RefCell::new((&mut node, 0u16));
    TestRunner::new_with_rng(config, rng)
        .run(&tables(), |table| {
            let (node, number) = &mut *node.borrow_mut();
            install(node, &table);
            let maps = Maps::read(node);
            for flow in &table.flows {
                *number = number.wrapping_add(1);
                compare(node, &maps, table.seed, flow, *number)?;
            }
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}
