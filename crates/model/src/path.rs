//! A packet's way: from a client to a backend, and back. What comes out says what is to be done with the bytes.

use weir_abi as abi;
use weir_core::model::Family;

use crate::begin::Begun;
use crate::control::{Arrival, backend_end, is_local};
use crate::going::{RETRIES, Step};
use crate::over::is_last;
use crate::packet::{End, Key, Packet, Piece, SCTP, TCP, UDP, ip_of};
use crate::tables::{Flow, Reply, Stage};
use crate::{Model, Place, Reason, Route};

/// Ticks for which a backend may repeat its answer to a SYN.
pub(crate) const MOVED_IDLE: u32 = 64;

/// How a packet of ours leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Translated {
    /// To another destination, by way of the stack unless it is a pod of this node that may be reached past it.
    Destination { to: End, sport: Option<u16>, is_pod: bool },
    /// From another source, on the way that it has, to the client's own port.
    Source { from: End, dport: u16 },
    /// Both ends are others, and the stack never sees it.
    Both { from: End, to: End, route: Route },
    /// In another packet, as it came but a hop older.
    Wrapped { from: abi::Addr, to: abi::Addr, route: Route },
}

pub(crate) type Left = Result<(Reason, Translated), Reason>;

impl Model {
    /// On the way into the node from an interface.
    pub(crate) fn ingress(&mut self, p: &mut Packet, from_outside: bool, place: &Place<'_>) -> Left {
        if let Some((stage, reply)) = self.answer_to_node(p) {
            if reply.moved {
                return Err(abi::REASON_STALE);
            }
            self.take_answer(stage, p);
            let asked = self.restore_asked(p, &reply);
            return if asked { self.send_back(p, stage, &reply, place) } else { Err(abi::REASON_STALE) };
        }
        let port_of_any = End { addr: p.dst, port: 0 };
        let may_be =
            self.control.may_be_frontend(p.destination(), p.protocol) || self.control.may_be_frontend(port_of_any, 0);
        if !may_be && p.endpoint.is_none() {
            return Err(abi::REASON_NO_FRONTEND);
        }
        let known = self.known_flow(p);
        if let Some((stage, flow)) = known
            && self.answers_host(p, &flow)
        {
            // Datagrams the host has to go on with.
            let last_seen = if p.protocol == UDP { flow.last_seen } else { self.now.ticks };
            self.tables.flows.put(stage, p.key(), Flow { last_seen, replied: true, ..flow });
            return Err(abi::REASON_NO_FRONTEND);
        }
        let step = match &known {
            Some((_, flow)) if self.is_alive(flow) => self.step(p, flow),
            Some(_) | None => Step::Over,
        };
        match (known, step) {
            (Some((stage, flow)), Step::On) => self.go_on(p, stage, flow, place),
            // Only the first piece of a datagram starts a flow or is answered.
            _ if p.piece == Piece::Later => Err(abi::REASON_STALE),
            (Some(_), _) if p.protocol == TCP && !p.syn => {
                let resets = self.has(abi::CONFIG_RESET_STALE) && !p.reset;
                Err(if resets { abi::REASON_STALE_RESET } else { abi::REASON_STALE })
            }
            (Some(_), Step::GiveUp) => Err(self.give_up(p, place.is_xdp())),
            (Some((stage, flow)), Step::Elsewhere) => match self.begin_elsewhere(p, past(flow), from_outside, place)? {
                Begun::Flow(new) => self.go_with(p, Some(flow), new, place),
                Begun::Stays => self.go_on(p, stage, flow, place),
            },
            (known, _) => {
                let former = known.map(|(_, flow)| flow);
                match self.begin(p, from_outside, place)? {
                    Begun::Flow(new) => self.go_with(p, former, new, place),
                    Begun::Stays => self.stay_with(p, former, place),
                }
            }
        }
    }

