//! What must hold of connections through a service, and whether it does. Each claim is about the median of repetitions,
//! in the worst case over paths, families and numbers of services. All that is compared was compared with its neighbour without a
//! service before: what two of them have to each other is what their parts of that have.

use super::plan::{Better, Figure};
use super::results::Results;
use super::way::{Backend, Family, Path, Proxy, Way};
use crate::claim::{Bound, Claim};

/// How much a figure may change with the number of services.
const SCALE: f64 = 0.05;

/// One case of a claim: a way through Weir, to pods of one kind.
#[derive(Clone, Copy)]
struct Place {
    path: Path,
    services: u32,
    backend: Backend,
    family: Family,
}

/// All claims about what was measured.
pub(super) fn of(results: &Results) -> Vec<Claim> {
    let about_backend = |backend| {
        let direct = |figure, least| beside_direct(results, Proxy::Weir, figure, backend, least);
        [
            added(results, Proxy::Weir, backend),
            direct(Figure::Sustained, if backend == Backend::Local { 0.97 } else { 0.9 }),
            direct(Figure::Keepalive, 0.97),
            direct(Figure::Bulk, 0.97),
            beside_kube_proxy(results, Figure::ConnectMedian, backend),
            beside_kube_proxy(results, Figure::Connect99, backend),
        ]
    };
    let bypass = [Figure::Burst, Figure::Keepalive]
        .map(|figure| beside_direct(results, Proxy::Bypass, figure, Backend::Local, 1.1));
    // Without the first node on the way back this is what the way there costs.
    let dsr = added(results, Proxy::Dsr, Backend::Remote);
    let all = Backend::ALL.into_iter().flat_map(about_backend).chain(bypass).chain([dsr]);
    all.chain(Figure::ALL.map(|figure| scale(results, figure))).flatten().collect()
}

/// CPU time that Weir, as this proxy runs it, adds to a connection without a service, in parts of what that mode of kube-proxy adds that adds less.
fn added(results: &Results, proxy: Proxy, backend: Backend) -> Option<Claim> {
    let seen = |place: Place| {
        let added = |proxy| Some(to_direct(results, Figure::Cpu, proxy, place)? - 1.0);
        let least = added(Proxy::Iptables)?.min(added(Proxy::Nftables)?);
        let own = added(proxy)?;
        // Nothing added is less than half of anything; something is not less than half of nothing.
        Some(if own <= 0.0 {
            0.0
        } else if least <= 0.0 {
            f64::INFINITY
        } else {
            own / least
        })
    };
    let text = format!("{}CPU added per connection / kube-proxy's better mode", by(proxy));
    about(results, &text, Bound::AtMost(0.5), backend, seen)
}

/// A rate through a proxy, in parts of that without a service.
fn beside_direct(results: &Results, proxy: Proxy, figure: Figure, backend: Backend, least: f64) -> Option<Claim> {
    let seen = |place: Place| to_direct(results, figure, proxy, place);
    let text = format!("{}{}, {} / without a service", by(proxy), figure.title(), figure.unit());
    about(results, &text, Bound::AtLeast(least), backend, seen)
}

/// Which Weir a claim is about, where it is not the one of the defaults.
fn by(proxy: Proxy) -> String {
    if proxy == Proxy::Weir { String::new() } else { format!("{proxy}: ") }
}

/// A time through Weir, in parts of that of kube-proxy's better mode.
fn beside_kube_proxy(results: &Results, figure: Figure, backend: Backend) -> Option<Claim> {
    let seen = |place: Place| {
        let time = |proxy| to_direct(results, figure, proxy, place);
        Some(time(Proxy::Weir)? / time(Proxy::Iptables)?.min(time(Proxy::Nftables)?))
    };
    let text = format!("{} / kube-proxy's better mode", figure.title());
    about(results, &text, Bound::AtMost(1.0), backend, seen)
}

/// A figure of Weir's with the most services, in parts of its own with the fewest.
fn scale(results: &Results, figure: Figure) -> Option<Claim> {
    let services = results.services();
    let [few, .., many] = services[..] else { return None };
    let bound = match figure.better() {
        Better::Higher => Bound::AtLeast(1.0 - SCALE),
        Better::Lower => Bound::AtMost(1.0 + SCALE),
    };
    let seen = |place: Place| {
        let with = |services| to_direct(results, figure, Proxy::Weir, Place { services, ..place });
        Some(with(many)? / with(few)?)
    };
    let (Place { path, backend, family, services: _ }, seen) = worst(&[many], bound, &Backend::ALL, seen)?;
    let text = format!("{}, {many} services / {few}; worst: {path} {family}, {backend}", figure.title());
    Some(Claim { text, seen, bound })
}

/// A claim about pods of one kind.
fn about(
    results: &Results,
    text: &str,
    bound: Bound,
    backend: Backend,
    seen: impl Fn(Place) -> Option<f64>,
) -> Option<Claim> {
    let (Place { path, services, backend, family }, seen) = worst(&results.services(), bound, &[backend], seen)?;
    let text = format!("{text}, {backend} backend; worst: {path} {family}, {services} services");
    Some(Claim { text, seen, bound })
}

