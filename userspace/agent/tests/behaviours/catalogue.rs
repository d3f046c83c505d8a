//! What an agent tells scrapers is what its catalogue says, and series by Service are as many as were asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use weir_telemetry::catalogue::{self, Definition, Kind, SECTIONS};
use weir_testbed::{address, wait};

use crate::harness::SOON;
use crate::harness::http::ask_agent;
use crate::harness::standalone::{self, Standalone, Web, yaml};

/// A metric as it was told.
#[derive(Debug, Default)]
struct Told {
    kind: String,
    help: String,
    /// Of all its samples.
    labels: BTreeSet<String>,
    samples: u32,
}

fn told(node: &Standalone) -> BTreeMap<String, Told> {
    let text = ask_agent(node.world.node(1), 10249, "/metrics").body;
    let mut told: BTreeMap<String, Told> = BTreeMap::new();
    let mut family = String::new();
    for line in text.lines().filter(|line| *line != "# EOF") {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            let repeated = told.insert(name.to_owned(), Told { help: help.to_owned(), ..Told::default() });
            assert!(repeated.is_none(), "{name} is told twice");
            family = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            told.get_mut(name).unwrap().kind = kind.to_owned();
        } else {
            assert!(line.starts_with(&family), "{line} follows {family}");
            let of = told.get_mut(&family).unwrap();
            of.samples += 1;
            let labels =
                line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}')).map_or("", |(labels, _)| labels);
            // No value of ours has a comma in it.
            of.labels.extend(labels.split(',').filter_map(|label| Some(label.split_once('=')?.0.to_owned())));
        }
    }
    told
}

/// The kernel measures programs, for as long as this lives.
struct Measured(String);

impl Measured {
    const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";

    fn start() -> Self {
        let before = fs::read_to_string(Self::SWITCH).unwrap();
        fs::write(Self::SWITCH, "1").unwrap();
        Self(before)
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        let _ = fs::write(Self::SWITCH, &self.0);
    }
}

/// Metrics of what a node alone does not have.
const OF_A_MESH: &str = "weir_mesh_";
const ABSENT: [&str; 2] = ["weir_probe_rtt_seconds", "weir_report_age_seconds"];
/// Metrics that tell only of what there was, and of nodes that are known. Of all others the catalogue's number is exact.
const IN_PART: [&str; 9] = [
    "weir_program_run_seconds_total",
    "weir_program_runs_total",
    "weir_packets_total",
    "weir_bytes_total",
    "weir_map_ops_total",
    "weir_weight",
    "weir_weight_inputs",
    "weir_level_ratio",
    "weir_signal_age_seconds",
];

#[test]
fn an_agent_tells_what_its_catalogue_says_and_nothing_else() {
    if !standalone::can_run("the catalogue of metrics") {
        return;
    }
    let web = Web::new("web", 42, &[1]);
    let text = yaml(std::slice::from_ref(&web))
        .replace("    clusterIPs", "    annotations: {weir.dev/policy: waterfill}\n    clusterIPs");
    let node = Standalone::start(1, &text, &["--metrics-services=1"]);
    node.assert_served(&web);
    let known = || told(&node).get("weir_flow_entries").map(|_| ()).ok_or_else(String::new);
    wait::until_some("a count of flows", SOON, known).unwrap_or_else(|e| panic!("{e}\n{}", node.agent.log()));
    let mut told = told(&node);
    for Definition { name, kind, labels, series, help } in SECTIONS.iter().flat_map(|(_, metrics)| *metrics) {
        let family =
            catalogue::find(&if *kind == Kind::Histogram { format!("{name}_sum") } else { (*name).to_owned() });
        let family = family.unwrap().family();
        let Some(found) = told.remove(family) else {
            assert!(name.starts_with(OF_A_MESH) || ABSENT.contains(name), "{name} is not told");
            continue;
        };
        assert_eq!((found.kind.as_str(), found.help), (kind.name(), format!("{help}.")), "{name}");
        let expected: BTreeSet<String> = labels.iter().map(|label| (*label).to_owned()).collect();
        let mut labels = found.labels;
        labels.remove("le");
        assert!(found.samples == 0 || labels == expected, "{name} has {labels:?}, not {expected:?}");
        if let catalogue::Series::Most(most) = series {
            assert!(found.samples <= *most, "{name} has {} series, and may have {most}", found.samples);
            assert!(
                found.samples == *most || IN_PART.contains(name),
                "{name} has {} series, not {most}",
                found.samples
            );
        }
    }
    assert!(told.is_empty(), "not in the catalogue: {:?}", told.keys());
}

