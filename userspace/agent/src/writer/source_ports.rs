//! The node's source ports: what the host and the node ports of Services leave is for new flows.

use std::collections::BTreeSet;

use anyhow::Result;
use tracing::{debug, info, warn};
use weir_core::model::ObjectName;
use weir_core::source_ports::usable;

use super::Writer;

impl Writer {
    /// Lets new flows take what is left, where that changed. Node ports of Services that are gone come back at the next change.
    pub(super) fn update_source_ports(&mut self) -> Result<()> {
        let range = &self.settings.snat_ports;
        let usable = usable(range, &self.settings.host_ports.borrow(), &self.cluster);
        if self.source_ports.as_ref() == Some(&usable) {
            return Ok(());
        }
        self.datapath.set_source_ports(&usable)?;
        let ports = usable.len();
        self.metrics.source_ports(ports);
        let (first, last) = (range.start(), range.end());
        if usable.is_empty() {
            warn!(
                "no source port is left of --snat-ports {first}-{last}: connections from outside to endpoints on other nodes \
                 are dropped; widen it, or narrow net.ipv4.ip_local_port_range"
            );
        } else if self.source_ports.is_none() {
            info!(ports, "connections to other nodes leave from ports that the host does not use");
        }
        debug!(ports, %usable, "source ports");
        self.source_ports = Some(usable);
        Ok(())
    }

    /// Takes ports away from new flows that have become node ports with services that were just written.
    pub(super) fn leave_node_ports(&mut self, written: &BTreeSet<ObjectName>) -> Result<()> {
        let Some(usable) = &self.source_ports else { return Ok(()) };
        let mut ports = written.iter().filter_map(|name| self.cluster.service(name)).flat_map(|service| {
            service.ports.iter().filter_map(|port| port.node_port).chain(service.health_check_port)
        });
        if ports.any(|port| usable.contains(port)) {
            return self.update_source_ports();
        }
        Ok(())
    }
}
