//! A section of `docs/performance.md`: how new connections fare after a pod's end, and what failures they were told.

use std::fmt::{self, Write};

use super::{Figures, Known, NODES, PODS, Repetition};
use crate::claim::{self, Claim};
use crate::section::Section;

impl Section for Figures {
    const NAME: &'static str = "killed_pod";

    fn claims(&self) -> &[Claim] {
        &self.claims
    }

    fn write(&self, text: &mut String) -> fmt::Result {
        let Self { origin, repetitions, claims } = self;
        writeln!(text, "## Beside a pod that is gone without a word\n")?;
        writeln!(text, "{origin}. A client makes new connections, at a fixed rate, to a service of")?;
        writeln!(
            text,
            "{PODS} pods on each of {NODES} nodes, by the first one. After a quarter of the time a pod's interface goes down, and nobody"
        )?;
        writeln!(
            text,
            "tells the agents. Its node goes on sending there, or looks for the pod at once, in vain. ICMP errors by which it may say so"
        )?;
        writeln!(
            text,
            "are about SYNs that go elsewhere when they come again: the first node tells no client of them, but drops them as stale, among others."
        )?;
        claim::table(text, claims)?;
        writeln!(
            text,
            "\n| | its node | new, failed | cut off | SYNs that went elsewhere | ICMP errors told | dropped as stale | median | slowest |"
        )?;
        writeln!(text, "|{}", " --- |".repeat(9))?;
        repetitions.iter().try_for_each(|one| row(text, one))?;
        for one in repetitions {
            for (reason, count) in &one.reasons {
                writeln!(text, "\n* {}: {count} {reason}", one.name())?;
            }
        }
        Ok(())
    }
}

impl Repetition {
    fn name(&self) -> String {
        format!("IPv{}, {} pod", self.family, self.pod)
    }
}

fn row(text: &mut String, one: &Repetition) -> fmt::Result {
    let Repetition {
        family: _,
        pod: _,
        known,
        opened,
        failed,
        cut_off,
        again,
        told,
        stale,
        slowest_ms,
        median_ms,
        reasons: _,
    } = one;
    let (name, known) = (one.name(), known.name());
    writeln!(
        text,
        "| {name} | {known} | {opened}, {failed} | {cut_off} | {again} | {told} | {stale} | {median_ms:.2} ms | {slowest_ms:.0} ms |"
    )
}

impl Known {
    const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "knows nothing",
            Self::Unreachable => "finds nobody",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::{RATE, claims, tests::repetition};
    use super::*;
    use crate::origin::Origin;

    #[test]
    fn a_repetition_has_a_row_and_a_line_for_each_kind_of_failure() {
        let failed = Repetition {
            family: 6,
            pod: "remote",
            known: Known::Unreachable,
            told: 7,
            stale: 98,
            reasons: BTreeMap::from([("connecting: timed out".into(), 2)]),
            ..repetition(2, 1010.4, 2500)
        };
        let repetitions = vec![repetition(0, 1003.0, 2400), failed];
        let text = Figures { origin: Origin::default(), claims: claims(&repetitions, RATE), repetitions }.text();
        for line in [
            "| IPv4, local pod | knows nothing | 20000, 0 | 1 | 2400 | 0 | 0 | 0.20 ms | 1003 ms |",
            "| IPv6, remote pod | finds nobody | 20000, 2 | 1 | 2500 | 7 | 98 | 0.20 ms | 1010 ms |",
            "* IPv6, remote pod: 2 connecting: timed out",
            "| connections that failed, and were not cut off | at most 0.00 | 2.00 | **does not hold** |",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
