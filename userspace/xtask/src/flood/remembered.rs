//! What a node remembers of the connections that are open: one whose flow was forgotten is met in its middle, and goes on at the same endpoint for
//! as long as shares stay as they are, so that neither of its ends would tell.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::Result;
use weir_abi as abi;
use weir_datapath::{FlowEntry, View};

/// Clients' addresses and ports, and the endpoints of their flows: slot and generation.
pub(super) struct Remembered(BTreeMap<([u8; 16], u16), (u32, u32)>);

impl Remembered {
    /// The flows to a frontend that a node knows, those that begin included.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub(super) fn of(view: &View, frontend: SocketAddr) -> Result<Self> {
        Ok(Self::among(&view.flows()?, frontend))
    }

    fn among(flows: &[FlowEntry], frontend: SocketAddr) -> Self {
        let addr = abi::Addr::from(frontend.ip());
        let of_frontend = flows.iter().filter(|entry| entry.frontend == addr && entry.frontend_port == frontend.port());
        let endpoint = |entry: &FlowEntry| (entry.flow.backend, entry.flow.generation);
        Self(of_frontend.map(|entry| ((entry.client.octets(), entry.client_port), endpoint(entry))).collect())
    }

    /// How many of so many connections are not among them, or at another endpoint by now.
    pub(super) fn lacks(&self, count: usize, now: &Self) -> usize {
        let kept = self.0.iter().filter(|(client, endpoint)| now.0.get(client) == Some(endpoint)).count();
        count.saturating_sub(kept)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn flow(client_port: u16, frontend: SocketAddr, backend: u32) -> FlowEntry {
        FlowEntry {
            client: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)).into(),
            client_port,
            frontend: frontend.ip().into(),
            frontend_port: frontend.port(),
            protocol: 6,
            flow: abi::Flow {
                backend,
                generation: 1,
                service: 1,
                flags: 0,
                snat_port: abi::Be16::new(0),
                created: 0,
                last_seen: 0,
                bytes: 0,
                held: 0,
            },
        }
    }

    #[test]
    fn a_flow_is_lacking_that_is_forgotten_at_another_endpoint_or_was_never_known() {
        let [frontend, other] = [80, 81].map(|port| SocketAddr::new(Ipv4Addr::new(10, 0, 0, 2).into(), port));
        let known = |flows: &[FlowEntry]| Remembered::among(flows, frontend);
        let before = known(&[flow(1, frontend, 1), flow(2, frontend, 1), flow(3, frontend, 2), flow(4, other, 1)]);
        assert_eq!(before.lacks(3, &before), 0);
        let after = known(&[flow(1, frontend, 1), flow(2, frontend, 2), flow(4, frontend, 1)]);
        assert_eq!(before.lacks(3, &after), 2);
        assert_eq!(before.lacks(4, &before), 1);
    }
}
