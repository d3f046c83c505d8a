//! Verdicts on who else translates services here: kube-proxy, or what it left behind, and programs of other eBPF proxies.

use weir_datapath::Error;

use super::check::Check;
use crate::leftovers::Leftovers;

/// What the programs of this project are called.
const OURS: &str = "weir_";

/// What programs of proxies and their firewalls are called, and whose they are.
const OTHERS: [(&str, &str); 5] =
    [("cil_", "Cilium"), ("cali_", "Calico"), ("calico_", "Calico"), ("katran", "Katran"), ("balancer_", "Katran")];

/// Why programs at an interface cannot be listed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Hidden {
    /// The kernel tells names to CAP_SYS_ADMIN alone.
    NotAllowed,
    /// Something else.
    Failed(String),
}

impl From<Error> for Hidden {
    fn from(error: Error) -> Self {
        match error {
            Error::Capability { .. } => Self::NotAllowed,
            other => Self::Failed(other.to_string()),
        }
    }
}

/// A program at one of our interfaces that is not ours.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Foreign {
    pub(crate) interface: String,
    pub(crate) name: String,
    /// Whether it runs before ours there, in the same direction.
    pub(crate) first: bool,
}

/// Whether a program is ours, by its name.
pub(crate) fn is_ours(name: &str) -> bool {
    name.starts_with(OURS)
}

/// Those that are not ours among the programs that run one after the other at an interface.
pub(crate) fn others(interface: &str, names: &[String]) -> Vec<Foreign> {
    let ours = names.iter().position(|name| is_ours(name));
    let foreign = |(at, name): (usize, &String)| Foreign {
        interface: interface.to_owned(),
        name: name.clone(),
        first: ours.is_some_and(|ours| at < ours),
    };
    names.iter().enumerate().filter(|(_, name)| !is_ours(name)).map(foreign).collect()
}

/// What is said of what a container cannot look at.
const UNSEEN: &str = "not seen from a container";

/// What was found.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct ProxyFacts {
    /// Of kube-proxy.
    pub(crate) leftovers: Leftovers,
    /// Programs at our interfaces that are not ours.
    pub(crate) foreign: Vec<Foreign>,
    /// Why the programs at some interface cannot be listed.
    pub(crate) hidden: Option<Hidden>,
    /// Whether this is a container of the agent's pod: what that cannot see by its nature is no fault.
    pub(crate) in_pod: bool,
    /// Whether Weir serves beside another proxy, as it was told to.
    pub(crate) beside: bool,
}

/// The verdicts.
pub(crate) fn checks(facts: &ProxyFacts) -> Vec<Check> {
    let mut checks = kube_proxy(facts);
    checks.extend(programs(facts));
    checks
}

fn kube_proxy(facts: &ProxyFacts) -> Vec<Check> {
    let Leftovers { tables, chains, virtual_servers, device, sets, missing, unseen } = &facts.leftovers;
    let what = "kube-proxy";
    let mut found = Vec::new();
    found.extend(tables.iter().map(|family| {
        (format!("nftables: table {family} kube-proxy"), format!("nft delete table {family} kube-proxy"))
    }));
    found.extend(chains.iter().map(|(table, count)| {
        (format!("iptables: {count} chains KUBE-* in {table}"), "kube-proxy --cleanup".to_owned())
    }));
    // Others may have virtual servers and sets, too.
    if *virtual_servers > 0 {
        found.push((format!("IPVS: {virtual_servers} virtual servers of Services"), "weir migrate".to_owned()));
    }
    if *device {
        found.push(("IPVS: the device kube-ipvs0".to_owned(), "ip link delete kube-ipvs0".to_owned()));
    }
    if *sets > 0 {
        found.push((format!("IPVS: {sets} sets KUBE-* of ipset"), "weir migrate".to_owned()));
    }
    let verdict = |(detail, fix): (String, String)| match facts.beside {
        true => Check::ok(what, format!("{detail}, beside which Weir serves (--service-proxy-name)")),
        false => Check::warn(what, format!("{detail}: it may translate what Weir leaves alone, or did not yet"), fix),
    };
    let mut checks: Vec<_> = found.into_iter().map(verdict).collect();
    checks.extend(missing.iter().map(|program| match facts.in_pod {
        true => Check::ok(what, format!("rules of the older iptables: {UNSEEN}, which has no {program}")),
        false => {
            let detail = format!("cannot look for rules of the older iptables, which the kernel has: no {program}");
            Check::warn(what, detail, "apt-get install iptables")
        }
    }));
    checks.extend(
        unseen.iter().map(|why| Check::warn(what, format!("cannot look for its rules with {why}"), "sudo weir doctor")),
    );
    if checks.is_empty() {
        checks.push(Check::ok(what, "nothing of it in nftables, iptables and IPVS"));
    }
    checks
}

