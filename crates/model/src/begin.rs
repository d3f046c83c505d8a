//! How a flow begins: what may begin one, its backend, whose address the backend sees, and the two entries.

use weir_abi as abi;

use crate::choose::Request;
use crate::control::{is_here, is_local};
use crate::over::Claim;
use crate::packet::{Packet, SCTP, TCP, UDP, is_loopback, is_one_host, is_set};
use crate::place::{Stored, is_answered_already, reply_key};
use crate::tables::{Flow, Reply, Stage};
use crate::{Model, Place, Reason};

/// A flow that has a backend and no entries.
#[derive(Clone, Copy, Debug)]
struct Started {
    flow: Flow,
    /// kube-proxy would have the backend see the node.
    masquerade: bool,
    /// The backend's node takes its packets as they are.
    direct: bool,
    /// It was counted when it began, and a flood has left no more of it than where it goes.
    counted: bool,
}

/// What was written of a flow.
enum Written {
    Flow(Flow),
    /// Its SYN came again: now it is known.
    Again(Flow),
}

/// What became of a SYN that nobody has answered.
pub(crate) enum Begun {
    Flow(Flow),
    /// No other backend can have the flow.
    Stays,
}

/// Whether another endpoint may have a place where the first one has none: for an association whose port somebody else's has there, or a flow for which
/// no source port is left.
fn may_go_beside(p: &Packet, because: Reason) -> bool {
    match because {
        abi::REASON_SNAT_EXHAUSTED => p.syn || p.protocol == UDP,
        abi::REASON_FLOW_TABLE => p.protocol == SCTP && p.syn,
        _ => false,
    }
}

impl Model {
    /// A new flow for a packet.
    pub(crate) fn begin(&mut self, p: &Packet, from_outside: bool, place: &Place<'_>) -> Result<Begun, Reason> {
        let started = self.start(p, None, from_outside, place)?;
        let flow = started.flow;
        match self.written(p, started, from_outside, place) {
            Ok(Written::Flow(flow)) => Ok(Begun::Flow(flow)),
            // It is left as if it had been known.
            Ok(Written::Again(flow)) => self.begin_elsewhere(p, flow, from_outside, place),
            Err(because) if may_go_beside(p, because) => self.begin_beside(p, flow, because, from_outside, place),
            Err(reason) => Err(self.not_begun(p, &flow, reason)),
        }
    }

    /// Counts a flow for which there was a backend, and no place for its entries. Returns the reason.
    fn not_begun(&mut self, p: &Packet, flow: &Flow, reason: Reason) -> Reason {
        if p.endpoint.is_none() && reason != abi::REASON_LEFT_TO_TC {
            self.count_refusal(flow.service, reason);
        }
        reason
    }

    /// The same at another endpoint, for a flow that finds no place at the first one.
    fn begin_beside(
        &mut self,
        p: &Packet,
        taken: Flow,
        because: Reason,
        from_outside: bool,
        place: &Place<'_>,
    ) -> Result<Begun, Reason> {
        let mut started = self.start(p, Some(taken), from_outside, place)?;
        let flow = started.flow;
        if flow.backend == taken.backend {
            return Err(self.not_begun(p, &flow, because));
        }
        // Nobody was silent.
        started.flow.retries = 0;
        match self.written(p, started, from_outside, place) {
            Ok(Written::Flow(flow)) => Ok(Begun::Flow(flow)),
            Ok(Written::Again(flow)) => {
                self.count_asked(p, &flow);
                Ok(Begun::Flow(flow))
            }
            Err(reason) => {
                self.count_asked(p, &flow);
                Err(self.not_begun(p, &flow, reason))
            }
        }
    }

    /// Writes a flow that was chosen for. It counts as one from then on.
    fn written(
        &mut self,
        p: &Packet,
        started: Started,
        from_outside: bool,
        place: &Place<'_>,
    ) -> Result<Written, Reason> {
        let counted = started.counted;
        let written = self.write(p, started, from_outside, place)?;
        if let (Written::Flow(flow), false) = (&written, counted) {
            self.count_begun(p, flow);
        }
        Ok(written)
    }

    /// Counts a flow that has begun. The service's own counters are of what this node's clients ask for: who wraps has counted it.
    fn count_begun(&mut self, p: &Packet, flow: &Flow) {
        if p.endpoint.is_none() {
            self.count_selection(flow.service, flow.backend, false);
        }
        self.count_flow(flow.backend, false);
    }

    /// The same of one that was drawn for in another's place, and has not begun: it is not open.
    fn count_asked(&mut self, p: &Packet, flow: &Flow) {
        self.count_begun(p, flow);
        // Of datagrams none is in the balance.
        if p.protocol != UDP {
            let counters = self.tables.backend_counters(flow.backend);
            counters.balance = counters.balance.wrapping_sub(1);
        }
    }

