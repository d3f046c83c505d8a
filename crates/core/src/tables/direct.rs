//! Direct server return: which endpoints of other nodes get clients' packets as they are.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use weir_abi as abi;

use super::{Tables, names};
use crate::model::Family;
use crate::ops::MapOp;

/// The nodes that answer clients themselves if they get their packets as they are.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DirectNodes {
    /// By name.
    pub nodes: BTreeSet<Arc<str>>,
    /// Families in which they know this node's address. Of others they would open nothing.
    pub families: BTreeSet<Family>,
}

/// As [`DirectNodes`], with names as the maps have them.
#[derive(Debug, Default)]
pub(super) struct Direct {
    nodes: BTreeSet<[u8; abi::NAME_SIZE]>,
    families: BTreeSet<Family>,
}

impl Direct {
    /// `BACKEND_DIRECT`, or nothing, for an endpoint on a node.
    fn flag(&self, backend: &abi::Backend, node: Option<&[u8; abi::NAME_SIZE]>) -> u8 {
        let address: IpAddr = backend.addr.ip();
        let is_direct = backend.flags & abi::BACKEND_USED != 0
            && backend.flags & abi::BACKEND_LOCAL == 0
            && self.families.contains(&Family::of(address))
            && node.is_some_and(|node| self.nodes.contains(node));
        if is_direct { abi::BACKEND_DIRECT } else { 0 }
    }
}

impl Tables {
    /// Takes these nodes in place of those before. Answers with what to write. Flows keep the way that they began on.
    pub fn set_direct(&mut self, direct: &DirectNodes) -> Vec<MapOp> {
        let DirectNodes { nodes, families } = direct;
        self.direct = Direct { nodes: nodes.iter().map(|name| names::cut(name)).collect(), families: families.clone() };
        let mut ops = Vec::new();
        for (id, known) in (0_u32..).zip(&mut self.backends) {
            if known.flags & abi::BACKEND_USED == 0 {
                continue;
            }
            let name = self.nodes.name(known.node).map(|name| name.name);
            let backend = with_flag(*known, self.direct.flag(known, name.as_ref()));
            if *known != backend {
                *known = backend;
                ops.push(MapOp::PutBackend { id, backend });
            }
        }
        ops
    }

    /// The backend with its flag, before its node has a number.
    pub(super) fn directed(&self, backend: abi::Backend, node: Option<&str>) -> abi::Backend {
        with_flag(backend, self.direct.flag(&backend, node.map(names::cut).as_ref()))
    }
}

const fn with_flag(backend: abi::Backend, flag: u8) -> abi::Backend {
    abi::Backend { flags: backend.flags & !abi::BACKEND_DIRECT | flag, ..backend }
}
