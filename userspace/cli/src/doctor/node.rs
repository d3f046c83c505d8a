//! Verdicts on the kernel, the mounts, the settings of the kernel and the clock.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::check::Check;
use super::fix::Fix;

/// The first kernel whose verifier and helpers the programs need: bpf_loop.
const OLDEST: (u32, u32) = (5, 17);
/// The first one with links for tc programs.
const TCX: (u32, u32) = (6, 6);
/// Beyond this many per cent the kernel's connection tracking soon refuses connections.
const NEARLY_FULL: u64 = 85;

/// What was found.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct NodeFacts {
    /// As `uname -r` says.
    pub(crate) release: String,
    /// Whether the kernel tells the types of its structures.
    pub(crate) btf: bool,
    /// How many programs the kernel has taken, or why it has not; none if nobody tried.
    pub(crate) programs: Option<Result<usize, String>>,
    /// Names of the capabilities that this process lacks.
    pub(crate) missing_capabilities: String,
    /// Where pins belong.
    pub(crate) pin_dir: PathBuf,
    /// Whether that is on a BPF file system.
    pub(crate) bpffs: bool,
    /// Where the hierarchy of cgroup v2 is mounted.
    pub(crate) cgroup2: Option<PathBuf>,
    /// Settings of the kernel by name, those that exist.
    pub(crate) sysctls: BTreeMap<String, String>,
    /// Whether pods and nodes have IPv6 here.
    pub(crate) v6: bool,
    /// Whether the kernel takes its clock for synchronised; none if it does not tell.
    pub(crate) synchronised: Option<bool>,
}