    /// A new flow in place of one that is known, at another backend.
    pub(crate) fn begin_elsewhere(
        &mut self,
        p: &Packet,
        known: Flow,
        from_outside: bool,
        place: &Place<'_>,
    ) -> Result<Begun, Reason> {
        let started = self.start(p, Some(known), from_outside, place)?;
        if started.flow.backend == known.backend {
            self.note_silence(p, crate::going::Silence::Stays);
            return Ok(Begun::Stays);
        }
        let flow = started.flow;
        self.note_silence(p, crate::going::Silence::Left);
        Ok(match self.written(p, started, from_outside, place) {
            Ok(Written::Flow(flow)) => {
                self.note_left(p, &flow, known.backend);
                Begun::Flow(flow)
            }
            // One that went elsewhere is written in any case.
            Ok(Written::Again(_)) | Err(_) => {
                self.count_asked(p, &flow);
                self.note_silence(p, crate::going::Silence::Back);
                Begun::Stays
            }
        })
    }

    /// What keeps a packet to one of our addresses from starting a flow.
    fn turned_away(&self, p: &Packet) -> Result<(), Reason> {
        // The clock of that begins when the machine does: here what is not zero is to come.
        if self.has(abi::CONFIG_HOLD) && self.config.held_until != 0 {
            return Err(abi::REASON_HELD);
        }
        if self.has(abi::CONFIG_BESIDE) && p.protocol != UDP && !p.syn {
            return Err(abi::REASON_MID_FLOW);
        }
        // A reset needs no flow; passed on it would reach whoever owns the address.
        if p.reset { Err(abi::REASON_STALE) } else { Ok(()) }
    }

    fn start(
        &mut self,
        p: &Packet,
        known: Option<Flow>,
        from_outside: bool,
        place: &Place<'_>,
    ) -> Result<Started, Reason> {
        // Martians, which the host drops.
        let tunnel = self.tunnel(p.family);
        let is_own = p.src == self.node(p.family) || (tunnel.ifindex != 0 && p.src == tunnel.addr);
        if is_loopback(p.family, p.dst) || !is_one_host(p.family, p.src) || is_own {
            return Err(abi::REASON_NO_FRONTEND);
        }
        let frontend = self.control.frontend(p);
        if frontend.is_none() && p.endpoint.is_none() && !self.control.is_cluster_ip(p.family, p.dst) {
            // Whoever serves the address now must get the rest of this connection, too.
            self.tables.flows.forget_all(&p.key());
            return Err(abi::REASON_NO_FRONTEND);
        }
        self.turned_away(p)?;
        if let Some(endpoint) = p.endpoint {
            let flow = self.start_unwrapped(p, endpoint, known, frontend)?;
            return Ok(Started { flow, masquerade: false, direct: false, counted: false });
        }
        let frontend = frontend.ok_or(abi::REASON_UNUSED_PORT)?;
        let request =
            Request { avoid: known.map(|flow| flow.backend), ..Request::new(self, p, frontend, from_outside) };
        let (now, known_there) = (self.now.ticks, self.goes_on_there(p, &request));
        let chosen = known_there.map_or_else(|| Ok((self.choose(request, place.drawn)?, now)), Ok);
        let (choice, created) = chosen.inspect_err(|reason| {
            // XDP leaves it to tc, which answers and counts.
            if !(place.is_xdp() && crate::hooks::is_answered(*reason)) {
                self.count_refusal(frontend.service, *reason);
            }
        })?;
        let retries = known.map_or(0, |flow| flow.retries + u16::from(flow.backend != choice.backend));
        let flow = Flow { retries, created, ..self.new_flow(choice.backend, frontend.service) };
        let masquerade = self.masquerades(p.family, frontend, from_outside);
        let direct = from_outside && !masquerade && self.goes_direct(p, &flow, frontend, place);
        Ok(Started { flow, masquerade, direct, counted: known_there.is_some() && !p.syn })
    }

    /// A flow that begins now, without a port of the node's.
    pub(crate) fn new_flow(&self, backend: u32, service: u32) -> Flow {
        Flow {
            backend,
            generation: self.control.backend(backend).generation,
            service,
            snat: None,
            other_port: None,
            tunnel: false,
            direct: false,
            hosts: false,
            closing: false,
            ended: None,
            replied: false,
            retries: 0,
            opening: true,
            settled: false,
            gone_on: false,
            created: self.now.ticks,
            last_seen: self.now.ticks,
            bytes: 0,
            held: 0,
        }
    }

