//! Where on an interface programs run.

use core::fmt;

use crate::enums::{HOOK_NIC_EGRESS, HOOK_NIC_INGRESS, HOOK_POD_EGRESS, HOOK_POD_INGRESS, HOOK_XDP};

/// A place on an interface where a program runs.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Hook {
    /// XDP on an interface of the node.
    Xdp,
    /// tc, into the node.
    NicIn,
    /// tc, out of the node.
    NicOut,
    /// tc on the host side of a pod's interface, from the pod.
    PodIn,
    /// tc on the host side of a pod's interface, to the pod.
    PodOut,
}

impl Hook {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Xdp, Self::NicIn, Self::NicOut, Self::PodIn, Self::PodOut];

    /// Name of its program in the objects.
    #[must_use]
    pub const fn program(self) -> &'static str {
        match self {
            Self::Xdp => "weir_xdp",
            Self::NicIn => "weir_nic_in",
            Self::NicOut => "weir_nic_out",
            Self::PodIn => "weir_pod_in",
            Self::PodOut => "weir_pod_out",
        }
    }

    /// Name of its program for interfaces whose frames begin with the IP header, where there is one.
    #[must_use]
    pub const fn headerless_program(self) -> Option<&'static str> {
        match self {
            Self::NicIn => Some("weir_l3_in"),
            Self::NicOut => Some("weir_l3_out"),
            Self::Xdp | Self::PodIn | Self::PodOut => None,
        }
    }

    /// Names of all its programs.
    pub fn programs(self) -> impl Iterator<Item = &'static str> {
        core::iter::once(self.program()).chain(self.headerless_program())
    }

    /// The hook's name: that of its program without `weir_`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.program().split_at("weir_".len()).1
    }

    /// As `HOOK_*`, by which counters go.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Xdp => HOOK_XDP,
            Self::NicIn => HOOK_NIC_INGRESS,
            Self::NicOut => HOOK_NIC_EGRESS,
            Self::PodIn => HOOK_POD_INGRESS,
            Self::PodOut => HOOK_POD_EGRESS,
        }
    }

    /// Whether packets come in there, from outside or from a pod.
    #[must_use]
    pub const fn is_ingress(self) -> bool {
        matches!(self, Self::Xdp | Self::NicIn | Self::PodIn)
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