fn programs(facts: &ProxyFacts) -> Vec<Check> {
    let what = "other programs";
    let hidden = facts.hidden.as_ref().map(|why| match (why, facts.in_pod) {
        (Hidden::NotAllowed, true) => Check::ok(what, format!("those of XDP and tcx: {UNSEEN} without CAP_SYS_ADMIN")),
        (Hidden::NotAllowed, false) => Check::warn(what, "only root may list them", "sudo weir doctor"),
        (Hidden::Failed(why), _) => Check::warn(what, format!("cannot be listed: {why}"), "sudo weir doctor"),
    });
    let found = if facts.foreign.is_empty() {
        // Nothing seen where something is hidden is no finding.
        hidden.is_none().then(|| Check::ok(what, "none at the interfaces that Weir is at"))
    } else {
        Some(foreign(what, &facts.foreign))
    };
    found.into_iter().chain(first(&facts.foreign)).chain(hidden).collect()
}

/// `NAME at INTERFACE`, each once.
fn list<'a>(programs: impl Iterator<Item = &'a Foreign>) -> String {
    let mut list: Vec<_> = programs.map(|Foreign { interface, name, .. }| format!("{name} at {interface}")).collect();
    list.sort();
    list.dedup();
    list.join(", ")
}

fn foreign(what: &str, programs: &[Foreign]) -> Check {
    let whose = |name: &str| OTHERS.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, owner)| *owner);
    let mut owners: Vec<_> = programs.iter().filter_map(|program| whose(&program.name)).collect();
    owners.sort_unstable();
    owners.dedup();
    let detail = list(programs.iter());
    match owners.as_slice() {
        [] => Check::ok(what, format!("{detail}: of nobody who is known to translate services")),
        owners => {
            let detail = format!("{detail}: {} may translate the same services", owners.join(" and "));
            Check::warn(what, detail, "bpftool net show")
        }
    }
}

/// Programs that run before ours: most CNIs' accept packets for good.
fn first(programs: &[Foreign]) -> Option<Check> {
    let first = list(programs.iter().filter(|program| program.first));
    if first.is_empty() {
        return None;
    }
    let detail = format!("{first}: before Weir's, which see nothing of what these accept for good (TC_ACT_OK)");
    Some(Check::warn("programs before Weir's", detail, "bpftool net show"))
}

#[cfg(test)]
mod tests {
    use super::super::check::State;
    use super::super::check::tests::{find, verdict};
    use super::*;

    fn with(leftovers: Leftovers) -> ProxyFacts {
        ProxyFacts { leftovers, ..ProxyFacts::default() }
    }

