//! Which backend a new flow gets: who may, who keeps what it has, and a selection by weight for everybody else.

use std::net::IpAddr;

use weir_abi as abi;
use weir_abi::Addr;
use weir_core::model::Family;
use weir_core::select::{self, Pick};

use crate::control::is_local;
use crate::packet::{End, Packet, TCP, UDP, ip_of, is_set};
use crate::tables::Flow;
use crate::{Model, Reason};

/// What a new flow asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) client: Addr,
    pub(crate) frontend: abi::Frontend,
    pub(crate) class: usize,
    pub(crate) hash: u64,
    /// A backend that does not answer.
    pub(crate) avoid: Option<u32>,
    /// The kernel draws in place of the hash.
    pub(crate) at_random: bool,
    /// No table may know the flow when its next packet comes, or may have known it when an earlier one came: nothing but the hash
    /// decides.
    pub(crate) by_hash: bool,
    /// Its client may not be there: what it keeps is noted when the flow goes on.
    pub(crate) keep_nothing: bool,
}

/// What it gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) backend: u32,
    pub(crate) generation: u32,
}

impl Request {
    pub(crate) fn new(model: &Model, p: &Packet, frontend: abi::Frontend, from_outside: bool) -> Self {
        let class = class_of(frontend, from_outside);
        let maglev = model.control.service(frontend.service).flags & abi::SERVICE_MAGLEV != 0;
        let seed = if maglev { abi::MAGLEV_SEED.into() } else { model.config.hash_seed };
        let [src, dst] = [p.src, p.dst].map(|addr| ip_of(p.family, addr));
        let hash = select::flow_hash(seed, src, dst, p.sport, p.dport, p.protocol);
        let flood = model.is_flood();
        // Datagrams are remembered always; of an association that is met in its middle nobody tells when it goes on.
        let by_hash = p.protocol != UDP && (flood || !p.syn);
        let keep_nothing = p.protocol == TCP || (p.syn && p.protocol != UDP);
        Self { client: p.src, frontend, class, hash, avoid: None, at_random: false, by_hash, keep_nothing }
    }

    /// Of a socket, whose number stands in for the address and port that it does not have yet. One whose connection was refused may be
    /// connected again, which is another flow.
    pub(crate) fn of_socket(
        seed: u64,
        cookie: u64,
        (family, protocol, to): (Family, u8, End),
        client: Addr,
        frontend: abi::Frontend,
    ) -> Self {
        // A number in the machine's order, where an address is in the network's.
        let half = |shift: u32| u32::try_from(cookie >> shift & u64::from(u32::MAX)).unwrap_or_default().to_ne_bytes();
        let mut octets = [0; 16];
        let words = [half(32), half(0), half(32), half(0)];
        octets.chunks_exact_mut(4).zip(words).for_each(|(octets, word)| octets.copy_from_slice(&word));
        let src = match family {
            Family::V4 => IpAddr::from(half(0)),
            Family::V6 => IpAddr::from(octets),
        };
        let hash = select::flow_hash(seed, src, ip_of(family, to.addr), 0, to.port, protocol);
        Self {
            client,
            frontend,
            class: class_of(frontend, false),
            hash,
            avoid: None,
            at_random: protocol == TCP,
            by_hash: false,
            keep_nothing: false,
        }
    }
}

const fn class_of(frontend: abi::Frontend, from_outside: bool) -> usize {
    match frontend.kind {
        abi::KIND_CLUSTER_IP => abi::CLASS_INTERNAL,
        _ if from_outside => abi::CLASS_EXTERNAL,
        // Who is inside the cluster may use every endpoint.
        _ => abi::CLASS_SHORT_CIRCUIT,
    }
}

