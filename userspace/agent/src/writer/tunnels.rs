//! The address by which pods of other nodes see clients, where an overlay network leads to them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::Result;
use tracing::info;
use weir_abi as abi;
use weir_core::interfaces::{Attachment, tunnel};
use weir_core::model::Family;

use super::Writer;
use crate::host;

/// Endpoints whose way the kernel is asked for, one of each node and family: all nodes are reached in the same way, or in few.
const ENDPOINTS_ASKED: usize = 64;

impl Writer {
    /// Takes over the tunnels that programs are attached to, where they changed: only there answers find their way back.
    pub(super) fn update_tunnels(&mut self) -> Result<()> {
        let abi::Config { tunnel4, tunnel6, .. } = self.settings.config;
        let sources: Vec<_> = self.endpoints_elsewhere().into_iter().filter_map(host::source_towards).collect();
        let of = |family, before| self.tunnel(family, before, &sources);
        let (tunnel4, tunnel6) = (of(Family::V4, tunnel4), of(Family::V6, tunnel6));
        if self.reconfigure(abi::Config { tunnel4, tunnel6, ..self.settings.config })? {
            for abi::Tunnel { addr, ifindex, pad: _ } in [tunnel4, tunnel6].iter().filter(|one| one.ifindex != 0) {
                info!(address = %addr.ip(), index = ifindex, "traffic to other nodes has the tunnel's address there");
            }
        }
        Ok(())
    }

    /// Of a family; that of flows from before, if there is none any more.
    fn tunnel(&self, family: Family, before: abi::Tunnel, sources: &[IpAddr]) -> abi::Tunnel {
        let attached = |index| self.attached.get(&index).map(|(_, kind)| *kind);
        match tunnel(&self.interfaces, attached, family, sources, before.ifindex) {
            Some((interface, address)) => abi::Tunnel { addr: address.into(), ifindex: interface.index, pad: 0 },
            None => abi::Tunnel { ifindex: 0, ..before },
        }
    }

    /// An endpoint in a pod of each of some other nodes, where it has to be decided by which of several tunnels they are reached.
    fn endpoints_elsewhere(&self) -> Vec<IpAddr> {
        if !self.synced || self.attached.values().filter(|(_, kind)| *kind == Attachment::Tunnel).count() < 2 {
            return Vec::new();
        }
        let slices = self.cluster.services().flat_map(|service| self.cluster.slices(&service.name));
        let mut found = BTreeMap::new();
        for endpoint in slices.flat_map(|slice| &slice.endpoints) {
            let elsewhere = endpoint.node.as_deref().filter(|node| *node != &*self.settings.plan.node);
            if let Some(node) = elsewhere
                && !self.cluster.is_node_address(endpoint.address)
            {
                found.entry((node, Family::of(endpoint.address))).or_insert(endpoint.address);
            }
        }
        found.into_values().take(ENDPOINTS_ASKED).collect()
    }
}
