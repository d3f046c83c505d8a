//! Connections that another proxy has begun, and that connection tracking carries on.

use std::collections::HashSet;
use std::net::SocketAddr;

use weir_core::conntrack::Tracked;
use weir_core::model::Family;

use crate::served::{Frontend, Ours, Place};

/// How many connections of the table of connection tracking (`/proc/net/nf_conntrack`) need it to go on translating.
///
/// First, all that were translated at one of Weir's frontends, which Weir's own are not. Those that are over count until the
/// table forgets them: a new connection of Weir's from the same port to the same endpoint meets the old entry's answers, and
/// the kernel gives it another port. So, second, those to Weir's endpoints that got one. `is_node` says which addresses are the
/// node's own.
#[must_use]
pub fn going_on(table: &str, ours: &Ours, is_node: impl Fn(SocketAddr) -> bool) -> usize {
    let endpoints: HashSet<SocketAddr> = ours.values().flat_map(|programmed| &programmed.known).copied().collect();
    let at_ours = |one: &Tracked| {
        let (to, protocol) = (one.original.1, one.protocol);
        let at = |place| ours.contains_key(&Frontend { place, port: to.port(), protocol });
        at(Place::Address(to.ip())) || (is_node(to) && at(Place::Node(Family::of(to.ip()))))
    };
    let needs_it = |one: &Tracked| {
        let elsewhere = one.masquerade_port().is_some() && endpoints.contains(&one.original.1);
        if one.is_translated() { at_ours(one) } else { elsewhere && !one.is_over }
    };
    table.lines().filter_map(Tracked::parse).filter(needs_it).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::served::Programmed;

    #[test]
    fn only_connections_to_services_that_another_proxy_has_translated_count() {
        let line = |to: &str, port: u16, by: &str, state: &str| {
            let answers_from = if by == to { port } else { 8080 };
            format!(
                "ipv4 2 tcp 6 9 {state} src=10.244.1.2 dst={to} sport=4000 dport={port} src={by} dst=10.244.1.2 sport={answers_from} \
                 dport=4000 [ASSURED] mark=0 use=2\n"
            )
        };
        let ip = |text: &str| text.parse().unwrap();
        let places = [(Place::Address(ip("10.96.0.10")), 80), (Place::Node(Family::V4), 30_080)];
        let ours: Ours = places
            .map(|(place, port)| (Frontend { place, port, protocol: 6 }, Default::default()))
            .into_iter()
            .collect();
        let count = |line: &str| going_on(line, &ours, |to| to.ip() == ip("192.168.0.11"));
        let pod = "10.244.2.3";
        assert_eq!(count(&line("10.96.0.10", 80, pod, "ESTABLISHED")), 1);
        assert_eq!(count(&line("192.168.0.11", 30_080, pod, "CLOSE_WAIT")), 1);
        assert_eq!(count(&line("10.96.0.10", 80, pod, "TIME_WAIT")), 1, "its answers are still in the way");
        assert_eq!(count(&line("10.96.0.10", 81, pod, "ESTABLISHED")), 0, "no port of a service");
        assert_eq!(count(&line("192.168.0.99", 30_080, pod, "ESTABLISHED")), 0, "another node's port");
        assert_eq!(count(&line("10.96.0.10", 80, "10.96.0.10", "SYN_SENT")), 0, "not translated");
    }

    #[test]
    fn so_do_connections_of_weirs_that_got_another_port_because_of_one_of_these_as_long_as_they_last() {
        let line = |to: &str, port: u16, state: &str| {
            format!(
                "ipv4 2 tcp 6 9 {state} src=10.244.1.2 dst={to} sport=4000 dport=8080 src={to} dst=10.244.1.2 sport=8080 \
                 dport={port} [ASSURED] mark=0 use=2\n"
            )
        };
        let known = ["10.244.2.3:8080".parse().unwrap()].into();
        let place = Place::Address("10.96.0.10".parse().unwrap());
        let ours =
            Ours::from([(Frontend { place, port: 80, protocol: 6 }, Programmed { known, ..Programmed::default() })]);
        let count = |line: &str| going_on(line, &ours, |_| false);
        assert_eq!(count(&line("10.244.2.3", 1025, "ESTABLISHED")), 1);
        assert_eq!(count(&line("10.244.2.3", 1025, "TIME_WAIT")), 0, "it is over");
        assert_eq!(count(&line("10.244.2.3", 4000, "ESTABLISHED")), 0, "it has its own port");
        assert_eq!(count(&line("10.244.2.9", 1025, "ESTABLISHED")), 0, "no endpoint of a service");
    }
}