impl Model {
    /// Chooses a backend, the one to avoid only if no other is found. Where the kernel draws at random, `drawn` tells what
    /// it drew; whether it may have is judged here.
    pub(crate) fn choose(&mut self, mut request: Request, drawn: &[u32]) -> Result<Choice, Reason> {
        let id = request.frontend.service;
        let service = self.control.service(id);
        if !self.is_in_ranges(&request) {
            return Err(abi::REASON_SOURCE_RANGE);
        }
        let has_affinity = service.affinity != 0 && is_set(request.client);
        request.by_hash |= has_affinity && request.keep_nothing;
        if has_affinity
            && let Some(kept) = self.kept_backend(&request, service.affinity)
            && request.avoid.is_none()
        {
            return Ok(self.choice(kept));
        }
        if let Some(avoid) = request.avoid {
            // Its SYN may have been lost on its way, so that the client keeps its backend for others.
            return self.choose_elsewhere(&service, avoid, &request, drawn);
        }
        let hash = if has_affinity { self.hash_of_client(&request, &service) } else { request.hash };
        let selected = if request.at_random && hash == request.hash {
            self.drawn(service.tiers[request.class], service.endpoints, drawn)?
        } else {
            self.selected(service, &request, hash)?
        };
        if !self.is_used(selected) {
            return Err(abi::REASON_BROKEN_TABLE);
        }
        let choice = self.choice(selected);
        if has_affinity && !request.keep_nothing {
            self.keep((request.client, id), choice, self.now.ticks);
        }
        Ok(choice)
    }

    /// The backend that a hash leads to.
    fn selected(&self, mut service: abi::Service, request: &Request, hash: u64) -> Result<u32, Reason> {
        let lines = |id| Some(self.control.line(id));
        service.flags &= if request.by_hash { !abi::SERVICE_LEAST_CONN } else { u32::MAX };
        match select::pick(&service, request.class, hash, lines, |id| self.open_flows(id)) {
            Pick::Backend { id, .. } => Ok(id),
            Pick::NoEndpoints => Err(abi::REASON_NO_ENDPOINTS),
            Pick::NoneAllowed => Err(abi::REASON_NO_LOCAL_ENDPOINTS),
            Pick::Broken => Err(abi::REASON_BROKEN_TABLE),
        }
    }

    /// What the kernel drew, if it may have: of either tier that new flows get.
    fn drawn(&self, tiers: abi::Tiers, endpoints: u32, drawn: &[u32]) -> Result<u32, Reason> {
        let mut reachable = Vec::new();
        match (tiers.local, tiers.remote) {
            (0, 0) if endpoints == 0 => return Err(abi::REASON_NO_ENDPOINTS),
            (0, 0) => return Err(abi::REASON_NO_LOCAL_ENDPOINTS),
            (0, tier) | (tier, 0) => self.collect(tier, abi::LINE_DEPTH, &mut reachable),
            (local, remote) => {
                self.collect(local, abi::LINE_DEPTH, &mut reachable);
                if tiers.spill > 0 {
                    self.collect(remote, abi::LINE_DEPTH, &mut reachable);
                }
            }
        }
        match drawn {
            [id] if reachable.contains(id) => Ok(*id),
            _ => Err(abi::REASON_BROKEN_TABLE),
        }
    }

    /// Whether a client may ask a service at this frontend.
    pub(crate) fn is_in_ranges(&self, request: &Request) -> bool {
        let id = request.frontend.service;
        let ranged = self.control.service(id).flags & abi::SERVICE_SOURCE_RANGES != 0;
        request.frontend.kind != abi::KIND_LOAD_BALANCER || !ranged || self.control.admits(id, request.client)
    }

    /// The hash of a client with affinity: the same for all of its flows where nodes share them, or where no table may tell what
    /// the others got.
    fn hash_of_client(&self, request: &Request, service: &abi::Service) -> u64 {
        if service.flags & abi::SERVICE_MAGLEV != 0 {
            select::client_hash(abi::MAGLEV_SEED.into(), request.client.ip())
        } else if request.by_hash {
            let past = self.past((request.client, request.frontend.service), service.affinity);
            let of_service = u64::from(request.frontend.service) << 32;
            select::client_hash(self.config.hash_seed ^ u64::from(past) ^ of_service, request.client.ip())
        } else {
            request.hash
        }
    }

