//! Connected UDP sockets of processes on the host. A hook translates them once, at connect(), and no program sees their
//! datagrams afterwards: nothing but us can free them from an endpoint that is none of theirs any more.

use weir_abi as abi;

use crate::model::Protocol;
use crate::ops::MapOp;

/// Whether sockets may be stranded once an operation is applied: an endpoint of UDP is gone, a frontend has left its
/// service, or there is one to which somebody may have connected before. What frees the flows of UDP frees sockets, too; an endpoint
/// that still serves keeps both.
#[must_use]
pub fn may_strand(op: &MapOp) -> bool {
    match op {
        MapOp::PutBackend { id: _, backend } => {
            backend.flags & abi::BACKEND_USED == 0 && backend.proto == Protocol::Udp.number()
        }
        MapOp::ForgetFlows { key } => key.protocol == Protocol::Udp.number(),
        MapOp::PutFrontend { key, frontend } => {
            key.protocol == Protocol::Udp.number() && is_untranslated(Some(frontend))
        }
        MapOp::ResetBackendCounters { .. }
        | MapOp::PutBase { .. }
        | MapOp::PutLine { .. }
        | MapOp::PutService { .. }
        | MapOp::ResetServiceCounters { .. }
        | MapOp::PutServiceName { .. }
        | MapOp::DeleteServiceName { .. }
        | MapOp::PutNodeName { .. }
        | MapOp::DeleteNodeName { .. }
        | MapOp::DeleteFrontend { .. }
        | MapOp::PutSourceRange { .. }
        | MapOp::DeleteSourceRange { .. } => false,
    }
}

/// Whether a socket is left with an endpoint that is none of its frontend's any more. `peer` is what the hook noted under
/// the endpoint's address; `backend` and `frontend` are what the maps hold now in its slot and at its address. The rule
/// is that of `known_backend` in `bpf/sock.bpf.c`: a datagram to the frontend would no longer be sent there.
#[must_use]
pub fn is_stranded(peer: &abi::SocketPeer, backend: Option<&abi::Backend>, frontend: Option<&abi::Frontend>) -> bool {
    let (Some(backend), Some(frontend)) = (backend, frontend) else { return true };
    backend.generation != peer.generation || backend.service != frontend.service
}

/// Whether a socket of which no hook has noted anything is connected to a Service all the same: to a cluster IP, which no host has. It was
/// connected before the Service was there, and no program sees its datagrams but the one that drops them. `frontend` is what is at its
/// remote address.
#[must_use]
pub fn is_untranslated(frontend: Option<&abi::Frontend>) -> bool {
    frontend.is_some_and(|frontend| frontend.kind == abi::KIND_CLUSTER_IP)
}
