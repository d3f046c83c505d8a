//! A section of `docs/performance.md`: the flood, who got through beside it, and whence failures came.

use std::fmt::{self, Write};

use super::counts::Counts;
use super::{Case, Figures, PODS, STATELESS};
use crate::claim::{self, Claim};
use crate::section::Section;

impl Section for Figures {
    const NAME: &'static str = "flood";

    fn claims(&self) -> &[Claim] {
        &self.claims
    }

    fn write(&self, text: &mut String) -> fmt::Result {
        let Self { origin, cases, claims } = self;
        writeln!(text, "## Beside a flood of SYNs\n")?;
        writeln!(text, "{origin}. One CPU sends SYNs of random sources to a service of")?;
        writeln!(
            text,
            "{PODS} endpoints as fast as it can. A client has connections to it that stay open and say nothing meanwhile: of each the node must"
        )?;
        writeln!(
            text,
            "know the flow as before, and the same endpoint answer it. The client makes new ones, with a request each."
        )?;
        claim::table(text, claims)?;
        writeln!(
            text,
            "\n| | SYNs | a second | remembered, at most | open, forgotten, broken | new, failed | median | 99 % |"
        )?;
        writeln!(text, "|{}", " --- |".repeat(8))?;
        cases.iter().try_for_each(|case| row(text, case))?;
        stateless(text, cases)?;
        writeln!(text, "\n| | what was counted meanwhile |\n| --- | --- |")?;
        for case in cases {
            let Case { reasons, client, endpoints, node, .. } = case;
            for (who, counts) in [("failures", reasons), ("client", client), ("endpoints", endpoints), ("node", node)] {
                if !counts.is_empty() {
                    writeln!(text, "| {}, {who} | {} |", case.name(), list(counts))?;
                }
            }
        }
        Ok(())
    }
}

/// Where the node did not remember all of the flood.
fn stateless(text: &mut String, cases: &[Case]) -> fmt::Result {
    if cases.iter().all(|case| case.bound().is_none()) {
        return Ok(());
    }
    let above: Vec<String> = cases.iter().filter(|case| case.is_above_bound()).map(Case::name).collect();
    let above = if above.is_empty() { "nowhere".into() } else { above.join("; ") };
    writeln!(
        text,
        "\nOf SYNs to an endpoint of the node's own no more is remembered than so many a second on a CPU (the third column: the agent's \
         default, in stateless cases `{STATELESS}`). Faster than that was the flood here: {above}."
    )
}

fn row(text: &mut String, case: &Case) -> fmt::Result {
    let Case { syns, syns_per_second, open, forgotten, broken, answered, failed, median_ms, p99_ms, .. } = case;
    let (name, new) = (case.name(), answered + failed);
    let bound = case.bound().map_or_else(|| "all".into(), |bound| format!("{bound:.0}"));
    writeln!(
        text,
        "| {name} | {syns} | {syns_per_second:.0} | {bound} | {open}, {forgotten}, {broken} | {new}, {failed} | {median_ms:.1} ms | {p99_ms:.0} ms |"
    )
}

fn list(counts: &Counts) -> String {
    let each: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    each.join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::claims;
    use super::super::counts::ADOPTED;
    use super::*;
    use crate::origin::Origin;

    fn case() -> Case {
        Case {
            family: 6,
            backend: super::super::REMOTE,
            stateless: false,
            syns: 1000,
            syns_per_second: 1000.0,
            stateless_above: 900.0,
            open: 10,
            broken: 0,
            forgotten: 0,
            due: 100,
            answered: 99,
            failed: 1,
            median_ms: 1.25,
            p99_ms: 40.0,
            reasons: Counts::from([("timed out".into(), 1)]),
            client: Counts::new(),
            endpoints: Counts::from([("SyncookiesFailed".into(), 2), ("SyncookiesSent".into(), 3)]),
            node: Counts::new(),
        }
    }

    fn text(cases: Vec<Case>) -> String {
        let claims = claims(&cases);
        Figures { origin: Origin::default(), cases, claims }.text()
    }

    #[test]
    fn a_case_has_a_row_and_a_line_for_each_who_counted_something() {
        let text = text(vec![case()]);
        for line in [
            "| IPv6, remote | 1000 | 1000 | all | 10, 0, 0 | 100, 1 | 1.2 ms | 40 ms |",
            "| IPv6, remote, failures | timed out 1 |",
            "| IPv6, remote, endpoints | SyncookiesFailed 2, SyncookiesSent 3 |",
            "| percent of the new connections that succeed, in the worst case | at least 99.00 | 99.00 | holds |",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("client |"), "{text}");
    }

    #[test]
    fn a_case_in_which_too_little_was_tried_is_none() {
        let tried = |answered| text(vec![case(), Case { answered, ..case() }]);
        assert!(tried(89).contains("in the worst case | at least 0.90 | 0.90 | holds |"), "{}", tried(89));
        assert!(tried(88).contains("in the worst case | at least 0.90 | 0.89 | **does not hold** |"), "{}", tried(88));
    }

    #[test]
    fn where_the_flood_was_faster_than_what_is_remembered_is_told() {
        let local = Case { backend: super::super::LOCAL, ..case() };
        let slow = Case { family: 4, syns_per_second: 900.0, ..local.clone() };
        let end = |cases: &[Case]| text(cases.to_vec()).split("flood here: ").nth(1).map(str::to_owned);
        let told = |cases: &[Case]| end(cases).and_then(|end| end.split_once('.').map(|(here, _)| here.to_owned()));
        assert_eq!(told(&[local.clone(), slow.clone(), case()]).as_deref(), Some("IPv6, local"));
        assert_eq!(told(&[slow, case()]).as_deref(), Some("nowhere"));
        let stateless = Case { stateless: true, ..local.clone() };
        assert_eq!(told(&[stateless]).as_deref(), Some("IPv6, local, stateless"));
        assert_eq!(told(&[Case { stateless_above: 0.0, ..local }]), None);
    }

    #[test]
    fn a_case_was_stateless_if_the_flood_was_fast_and_connections_were_met_in_their_middle() {
        let node = Counts::from([(ADOPTED.to_owned(), 90)]);
        let stateless = Case { backend: super::super::LOCAL, stateless: true, node, ..case() };
        let slow = Case { syns_per_second: 900.0, ..stateless.clone() };
        let remembered = Case { node: Counts::new(), ..stateless.clone() };
        let by_default = Case { stateless: false, ..stateless.clone() };
        let holds = |cases: [&Case; 2]| claims(&cases.map(Clone::clone)).last().is_some_and(Claim::holds);
        assert!(holds([&stateless, &stateless]));
        for other in [&slow, &remembered, &by_default] {
            assert!(!holds([&stateless, other]), "{other:?}");
        }
    }
}