    /// The reply entry of a packet to one of the node's ports, if it is a flow's.
    fn answer_to_node(&mut self, p: &Packet) -> Option<(Stage, Reply)> {
        if p.dst != self.node(p.family) && p.dst != self.tunnel(p.family).addr {
            return None;
        }
        // SCTP flows keep their client's port.
        let arrival = if p.protocol == SCTP { Arrival::Ours } else { self.control.arrival(p.dport) };
        if arrival == Arrival::Host {
            return None;
        }
        let found = self.reply_to(p).filter(|(_, reply)| reply.snat)?;
        let agrees_to_another = p.syn_ack && found.1.ended.is_some();
        let shared = arrival == Arrival::Left || self.has(abi::CONFIG_BESIDE) || agrees_to_another;
        (!(shared && self.is_anothers(p))).then_some(found)
    }

    fn send_back(&mut self, p: &mut Packet, stage: Stage, reply: &Reply, place: &Place<'_>) -> Left {
        let route = place.route(p, reply.client.addr)?;
        self.count_back(stage, &p.key(), p);
        self.retire_answered(p, stage);
        Ok((abi::REASON_BACK, Translated::Both { from: reply.frontend, to: reply.client, route }))
    }

    /// A packet of a flow that was known before.
    fn go_on(&mut self, p: &mut Packet, stage: Stage, flow: Flow, place: &Place<'_>) -> Left {
        let left = self.to_backend(p, &flow, place)?;
        let mut noted = flow;
        self.count_to(&mut noted, p);
        self.tables.flows.put(stage, p.key(), noted);
        if is_last(p, noted.ended, noted.is_opening()) {
            self.retire(&p.key(), &noted);
        }
        Ok(left)
    }

    /// The first packet of a flow, which is counted at its backend alone.
    fn go_with(&mut self, p: &mut Packet, former: Option<Flow>, mut flow: Flow, place: &Place<'_>) -> Left {
        // The one before would hide it.
        if former.is_some_and(|former| !former.opening) {
            self.tables.flows.forget(Stage::Going, &p.key());
        }
        let left = self.to_backend(p, &flow, place)?;
        self.count_to(&mut flow, p);
        // It may be known by an end first: that is the connection's, not the packet's.
        if p.ending
            && let Some((stage, stored)) = self.tables.flows.find(&p.key())
        {
            self.tables.flows.put(stage, p.key(), Flow { closing: flow.closing, ended: flow.ended, ..stored });
        }
        Ok(left)
    }

    /// The SYN of a flow that nobody knew before it came again, and that no other backend can have.
    fn stay_with(&mut self, p: &mut Packet, former: Option<Flow>, place: &Place<'_>) -> Left {
        if former.is_some_and(|former| !former.opening) {
            self.tables.flows.forget(Stage::Going, &p.key());
        }
        let flow = self.tables.flows.at(Stage::Opening, &p.key()).ok_or(abi::REASON_BROKEN_TABLE)?;
        self.go_on(p, Stage::Opening, flow, place)
    }

    fn to_backend(&self, p: &mut Packet, flow: &Flow, place: &Place<'_>) -> Left {
        let backend = self.control.backend(flow.backend);
        let reason = if is_local(&backend) { abi::REASON_TO_LOCAL } else { abi::REASON_TO_REMOTE };
        let to = backend_end(&backend);
        if flow.direct {
            let route = place.route_of(p, to.addr, u32::from(p.length) + wrapper_size(p.family), true);
            let route = route.inspect_err(|_| p.mtu = p.mtu.wrapping_sub(wrapper_size(p.family)))?;
            let from = self.node(p.family);
            return Ok((abi::REASON_DIRECT, Translated::Wrapped { from, to: to.addr, route }));
        }
        let Some(port) = flow.snat else {
            let here = abi::BACKEND_LOCAL | abi::BACKEND_HOST_NETWORK;
            let is_pod = backend.flags & here == abi::BACKEND_LOCAL;
            if place.is_xdp() && flow.other_port.is_some() {
                return Err(abi::REASON_LEFT_TO_TC);
            }
            return Ok((reason, Translated::Destination { to, sport: flow.other_port, is_pod }));
        };
        let reason = if p.src == backend.addr { abi::REASON_HAIRPIN } else { reason };
        let from = End { addr: self.source(p.family, flow.tunnel), port };
        let route = place.route(p, to.addr)?;
        Ok((reason, Translated::Both { from, to, route }))
    }

