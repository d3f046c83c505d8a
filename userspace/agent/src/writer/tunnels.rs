//! The address by which pods of other nodes see clients, where an overlay network leads to them.

use anyhow::Result;
use tracing::info;
use weir_abi as abi;
use weir_core::interfaces::tunnel;
use weir_core::model::Family;

use super::Writer;

impl Writer {
    /// Takes over the tunnels that programs are attached to, where they changed: only there answers find their way back.
    pub(super) fn update_tunnels(&mut self) -> Result<()> {
        let abi::Config { tunnel4, tunnel6, .. } = self.settings.config;
        let (tunnel4, tunnel6) = (self.tunnel(Family::V4, tunnel4), self.tunnel(Family::V6, tunnel6));
        if self.reconfigure(abi::Config { tunnel4, tunnel6, ..self.settings.config })? {
            for abi::Tunnel { addr, ifindex, pad: _ } in [tunnel4, tunnel6].iter().filter(|one| one.ifindex != 0) {
                info!(address = %addr.ip(), index = ifindex, "traffic to other nodes has the tunnel's address there");
            }
        }
        Ok(())
    }

    /// Of a family; that of flows from before, if there is none any more.
    fn tunnel(&self, family: Family, before: abi::Tunnel) -> abi::Tunnel {
        let attached = |index| self.attached.get(&index).map(|(_, kind)| *kind);
        match tunnel(&self.interfaces, attached, family) {
            Some((interface, address)) => abi::Tunnel { addr: address.into(), ifindex: interface.index, pad: 0 },
            None => abi::Tunnel { ifindex: 0, ..before },
        }
    }
}
