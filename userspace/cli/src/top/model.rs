//! From two looks at a node to the rows of `weir top`. Rates are what happened between the two; after the first one there
//! are none.

use std::collections::{BTreeMap, BTreeSet};

use weir_abi::names::{reason_name, verdict_name};
use weir_telemetry::weights::{Node, Peer, Weights};

use super::sample::{Sample, ServiceSample};

/// Everything that is shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Board {
    /// Name of this node, if it is known.
    pub(crate) here: Option<String>,
    /// Why the agent says nothing; none if it does.
    pub(crate) silent: Option<String>,
    /// This node first, then the others by name.
    pub(crate) nodes: Vec<NodeRow>,
    /// In order of slots; see [`arranged`].
    pub(crate) services: Vec<ServiceRow>,
    /// Those that grow first.
    pub(crate) refusals: Vec<RefusalRow>,
}

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeRow {
    pub(crate) name: String,
    /// Whether it is this one.
    pub(crate) here: bool,
    /// How full it is: what it uses of its CPU or of its network, whichever is more. 0 to 1.
    pub(crate) level: Option<f64>,
    /// CPU in use, 0 to 1.
    pub(crate) cpu: Option<f64>,
    /// New flows of this node that it gets, in a second, as the tables divide them.
    pub(crate) flows: Option<f64>,
    /// The same as a part of all; for other nodes it is spill.
    pub(crate) share: Option<f64>,
    /// Round-trip time in seconds.
    pub(crate) rtt: Option<f64>,
    /// Whether it answered probes and does not any more.
    pub(crate) silent: bool,
}

/// A service port.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServiceRow {
    pub(crate) name: String,
    pub(crate) port: String,
    /// New flows in a second.
    pub(crate) flows: Option<f64>,
    /// The part of them that stayed on this node.
    pub(crate) local: Option<f64>,
    pub(crate) open: u64,
    /// Flows in a second that were refused, dropped or not answered.
    pub(crate) failed: Option<f64>,
    /// On this node, and all.
    pub(crate) endpoints: (usize, u32),
}

/// A reason for which packets were dropped or refused.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RefusalRow {
    pub(crate) reason: &'static str,
    pub(crate) verdict: &'static str,
    pub(crate) packets: u64,
    /// In a second.
    pub(crate) rate: Option<f64>,
}

/// What services are sorted by.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Sort {
    /// Most new flows first.
    #[default]
    Flows,
    /// Those that leave the node most first.
    Local,
    /// Most open flows first.
    Open,
    /// Most failures first.
    Failed,
    /// By name.
    Name,
}

/// Makes the rows.
pub(crate) fn board(before: Option<&Sample>, now: &Sample) -> Board {
    let window = before.map(|before| (before, now.at - before.at)).filter(|(_, seconds)| *seconds > 0.0);
    let services: Vec<(&ServiceSample, ServiceRow)> =
        now.services.iter().map(|(slot, service)| (service, service_row(*slot, service, window))).collect();
    Board {
        here: now.here.clone(),
        silent: now.agent.as_ref().err().cloned(),
        nodes: node_rows(now, &services),
        services: services.into_iter().map(|(_, row)| row).collect(),
        refusals: refusal_rows(now, window),
    }
}

/// What came in a second. Counters that went back began anew.
fn rate(now: u64, before: u64, seconds: f64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
    let more = now.saturating_sub(before) as f64;
    more / seconds
}

fn service_row(slot: u32, now: &ServiceSample, window: Option<(&Sample, f64)>) -> ServiceRow {
    let ServiceSample { name, port, created, counters, failures, open, endpoints, shares: _ } = now;
    let old = window.and_then(|(before, seconds)| Some((before.services.get(&slot)?, seconds)));
    let old = old.filter(|(old, _)| (&old.name, old.created) == (name, *created));
    let rates = old.map(|(old, seconds)| {
        let local = rate(counters.local, old.counters.local, seconds);
        let remote = rate(counters.remote, old.counters.remote, seconds);
        let refused = rate(counters.rejected, old.counters.rejected, seconds)
            + rate(counters.dropped, old.counters.dropped, seconds);
        // A backend that is new has counted from 0.
        let failed = failures
            .iter()
            .map(|(key, count)| rate(*count, old.failures.get(key).copied().unwrap_or_default(), seconds));
        (local, remote, refused + failed.sum::<f64>())
    });
    ServiceRow {
        name: name.clone(),
        port: port.clone(),
        flows: rates.map(|(local, remote, _)| local + remote),
        local: rates.and_then(|(local, remote, _)| (local + remote > 0.0).then(|| local / (local + remote))),
        open: *open,
        failed: rates.map(|(_, _, failed)| failed),
        endpoints: *endpoints,
    }
}