    /// On the way out of the node.
    pub(crate) fn egress(&mut self, p: &Packet) -> Left {
        match self.answered_by(p) {
            Ok((stage, reply)) => Ok(self.go_back(p, stage, &reply)),
            Err(reason) => {
                let is_beside = self.has(abi::CONFIG_BESIDE);
                if p.protocol == UDP && is_beside {
                    self.lend_port(&p.key().turned());
                }
                if reason == abi::REASON_NO_REPLY && (p.syn || (p.protocol == UDP && !is_beside)) {
                    self.note_own(p);
                }
                Err(reason)
            }
        }
    }

    /// The host, or whoever it masquerades, asks somebody from the port of a frontend. Only who asks sends a SYN from there.
    fn note_own(&mut self, p: &Packet) {
        let key = p.key().turned();
        let limit = self.idle_limit_of(p.protocol);
        let goes_on = |flow: &Flow| !flow.hosts && flow.ended.is_none() && !self.now.is_idle(flow.last_seen, limit);
        let is_clients = self.tables.flows.find(&key).is_some_and(|(_, flow)| goes_on(&flow));
        let frontend = self.control.frontend_at(p.family, key.to, p.protocol);
        let is_hosts = |at: abi::Frontend| at.kind == abi::KIND_NODE_PORT || p.src == self.node(p.family);
        let is_known = self.tables.flows.find(&key).is_some();
        if !is_clients && frontend.is_some_and(is_hosts) && (is_known || self.may_move_beside_tcp(true)) {
            let own = Flow { hosts: true, generation: u32::MAX, opening: false, ..self.new_flow(0, 0) };
            self.tables.flows.put(Stage::Going, key, own);
        }
    }

    /// Whether a packet answers what the host has asked from a frontend's port. A SYN does not.
    fn answers_host(&self, p: &Packet, known: &Flow) -> bool {
        known.hosts && !p.syn && !self.now.is_idle(known.last_seen, self.idle_limit_of(p.protocol))
    }

    const fn idle_limit_of(&self, protocol: u8) -> u32 {
        if protocol == UDP { self.config.udp_idle } else { self.config.tcp_idle }
    }

    /// A datagram of the host asks an endpoint from a port. A flow that has the same one is answered again as soon as it says something, or the host has
    /// been silent for a while.
    fn lend_port(&mut self, key: &Key) {
        let Some((stage, reply)) = self.tables.replies.find(key).filter(|(_, reply)| reply.snat) else { return };
        let flow_key = reply.flow_key(key);
        self.tables.replies.put(stage, *key, Reply { lent: Some(self.lent_now()), ..reply });
        let is_of = |flow: &Flow| flow.source_port() == Some(key.to.port) && flow.last_seen == self.now.ticks;
        if let Some((stage, flow)) = self.tables.flows.find(&flow_key).filter(|(_, flow)| is_of(flow)) {
            self.tables.flows.put(stage, flow_key, Flow { last_seen: flow.last_seen.wrapping_sub(1), ..flow });
        }
    }

    fn lent_now(&self) -> u16 {
        u16::try_from(self.now.ticks & u32::from(abi::HEARD_MASK)).unwrap_or_default()
    }

    /// Whether what a flow's endpoint says is the host's, which has asked it from the same port since.
    pub(crate) fn is_lent(&self, reply: &Reply) -> bool {
        let ago = |lent| u32::from(self.lent_now().wrapping_sub(lent) & abi::HEARD_MASK);
        reply.lent.is_some_and(|lent| ago(lent) <= abi::ANSWER_IDLE)
    }

    /// Translates what a backend answers.
    pub(crate) fn go_back(&mut self, p: &Packet, stage: Stage, reply: &Reply) -> (Reason, Translated) {
        self.count_back(stage, &p.key(), p);
        self.retire_answered(p, stage);
        (abi::REASON_BACK, Translated::Source { from: reply.frontend, dport: reply.client.port })
    }

