//! What must hold of a soak: nobody fails but who was at a killed pod, and everything that was taken is given back.

use serde::Serialize;

use super::census::{Census, Held};
use super::churn::Gone;
use super::traffic::{Asked, Endpoint, Failure, Missed};
use crate::claim::{Bound, Claim};

/// Seconds after which an agent knows what the API server was told, on a busy machine.
const TOLD: f64 = 2.0;
/// How many more MiB of its own, files and threads an agent may have that was never restarted: what it does now and then, connections to the
/// API server and threads that wait for files come and go.
const MEMORY: f64 = 2.0;
const FILES: f64 = 4.0;
const THREADS: f64 = 4.0;
/// Requests in each second without which nothing is proven.
const RATE: f64 = 50.0;

/// Of a hundred datagrams so many may be lost in queues that are full: floods and what they leave behind take a few seconds of each minute, in which
/// most others get through. More are lost for another reason.
const AT_FULL_QUEUES: f64 = 3.0;

/// All that the claims are about.
pub(super) struct Seen<'a> {
    pub(super) seconds: f64,
    pub(super) asked: Asked,
    pub(super) failures: &'a [Judged],
    pub(super) lost: &'a Lost,
    /// Services that did not answer in time.
    pub(super) late: usize,
    /// Of each node: at first, and at last.
    pub(super) nodes: &'a [[Census; 2]],
    /// What flows hold: before all traffic, with it and after it.
    pub(super) held: &'a [[Held; 3]],
    /// Lines of agents' logs that name a panic.
    pub(super) panics: usize,
}

/// A failure and what it comes from.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Judged {
    #[serde(flatten)]
    pub(super) failure: Failure,
    /// The pod that was gone; none: it is a failure of ours.
    pub(super) pod: Option<String>,
}

/// Datagrams without an answer, by what they come from.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Lost {
    /// Sent to a pod that was killed, until the agents knew.
    pub(super) at_killed: usize,
    /// While packets were dropped for which a CPU's queue had no room: beside a flood, and when those whom it has asked repeat their answers to it.
    pub(super) at_full_queues: usize,
    /// All others.
    pub(super) unexplained: Vec<Missed>,
}

/// What each datagram without an answer comes from.
pub(super) fn judge_lost(lost: Vec<Missed>, gone: &[Gone]) -> Lost {
    let mut judged = Lost::default();
    for one in lost {
        if gone.iter().any(|pod| is_due_to(&one.failure, pod)) {
            judged.at_killed += 1;
        } else if one.queues_dropped > 0 {
            judged.at_full_queues += 1;
        } else {
            judged.unexplained.push(one);
        }
    }
    judged
}

/// Looks for the pod whose end each failure comes from.
pub(super) fn judge(failures: Vec<Failure>, gone: &[Gone]) -> Vec<Judged> {
    let judged = |failure: Failure| {
        let pod = gone.iter().find(|pod| is_due_to(&failure, pod)).map(|pod| pod.pod.clone());
        Judged { failure, pod }
    };
    failures.into_iter().map(judged).collect()
}

/// Whether a failure comes from a pod's end. A connection that stays breaks whenever its pod goes; who asks anew may fail only
/// at a pod that was killed, and only until the agents knew.
fn is_due_to(failure: &Failure, gone: &Gone) -> bool {
    let Failure { from, until, endpoint, .. } = failure;
    let meanwhile = gone.killed && *from <= gone.told + TOLD && *until >= gone.at;
    match endpoint {
        Endpoint::Named(name) => *name == gone.pod && *until >= gone.at,
        Endpoint::At(ip) => meanwhile && gone.addresses.contains(ip),
        Endpoint::Gone => meanwhile,
        Endpoint::Unknown => false,
    }
}

