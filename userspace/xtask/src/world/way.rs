//! The ways that connections take: to which pod, by whom, and by which family of addresses.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::plan::{Block, Load};

/// Where connections come to a service.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Path {
    /// They do not: they go to the pod
    Direct,
    /// They do not either, but a pod of the second node is reached by way of the first one
    Routed,
    NodePort,
    ClusterIp,
}

/// Who serves the services.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub(super) enum Proxy {
    #[serde(rename = "none")]
    None,
    #[serde(rename = "weir")]
    Weir,
    /// With `--host-bypass`
    #[serde(rename = "weir host-bypass")]
    Bypass,
    /// With `--external-mode dsr`, and agents that talk to each other
    #[serde(rename = "weir dsr")]
    Dsr,
    #[serde(rename = "kube-proxy iptables")]
    Iptables,
    #[serde(rename = "kube-proxy nftables")]
    Nftables,
}

/// Where the pod is, seen from the node that connections come to.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Backend {
    Local,
    Remote,
}

/// Of addresses, from end to end.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) enum Family {
    #[serde(rename = "IPv4")]
    V4,
    #[serde(rename = "IPv6")]
    V6,
}

/// What a connection passes on its way to the pod.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub(super) struct Way {
    pub(super) path: Path,
    /// How many services the proxy has; 0 without one.
    pub(super) services: u32,
    pub(super) proxy: Proxy,
}

impl Way {
    /// No service at all.
    pub(super) const DIRECT: Self = Self { path: Path::Direct, services: 0, proxy: Proxy::None };
    /// The same with the hop that a proxy needs to a pod of another node: what is left is the proxy's own.
    pub(super) const ROUTED: Self = Self { path: Path::Routed, ..Self::DIRECT };

    /// Whether it has a turn in a block; `fewest`: services that any way has. Past the host's stack no pod of another node is reached, and
    /// what has to gain from it are short connections and requests. Clients' packets are wrapped for pods of other nodes alone.
    /// For a minute kube-proxy's modes are measured once, so that one sees what becomes of them: nothing that must hold is said
    /// beside them. One repetition takes an hour less. Without a service and straight to the pod there are no turns: that is
    /// measured next to each of the others.
    pub(super) fn has_turn(self, block: Block, fewest: u32) -> bool {
        let Block { load, backend, family } = block;
        match self.proxy {
            Proxy::None => self == Self::ROUTED && backend == Backend::Remote,
            Proxy::Weir => true,
            Proxy::Bypass => matches!((load, backend), (Load::Burst | Load::Keepalive, Backend::Local)),
            Proxy::Dsr => load != Load::Sustained && backend == Backend::Remote,
            Proxy::Iptables | Proxy::Nftables => {
                load != Load::Sustained || (self.path, self.services, family) == (Path::NodePort, fewest, Family::V4)
            }
        }
    }
}

impl Path {
    /// Those through a service.
    pub(super) const SERVED: [Self; 2] = [Self::NodePort, Self::ClusterIp];

    const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Routed => "routed",
            Self::NodePort => "NodePort",
            Self::ClusterIp => "ClusterIP",
        }
    }
}

impl Proxy {
    /// Those that serve something.
    pub(super) const ALL: [Self; 5] = [Self::Weir, Self::Bypass, Self::Dsr, Self::Iptables, Self::Nftables];

    const fn name(self) -> &'static str {
        match self {
            Self::None => "no service",
            Self::Weir => "weir",
            Self::Bypass => "weir host-bypass",
            Self::Dsr => "weir dsr",
            Self::Iptables => "kube-proxy iptables",
            Self::Nftables => "kube-proxy nftables",
        }
    }

    /// Whether it is there with so many services; `fewest`: what any way has. What is wrapped does not depend on their number.
    pub(super) fn serves(self, services: u32, fewest: u32) -> bool {
        self != Self::Dsr || services == fewest
    }
}

impl Backend {
    pub(super) const ALL: [Self; 2] = [Self::Local, Self::Remote];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Remote => "remote",
        }
    }
}

impl Family {
    pub(super) const ALL: [Self; 2] = [Self::V4, Self::V6];

    const fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::super::plan::{Case, blocks, ways};
    use super::*;

    #[test]
    fn past_the_hosts_stack_only_what_has_to_gain_from_it_is_measured() {
        let bypass = Way { path: Path::NodePort, services: 10, proxy: Proxy::Bypass };
        let all = blocks(Case::value_variants());
        let measured: Vec<Block> = all.iter().copied().filter(|block| bypass.has_turn(*block, 10)).collect();
        assert!(measured.iter().all(|block| block.backend == Backend::Local), "{measured:?}");
        let loads: Vec<Load> = measured.iter().map(|block| block.load).collect();
        assert_eq!(loads, [Load::Burst, Load::Burst, Load::Keepalive, Load::Keepalive]);
        let weir = Way { proxy: Proxy::Weir, ..bypass };
        assert!(all.iter().all(|block| weir.has_turn(*block, 10) && !Way::DIRECT.has_turn(*block, 10)));
    }

    #[test]
    fn wrapped_packets_are_for_other_nodes_and_are_measured_with_the_fewest_services() {
        let all = blocks(Case::value_variants());
        let dsr: Vec<Way> = ways(&[10, 10_000]).into_iter().filter(|way| way.proxy == Proxy::Dsr).collect();
        assert_eq!(dsr.iter().map(|way| way.services).collect::<Vec<_>>(), [10, 10]);
        let measured: Vec<Block> = all.into_iter().filter(|block| dsr[0].has_turn(*block, 10)).collect();
        assert!(measured.iter().all(|block| block.backend == Backend::Remote), "{measured:?}");
        assert_eq!(measured.len(), 4 * Family::ALL.len(), "each load but the longest: {measured:?}");
    }

    #[test]
    fn the_hop_that_a_proxy_needs_is_measured_where_there_is_one() {
        let all = blocks(Case::value_variants());
        let (measured, others): (Vec<Block>, Vec<Block>) =
            all.into_iter().partition(|block| Way::ROUTED.has_turn(*block, 10));
        assert!(measured.iter().all(|block| block.backend == Backend::Remote), "{measured:?}");
        assert!(others.iter().all(|block| block.backend == Backend::Local), "{others:?}");
    }

    #[test]
    fn for_a_minute_kube_proxy_is_measured_with_few_services_at_node_ports() {
        let ways = ways(&[10, 10_000]);
        let of_kube_proxy = |load, family| {
            let block = Block { load, backend: Backend::Remote, family };
            let modes = ways.iter().filter(|way| matches!(way.proxy, Proxy::Iptables | Proxy::Nftables));
            modes.filter(|way| way.has_turn(block, 10)).map(|way| (way.path, way.services)).collect::<Vec<_>>()
        };
        assert_eq!(of_kube_proxy(Load::Sustained, Family::V4), [(Path::NodePort, 10); 2]);
        assert_eq!(of_kube_proxy(Load::Sustained, Family::V6), []);
        assert_eq!(of_kube_proxy(Load::Burst, Family::V6).len(), 8);
    }
}
