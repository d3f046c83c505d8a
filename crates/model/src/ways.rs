//! How a new flow gets to its backend: wrapped, in the node's name, or with its client's own address.

use weir_abi as abi;
use weir_core::model::Family;

use crate::packet::{Packet, SCTP, ip_of, is_set};
use crate::path::takes_wrapped;
use crate::tables::Flow;
use crate::{Model, Place};

impl Model {
    /// Whether a new flow from outside is wrapped for its backend's node, which must know whose frontend it is and look into
    /// what comes on that way. A client that is a node might be the one that unwraps; what nobody sends any shorter has to fit.
    pub(crate) fn goes_direct(&self, p: &Packet, flow: &Flow, frontend: abi::Frontend, place: &Place<'_>) -> bool {
        let backend = self.control.backend(flow.backend);
        let node = self.node(p.family);
        backend.flags & abi::BACKEND_DIRECT != 0
            && is_set(node)
            && (frontend.kind != abi::KIND_NODE_PORT || p.dst == node)
            && !self.other_nodes.contains(&p.src)
            && place
                .network
                .route(ip_of(p.family, backend.addr))
                .is_some_and(|way| way.is_nic && takes_wrapped(p.family, way))
    }

    /// Whether kube-proxy would have the backend see the node's address.
    pub(crate) fn masquerades(&self, family: Family, frontend: abi::Frontend, from_outside: bool) -> bool {
        if !is_set(self.node(family)) {
            return false;
        }
        let keeps = self.control.service(frontend.service).flags & abi::SERVICE_EXTERNAL_LOCAL != 0;
        match (frontend.kind, from_outside) {
            (abi::KIND_CLUSTER_IP, false) => self.has(abi::CONFIG_MASQUERADE_ALL),
            (abi::KIND_CLUSTER_IP, true) => self.has(abi::CONFIG_MASQUERADE_EXTERNAL),
            (_, _) => self.has(abi::CONFIG_MASQUERADE_EXTERNAL) && !keeps,
        }
    }

    /// Whether somebody sends in another node's name, from a port that nodes give out to clients.
    pub(crate) fn is_from_nodes_port(&self, p: &Packet) -> bool {
        let is_given_out = p.sport != 0 && self.control.port_from(p.sport) == Some(p.sport);
        p.protocol != SCTP && p.endpoint.is_none() && is_given_out && self.other_nodes.contains(&p.src)
    }
}
