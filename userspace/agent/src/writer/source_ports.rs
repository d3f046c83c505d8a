//! The node's source ports: what the host and the node ports of Services leave is for new flows.

use std::collections::BTreeSet;

use anyhow::Result;
use tracing::{debug, info, warn};
use weir_core::model::ObjectName;
use weir_core::source_ports::{PortSet, usable, usable_until_listed};

use super::Writer;

impl Writer {
    /// Lets new flows take what is left, where that changed. Node ports of Services that are gone come back at the next change.
    pub(super) fn update_source_ports(&mut self) -> Result<()> {
        let host = self.settings.host_ports.borrow().clone();
        let mut usable = usable(&self.settings.snat_ports, &host, &self.cluster);
        if self.adopted && !self.cluster.synced() {
            usable = usable_until_listed(usable, &self.datapath.source_ports()?);
        }
        if self.source_ports.as_ref() == Some(&usable) {
            return Ok(());
        }
        let shared = usable.common(&host.ephemeral.clone().collect());
        self.datapath.share_source_ports(&usable, &shared)?;
        self.metrics.source_ports(usable.len());
        self.tell_source_ports(&usable, !shared.is_empty());
        self.source_ports = Some(usable);
        Ok(())
    }

    /// Says what new flows may take, where it is news.
    fn tell_source_ports(&mut self, usable: &PortSet, shared: bool) {
        let ports = usable.len();
        let was_shared = std::mem::replace(&mut self.shares_ports, shared);
        let (first, last) = (self.settings.snat_ports.start(), self.settings.snat_ports.end());
        if usable.is_empty() {
            warn!(
                "no source port is left of --snat-ports {first}-{last}: connections from outside to endpoints on other nodes \
                 are dropped; widen it, or narrow net.ipv4.ip_local_port_range"
            );
        } else if shared {
            if !was_shared {
                warn!(
                    ports,
                    "net.ipv4.ip_local_port_range leaves few ports of --snat-ports {first}-{last}: connections to other nodes leave \
                     from every second one of it, too, where a socket of the host may lose an answer to one of theirs; narrow it"
                );
            }
        } else if self.source_ports.is_none() {
            info!(ports, "connections to other nodes leave from ports that the host does not use");
        }
        debug!(ports, %usable, "source ports");
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
