//! Which backend a new flow gets: who may, who keeps what it has, and a selection by weight for everybody else.

use weir_abi as abi;
use weir_abi::Addr;
use weir_core::select::{self, Pick};

use crate::control::is_local;
use crate::packet::{Packet, UDP, ip_of};
use crate::{Model, Place, Reason};

/// What a new flow asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) client: Addr,
    pub(crate) frontend: abi::Frontend,
    pub(crate) class: usize,
    pub(crate) hash: u64,
    /// A backend that does not answer.
    pub(crate) avoid: Option<u32>,
}

/// What it gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) backend: u32,
    pub(crate) generation: u32,
}

impl Request {
    pub(crate) fn new(model: &Model, p: &Packet, frontend: abi::Frontend, from_outside: bool) -> Self {
        let class = match frontend.kind {
            abi::KIND_CLUSTER_IP => abi::CLASS_INTERNAL,
            _ if from_outside => abi::CLASS_EXTERNAL,
            // Who is inside the cluster may use every endpoint.
            _ => abi::CLASS_SHORT_CIRCUIT,
        };
        let maglev = model.control.service(frontend.service).flags & abi::SERVICE_MAGLEV != 0;
        let seed = if maglev { abi::MAGLEV_SEED.into() } else { model.config.hash_seed };
        let [src, dst] = [p.src, p.dst].map(|addr| ip_of(p.family, addr));
        let hash = select::flow_hash(seed, src, dst, p.sport, p.dport, p.protocol);
        Self { client: p.src, frontend, class, hash, avoid: None }
    }
}

impl Model {
    /// Chooses a backend, the one to avoid only if no other is found. Where the kernel draws at random, `place` tells what
    /// it drew; whether it may have is judged here.
    pub(crate) fn choose(&mut self, request: Request, place: &Place<'_>) -> Result<Choice, Reason> {
        let id = request.frontend.service;
        let service = self.control.service(id);
        let ranged = service.flags & abi::SERVICE_SOURCE_RANGES != 0;
        if request.frontend.kind == abi::KIND_LOAD_BALANCER && ranged && !self.control.admits(id, request.client) {
            return Err(abi::REASON_SOURCE_RANGE);
        }
        let has_affinity = service.affinity != 0 && is_set(request.client);
        if has_affinity
            && let Some(kept) = self.kept_backend(&request, service.affinity)
            && Some(kept) != request.avoid
        {
            return Ok(self.take(kept, &request));
        }
        if let Some(avoid) = request.avoid {
            // Its SYN may have been lost on its way, so that the client keeps its backend for others.
            return self.choose_elsewhere(&service, avoid, &request, place);
        }
        let one_hash = has_affinity && service.flags & abi::SERVICE_MAGLEV != 0;
        let hash = if one_hash { select::client_hash(request.client.ip()) } else { request.hash };
        let lines = |id| Some(self.control.line(id));
        let selected = match select::pick(&service, request.class, hash, lines, |id| self.open_flows(id)) {
            Pick::Backend { id, .. } => id,
            Pick::NoEndpoints => return Err(abi::REASON_NO_ENDPOINTS),
            Pick::NoneAllowed => return Err(abi::REASON_NO_LOCAL_ENDPOINTS),
            Pick::Broken => return Err(abi::REASON_BROKEN_TABLE),
        };
        if !self.is_used(selected) {
            return Err(abi::REASON_BROKEN_TABLE);
        }
        let choice = self.take(selected, &request);
        if has_affinity {
            let Choice { backend, generation } = choice;
            let kept = abi::Affinity { backend, generation, last_seen: self.now.ticks };
            self.tables.affinities.insert((request.client, id), kept);
        }
        Ok(choice)
    }

    /// The backend that session affinity keeps for a client, if it may still have new flows of the class. They prolong it.
    fn kept_backend(&mut self, request: &Request, limit: u32) -> Option<u32> {
        let now = self.now;
        let kept = self.tables.affinities.get_mut(&(request.client, request.frontend.service))?;
        let backend = self.control.backend(kept.backend);
        let may = abi::BACKEND_USED | abi::BACKEND_CLASS << request.class;
        if now.is_idle(kept.last_seen, limit) || backend.generation != kept.generation || backend.flags & may != may {
            return None;
        }
        kept.last_seen = now.ticks;
        Some(kept.backend)
    }

    fn choose_elsewhere(
        &mut self,
        service: &abi::Service,
        avoid: u32,
        request: &Request,
        place: &Place<'_>,
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
        match place.drawn {
            Some(drawn) if drawn != avoid && reachable.contains(&drawn) => Ok(self.take(drawn, request)),
            // There is no other, or it never came up.
            None if reachable.contains(&avoid) => Ok(self.take(avoid, request)),
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

    fn is_used(&self, backend: u32) -> bool {
        self.control.backend(backend).flags & abi::BACKEND_USED != 0
    }

    /// Counts a new flow, unless it stays where it is.
    fn take(&mut self, id: u32, request: &Request) -> Choice {
        let backend = self.control.backend(id);
        if request.avoid != Some(id) {
            let service = self.tables.service_counters(request.frontend.service);
            *(if is_local(&backend) { &mut service.local } else { &mut service.remote }) += 1;
            self.count_flow(id);
        }
        Choice { backend: id, generation: backend.generation }
    }

    /// Counts a new flow of a backend.
    pub(crate) fn count_flow(&mut self, id: u32) {
        let connection = self.control.backend(id).proto != UDP;
        let counters = self.tables.backend_counters(id);
        counters.flows += 1;
        counters.balance = counters.balance.wrapping_add(connection.into());
    }

    pub(crate) fn count_refusal(&mut self, service: u32, reason: Reason) {
        let counters = self.tables.service_counters(service);
        *(if reason == abi::REASON_NO_ENDPOINTS { &mut counters.rejected } else { &mut counters.dropped }) += 1;
    }

    /// Flows that a backend has open; more ended than were counted: none.
    fn open_flows(&self, id: u32) -> u32 {
        let counters = self.tables.backend_counters.get(&id).copied().unwrap_or_default();
        u32::try_from(counters.balance.wrapping_sub(counters.base).cast_signed()).unwrap_or_default()
    }
}

/// False for the address that a node does not have.
pub(crate) fn is_set(addr: Addr) -> bool {
    addr.word[0] != abi::Be32::new(0) || addr.word[3] != abi::Be32::new(0)
}