fn node_rows(now: &Sample, services: &[(&ServiceSample, ServiceRow)]) -> Vec<NodeRow> {
    let told = now.agent.as_ref().ok();
    let mut flows: BTreeMap<&str, f64> = BTreeMap::new();
    for (service, row) in services {
        for (node, share) in &service.shares {
            *flows.entry(node).or_default() += share * row.flows.unwrap_or_default();
        }
    }
    let all: f64 = flows.values().sum();
    let measured = services.iter().any(|(_, row)| row.flows.is_some());
    let mut names: BTreeSet<&str> = flows.keys().copied().filter(|name| !name.is_empty()).collect();
    names.extend(now.here.as_deref());
    names.extend(told.iter().flat_map(|told| told.peers.iter().map(|peer| peer.name.as_str())));
    let row = |name: &str| {
        let here = now.here.as_deref() == Some(name);
        let peer = told.and_then(|told| told.peers.iter().find(|peer| !here && peer.name == name));
        let load = if here { told.map(|told: &Weights| &told.node) } else { peer.and_then(|peer| peer.load.as_ref()) };
        let gets = flows.get(name).copied().unwrap_or_default();
        NodeRow {
            name: name.to_owned(),
            here,
            level: load.and_then(level),
            cpu: load.and_then(|load| load.cpu).map(|cpu| cpu.share),
            flows: measured.then_some(gets),
            share: (all > 0.0).then(|| gets / all),
            rtt: peer.and_then(|peer: &Peer| peer.rtt),
            silent: peer.is_some_and(|peer| peer.silent),
        }
    };
    let mut rows: Vec<NodeRow> = names.into_iter().map(row).collect();
    rows.sort_by_key(|row| !row.here);
    rows
}

fn level(load: &Node) -> Option<f64> {
    let used = [load.cpu, load.network].into_iter().flatten().map(|reading| reading.share);
    used.reduce(f64::max)
}

fn refusal_rows(now: &Sample, window: Option<(&Sample, f64)>) -> Vec<RefusalRow> {
    let row = |(reason, packets): (&usize, &u64)| RefusalRow {
        reason: reason_name(*reason),
        verdict: verdict_name(*reason),
        packets: *packets,
        rate: window
            .map(|(before, seconds)| rate(*packets, before.refusals.get(reason).copied().unwrap_or_default(), seconds)),
    };
    let mut rows: Vec<RefusalRow> = now.refusals.iter().map(row).collect();
    let growth = |row: &RefusalRow| row.rate.unwrap_or_default();
    rows.sort_by(|a, b| growth(b).total_cmp(&growth(a)).then(b.packets.cmp(&a.packets)));
    rows
}

