//! A section of `docs/performance.md`: what happened, what was counted, and what must hold of it.

use std::fmt::{self, Write};

use super::Figures;
use super::census::{Census, Held};
use super::churn::tally;
use super::claims::Lost;
use super::traffic::{Asked, Failure};
use crate::claim::{self, Claim};
use crate::section::Section;

/// Failures that are quoted.
const QUOTED: usize = 20;

impl Section for Figures {
    const NAME: &'static str = "soak";

    fn claims(&self) -> &[Claim] {
        &self.claims
    }

    fn write(&self, text: &mut String) -> fmt::Result {
        let Self { origin, minutes, asked, happened, failures, lost, late, gone: _, nodes, held, samples: _, claims } =
            self;
        let Asked { http, udp, lines } = asked;
        writeln!(text, "## {minutes} minutes in which everything changes\n")?;
        writeln!(text, "{origin}. Two nodes with agents and an API server; a client")?;
        writeln!(
            text,
            "outside and a pod of each node ask all the time, in both families: {http} connections with a request,"
        )?;
        writeln!(text, "{udp} questions by datagram, {lines} exchanges over connections that stay.")?;
        writeln!(text, "The agent of node 2 was never restarted.")?;
        claim::table(text, claims)?;
        writeln!(text, "\n| meanwhile | |\n| --- | --- |")?;
        tally(happened).iter().try_for_each(|(name, count)| writeln!(text, "| {name} | {count} |"))?;
        let at_killed = failures.iter().filter(|judged| judged.pod.is_some()).count();
        writeln!(text, "| requests and connections that were at a pod when it went | {at_killed} |")?;
        let Lost { at_killed, at_full_queues, unexplained } = lost;
        writeln!(text, "| datagrams without an answer, which were sent again: at a killed pod | {at_killed} |")?;
        writeln!(text, "| while CPUs' queues dropped packets | {at_full_queues} |")?;
        writeln!(text, "| others | {} |", unexplained.len())?;
        writeln!(text, "\n| | node | at first | in the end |\n| --- | --- | --- | --- |")?;
        nodes.iter().try_for_each(|counts| node(text, counts))?;
        for [Held { node, flows, source_ports }, with, after] in held {
            writeln!(text, "| open flows; {} with all traffic | {node} | {flows} | {} |", with.flows, after.flows)?;
            writeln!(
                text,
                "| source ports held; {} with all traffic | {node} | {source_ports} | {} |",
                with.source_ports, after.source_ports
            )?;
        }
        let unexcused = failures.iter().filter(|judged| judged.pod.is_none());
        unexcused.take(QUOTED).try_for_each(|judged| failure(text, &judged.failure))?;
        unexplained.iter().take(QUOTED).try_for_each(|one| failure(text, &one.failure))?;
        late.iter().take(QUOTED).try_for_each(|late| writeln!(text, "\n* {late}"))
    }
}

fn node(text: &mut String, [first, last]: &[Census; 2]) -> fmt::Result {
    let row = |text: &mut String, name: &str, then: u64, now: u64| {
        writeln!(text, "| {name} | {} | {then} | {now} |", first.node)
    };
    row(text, "agent: resident KiB", first.agent.rss_kib, last.agent.rss_kib)?;
    row(text, "agent: of that neither files nor maps", first.agent.own_kib, last.agent.own_kib)?;
    row(text, "agent: open files", first.agent.files as u64, last.agent.files as u64)?;
    row(text, "agent: threads", first.agent.threads, last.agent.threads)?;
    rows(text, first, last, |census| &census.owned)?;
    rows(text, first, last, |census| &census.remembered)
}

fn failure(text: &mut String, failure: &Failure) -> fmt::Result {
    writeln!(
        text,
        "\n* {:.1} to {:.1} s, {} of {} at {}: {} ({:?})",
        failure.from, failure.until, failure.what, failure.who, failure.target, failure.error, failure.endpoint
    )
}

type Counts = std::collections::BTreeMap<&'static str, usize>;

fn rows(text: &mut String, first: &Census, last: &Census, of: fn(&Census) -> &Counts) -> fmt::Result {
    of(last).iter().try_for_each(|(name, now)| {
        let then = of(first).get(name).copied().unwrap_or(0);
        writeln!(text, "| {name} | {} | {then} | {now} |", first.node)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::census::Process;
    use super::super::churn::Happened;
    use super::super::claims::Judged;
    use super::super::traffic::{Endpoint, Missed};
    use super::*;
    use crate::claim::Bound;
    use crate::origin::Origin;

    fn census(own_kib: u64, services: usize) -> Census {
        Census {
            node: 2,
            at: 0.0,
            agent: Process { id: 7, rss_kib: 200_000, own_kib, files: 20, threads: 5 },
            owned: BTreeMap::from([("services", services)]),
            remembered: BTreeMap::new(),
        }
    }

    fn failed(who: &str, pod: Option<&str>) -> Judged {
        let failure = Failure {
            who: who.into(),
            what: "http",
            target: "10.96.0.10:80".parse().unwrap(),
            from: 12.0,
            until: 12.5,
            error: "timed out".into(),
            endpoint: Endpoint::Unknown,
        };
        Judged { failure, pod: pod.map(str::to_owned) }
    }

    #[test]
    fn changes_are_counted_nodes_compared_and_failures_of_ours_quoted() {
        let text = Figures {
            origin: Origin::default(),
            minutes: 24,
            asked: Asked { http: 5000, udp: 400, lines: 20 },
            happened: [1.0, 2.0].map(|from| Happened { what: "pods killed", from, until: from + 0.5 }).to_vec(),
            failures: vec![failed("the client", None), failed("a pod", Some("node1-pod2"))],
            lost: Lost {
                at_killed: 7,
                at_full_queues: 8,
                unexplained: vec![Missed { failure: failed("a pod that asks", None).failure, queues_dropped: 0 }],
            },
            late: vec!["10.96.0.11 did not answer".into()],
            gone: Vec::new(),
            nodes: vec![[census(10_000, 3), census(12_000, 4)]],
            held: vec![[1, 80, 2].map(|flows| Held { node: 2, flows, source_ports: 0 })],
            samples: Vec::new(),
            claims: vec![Claim { text: "failures".into(), seen: 1.0, bound: Bound::AtMost(0.0) }],
        }
        .text();
        for line in [
            "## 24 minutes in which everything changes",
            "| failures | at most 0.00 | 1.00 | **does not hold** |",
            "| pods killed | 2 |",
            "| datagrams without an answer, which were sent again: at a killed pod | 7 |",
            "| while CPUs' queues dropped packets | 8 |",
            "| others | 1 |",
            "* 12.0 to 12.5 s, http of a pod that asks at 10.96.0.10:80: timed out (Unknown)",
            "| requests and connections that were at a pod when it went | 1 |",
            "| agent: of that neither files nor maps | 2 | 10000 | 12000 |",
            "| services | 2 | 3 | 4 |",
            "| open flows; 80 with all traffic | 2 | 1 | 2 |",
            "| source ports held; 0 with all traffic | 2 | 0 | 0 |",
            "* 12.0 to 12.5 s, http of the client at 10.96.0.10:80: timed out (Unknown)",
            "* 10.96.0.11 did not answer",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("http of a pod at"), "{text}");
    }
}
