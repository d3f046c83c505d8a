//! What a packet may cost, and whether it keeps to that.

use weir_bench_packet::{Case, FLOWS, Figure, SERVICES};

use super::report::counted;
use crate::claim::{Bound, Claim};

/// Nanoseconds of a packet of an established flow over IPv4, by the number of flows; with the most services [`SCALE`] says.
const ESTABLISHED: [f64; FLOWS.len()] = [55.0, 60.0, 240.0, 380.0];
/// What IPv6 may cost in parts of IPv4, and many services in parts of one.
const V6: f64 = 1.25;
const SCALE: f64 = 1.25;
/// Nanoseconds of a first packet.
const NEW: f64 = 330.0;
/// Nanoseconds of a packet that is not ours.
const NOT_OURS: f64 = 25.0;
/// The least and the most services.
const FEW: u32 = SERVICES[0];
const MANY: u32 = SERVICES[SERVICES.len() - 1];

/// All claims about what was measured.
pub(super) fn of(figures: &[Figure]) -> Vec<Claim> {
    let bars = FLOWS.into_iter().zip(ESTABLISHED).flat_map(|(flows, bar)| {
        SERVICES.into_iter().filter(|services| *services != MANY).filter_map(move |services| {
            let seen = time(figures, Case::Established, "v4", flows, services)?;
            let with = counted(services, "service");
            let text = format!("ns of a packet of {flows} established flows, IPv4, {with}");
            Some(Claim { text, seen, bound: Bound::AtMost(bar) })
        })
    });
    let about = |case: Case| figures.iter().filter(move |figure| figure.case == case);
    let beside_v4 = about(Case::Established).filter(|figure| figure.family == "v6").filter_map(|figure| {
        let Figure { flows, services, net_ns, .. } = figure;
        let beside = time(figures, Case::Established, "v4", *flows, *services)?;
        Some((net_ns / beside, format!("{flows} flows, {services} services")))
    });
    let beside_few = |case: Case| {
        about(case).filter(|figure| figure.services == MANY).filter_map(move |figure| {
            let Figure { flows, family, net_ns, .. } = figure;
            let beside = time(figures, case, family, *flows, FEW)?;
            Some((net_ns / beside, format!("IP{family}, {flows} flows")))
        })
    };
    let of_case = |case: Case| {
        about(case).map(|figure| {
            let Figure { family, services, net_ns, .. } = figure;
            (*net_ns, format!("IP{family}, {services} services"))
        })
    };
    let worst = [
        worst("IPv6 / IPv4, established flows", V6, beside_v4),
        worst(&format!("{MANY} services / {FEW}, established flows"), SCALE, beside_few(Case::Established)),
        worst(&format!("{MANY} services / {FEW}, first packets"), SCALE, beside_few(Case::NewFlow)),
        worst("ns of a flow's first packet", NEW, of_case(Case::NewFlow)),
        worst("ns of a packet that is not ours", NOT_OURS, of_case(Case::NotOurs)),
    ];
    bars.chain(worst.into_iter().flatten()).collect()
}

/// A claim about the largest of some figures; None if there are none.
fn worst(text: &str, bar: f64, seen: impl Iterator<Item = (f64, String)>) -> Option<Claim> {
    let (seen, place) = seen.max_by(|(one, _), (other, _)| one.total_cmp(other))?;
    Some(Claim { text: format!("{text}; worst: {place}"), seen, bound: Bound::AtMost(bar) })
}

fn time(figures: &[Figure], case: Case, family: &str, flows: u32, services: u32) -> Option<f64> {
    let is_it = |figure: &&Figure| {
        (figure.case, figure.family, figure.flows, figure.services) == (case, family, flows, services)
    };
    figures.iter().find(is_it).map(|figure| figure.net_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(case: Case, family: &'static str, flows: u32, services: u32, net_ns: f64) -> Figure {
        Figure { case, family, flows, services, net_ns, null_ns: 40.0 }
    }

    #[test]
    fn an_established_flow_has_a_bar_for_each_number_of_flows() {
        let claims =
            of(&[figure(Case::Established, "v4", 1, 1, 55.0), figure(Case::Established, "v4", 65_536, 1, 241.0)]);
        let bars: Vec<_> = claims.iter().map(|claim| (claim.seen, claim.holds())).collect();
        assert_eq!(bars, [(55.0, true), (241.0, false)], "{claims:?}");
    }

    #[test]
    fn a_bar_is_the_same_for_one_service_and_for_a_thousand() {
        let with = |services, net_ns| figure(Case::Established, "v4", 1, services, net_ns);
        let claims = of(&[with(1, 50.0), with(1000, 56.0)]);
        let bars: Vec<_> = claims.iter().map(|claim| (claim.seen, claim.holds())).collect();
        assert_eq!(bars, [(50.0, true), (56.0, false)], "{claims:?}");
        assert!(claims[1].text.ends_with("IPv4, 1000 services"), "{claims:?}");
        assert!(of(&[with(10_000, 500.0)]).is_empty(), "these are compared with one service");
    }

    #[test]
    fn ipv6_and_many_services_are_compared_at_equal_flows_and_the_worst_counts() {
        let claims = of(&[
            figure(Case::Established, "v4", 1, 1, 50.0),
            figure(Case::Established, "v4", 1, 10_000, 60.0),
            figure(Case::Established, "v6", 1, 1, 60.0),
            figure(Case::Established, "v6", 1, 10_000, 80.0),
        ]);
        let [_, v6, scale] = &claims[..] else { panic!("{claims:?}") };
        assert!(v6.text.ends_with("1 flows, 10000 services") && !v6.holds(), "{v6:?}");
        assert!(scale.text.ends_with("IPv6, 1 flows") && !scale.holds(), "{scale:?}");
    }

    #[test]
    fn first_packets_and_others_packets_have_one_bar_whatever_the_family() {
        let claims = of(&[
            figure(Case::NewFlow, "v4", 1000, 1, 330.0),
            figure(Case::NewFlow, "v6", 1000, 10_000, 331.0),
            figure(Case::NotOurs, "v4", 1000, 1, 19.0),
        ]);
        let [new, others] = &claims[..] else { panic!("{claims:?}") };
        assert!((new.seen, new.holds()) == (331.0, false) && others.holds(), "{claims:?}");
    }

    #[test]
    fn first_packets_are_compared_with_those_of_one_service_too() {
        let new = |family, services, net_ns| figure(Case::NewFlow, family, 1000, services, net_ns);
        let claims =
            of(&[new("v4", 1, 200.0), new("v4", 10_000, 250.0), new("v6", 1, 200.0), new("v6", 10_000, 260.0)]);
        let [scale, _] = &claims[..] else { panic!("{claims:?}") };
        assert!((scale.seen, scale.holds()) == (1.3, false), "{scale:?}");
        assert!(scale.text.starts_with("10000 services / 1, first packets; worst: IPv6"), "{scale:?}");
    }

    #[test]
    fn what_was_not_measured_is_not_claimed() {
        assert_eq!(of(&[]), []);
    }
}