    /// When a client that keeps nothing any more had its latest flow, by the kernel's clock; 0: it keeps something, or nothing is
    /// known.
    fn past(&self, who: (Addr, u32), limit: u32) -> u32 {
        let past = self.tables.affinities.get(&who).filter(|_| self.classes_of_kept(who, limit) == 0);
        past.map_or(0, |kept| kept.last_seen.wrapping_sub(self.now.ticks).wrapping_add(self.kernel_tick))
    }

    fn keep(&mut self, who: (Addr, u32), Choice { backend, generation }: Choice, tick: u32) {
        self.tables.affinities.insert(who, abi::Affinity { backend, generation, last_seen: tick });
    }

    /// Lets the client of a flow that goes on keep its backend: of a connection this is not noted before, as anybody may send its
    /// first packet. What it keeps by a later flow stays, and so does what it keeps when nobody there answered. Where other nodes go by
    /// the same table, nothing is kept that it does not say.
    pub(crate) fn keep_backend(&mut self, p: &Packet, flow: &Flow) {
        let service = self.control.service(flow.service);
        let (limit, who) = (service.affinity, (p.src, flow.service));
        let elsewhere = service.flags & abi::SERVICE_MAGLEV != 0 && flow.retries > 0;
        let concerned = p.endpoint.is_none() && limit != 0 && is_set(p.src) && self.is_alive(flow) && !elsewhere;
        let kept = self.tables.affinities.get(&who).filter(|_| self.classes_of_kept(who, limit) != 0);
        let stays = kept.is_some_and(|kept| {
            let is_newer = flow.created.wrapping_sub(kept.last_seen).cast_signed() >= 0;
            kept.backend == flow.backend || flow.retries > 0 || !is_newer
        });
        if concerned && !stays {
            self.keep(who, Choice { backend: flow.backend, generation: flow.generation }, flow.created);
        }
    }

    /// The classes whose new flows may go to the backend that a client keeps, as bits of its flags; 0: it went away or takes none, or
    /// the client's latest flow is too long ago.
    fn classes_of_kept(&self, who: (Addr, u32), limit: u32) -> u8 {
        let Some(kept) = self.tables.affinities.get(&who) else { return 0 };
        let backend = self.control.backend(kept.backend);
        let is_there = backend.flags & abi::BACKEND_USED != 0 && backend.generation == kept.generation;
        if is_there && !self.now.is_idle(kept.last_seen, limit) { backend.flags & abi::BACKEND_CLASSES } else { 0 }
    }

    /// The backend that session affinity keeps for a client, if it may still have new flows of the class. They prolong it.
    fn kept_backend(&mut self, request: &Request, limit: u32) -> Option<u32> {
        let (now, who) = (self.now.ticks, (request.client, request.frontend.service));
        if self.classes_of_kept(who, limit) & abi::BACKEND_CLASS << request.class == 0 {
            return None;
        }
        let kept = self.tables.affinities.get_mut(&who)?;
        kept.last_seen = now;
        Some(kept.backend)
    }

    fn choose_elsewhere(
        &mut self,
        service: &abi::Service,
        avoid: u32,
        request: &Request,
        drawn: &[u32],
    ) -> Result<Choice, Reason> {
        let tiers = service.tiers[request.class];
        if (tiers.local, tiers.remote) == (0, 0) {
            let nobody = service.endpoints == 0;
            return Err(if nobody { abi::REASON_NO_ENDPOINTS } else { abi::REASON_NO_LOCAL_ENDPOINTS });
        }
        let mut reachable = Vec::new();
        for tier in [tiers.local, tiers.remote] {
            self.collect(tier, abi::LINE_DEPTH, &mut reachable);
        }
        reachable.retain(|id| self.is_used(*id));
        // It has had the first SYN of a flood, which came again.
        match drawn.iter().copied().find(|drawn| *drawn != avoid) {
            Some(drawn) if reachable.contains(&drawn) => Ok(self.choice(drawn)),
            // There is no other, or it never came up.
            None if reachable.contains(&avoid) => Ok(self.choice(avoid)),
            Some(_) | None => Err(abi::REASON_BROKEN_TABLE),
        }
    }

