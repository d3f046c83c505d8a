//! Which of the node's addresses backends see in their clients' stead: ADR 48.

use weir_abi as abi;
use weir_core::model::Family;

use crate::control::is_local;
use crate::packet::{Packet, ip_of};
use crate::{Model, Place, Reason};

impl Model {
    /// Whether the way to a backend on another node is a tunnel that has an address of its own.
    pub(crate) fn leaves_by_tunnel(&self, family: Family, backend: &abi::Backend, place: &Place<'_>) -> bool {
        let tunnel = self.tunnel(family);
        let way = || place.network.route(ip_of(family, backend.addr));
        !is_local(backend) && tunnel.ifindex != 0 && way().is_some_and(|route| route.device == tunnel.ifindex)
    }

    /// Whether what a pod here seems to ask itself comes by the interface that it is behind, as far as that is known. XDP leaves such to tc.
    pub(crate) fn may_come_from(&self, p: &Packet, place: &Place<'_>) -> Result<(), Reason> {
        if place.is_xdp() {
            return Err(abi::REASON_LEFT_TO_TC);
        }
        let is_known = |device: &u32| self.shortcuts.contains_key(device);
        let way = place.network.route(ip_of(p.family, p.src)).filter(|way| way.device != place.device && !way.is_nic);
        let is_elsewhere = way.is_some_and(|way| is_known(&way.device)) && is_known(&place.device);
        if is_elsewhere { Err(abi::REASON_NO_ROUTE) } else { Ok(()) }
    }

    /// The tunnel by which other nodes' pods are reached, if there is one.
    pub(crate) const fn tunnel(&self, family: Family) -> abi::Tunnel {
        match family {
            Family::V4 => self.config.tunnel4,
            Family::V6 => self.config.tunnel6,
        }
    }

    /// The node's address that backends see in their clients' stead.
    pub(crate) const fn source(&self, family: Family, tunnel: bool) -> abi::Addr {
        if tunnel { self.tunnel(family).addr } else { self.node(family) }
    }
}
