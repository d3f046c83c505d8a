//! A node's maps made by hand, for the tests of rows: a web service in both families with a local, two remote and a
//! draining endpoint, session affinity and source ranges, and a DNS service without any.

use std::net::IpAddr;
use std::time::Duration;

use weir_abi as abi;
use weir_abi::ticks::TickClock;
use weir_core::ops::{Dump, FrontendKey, SourceRange};

use crate::args::Scope;
use crate::index::Filter;
use crate::time::Now;

const NOW_SECONDS: u32 = 100_000;
const CLOCK: TickClock = TickClock::new(Duration::from_millis(1));

/// The moment at which the maps are looked at.
pub(crate) fn now() -> Now {
    Now::new(Duration::from_secs(NOW_SECONDS.into()), CLOCK)
}

/// So many seconds ago, in ticks.
pub(crate) fn tick(seconds_ago: u32) -> u32 {
    CLOCK.at(Duration::from_secs((NOW_SECONDS - seconds_ago).into()))
}

/// A filter as the options make it; no namespace is all of them.
pub(crate) fn filter(namespace: Option<&str>, name: Option<&str>) -> Filter {
    let scope = Scope { namespace: namespace.unwrap_or("default").to_owned(), all_namespaces: namespace.is_none() };
    Filter::new(&scope, name)
}

/// An address.
pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A configuration with nothing in it but times.
pub(crate) fn config() -> abi::Config {
    abi::Config { netns_cookie: 1, hash_seed: 2, udp_idle: 60, flood: 100_000, ..abi::Config::PLAIN }
}

fn name(text: &str) -> [u8; abi::NAME_SIZE] {
    let mut bytes = [0; abi::NAME_SIZE];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes
}

/// A backend of the web service.
pub(crate) fn backend(address: &str, flags: u8, node: u32, service: u32) -> abi::Backend {
    let addr = abi::Addr::from(ip(address));
    abi::Backend { addr, port: abi::Be16::new(8080), proto: 6, flags, generation: 3, service, node }
}

fn service_name(namespace: &str, service: &str, port_name: &str, port: u16, proto: u8, family: u8) -> abi::ServiceName {
    abi::ServiceName {
        namespace: name(namespace),
        name: name(service),
        port_name: name(port_name),
        port,
        proto,
        family,
        created: NOW_SECONDS - 200,
    }
}

fn frontend(address: &str, port: u16, protocol: u8, service: u32, kind: u32) -> (FrontendKey, abi::Frontend) {
    (FrontendKey { address: ip(address), port, protocol }, abi::Frontend { service, kind })
}

const NO_TIERS: abi::Tiers = abi::Tiers { spill: 0, local: 0, remote: 0, pad: 0 };

fn line(refs: &[u32]) -> abi::Line {
    let mut line = abi::Line { cumulative: [u32::MAX; abi::LINE_ENTRIES], r#ref: [0; abi::LINE_ENTRIES] };
    let part = (1u64 << 32) / refs.len() as u64;
    for (i, r) in refs.iter().enumerate() {
        line.r#ref[i] = *r;
        if i + 1 < refs.len() {
            line.cumulative[i] = u32::try_from((i as u64 + 1) * part - 1).unwrap();
        }
    }
    line
}

/// The maps.
pub(crate) fn dump() -> Dump {
    let (used, local) = (abi::BACKEND_USED, abi::BACKEND_USED | abi::BACKEND_LOCAL);
    let cluster = abi::Tiers { spill: 6554, local: 1, remote: abi::REF_LINE | 4, pad: 0 };
    let only_local = abi::Tiers { spill: 0, local: 1, remote: 0, pad: 0 };
    let affinity = CLOCK.ticks(Duration::from_secs(10_800));
    let flags = abi::SERVICE_USED | abi::SERVICE_SOURCE_RANGES;
    let web = abi::Service { tiers: [cluster, only_local, cluster], endpoints: 3, flags, affinity, pad: 0 };
    let only = abi::Tiers { spill: 65_535, local: 0, remote: 5, pad: 0 };
    let web6 = abi::Service { tiers: [only; 3], endpoints: 1, flags: abi::SERVICE_USED, affinity: 0, pad: 0 };
    let dns = abi::Service { tiers: [NO_TIERS; 3], endpoints: 0, flags: abi::SERVICE_USED, affinity: 0, pad: 0 };
    Dump {
        services: vec![(1, web), (2, web6), (3, dns)],
        backends: vec![
            (1, backend("10.244.1.5", local, 1, 1)),
            (2, backend("10.244.2.6", used, 2, 1)),
            (3, backend("10.244.2.7", used, 2, 1)),
            (4, backend("10.244.1.9", local, 1, 1)),
            (5, backend("fd00:244::5", used, 2, 2)),
            (6, abi::Backend { generation: 4, ..backend("10.244.3.1", 0, 2, 1) }),
        ],
        lines: vec![(4, line(&[2, 3]))],
        frontends: vec![
            frontend("192.168.0.11", 30_080, 6, 1, abi::KIND_NODE_PORT),
            frontend("203.0.113.7", 80, 6, 1, abi::KIND_LOAD_BALANCER),
            frontend("10.96.0.20", 80, 6, 1, abi::KIND_CLUSTER_IP),
            frontend("fd00:96::20", 80, 6, 2, abi::KIND_CLUSTER_IP),
            frontend("10.96.0.10", 53, 17, 3, abi::KIND_CLUSTER_IP),
            frontend("10.96.0.10", 0, 0, 3, abi::KIND_UNUSED_PORT),
        ],
        service_names: vec![
            (1, service_name("shop", "web", "http", 80, 6, 4)),
            (2, service_name("shop", "web", "http", 80, 6, 6)),
            (3, service_name("default", "dns", "", 53, 17, 4)),
        ],
        node_names: vec![
            (1, abi::NodeName { name: name("edge-1"), zone: name("a") }),
            (2, abi::NodeName { name: name("edge-2"), zone: name("b") }),
        ],
        source_ranges: ["198.51.100.0/24", "192.0.2.7/32"]
            .map(|net| SourceRange { service: 1, net: net.parse().unwrap() })
            .into(),
    }
}
