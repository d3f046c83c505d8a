//! What the kernel lacks of what Weir can use, and what is lost without it. What it cannot do without it says when it loads
//! the programs.

use std::fmt;

/// What was found on the node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KernelFacts {
    /// The kernel has refused a TCX link.
    pub tcx_refused: bool,
    /// A directory of a cgroup v2 hierarchy is there for the socket hooks, or they are not wanted.
    pub cgroup2: bool,
    /// `net.ipv4.ip_forward`; None where it cannot be read, or the node has none of the family.
    pub forwards4: Option<bool>,
    /// `net.ipv6.conf.all.forwarding`; the same.
    pub forwards6: Option<bool>,
    /// `net.core.bpf_jit_enable`; None where it cannot be read, as where the compiler is always on.
    pub compiles: Option<bool>,
}

/// Something that is missing.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Missing {
    /// TCX links, of Linux 6.6.
    Tcx,
    /// A cgroup v2 hierarchy.
    Cgroup2,
    /// Forwarding of IPv4.
    Forwarding4,
    /// Forwarding of IPv6.
    Forwarding6,
    /// The compiler of BPF programs.
    Compiler,
}

impl Missing {
    /// The reason of its Kubernetes event.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Tcx | Self::Cgroup2 | Self::Compiler => "KernelFeatureMissing",
            Self::Forwarding4 | Self::Forwarding6 => "ForwardingDisabled",
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcx => {
                "the kernel has no TCX links (Linux 6.6 has): programs are tc filters, which whoever clears the interface's \
                 qdisc removes"
            }
            Self::Cgroup2 => {
                "no cgroup v2 hierarchy is mounted: processes on the host cannot reach services; mount one with \
                 `mount -t cgroup2 none DIR` and pass --cgroup DIR"
            }
            Self::Forwarding4 => {
                "net.ipv4.ip_forward is 0: pods and other nodes cannot be reached; set it with `sysctl -w \
                 net.ipv4.ip_forward=1`"
            }
            Self::Forwarding6 => {
                "net.ipv6.conf.all.forwarding is 0: pods and other nodes cannot be reached; set it with `sysctl -w \
                 net.ipv6.conf.all.forwarding=1`"
            }
            Self::Compiler => {
                "net.core.bpf_jit_enable is 0: programs are interpreted, and every packet takes several times as long; set \
                 it with `sysctl -w net.core.bpf_jit_enable=1`"
            }
        })
    }
}

/// What is missing of what was looked for. What cannot be read is taken to be there.
#[must_use]
pub fn missing(facts: &KernelFacts) -> Vec<Missing> {
    let KernelFacts { tcx_refused, cgroup2, forwards4, forwards6, compiles } = *facts;
    let found = [
        (Missing::Tcx, tcx_refused),
        (Missing::Cgroup2, !cgroup2),
        (Missing::Forwarding4, forwards4 == Some(false)),
        (Missing::Forwarding6, forwards6 == Some(false)),
        (Missing::Compiler, compiles == Some(false)),
    ];
    found.into_iter().filter(|(_, is_missing)| *is_missing).map(|(what, _)| what).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: KernelFacts = KernelFacts {
        tcx_refused: false,
        cgroup2: true,
        forwards4: Some(true),
        forwards6: Some(true),
        compiles: Some(true),
    };

    #[test]
    fn a_kernel_that_has_everything_or_does_not_tell_lacks_nothing() {
        assert_eq!(missing(&GOOD), []);
        assert_eq!(missing(&KernelFacts { forwards4: None, forwards6: None, compiles: None, ..GOOD }), []);
    }

    #[test]
    fn each_thing_that_is_missing_is_named_with_what_to_do() {
        let facts = KernelFacts {
            tcx_refused: true,
            cgroup2: false,
            forwards4: Some(false),
            forwards6: Some(false),
            compiles: Some(false),
        };
        let all = missing(&facts);
        assert_eq!(
            all,
            [Missing::Tcx, Missing::Cgroup2, Missing::Forwarding4, Missing::Forwarding6, Missing::Compiler]
        );
        assert!(all[2].to_string().contains("sysctl -w net.ipv4.ip_forward=1"), "{}", all[2]);
        let reasons: Vec<_> = all.iter().map(|what| what.reason()).collect();
        assert_eq!(reasons.iter().filter(|reason| **reason == "ForwardingDisabled").count(), 2, "{reasons:?}");
    }
}
