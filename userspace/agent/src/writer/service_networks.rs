//! The networks in which an address that no Service has is nobody's: what the kernel is told of them.

use anyhow::Result;
use tracing::info;
use weir_abi as abi;
use weir_core::service_networks::ServiceNetworks;

use super::Writer;

impl Writer {
    /// Takes over what the ServiceCIDRs say, where that changed.
    pub(super) fn update_service_networks(&mut self) -> Result<()> {
        let beside = self.settings.stage.is_beside();
        let Some(networks) = ServiceNetworks::of(&self.cluster, beside) else { return Ok(()) };
        let (service_networks, service_network) = networks.entries();
        if self.reconfigure(abi::Config { service_networks, service_network, ..self.settings.config })? {
            let ServiceNetworks { in_force, left_out: _ } = &networks;
            info!(networks = ?in_force, "dropping what leaves for cluster IPs that no Service has");
        }
        self.complaints.left_out(networks.left_out);
        Ok(())
    }
}