/// The services whose name or port has the text, sorted.
pub(crate) fn arranged<'a>(
    services: &'a [ServiceRow],
    sort: Sort,
    reversed: bool,
    filter: &str,
) -> Vec<&'a ServiceRow> {
    let fits = |row: &&ServiceRow| row.name.contains(filter) || row.port.contains(filter);
    let mut rows: Vec<&ServiceRow> = services.iter().filter(fits).collect();
    let known = |value: Option<f64>| value.unwrap_or(-1.0);
    rows.sort_by(|a, b| {
        let order = match sort {
            Sort::Flows => known(b.flows).total_cmp(&known(a.flows)),
            // What nobody uses leaves nothing.
            Sort::Local => a.local.unwrap_or(2.0).total_cmp(&b.local.unwrap_or(2.0)),
            Sort::Open => b.open.cmp(&a.open),
            Sort::Failed => known(b.failed).total_cmp(&known(a.failed)),
            Sort::Name => std::cmp::Ordering::Equal,
        };
        let order = order.then_with(|| (&a.name, &a.port).cmp(&(&b.name, &b.port)));
        if reversed { order.reverse() } else { order }
    });
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::example;

    #[test]
    fn the_first_look_has_no_rates() {
        let board = board(None, &example::sample(0));
        assert_eq!(board.services.len(), 3);
        assert!(board.services.iter().all(|row| row.flows.is_none() && row.local.is_none() && row.failed.is_none()));
        assert!(board.nodes.iter().all(|node| node.flows.is_none() && node.share.is_none()));
        assert!(board.refusals.iter().all(|row| row.rate.is_none()));
        assert_eq!(board.nodes[0].level, Some(0.8), "the load is known at once");
    }

    #[test]
    fn rates_are_what_came_between_two_looks() {
        let board = board(Some(&example::sample(0)), &example::sample(2));
        let web = &board.services[0];
        assert_eq!((web.name.as_str(), web.port.as_str()), ("shop/web", "80/TCP"));
        assert_eq!((web.flows, web.local), (Some(80.0), Some(0.875)));
        assert_eq!(web.failed, Some(2.5), "refusals of endpoints, of the service, and what was dropped");
        assert_eq!((web.open, web.endpoints), (12, (1, 3)));
        let no_route = board.refusals.iter().find(|row| row.reason == "no_route").unwrap();
        assert_eq!((no_route.rate, no_route.packets, no_route.verdict), (Some(10.0), 27, "dropped"));
        assert_eq!(board.refusals[0].reason, "no_route", "what grows comes first");
    }

    #[test]
    fn nodes_get_what_the_tables_give_them_of_the_flows_that_came() {
        let board = board(Some(&example::sample(0)), &example::sample(2));
        let nodes: Vec<_> = board.nodes.iter().map(|node| (node.name.as_str(), node.here, node.silent)).collect();
        assert_eq!(nodes, [("edge-1", true, false), ("edge-2", false, false), ("edge-3", false, true)]);
        let share: f64 = board.nodes.iter().filter_map(|node| node.share).sum();
        assert!((share - 1.0).abs() < 1e-9, "{share}");
        let flows: f64 = board.nodes.iter().filter_map(|node| node.flows).sum();
        assert!((flows - 80.0).abs() < 1e-9, "{flows}");
        assert_eq!((board.nodes[1].cpu, board.nodes[1].rtt), (Some(0.25), Some(0.0008)));
    }

    #[test]
    fn a_slot_with_another_owner_begins_anew() {
        let mut before = example::sample(0);
        before.services.values_mut().for_each(|service| service.created -= 1);
        let board = board(Some(&before), &example::sample(2));
        assert!(board.services.iter().all(|row| row.flows.is_none()));
    }

    #[test]
    fn without_an_agent_nodes_are_those_of_the_maps_and_nobody_knows_their_load() {
        let silent = |seconds| Sample { agent: Err("gone".to_owned()), ..example::sample(seconds) };
        let board = board(Some(&silent(0)), &silent(2));
        assert_eq!(board.silent.as_deref(), Some("gone"));
        assert_eq!(board.here.as_deref(), Some("edge-1"));
        let nodes: Vec<_> = board.nodes.iter().map(|node| (node.name.as_str(), node.level, node.rtt)).collect();
        assert_eq!(nodes, [("edge-1", None, None), ("edge-2", None, None)]);
        assert!(board.nodes[0].share.is_some());
    }

    #[test]
    fn services_are_sorted_by_what_was_asked_for_and_filtered_by_any_part_of_their_names() {
        let board = board(Some(&example::sample(0)), &example::sample(2));
        let names = |sort, reversed, filter: &str| -> Vec<String> {
            let rows = arranged(&board.services, sort, reversed, filter);
            rows.into_iter().map(|row| format!("{} {}", row.name, row.port)).collect()
        };
        let [dns, web, web6] = ["default/dns 53/UDP", "shop/web 80/TCP", "shop/web 80/TCP v6"];
        assert_eq!(names(Sort::Flows, false, ""), [web, dns, web6]);
        assert_eq!(names(Sort::Name, false, ""), [dns, web, web6]);
        assert_eq!(names(Sort::Name, true, ""), [web6, web, dns]);
        assert_eq!(names(Sort::Failed, false, "")[0], web);
        assert_eq!(names(Sort::Local, false, "")[0], web);
        assert_eq!(names(Sort::Open, false, "")[0], web);
        assert_eq!(names(Sort::Flows, false, "web"), [web, web6]);
        assert_eq!(names(Sort::Flows, false, "UDP"), [dns]);
        assert_eq!(names(Sort::Flows, false, "nothing"), Vec::<String>::new());
    }
}
