//! A section of `docs/performance.md`: nanoseconds of a packet, and frames per second.

use std::fmt::{self, Write};

use weir_bench_packet::{BEDS, Case, FLOWS, Figure, LiveFigure, OTHER_FLOWS, RUNS, SERVICES};

use super::Figures;
use crate::claim::{self, Claim};
use crate::section::Section;

/// Families, as figures spell them.
const FAMILIES: [&str; 2] = ["v4", "v6"];

impl Section for Figures {
    const NAME: &'static str = "packet";

    fn claims(&self) -> &[Claim] {
        &self.claims
    }

    fn write(&self, text: &mut String) -> fmt::Result {
        let Self { origin, figures, live, claims } = self;
        writeln!(text, "## A packet by itself\n")?;
        writeln!(text, "{origin}. XDP's program, run by the kernel (`BPF_PROG_RUN`) in a wrapper that makes each")?;
        writeln!(
            text,
            "packet, on one CPU; without what the wrapper and a program that does nothing take. Medians of ns in {BEDS}\n\
             sets of maps, made anew for each figure; in each the median of {RUNS} runs."
        )?;
        claim::table(text, claims)?;
        write!(text, "\n| packet | | flows |")?;
        SERVICES.iter().try_for_each(|services| write!(text, " {} |", counted(*services, "service")))?;
        writeln!(text, "\n|{}", " --- |".repeat(3 + SERVICES.len()))?;
        let cases = [(Case::Established, &FLOWS[..]), (Case::NewFlow, &[OTHER_FLOWS]), (Case::NotOurs, &[OTHER_FLOWS])];
        for (case, flows) in cases {
            for (family, flows) in
                FAMILIES.into_iter().flat_map(|family| flows.iter().map(move |flows| (family, flows)))
            {
                row(text, case, family, *flows, figures)?;
            }
        }
        frames(text, live)
    }
}

/// Frames that went out.
fn frames(text: &mut String, live: &[LiveFigure]) -> fmt::Result {
    if live.is_empty() {
        return Ok(());
    }
    writeln!(text, "\nFrames that the kernel takes from a veth and sends back by it, to a service on another node:")?;
    writeln!(text, "\n| program | | frames/s | arrived |\n| --- | --- | --- | --- |")?;
    live.iter().try_for_each(|LiveFigure { program, family, packets_per_second, arrived }| {
        writeln!(text, "| `{program}` | IP{family} | {packets_per_second:.0} | {:.1} % |", 100.0 * arrived)
    })
}

/// A case in a family, with that many flows: a figure for each number of services. No row where nothing was measured.
fn row(text: &mut String, case: Case, family: &str, flows: u32, figures: &[Figure]) -> fmt::Result {
    let measured = |services: u32| {
        let is_it = |figure: &&Figure| (figure.services, figure.flows) == (services, flows);
        figures.iter().filter(|figure| figure.case == case && figure.family == family).find(is_it)
    };
    let cells = SERVICES.map(|services| measured(services).map(|figure| format!("{:.0}", figure.net_ns)));
    if cells.iter().all(Option::is_none) {
        return Ok(());
    }
    writeln!(text, "| {} | IP{family} | {flows} | {} |", name(case), cells.map(Option::unwrap_or_default).join(" | "))
}

const fn name(case: Case) -> &'static str {
    match case {
        Case::Established => "of a known flow",
        Case::NewFlow => "first of its flow",
        Case::NotOurs => "not ours",
    }
}

/// A number of things, of which one is not many.
pub(super) fn counted(number: u32, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::super::claims;
    use super::*;
    use crate::origin::Origin;

    fn text(figures: Vec<Figure>, live: Vec<LiveFigure>) -> String {
        let claims = claims::of(&figures);
        Figures { origin: Origin::default(), figures, live, claims }.text()
    }

    fn figure(case: Case, family: &'static str, flows: u32, services: u32, net_ns: f64) -> Figure {
        Figure { case, family, flows, services, net_ns, null_ns: 40.0 }
    }

    #[test]
    fn a_row_has_a_column_for_each_number_of_services_and_what_was_not_measured_has_none() {
        let text = text(
            vec![
                figure(Case::Established, "v4", 65_536, 1, 99.6),
                figure(Case::Established, "v4", 65_536, 10_000, 200.0),
                figure(Case::NotOurs, "v6", 1000, 1000, 19.0),
            ],
            Vec::new(),
        );
        for line in [
            "| packet | | flows | 1 service | 1000 services | 10000 services |",
            "| of a known flow | IPv4 | 65536 | 100 |  | 200 |",
            "| not ours | IPv6 | 1000 |  | 19 |  |",
            "| ns of a packet of 65536 established flows, IPv4, 1 service | at most 240.00 | 99.60 | holds |",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("first of its flow") && !text.contains("frames/s"), "{text}");
    }

    #[test]
    fn live_frames_have_a_table_of_their_own() {
        let frames = LiveFigure { program: "weir_xdp", family: "v6", packets_per_second: 2_500_000.4, arrived: 0.999 };
        let text = text(Vec::new(), vec![frames]);
        assert!(text.ends_with("| `weir_xdp` | IPv6 | 2500000 | 99.9 % |\n"), "{text}");
    }
}