/// The place where a bound is nearest to being broken, and what was seen there; None where nothing was measured.
fn worst(
    services: &[u32],
    bound: Bound,
    backends: &[Backend],
    seen: impl Fn(Place) -> Option<f64>,
) -> Option<(Place, f64)> {
    let mut worst: Option<(Place, f64)> = None;
    for path in Path::SERVED {
        for (services, backend) in services.iter().flat_map(|services| backends.iter().map(move |one| (services, one)))
        {
            for family in Family::ALL {
                let place = Place { path, services: *services, backend: *backend, family };
                let Some(seen) = seen(place) else { continue };
                if worst.is_none_or(|(_, known)| bound.is_worse(seen, known)) {
                    worst = Some((place, seen));
                }
            }
        }
    }
    worst
}

/// A figure through a proxy in parts of what it is without a service.
fn to_direct(results: &Results, figure: Figure, proxy: Proxy, place: Place) -> Option<f64> {
    let Place { path, services, backend, family } = place;
    results.to_direct(figure, Way { path, services, proxy }, backend, family)
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::{record, results};
    use super::*;

    const LOCAL: Backend = Backend::Local;

    fn node_port(proxy: Proxy, services: u32) -> Way {
        Way { path: Path::NodePort, services, proxy }
    }

    /// CPU time with Weir, and with kube-proxy's modes, where it is 100 without a service.
    fn cpu([weir, iptables, nftables]: [f64; 3]) -> Vec<Claim> {
        let proxied = [(Proxy::Weir, weir), (Proxy::Iptables, iptables), (Proxy::Nftables, nftables)];
        of(&results(proxied.map(|(proxy, value)| record(Figure::Cpu, node_port(proxy, 10), LOCAL, value)).into()))
    }

    #[test]
    fn added_cpu_is_compared_with_the_mode_that_adds_less() {
        let [claim] = &cpu([105.0, 140.0, 110.0])[..] else { panic!("one claim") };
        assert!((claim.seen - 0.5).abs() < 1e-9 && claim.holds(), "{claim:?}");
        assert!(claim.text.ends_with("local backend; worst: NodePort IPv4, 10 services"), "{claim:?}");
        assert!(!cpu([106.0, 140.0, 110.0])[0].holds());
    }

    #[test]
    fn where_kube_proxy_adds_nothing_only_nothing_will_do() {
        assert!(!cpu([101.0, 140.0, 99.0])[0].holds());
        assert!(cpu([99.0, 140.0, 98.0])[0].holds());
    }

    #[test]
    fn what_answers_clients_directly_is_held_against_kube_proxy_too() {
        let proxied = [(Proxy::Dsr, 114.0), (Proxy::Iptables, 140.0), (Proxy::Nftables, 130.0)];
        let records = proxied.map(|(proxy, value)| record(Figure::Cpu, node_port(proxy, 10), Backend::Remote, value));
        let claims = of(&results(records.into()));
        let [claim] = &claims[..] else { panic!("{claims:?}") };
        assert!((claim.seen - 14.0 / 30.0).abs() < 1e-9 && claim.holds(), "{claim:?}");
        assert!(claim.text.starts_with("weir dsr: CPU added"), "{claim:?}");
    }

    #[test]
    fn the_worst_case_counts() {
        let cluster_ip = Way { path: Path::ClusterIp, ..node_port(Proxy::Weir, 10) };
        let claims = of(&results(vec![
            record(Figure::Sustained, node_port(Proxy::Weir, 10), LOCAL, 99.0),
            record(Figure::Sustained, cluster_ip, LOCAL, 96.0),
        ]));
        let [claim] = &claims[..] else { panic!("{claims:?}") };
        assert_eq!((claim.seen, claim.holds()), (0.96, false));
        assert!(claim.text.ends_with("worst: ClusterIP IPv4, 10 services"), "{claim:?}");
    }

    #[test]
    fn rates_may_not_fall_and_times_may_not_rise_with_the_number_of_services() {
        let with = |figure, few, many| {
            let ways = [(10, few), (10_000, many)];
            let records = ways.map(|(services, value)| record(figure, node_port(Proxy::Weir, services), LOCAL, value));
            let claim = scale(&results(records.into()), figure);
            claim.unwrap_or_else(|| panic!("no claim about {figure:?}")).holds()
        };
        assert!(with(Figure::Keepalive, 100.0, 96.0) && with(Figure::Keepalive, 100.0, 120.0));
        assert!(with(Figure::Connect99, 100.0, 104.0) && with(Figure::Connect99, 100.0, 50.0));
        assert!(!with(Figure::Keepalive, 100.0, 94.0) && !with(Figure::Connect99, 100.0, 106.0));
    }

    #[test]
    fn past_the_hosts_stack_a_service_is_faster_than_no_service_with_it() {
        let with = |value| {
            let claims = of(&results(vec![record(Figure::Burst, node_port(Proxy::Bypass, 10), LOCAL, value)]));
            let [claim] = &claims[..] else { panic!("{claims:?}") };
            claim.holds()
        };
        assert!(with(110.0) && !with(109.0));
    }

    #[test]
    fn what_was_not_measured_is_not_claimed() {
        assert_eq!(of(&results(vec![])), []);
        assert_eq!(of(&results(vec![record(Figure::Bulk, Way::DIRECT, LOCAL, 20.0)])), []);
    }
}