/// All claims.
pub(super) fn of(seen: &Seen<'_>) -> Vec<Claim> {
    let Seen { seconds, asked, failures, lost, late, nodes, held, panics } = seen;
    let unexplained = failures.iter().filter(|judged| judged.pod.is_none()).count();
    let Asked { http, udp, lines } = asked;
    let none = |text: &str, seen: usize| Claim { text: text.into(), seen: seen as f64, bound: Bound::AtMost(0.0) };
    let mut claims = vec![
        none("requests that failed, but at a killed pod", unexplained),
        none("datagrams lost, but at a killed pod or in a queue that was full", lost.unexplained.len()),
        Claim {
            text: "datagrams of a hundred lost in a queue that was full".into(),
            seen: 100.0 * lost.at_full_queues as f64 / (*udp).max(1) as f64,
            bound: Bound::AtMost(AT_FULL_QUEUES),
        },
        none("new services that did not answer within 10 s", *late),
        none("panics of agents", *panics),
        Claim {
            text: "requests and exchanges per second".into(),
            seen: (http + udp + lines) as f64 / seconds.max(1.0),
            bound: Bound::AtLeast(RATE),
        },
    ];
    for [first, last] in *nodes {
        let differ = last.differences(first);
        let names: Vec<String> = differ.iter().map(|(name, then, now)| format!("{name} {then} to {now}")).collect();
        let list = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
        let (node, kinds) = (first.node, first.owned.len());
        claims.push(none(
            &format!("node {node}: of {kinds} numbers of entries, ports and pins, changed{list}"),
            differ.len(),
        ));
        if first.agent.id != last.agent.id {
            continue;
        }
        let agent = |what: &str, seen: f64, most: f64| Claim {
            text: format!("node {node}: {what} of the agent"),
            seen,
            bound: Bound::AtMost(most),
        };
        let memory = (last.agent.own_kib as f64 - first.agent.own_kib as f64) / 1024.0;
        claims.push(agent("more MiB of memory", memory, MEMORY));
        claims.push(agent("more open files", last.agent.files as f64 - first.agent.files as f64, FILES));
        claims.push(agent("more threads", last.agent.threads as f64 - first.agent.threads as f64, THREADS));
    }
    for [before, during, after] in *held {
        let node = before.node;
        claims.push(Claim {
            text: format!("node {node}: flows open with all traffic"),
            seen: during.flows as f64,
            bound: Bound::AtLeast(1.0),
        });
        claims.push(none(
            &format!("node {node}: more flows open than before all traffic"),
            after.flows.saturating_sub(before.flows),
        ));
        claims.push(none(
            &format!("node {node}: more source ports held than before all traffic"),
            after.source_ports.saturating_sub(before.source_ports),
        ));
    }
    claims
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::census::Process;
    use super::*;

    fn failure(from: f64, until: f64, endpoint: Endpoint) -> Failure {
        let target = "10.96.0.80:80".parse().unwrap();
        Failure { who: "a pod".into(), what: "http", target, from, until, error: "reset".into(), endpoint }
    }

    fn gone(killed: bool) -> Gone {
        let addresses = ["10.244.1.12", "fd00:244:1::12"].map(|ip| ip.parse().unwrap());
        Gone { pod: "node1-pod2".into(), addresses, at: 100.0, told: 102.0, killed }
    }

    fn is_excused(failure: Failure, killed: bool) -> bool {
        judge(vec![failure], &[gone(killed)])[0].pod.is_some()
    }

    #[test]
    fn a_request_may_fail_at_a_killed_pod_until_the_agents_know() {
        let at = |ip: &str| Endpoint::At(ip.parse().unwrap());
        assert!(is_excused(failure(99.9, 101.0, at("10.244.1.12")), true));
        assert!(is_excused(failure(101.0, 111.0, at("fd00:244:1::12")), true));
        assert!(is_excused(failure(101.0, 111.0, Endpoint::Gone), true));
        assert!(!is_excused(failure(101.0, 111.0, at("10.244.1.13")), true), "another pod");
        assert!(!is_excused(failure(98.0, 99.0, at("10.244.1.12")), true), "before");
        assert!(!is_excused(failure(105.0, 106.0, at("10.244.1.12")), true), "long after");
        assert!(!is_excused(failure(101.0, 102.0, Endpoint::Unknown), true));
    }

    #[test]
    fn a_pod_that_was_taken_out_before_it_went_excuses_only_connections_that_stayed() {
        assert!(!is_excused(failure(99.9, 101.0, Endpoint::At("10.244.1.12".parse().unwrap())), false));
        assert!(is_excused(failure(130.0, 130.0, Endpoint::Named("node1-pod2".into())), false));
        assert!(!is_excused(failure(99.0, 99.0, Endpoint::Named("node1-pod2".into())), false), "before");
        assert!(!is_excused(failure(130.0, 130.0, Endpoint::Named("node1-pod3".into())), false));
    }

    #[test]
    fn a_datagram_may_be_lost_at_a_killed_pod_or_in_a_full_queue() {
        let missed =
            |from, until, endpoint, queues_dropped| Missed { failure: failure(from, until, endpoint), queues_dropped };
        let lost = [
            missed(99.9, 101.9, Endpoint::At("10.244.1.12".parse().unwrap()), 0),
            missed(198.5, 200.5, Endpoint::Unknown, 1),
            missed(201.9, 203.9, Endpoint::Unknown, 0),
        ];
        let Lost { at_killed, at_full_queues, unexplained } = judge_lost(lost.to_vec(), &[gone(true)]);
        assert_eq!((at_killed, at_full_queues), (1, 1));
        assert_eq!(unexplained.iter().map(|one| one.failure.from).collect::<Vec<_>>(), [201.9]);
    }

    #[test]
    fn full_queues_excuse_few_datagrams() {
        let holds = |at_full_queues| {
            let asked = Asked { http: 5000, udp: 1000, lines: 0 };
            let lost = Lost { at_full_queues, ..Lost::default() };
            let (failures, nodes, held) = (&[], &[], &[]);
            let claims = of(&Seen { seconds: 60.0, asked, failures, lost: &lost, late: 0, nodes, held, panics: 0 });
            claims.iter().all(Claim::holds)
        };
        assert!(holds(30) && !holds(31));
    }

    #[test]
    fn whatever_is_not_given_back_breaks_a_claim_and_is_named() {
        let census = |own_kib, services| Census {
            node: 2,
            at: 0.0,
            agent: Process { id: 7, rss_kib: 200_000, own_kib, files: 20, threads: 5 },
            owned: BTreeMap::from([("services", services)]),
            remembered: BTreeMap::new(),
        };
        let broken = |last: Census, source_ports| {
            let asked = Asked { http: 5000, ..Asked::default() };
            let nodes = [[census(10_000, 3), last]];
            let held = [[0, 9, source_ports].map(|source_ports| Held { node: 2, flows: 1, source_ports })];
            let claims = of(&Seen {
                seconds: 60.0,
                asked,
                failures: &[],
                lost: &Lost::default(),
                late: 0,
                nodes: &nodes,
                held: &held,
                panics: 0,
            });
            claims.into_iter().filter(|claim| !claim.holds()).map(|claim| claim.text).collect::<Vec<_>>()
        };
        assert_eq!(broken(census(12_000, 3), 0), Vec::<String>::new());
        let restarted = Process { id: 8, ..census(15_000, 3).agent };
        assert_eq!(broken(Census { agent: restarted, ..census(15_000, 3) }, 0), Vec::<String>::new());
        let all = broken(census(15_000, 4), 7);
        assert_eq!(all.len(), 3, "{all:?}");
        assert!(all[0].ends_with("changed: services 3 to 4") && all[1].contains("memory"), "{all:?}");
        assert_eq!(all[2], "node 2: more source ports held than before all traffic");
    }
}