    /// All backends that a reference leads to.
    fn collect(&self, reference: u32, depth: usize, into: &mut Vec<u32>) {
        if reference & abi::REF_LINE == 0 {
            into.extend((reference != 0).then_some(reference));
        } else if depth > 0 {
            let line = self.control.line(reference & !abi::REF_LINE);
            line.r#ref.iter().for_each(|next| self.collect(*next, depth - 1, into));
        }
    }

    pub(crate) fn is_used(&self, backend: u32) -> bool {
        self.control.backend(backend).flags & abi::BACKEND_USED != 0
    }

    /// A backend as it is now.
    pub(crate) fn choice(&self, id: u32) -> Choice {
        Choice { backend: id, generation: self.control.backend(id).generation }
    }

    /// Counts a new flow of a service. No packet will tell that one goes on which begins at a socket, or one of datagrams.
    pub(crate) fn count_selection(&mut self, service: u32, id: u32, by_socket: bool) {
        let backend = self.control.backend(id);
        let counters = self.tables.service_counters(service);
        *(if is_local(&backend) { &mut counters.local } else { &mut counters.remote }) += 1;
        if goes_on_at_once(&backend, by_socket) {
            self.count_gone_on_of(service, &backend);
        }
    }

    /// Counts a new flow of a backend. Nor will any tell that it ends.
    pub(crate) fn count_flow(&mut self, id: u32, by_socket: bool) {
        let at_once = goes_on_at_once(&self.control.backend(id), by_socket);
        let counters = self.tables.backend_counters(id);
        counters.flows += 1;
        let count = if at_once { &mut counters.gone_on } else { &mut counters.balance };
        *count = count.wrapping_add(1);
    }

    /// Counts a flow that goes on, once it is a connection's.
    pub(crate) fn count_gone_on(&mut self, p: &Packet, flow: &Flow) {
        let backend = self.control.backend(flow.backend);
        if !self.is_alive(flow) || goes_on_at_once(&backend, false) {
            return;
        }
        let counters = self.tables.backend_counters(flow.backend);
        counters.gone_on = counters.gone_on.wrapping_add(1);
        counters.going = counters.going.wrapping_add(1);
        if p.endpoint.is_none() {
            self.count_gone_on_of(flow.service, &backend);
        }
    }

    fn count_gone_on_of(&mut self, service: u32, backend: &abi::Backend) {
        let counters = self.tables.service_counters(service);
        *(if is_local(backend) { &mut counters.local_gone_on } else { &mut counters.remote_gone_on }) += 1;
    }

    pub(crate) fn count_refusal(&mut self, service: u32, reason: Reason) {
        let counters = self.tables.service_counters(service);
        *(if reason == abi::REASON_NO_ENDPOINTS { &mut counters.rejected } else { &mut counters.dropped }) += 1;
    }

    /// Flows that a backend has open, and what it failed since they were counted; more ended than were counted: none.
    fn open_flows(&self, id: u32) -> u32 {
        let counters = self.tables.backend_counters.get(&id).copied().unwrap_or_default();
        u32::try_from(counters.begun_or_failed().wrapping_sub(counters.base).cast_signed()).unwrap_or_default()
    }
}

fn goes_on_at_once(backend: &abi::Backend, by_socket: bool) -> bool {
    by_socket || backend.proto == UDP
}