    /// Both entries of a flow.
    fn write(
        &mut self,
        p: &Packet,
        started: Started,
        from_outside: bool,
        place: &Place<'_>,
    ) -> Result<Written, Reason> {
        let Started { mut flow, masquerade, direct, counted: _ } = started;
        let backend = self.control.backend(flow.backend);
        let flood = self.is_flood() && p.syn && flow.retries == 0;
        self.count_pace();
        if direct {
            // No answer will tell that it goes on: what its client says next does.
            (flow.direct, flow.replied) = (true, true);
            self.put_unless(flood, p, flow);
            return Ok(Written::Flow(flow));
        }
        let must = (from_outside && !is_local(&backend)) || p.src == backend.addr;
        let keeps_client = !must
            && if is_here(&backend) {
                // The node cannot be sent its own packets. Of two such flows of datagrams the newer one wins.
                let key = reply_key(p, &backend, p.source());
                let old = self.tables.replies.find(&key).map(|(_, old)| old).filter(|_| p.protocol != UDP);
                // Where nobody has answered somebody may have forged it.
                let is_its = |old: &Reply| (old.frontend, old.client) == (p.destination(), p.source());
                let others = |old: &Reply| !is_its(old) && (old.replied || !old.opening);
                let port = |old: &Reply| old.source_port(p.sport);
                if old.is_some_and(|old| others(&old) && !self.is_over(&key, &old, port(&old), Claim::Only)) {
                    return Err(abi::REASON_FLOW_TABLE);
                }
                let reply = Reply { by_hash: flood, ..self.reply_of(p, &flow, self.asked_at(p)) };
                if old.is_some_and(|old| p.asks() && flow.retries == 0 && self.is_unanswered(&old, p, &flow)) {
                    self.tables.flows.put(Stage::Opening, p.key(), flow);
                    return Ok(Written::Again(flow));
                }
                flow.replied = old.is_some_and(|old| is_answered_already(&old, p, &reply));
                if !flow.replied {
                    self.tables.replies.forget(Stage::Going, &key);
                    self.tables.replies.put(Stage::Opening, key, reply);
                }
                true
            } else {
                let may_be_anothers = !masquerade && self.is_from_nodes_port(p);
                let stored = match (masquerade, may_be_anothers) {
                    (true, _) => None,
                    (false, true) => Some(Stored::Taken),
                    (false, false) => Some(self.store_direct(p, &flow, &backend, flood)),
                };
                match stored {
                    None => false,
                    Some(Stored::Written) => true,
                    Some(Stored::Answered) => {
                        flow.replied = true;
                        true
                    }
                    Some(Stored::Taken) if p.protocol == SCTP => return Err(abi::REASON_FLOW_TABLE),
                    Some(Stored::Taken) => {
                        let port = self.store_other_port(p, &flow, &backend).ok_or(abi::REASON_SNAT_EXHAUSTED)?;
                        flow.other_port = Some(port);
                        self.tables.flows.put(Stage::Opening, p.key(), flow);
                        return Ok(Written::Flow(flow));
                    }
                    Some(Stored::Again) => {
                        self.tables.flows.put(Stage::Opening, p.key(), flow);
                        return Ok(Written::Again(flow));
                    }
                }
            };
        if !keeps_client {
            // Who wraps has been asked who it is; what has a tag is another interface's.
            if is_local(&backend) && p.src == backend.addr && p.endpoint.is_none() && !p.vlan {
                self.may_come_from(p, place)?;
            }
            flow.tunnel = self.leaves_by_tunnel(p.family, &backend, place);
            if !is_set(self.source(p.family, flow.tunnel)) {
                return Err(abi::REASON_NO_ROUTE);
            }
            if self.is_held_back(p, &flow, &backend) {
                return Err(abi::REASON_FIRST_SYN);
            }
            let port = self.store_snat(p, &flow, &backend).ok_or(if p.protocol == SCTP {
                abi::REASON_FLOW_TABLE
            } else {
                abi::REASON_SNAT_EXHAUSTED
            })?;
            flow.snat = Some(port);
            self.tables.flows.put(Stage::Opening, p.key(), flow);
            return Ok(Written::Flow(flow));
        }
        // Of a flood's SYNs only the answer's entry is written: the next packet is hashed alike, but of one that went elsewhere.
        self.put_unless(flood, p, flow);
        // An end shows nobody that the client has heard of an answer.
        if !p.syn && !p.ending && p.protocol == TCP {
            (_, flow) = self.let_go_on(p, flow);
        }
        Ok(Written::Flow(flow))
    }

    /// Writes a flow's entry, or remembers in short where it goes.
    fn put_unless(&mut self, flood: bool, p: &Packet, flow: Flow) {
        if flood {
            // It would hide the one that begins.
            self.tables.flows.forget(Stage::Opening, &p.key());
            self.displace(p, &flow);
        } else {
            self.tables.flows.put(Stage::Opening, p.key(), flow);
        }
    }

    /// Since when an answer is awaited. A connection that was there before us is not timed.
    pub(crate) fn asked_at(&self, p: &Packet) -> Option<u32> {
        (p.asks() || p.protocol == UDP).then_some(self.now.delay)
    }

    /// What the answers to a flow must look like.
    pub(crate) fn reply_of(&self, p: &Packet, flow: &Flow, asked: Option<u32>) -> Reply {
        Reply {
            frontend: p.destination(),
            client: p.source(),
            snat: flow.snat.is_some(),
            tunnel: flow.tunnel,
            closing: false,
            ended: None,
            heard: 0,
            lent: None,
            replied: false,
            moved: false,
            by_hash: false,
            kept: false,
            opening: flow.opening,
            settled: false,
            retries: if flow.is_opening() { flow.retries } else { 0 },
            backend: flow.backend,
            generation: flow.generation,
            last_seen: self.now.ticks,
            asked,
            asked_again: false,
            alone: false,
            bytes: 0,
            held: 0,
        }
    }
}