    /// What a packet on its way to a client answers.
    pub(crate) fn answered_by(&mut self, p: &Packet) -> Result<(Stage, Reply), Reason> {
        let Some((stage, reply)) = self.reply_to(p).filter(|(_, reply)| !reply.snat) else {
            return Err(abi::REASON_NO_REPLY);
        };
        if reply.moved && !self.now.is_idle(reply.last_seen, MOVED_IDLE) {
            return Err(abi::REASON_STALE);
        }
        // A client may talk to the endpoint itself, from a port that it once used for the service.
        let idle = p.protocol == UDP && self.now.is_idle(reply.last_seen, self.config.udp_idle);
        let silent = self.now.is_idle(reply.last_seen, self.config.tcp_linger);
        let over = reply.ended.is_some() && (p.reset || (reply.is_opening() && !p.ending && silent));
        if (p.syn_ack || idle || over) && self.is_anothers(p) {
            return Err(abi::REASON_NO_REPLY);
        }
        if !reply.moved {
            // It is seen only now that it was left.
            if self.tables.replies.at(stage, &p.key()).is_some_and(|reply| reply.moved) {
                return Err(abi::REASON_STALE);
            }
            self.take_answer(stage, p);
        }
        // Another's was told from it before.
        self.restore_asked(p, &reply);
        Ok((stage, reply))
    }
}

impl Place<'_> {
    /// The way for a packet that the stack never sees. `p.mtu` is set where it is too big for it.
    pub(crate) fn route(&self, p: &mut Packet, to: abi::Addr) -> Result<Route, Reason> {
        // What may be cut on its way has to fit the device alone.
        self.route_of(p, to, p.length.into(), !p.may_be_cut)
    }

    /// The same for so many bytes; whole: routers must not cut them.
    fn route_of(&self, p: &mut Packet, to: abi::Addr, length: u32, whole: bool) -> Result<Route, Reason> {
        if p.ttl <= 1 {
            return Err(if self.is_xdp() { abi::REASON_LEFT_TO_TC } else { abi::REASON_TTL_EXCEEDED });
        }
        // A redirect would send the frame out of the device below the VLAN, tag and all.
        if p.vlan {
            return Err(abi::REASON_LEFT_TO_TC);
        }
        let found = self.network.route(ip_of(p.family, to));
        if self.is_xdp() {
            let fits = |route: &Route| length <= route.mtu && route.neighbour.is_some();
            let is_own = |route: &Route| p.mac == route.mac;
            let reachable = |route: &Route| if route.device == self.device { is_own(route) } else { route.has_xdp };
            return found.filter(fits).filter(reachable).ok_or(abi::REASON_LEFT_TO_TC);
        }
        let route = found.ok_or(abi::REASON_NO_ROUTE)?;
        // Without a neighbour the kernel does not look at the device.
        let fits = if whole && length != 0 {
            length <= route.mtu
        } else {
            route.neighbour.is_none() || p.behind_link() <= route.mtu
        };
        if !fits {
            p.mtu = route.mtu;
            return Err(abi::REASON_TOO_BIG);
        }
        Ok(route)
    }
}

/// Bytes that are put around a packet for another node.
pub(crate) const fn wrapper_size(family: Family) -> u32 {
    match family {
        Family::V4 => 20,
        Family::V6 => 40,
    }
}

/// Whether what any sender may send, and goes on sending whatever it is told, fits with its wrapper (RFC 8200, 5). By IPv4 it is told what fits.
pub(crate) const fn takes_wrapped(family: Family, way: Route) -> bool {
    match family {
        Family::V4 => true,
        Family::V6 => way.mtu >= 1280 + wrapper_size(family),
    }
}

/// What an earlier connection has cost is past. Beside a flood one goes on being sent elsewhere, for which there is no higher number.
fn past(flow: Flow) -> Flow {
    Flow { retries: if flow.is_opening() { flow.retries.min(RETRIES - 1) } else { 0 }, ..flow }
}
