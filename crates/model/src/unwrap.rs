//! What another node has wrapped for an endpoint of this one (ADR 30). All else of its kind is left alone: tunnels look the same.

use weir_abi as abi;
use weir_core::model::Family;

use crate::packet::{End, Packet, Piece, inner_headers_end, is_one_host, parse_until};
use crate::path::wrapper_size;
use crate::tables::Flow;
use crate::{Model, Reason};

const ETHERNET: usize = 14;

/// What was in a wrapper.
pub(crate) struct Opened {
    pub(crate) packet: Packet,
    /// The frame without the wrapper; none if it has to wait as it came, since the first piece did not come.
    pub(crate) frame: Result<Vec<u8>, Reason>,
}

/// Bytes of the wrapper, if a packet has nothing but another one of its family in it.
fn wrapper_of(p: &Packet) -> Option<usize> {
    let protocol = match p.family {
        Family::V4 => 4,
        Family::V6 => 41,
    };
    let size = usize::try_from(wrapper_size(p.family)).unwrap_or_default();
    let is_one = p.protocol == protocol && p.piece == Piece::Whole && (p.l3, p.l4) == (ETHERNET, ETHERNET + size);
    is_one.then_some(size)
}

impl Model {
    /// Takes the wrapper off a packet that is for us.
    pub(crate) fn unwrap(&self, frame: &[u8], outer: &Packet) -> Option<Opened> {
        let size = wrapper_of(outer)?;
        let is_node = is_one_host(outer.family, outer.src) && self.other_nodes.contains(&outer.src);
        if !self.has(abi::CONFIG_UNWRAP) || !is_node {
            return None;
        }
        let frame = [&frame[..ETHERNET], &frame[ETHERNET + size..]].concat();
        let (mut packet, read) = parse_until(&frame, inner_headers_end(size)).ok()?;
        read.ok()?;
        if packet.piece == Piece::Later
            && let Err(reason) = self.take_ports(&mut packet, false)
        {
            let waits = reason == abi::REASON_FRAGMENT_HELD && self.may_be_for_service(outer, &packet);
            return waits.then_some(Opened { packet, frame: Err(reason) });
        }
        packet.endpoint = Some(self.endpoint_of(outer, &packet)?);
        Some(Opened { packet, frame: Ok(frame) })
    }

    /// Whether the address of a wrapped piece without ports is one that is asked for services.
    fn may_be_for_service(&self, outer: &Packet, inner: &Packet) -> bool {
        inner.dst == outer.src || self.control.rest_of(inner.family, inner.dst).is_some()
    }

    /// The slot of the endpoint that a wrapped packet is for.
    fn endpoint_of(&self, outer: &Packet, inner: &Packet) -> Option<u32> {
        let at = |addr| self.control.frontend_at(inner.family, End { addr, port: inner.dport }, inner.protocol);
        // A node port was asked for at the address of the node that wraps; it is the same at this one's.
        let at_this_node = || at(self.node(inner.family)).filter(|frontend| frontend.kind == abi::KIND_NODE_PORT);
        let frontend = at(inner.dst).or_else(|| (inner.dst == outer.src).then(at_this_node).flatten());
        let endpoint = |service| self.control.local_endpoint(service, outer.dst);
        // The address may have left the service since: its connections go on.
        let of_flow = || endpoint(self.tables.flows.find(&inner.key())?.1.service);
        frontend.and_then(|frontend| endpoint(frontend.service)).or_else(of_flow)
    }

    /// The flow of a packet that came wrapped. Who wraps has counted it for the service, and may know older source ranges.
    pub(crate) fn start_unwrapped(
        &mut self,
        p: &Packet,
        endpoint: u32,
        known: Option<Flow>,
        frontend: Option<abi::Frontend>,
    ) -> Result<Flow, Reason> {
        let service = self.control.backend(endpoint).service;
        let to_balancer = frontend.is_some_and(|frontend| frontend.kind == abi::KIND_LOAD_BALANCER);
        let ranged = self.control.service(service).flags & abi::SERVICE_SOURCE_RANGES != 0;
        if to_balancer && ranged && !self.control.admits(service, p.src) {
            return Err(abi::REASON_SOURCE_RANGE);
        }
        let retries = known.map_or(0, |flow| flow.retries + u16::from(flow.backend != endpoint));
        Ok(Flow { retries, ..self.new_flow(endpoint, service) })
    }
}
