//! Verdicts on the interfaces: how XDP runs, what fits through them, and whether answers may take another way.

use std::collections::BTreeMap;

use super::check::Check;
use super::fix::Fix;
use crate::interfaces::{Interface, XdpMode};
use crate::links::parse;

/// `rp_filter`: answers must leave by the interface that the packet came by.
const STRICT: u64 = 1;

/// What was found.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct NetworkFacts {
    pub(crate) interfaces: Vec<Interface>,
    /// Names of the pinned links.
    pub(crate) links: Vec<String>,
    /// `net.ipv4.conf.NAME.rp_filter`, the greater one of the interface's and of all, by interface.
    pub(crate) reverse_path: BTreeMap<String, u64>,
    /// Interfaces whose own `forwarding` is 0 in a family, `ipv4` or `ipv6`, in which the host forwards.
    pub(crate) not_forwarding: Vec<(String, &'static str)>,
}

impl NetworkFacts {
    fn with_link(&self, hook: &str) -> Vec<&Interface> {
        let has = |interface: &&Interface| self.links.iter().any(|link| parse(link) == (hook, Some(interface.index)));
        self.interfaces.iter().filter(has).collect()
    }
}

/// The verdicts.
pub(crate) fn checks(facts: &NetworkFacts) -> Vec<Check> {
    let nics = facts.with_link("nic_in");
    let accelerated = facts.with_link("xdp");
    let mut checks: Vec<_> = nics.iter().map(|nic| xdp(nic, accelerated.contains(nic))).collect();
    checks.extend(gone(facts));
    checks.extend(nics.iter().filter_map(|nic| reverse_path(facts, nic)));
    let pods = facts.with_link("pod_in");
    checks.extend(nics.iter().chain(&pods).flat_map(|interface| forwarding(facts, interface)));
    checks.extend(mtu(&nics, &pods));
    checks
}

/// The name of an interface's setting. With slashes sysctl(8) leaves dots in the interface's name alone.
fn setting(family: &str, interface: &str, what: &str) -> String {
    let between = if interface.contains('.') { "/" } else { "." };
    ["net", family, "conf", interface, what].join(between)
}

/// What comes in by such an interface the kernel's look-up for programs does not pass on; of IPv4 the host does not, either.
fn forwarding(facts: &NetworkFacts, interface: &Interface) -> Vec<Check> {
    let of_interface = facts.not_forwarding.iter().filter(|(name, _)| *name == interface.name);
    let check = |(name, family): &(String, &'static str)| {
        let lost = if *family == "ipv4" { "to no endpoint" } else { "to no endpoint on another node" };
        let detail = format!("0, beside 1 for all: what comes in here is sent on {lost}");
        let fix = format!("sysctl -w {}=1", setting(family, name, "forwarding"));
        Check::fail(format!("{family} forwarding {name}"), detail, fix)
    };
    of_interface.map(check).collect()
}

fn xdp(nic: &Interface, ours: bool) -> Check {
    let what = format!("xdp {}", nic.name);
    let name = &nic.name;
    match (nic.xdp, ours) {
        (Some((XdpMode::Generic, _)), _) => {
            let detail = "generic: behind the driver, where it costs more than tc does";
            Check::warn(what, detail, format!("ip link set dev {name} xdpgeneric off"))
        }
        (Some((XdpMode::Native, _)), true) => Check::ok(what, "native"),
        (Some((XdpMode::Native, program)), false) => {
            let detail = format!("program {program} of somebody else: tc does the work");
            Check::warn(what, detail, format!("bpftool prog show id {program}"))
        }
        (None, _) => Check::ok(what, "none: the driver has no native mode, or it is not wanted; tc does the work"),
    }
}

/// Links of interfaces that are not there: a pin that outlived its device serves nobody.
fn gone(facts: &NetworkFacts) -> Option<Check> {
    let is_there = |index: u32| facts.interfaces.iter().any(|interface| interface.index == index);
    let lost: Vec<_> = facts
        .links
        .iter()
        .filter(|link| parse(link).1.is_some_and(|index| !is_there(index)))
        .map(String::as_str)
        .collect();
    if lost.is_empty() {
        return None;
    }
    let detail = format!("pins of interfaces that are gone, or of another network namespace: {}", lost.join(", "));
    Some(Check::warn("links", detail, Fix::Restart { running: true }))
}

fn reverse_path(facts: &NetworkFacts, nic: &Interface) -> Option<Check> {
    let what = format!("rp_filter {}", nic.name);
    Some(match *facts.reverse_path.get(&nic.name)? {
        STRICT => {
            let detail = "1, strict: what comes by this interface and would be answered by another one is dropped";
            Check::warn(what, detail, format!("sysctl -w {}=2", setting("ipv4", &nic.name, "rp_filter")))
        }
        value => Check::ok(what, value.to_string()),
    })
}