#[test]
fn links_and_runs_of_programs_are_told_by_what_they_are_for() {
    if !standalone::can_run("metrics of programs") {
        return;
    }
    let web = Web::new("web", 45, &[1]);
    let node = Standalone::start(1, &yaml(std::slice::from_ref(&web)), &[]);
    let metric = |series: &str| node.agent.metric(&node.world, series);
    for (hook, links) in [("nic_in", 1.0), ("nic_out", 1.0), ("pod_in", 1.0), ("pod_out", 1.0), ("connect4", 1.0)] {
        assert_eq!(metric(&format!("weir_attached_links{{hook=\"{hook}\"}}")), links, "{hook}");
    }
    assert_eq!((metric("weir_attached_interfaces"), metric("weir_unattached_interfaces")), (2.0, 0.0));
    for map in ["services", "backends", "frontends4", "frontends6"] {
        assert!(metric(&format!("weir_map_entries{{map=\"{map}\"}}")) >= 1.0, "{map}");
    }
    let measured = Measured::start();
    node.assert_served(&web);
    assert!(metric("weir_program_runs_total{program=\"weir_nic_in\"}") >= 1.0);
    assert!(metric("weir_program_run_seconds_total{program=\"weir_nic_in\"}") > 0.0);
    drop(measured);
}

/// A file with three nodes in two zones, and a Service of UDP on each.
fn zones() -> String {
    let nodes = [(1, "a"), (2, "a"), (3, "b")];
    let node = |(number, zone): (u8, &str)| {
        format!("  - {{name: node{number}, zone: {zone}, addresses: [{}]}}\n", address::node(number).v4)
    };
    let service = |(number, _): (u8, &str)| {
        let endpoint = address::pod(number, 1).v4;
        format!(
            "  - name: on-{number}\n    clusterIPs: [10.96.0.{number}]\n    ports: [{{port: 53, protocol: UDP}}]\n    \
             endpoints: [{{address: {endpoint}, node: node{number}}}]\n"
        )
    };
    let (nodes, services): (String, String) = (nodes.map(node).concat(), nodes.map(service).concat());
    format!("nodes:\n{nodes}services:\n{services}")
}

#[test]
fn new_flows_are_told_by_how_far_they_go() {
    if !standalone::can_run("tiers of new flows") {
        return;
    }
    let node = Standalone::start(1, &zones(), &[]);
    let tiers = || {
        ["node", "zone", "other"]
            .map(|tier| node.agent.metric(&node.world, &format!("weir_selections_total{{tier=\"{tier}\"}}")))
    };
    for (index, number) in [1, 2, 3].into_iter().enumerate() {
        let before = tiers();
        let send = || UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"?", (Ipv4Addr::new(10, 96, 0, number), 53));
        let counted = || {
            // From a port of its own each time: nobody need answer.
            node.world.node(1).pod(1).netns().enter(send).unwrap();
            let now = tiers();
            if now[index] > before[index] { Ok(now) } else { Err(format!("{before:?} before, {now:?} now")) }
        };
        let after = wait::until_some("a new flow to be counted", SOON, counted)
            .unwrap_or_else(|e| panic!("{e}\n{}", node.agent.log()));
        assert!(after[index + 1..].iter().all(|flows| *flows == 0.0), "nobody asked for what is farther: {after:?}");
    }
}