/// The verdicts.
pub(crate) fn checks(facts: &NodeFacts) -> Vec<Check> {
    let mut checks = vec![kernel(facts)];
    checks.extend(programs(facts));
    checks.extend([btf(facts), capabilities(facts), bpffs(facts), cgroup2(facts)]);
    checks.extend(forwarding(facts));
    checks.extend([compiler(facts), unprivileged(facts)].into_iter().flatten());
    checks.extend(connection_tracking(facts));
    checks.extend(clock(facts));
    checks
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn kernel(facts: &NodeFacts) -> Check {
    let NodeFacts { release, .. } = facts;
    let upgrade = "apt-get install --only-upgrade linux-image-amd64 && reboot";
    match version(release) {
        None => Check::warn("kernel", format!("{release}: not a version of Linux that is known"), "uname -r"),
        Some(found) if found < OLDEST => {
            Check::fail("kernel", format!("Linux {release}: the programs need 5.17 (bpf_loop)"), upgrade)
        }
        Some(found) if found < TCX => {
            let lost = "before 6.6 tc programs have no links: whoever clears an interface's qdisc removes them";
            Check::warn("kernel", format!("Linux {release}: {lost}"), upgrade)
        }
        Some(_) => Check::ok("kernel", format!("Linux {release}, with links for XDP and tc")),
    }
}

fn programs(facts: &NodeFacts) -> Option<Check> {
    Some(match facts.programs.as_ref()? {
        Ok(count) => Check::ok("programs", format!("the kernel takes all {count}")),
        Err(why) => Check::fail("programs", why.clone(), "journalctl -k --grep bpf"),
    })
}

fn btf(facts: &NodeFacts) -> Check {
    if facts.btf {
        return Check::ok("btf", "/sys/kernel/btf/vmlinux");
    }
    let lost =
        "the kernel does not tell its types (CONFIG_DEBUG_INFO_BTF): Weir does without, bpftool and tracers do not";
    Check::warn("btf", lost, "grep CONFIG_DEBUG_INFO_BTF /boot/config-$(uname -r)")
}

fn capabilities(facts: &NodeFacts) -> Check {
    if facts.missing_capabilities.is_empty() {
        return Check::ok("capabilities", "CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON");
    }
    let missing = format!("this command lacks {}: what follows may be incomplete", facts.missing_capabilities);
    Check::fail("capabilities", missing, "sudo weir doctor")
}

fn bpffs(facts: &NodeFacts) -> Check {
    let dir = facts.pin_dir.display();
    if facts.bpffs {
        return Check::ok("bpffs", format!("{dir} is on a BPF file system"));
    }
    Check::fail("bpffs", format!("{dir} is not on a BPF file system"), Fix::Mount)
}

fn cgroup2(facts: &NodeFacts) -> Check {
    match &facts.cgroup2 {
        Some(mount) => Check::ok("cgroup2", mount.display().to_string()),
        None => {
            let lost = "no cgroup v2 hierarchy is mounted: processes on the host cannot reach services";
            Check::fail("cgroup2", lost, Fix::Mount)
        }
    }
}

fn number(facts: &NodeFacts, name: &str) -> Option<u64> {
    facts.sysctls.get(name)?.trim().parse().ok()
}

fn forwarding(facts: &NodeFacts) -> Vec<Check> {
    let v6 = facts.v6.then_some("net.ipv6.conf.all.forwarding");
    let check = |name: &str| {
        let lost = "0: the host passes nothing on to pods and other nodes";
        Some(match number(facts, name)? {
            0 => Check::fail(name, lost, format!("sysctl -w {name}=1")),
            value => Check::ok(name, value.to_string()),
        })
    };
    ["net.ipv4.ip_forward"].into_iter().chain(v6).filter_map(check).collect()
}

fn compiler(facts: &NodeFacts) -> Option<Check> {
    let name = "net.core.bpf_jit_enable";
    Some(match number(facts, name)? {
        0 => {
            let lost = "0: programs are interpreted, every packet takes several times as long";
            Check::warn(name, lost, format!("sysctl -w {name}=1"))
        }
        2 => Check::warn(name, "2: for debugging, the code is printed to the log", format!("sysctl -w {name}=1")),
        value => Check::ok(name, value.to_string()),
    })
}

fn unprivileged(facts: &NodeFacts) -> Option<Check> {
    let name = "kernel.unprivileged_bpf_disabled";
    Some(match number(facts, name)? {
        0 => Check::warn(name, "0: every user may load programs", format!("sysctl -w {name}=2")),
        value => Check::ok(name, value.to_string()),
    })
}

fn connection_tracking(facts: &NodeFacts) -> Option<Check> {
    let (count, max) =
        (number(facts, "net.netfilter.nf_conntrack_count")?, number(facts, "net.netfilter.nf_conntrack_max")?);
    let detail = format!("{count} of {max} connections of the host");
    if max == 0 || count * 100 < max * NEARLY_FULL {
        return Some(Check::ok("connection tracking", detail));
    }
    let fix = format!("sysctl -w net.netfilter.nf_conntrack_max={}", max.saturating_mul(2));
    Some(Check::warn("connection tracking", format!("{detail}: new ones will be dropped"), fix))
}

fn clock(facts: &NodeFacts) -> Option<Check> {
    Some(match facts.synchronised? {
        true => Check::ok("clock", "synchronised"),
        false => {
            let lost = "not synchronised: agents whose clocks differ by 30 s refuse each other's packets";
            Check::warn("clock", lost, "timedatectl set-ntp true")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::check::State;
    use super::super::check::tests::{find, verdict};
    use super::*;

    fn good() -> NodeFacts {
        let sysctls = [
            ("net.ipv4.ip_forward", "1"),
            ("net.ipv6.conf.all.forwarding", "1"),
            ("net.core.bpf_jit_enable", "1"),
            ("kernel.unprivileged_bpf_disabled", "2"),
            ("net.netfilter.nf_conntrack_count", "84"),
            ("net.netfilter.nf_conntrack_max", "100"),
        ];
        NodeFacts {
            release: "6.12.9-amd64".to_owned(),
            btf: true,
            programs: Some(Ok(13)),
            missing_capabilities: String::new(),
            pin_dir: "/sys/fs/bpf/weir".into(),
            bpffs: true,
            cgroup2: Some("/sys/fs/cgroup".into()),
            sysctls: sysctls.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            v6: true,
            synchronised: Some(true),
        }
    }

    fn with(name: &str, value: &str) -> Vec<Check> {
        let mut facts = good();
        facts.sysctls.insert(name.to_owned(), value.to_owned());
        checks(&facts)
    }

    #[test]
    fn nothing_is_wrong_with_a_good_node() {
        let checks = checks(&good());
        assert_eq!(checks.len(), 12, "{checks:#?}");
        assert!(checks.iter().all(|check| check.state == State::Ok && check.fix.is_none()), "{checks:#?}");
    }

    #[test]
    fn a_kernel_is_judged_by_its_version() {
        let of = |release: &str| {
            let checks = checks(&NodeFacts { release: release.to_owned(), ..good() });
            find(&checks, "kernel").state
        };
        let releases = ["5.15.0-91-generic", "5.17.0", "6.1.0-18-amd64", "6.6.0", "7.0.1", "unknown"];
        assert_eq!(releases.map(of), [State::Fail, State::Warn, State::Warn, State::Ok, State::Ok, State::Warn]);
    }

    #[test]
    fn what_the_verifier_says_is_passed_on() {
        let refused = NodeFacts { programs: Some(Err("cannot load tc.bpf.o: R1 invalid".to_owned())), ..good() };
        let refused = checks(&refused);
        assert_eq!(find(&refused, "programs").state, State::Fail);
        assert!(find(&refused, "programs").detail.contains("R1 invalid"));
        let untried = checks(&NodeFacts { programs: None, ..good() });
        assert!(untried.iter().all(|check| check.what != "programs"));
    }

    #[test]
    fn rights_types_mounts_and_clock_have_their_fixes() {
        let bad = NodeFacts {
            btf: false,
            missing_capabilities: "CAP_BPF".to_owned(),
            bpffs: false,
            cgroup2: None,
            synchronised: Some(false),
            ..good()
        };
        let checks = checks(&bad);
        assert_eq!(find(&checks, "btf").state, State::Warn);
        assert_eq!(verdict(&checks, "capabilities"), (State::Fail, "sudo weir doctor"));
        assert_eq!(verdict(&checks, "bpffs"), (State::Fail, "weir mount"));
        assert_eq!(verdict(&checks, "cgroup2"), (State::Fail, "weir mount"));
        assert_eq!(verdict(&checks, "clock"), (State::Warn, "timedatectl set-ntp true"));
    }

    #[test]
    fn settings_of_the_kernel_have_their_fixes() {
        for (name, value, expected) in [
            ("net.ipv4.ip_forward", "0", (State::Fail, "sysctl -w net.ipv4.ip_forward=1")),
            ("net.ipv6.conf.all.forwarding", "0", (State::Fail, "sysctl -w net.ipv6.conf.all.forwarding=1")),
            ("net.core.bpf_jit_enable", "0", (State::Warn, "sysctl -w net.core.bpf_jit_enable=1")),
            ("net.core.bpf_jit_enable", "2", (State::Warn, "sysctl -w net.core.bpf_jit_enable=1")),
            ("kernel.unprivileged_bpf_disabled", "0", (State::Warn, "sysctl -w kernel.unprivileged_bpf_disabled=2")),
        ] {
            assert_eq!(verdict(&with(name, value), name), expected, "{name}={value}");
        }
        let full = with("net.netfilter.nf_conntrack_count", "85");
        let expected = (State::Warn, "sysctl -w net.netfilter.nf_conntrack_max=200");
        assert_eq!(verdict(&full, "connection tracking"), expected);
        // A node without IPv6 need not forward it.
        let facts = NodeFacts { v6: false, sysctls: BTreeMap::new(), ..good() };
        assert!(checks(&facts).iter().all(|check| !check.what.starts_with("net.")));
    }
}