fn mtu(nics: &[&Interface], pods: &[&Interface]) -> Option<Check> {
    // Clients behind a tunnel hear of what is too big for it; pods' other peers need not do with less.
    let narrow = nics.iter().filter(|nic| !nic.headerless).min_by_key(|nic| nic.mtu)?;
    let wide = pods.iter().max_by_key(|pod| pod.mtu);
    let detail = format!("{} {}", narrow.name, narrow.mtu);
    match wide.filter(|pod| pod.mtu > narrow.mtu) {
        None => Some(Check::ok("mtu", format!("{detail}, no pod has more"))),
        Some(pod) => {
            let lost = format!("{detail}, and {} of a pod {}: large packets are refused or cut", pod.name, pod.mtu);
            Some(Check::warn("mtu", lost, format!("ip link set dev {} mtu {}", pod.name, narrow.mtu)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::State;
    use super::super::check::tests::{find, verdict};
    use super::*;

    fn facts(xdp: Option<(XdpMode, u32)>, links: &[&str]) -> NetworkFacts {
        let eth0 = Interface { index: 2, name: "eth0".to_owned(), mtu: 1500, xdp, ..Interface::default() };
        let pod = Interface { index: 5, name: "veth5".to_owned(), mtu: 1450, ..Interface::default() };
        NetworkFacts {
            interfaces: vec![eth0, pod],
            links: links.iter().map(|link| (*link).to_owned()).collect(),
            reverse_path: [("eth0".to_owned(), 0)].into(),
            not_forwarding: Vec::new(),
        }
    }

    const LINKS: [&str; 4] = ["connect4", "nic_in-2", "xdp-2", "pod_in-5"];

    #[test]
    fn a_good_node_has_native_xdp_and_pods_that_fit() {
        let checks = checks(&facts(Some((XdpMode::Native, 7)), &LINKS));
        assert_eq!(checks.len(), 3, "{checks:#?}");
        assert!(checks.iter().all(|check| check.state == State::Ok), "{checks:#?}");
    }

    #[test]
    fn xdp_that_is_generic_or_somebody_elses_is_told() {
        let generic = checks(&facts(Some((XdpMode::Generic, 7)), &LINKS));
        assert_eq!(verdict(&generic, "xdp eth0"), (State::Warn, "ip link set dev eth0 xdpgeneric off"));
        let foreign = checks(&facts(Some((XdpMode::Native, 7)), &["nic_in-2"]));
        assert_eq!(verdict(&foreign, "xdp eth0"), (State::Warn, "bpftool prog show id 7"));
        let none = checks(&facts(None, &["nic_in-2"]));
        assert_eq!(find(&none, "xdp eth0").state, State::Ok);
    }

    #[test]
    fn a_strict_filter_and_pods_with_larger_packets_have_their_fixes() {
        let mut facts = facts(None, &LINKS);
        facts.reverse_path.insert("eth0".to_owned(), 1);
        facts.interfaces[1].mtu = 9000;
        let checks = checks(&facts);
        assert_eq!(verdict(&checks, "rp_filter eth0"), (State::Warn, "sysctl -w net.ipv4.conf.eth0.rp_filter=2"));
        assert_eq!(verdict(&checks, "mtu"), (State::Warn, "ip link set dev veth5 mtu 1500"));
    }

    #[test]
    fn an_interface_of_ours_that_forwards_nothing_is_told_and_dots_in_its_name_are_no_separators() {
        let mut facts = facts(None, &LINKS);
        facts.interfaces[0].name = "eth0.50".to_owned();
        facts.not_forwarding = [("eth0.50", "ipv4"), ("veth5", "ipv6"), ("eth9", "ipv6")]
            .map(|(name, family)| (name.to_owned(), family))
            .to_vec();
        let checks = checks(&facts);
        let fix = "sysctl -w net/ipv4/conf/eth0.50/forwarding=1";
        assert_eq!(verdict(&checks, "ipv4 forwarding eth0.50"), (State::Fail, fix));
        let fix = "sysctl -w net.ipv6.conf.veth5.forwarding=1";
        assert_eq!(verdict(&checks, "ipv6 forwarding veth5"), (State::Fail, fix));
        assert_eq!(checks.iter().filter(|check| check.state == State::Fail).count(), 2, "{checks:#?}");
    }

    #[test]
    fn a_tunnel_of_clients_says_nothing_of_how_much_pods_may_send() {
        let mut facts = facts(None, &["nic_in-2", "nic_in-7", "pod_in-5"]);
        let wireguard = Interface { index: 7, name: "wg0".to_owned(), mtu: 1280, ..Interface::default() };
        facts.interfaces.push(Interface { headerless: true, ..wireguard });
        assert_eq!(find(&checks(&facts), "mtu").detail, "eth0 1500, no pod has more");
    }

    #[test]
    fn a_pin_of_an_interface_that_is_gone_is_told() {
        let checks = checks(&facts(None, &["nic_in-2", "pod_in-9"]));
        assert!(find(&checks, "links").detail.contains("pod_in-9"));
    }
}