/// A metric by Service, as `namespace/name`.
fn by_service(node: &Standalone, name: &str) -> BTreeMap<String, f64> {
    let text = ask_agent(node.world.node(1), 10249, "/metrics").body;
    let prefix = format!("{name}{{service_namespace=\"");
    let value = |line: &str| {
        let (labels, value) = line.strip_prefix(&prefix)?.split_once("\"} ")?;
        Some((labels.replace("\",service_name=\"", "/"), value.parse().ok()?))
    };
    text.lines().filter_map(value).collect()
}

#[test]
fn flows_of_a_service_are_told_when_asked_for_and_those_of_the_rest_together() {
    if !standalone::can_run("series by Service") {
        return;
    }
    let [first, second] = [("first", 43), ("second", 44)].map(|(name, number)| Web::new(name, number, &[1]));
    let node = Standalone::start(1, &yaml(&[first.clone(), second.clone()]), &["--metrics-services=1"]);
    let flows = |service: &str| by_service(&node, "weir_service_flows_total").get(service).copied();
    // The agent looks at its counters every now and then.
    let told = |service: &str| {
        let look = || flows(service).filter(|told| *told >= 2.0).ok_or_else(String::new);
        wait::until_some("one flow in each family to be told", SOON, look).unwrap()
    };
    node.assert_served(&first);
    assert_eq!(told("default/first"), 2.0);
    node.assert_served(&second);
    assert_eq!(told("/other"), 2.0);
    assert_eq!([flows("default/first"), flows("default/second")], [Some(2.0), None]);
    let tiers = |tier: &str| node.agent.metric(&node.world, &format!("weir_selections_total{{tier=\"{tier}\"}}"));
    assert_eq!([tiers("node"), tiers("zone"), tiers("other")], [4.0, 0.0, 0.0]);

    let target: SocketAddr = first.sockets()[0];
    let held = node.world.client().enter(|| std::net::TcpStream::connect(target)).unwrap();
    let open = || {
        let open = by_service(&node, "weir_service_open_flows").get("default/first").copied();
        open.filter(|open| *open >= 1.0).ok_or_else(String::new)
    };
    wait::until_some("the open flow to be counted", SOON, open).unwrap_or_else(|e| panic!("{e}\n{}", node.agent.log()));
    drop(held);
}

#[test]
fn a_service_that_asks_for_it_has_series_of_its_own_and_each_agent_counts_from_zero() {
    if !standalone::can_run("series by Service that ask for them") {
        return;
    }
    let [first, second] = [("first", 46), ("second", 47)].map(|(name, number)| Web::new(name, number, &[1]));
    let plain = yaml(&[first.clone(), second.clone()]);
    let mut node = Standalone::start(1, &plain, &["--metrics-services=1"]);
    let flows = |node: &Standalone| by_service(node, "weir_service_flows_total");
    let told = |node: &Standalone, expected: &[(&str, f64)]| {
        let expected: BTreeMap<_, _> =
            expected.iter().map(|(service, flows)| ((*service).to_owned(), *flows)).collect();
        let look = || Some(flows(node)).filter(|told| *told == expected).ok_or_else(|| format!("{:?}", flows(node)));
        wait::until_some("the series of Services", SOON, look).unwrap_or_else(|e| panic!("{e}\n{}", node.agent.log()));
    };
    // Unused ones have theirs, too: the first flow is one more.
    told(&node, &[("/other", 0.0), ("default/first", 0.0)]);
    node.assert_served(&second);
    told(&node, &[("/other", 2.0), ("default/first", 0.0)]);
    node.write(&plain.replace("- name: second\n", "- name: second\n    annotations: {weir.dev/metrics: own}\n"));
    told(&node, &[("/other", 2.0), ("default/second", 0.0)]);
    node.assert_served(&second);
    node.assert_served(&first);
    told(&node, &[("/other", 4.0), ("default/second", 2.0)]);

    node.agent.stop();
    node.agent.start_again(&node.world);
    node.agent.await_ready(&node.world);
    told(&node, &[("/other", 0.0), ("default/second", 0.0)]);
    node.assert_served(&second);
    told(&node, &[("/other", 0.0), ("default/second", 2.0)]);
    assert_eq!(node.agent.metric(&node.world, "weir_selections_total{tier=\"node\"}"), 2.0);
}