    fn at_eth0(names: &[&str]) -> Vec<Foreign> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        others("eth0", &names)
    }

    #[test]
    fn who_runs_before_weir_is_told_and_who_runs_behind_it_is_not() {
        let checked = |names: &[&str]| checks(&ProxyFacts { foreign: at_eth0(names), ..ProxyFacts::default() });
        let first = checked(&["police", "weir_nic_in", "flow_monitor"]);
        assert_eq!(verdict(&first, "programs before Weir's"), (State::Warn, "bpftool net show"));
        let detail = &find(&first, "programs before Weir's").detail;
        assert!(detail.starts_with("police at eth0: "), "{detail}");
        // Where none of Weir's is listed nobody can tell.
        for behind in [["weir_nic_in", "police"], ["police", "flow_monitor"]] {
            assert!(checked(&behind).iter().all(|check| check.what != "programs before Weir's"));
        }
    }

    #[test]
    fn a_node_of_weirs_alone_is_fine() {
        let checks = checks(&ProxyFacts::default());
        assert_eq!(verdict(&checks, "kube-proxy"), (State::Ok, ""));
        assert_eq!(verdict(&checks, "other programs"), (State::Ok, ""));
    }

    #[test]
    fn each_form_of_kube_proxys_rules_has_its_own_fix() {
        for (leftovers, fix) in [
            (Leftovers { tables: vec!["ip6"], ..Leftovers::default() }, "nft delete table ip6 kube-proxy"),
            (Leftovers { chains: vec![("ip nat".to_owned(), 7)], ..Leftovers::default() }, "kube-proxy --cleanup"),
            (Leftovers { virtual_servers: 3, ..Leftovers::default() }, "weir migrate"),
            (Leftovers { sets: 34, ..Leftovers::default() }, "weir migrate"),
            (Leftovers { device: true, ..Leftovers::default() }, "ip link delete kube-ipvs0"),
            (Leftovers { missing: vec!["iptables-legacy-save"], ..Leftovers::default() }, "apt-get install iptables"),
            (Leftovers { unseen: vec!["nftables: no".to_owned()], ..Leftovers::default() }, "sudo weir doctor"),
        ] {
            assert_eq!(verdict(&checks(&with(leftovers)), "kube-proxy"), (State::Warn, fix));
        }
    }

    #[test]
    fn beside_another_proxy_its_rules_belong_there() {
        let leftovers = Leftovers { tables: vec!["ip", "ip6"], ..Leftovers::default() };
        let checks = checks(&ProxyFacts { beside: true, ..with(leftovers) });
        assert_eq!(checks.iter().filter(|check| check.what == "kube-proxy" && check.state == State::Ok).count(), 2);
    }

    #[test]
    fn programs_of_other_proxies_are_told_from_those_of_anybody_else() {
        let foreign = |name: &str| {
            let foreign = at_eth0(&["weir_nic_in", name]);
            verdict(&checks(&ProxyFacts { foreign, ..ProxyFacts::default() }), "other programs").0
        };
        assert_eq!(foreign("cil_from_netdev"), State::Warn);
        assert_eq!(foreign("cali_tc_ingress"), State::Warn);
        assert_eq!(foreign("flow_monitor"), State::Ok);
    }

    #[test]
    fn what_a_container_cannot_see_is_said_and_is_no_fault_and_on_the_node_it_is_one() {
        let leftovers = Leftovers { missing: vec!["iptables-legacy-save"], ..Leftovers::default() };
        let unseen = ProxyFacts { hidden: Some(Hidden::NotAllowed), ..with(leftovers) };
        let on_node = checks(&unseen);
        assert_eq!(verdict(&on_node, "other programs"), (State::Warn, "sudo weir doctor"));
        assert_eq!(verdict(&on_node, "kube-proxy"), (State::Warn, "apt-get install iptables"));
        let in_pod = checks(&ProxyFacts { in_pod: true, ..unseen.clone() });
        assert!(in_pod.iter().all(|check| check.state == State::Ok && check.detail.contains(UNSEEN)), "{in_pod:#?}");
        // A filter of tc tells its name to everybody.
        let foreign = at_eth0(&["cil_from_netdev"]);
        let in_pod = checks(&ProxyFacts { in_pod: true, foreign, ..unseen });
        assert_eq!(verdict(&in_pod, "other programs"), (State::Warn, "bpftool net show"));
        let failed = ProxyFacts {
            hidden: Some(Hidden::Failed("no memory".to_owned())),
            in_pod: true,
            ..with(Leftovers::default())
        };
        assert_eq!(verdict(&checks(&failed), "other programs"), (State::Warn, "sudo weir doctor"));
    }
}
