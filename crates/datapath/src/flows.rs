//! Flows as the control plane sees them: it never writes one, and deletes those that would follow a service that lost
//! its frontend.

use std::collections::HashMap;

use weir_abi as abi;
use weir_core::ops::FrontendKey;

use crate::error::Result;
use crate::keys;
use crate::map::Table;

/// `flows4` and `flows6`.
#[derive(Debug)]
pub(crate) struct Flows {
    pub(crate) v4: Table<abi::FlowKey4, abi::Flow>,
    pub(crate) v6: Table<abi::FlowKey6, abi::Flow>,
}

impl Flows {
    /// Deletes the flows to these frontends that are another service's than the one given, `None` standing for nobody.
    /// Reads each of the two maps once, if a frontend is of its family.
    ///
    /// # Errors
    /// When a map cannot be read or written; flows that were found before are deleted then.
    pub(crate) fn forget(&self, owners: &HashMap<FrontendKey, Option<u32>>) -> Result<()> {
        let left = |key: FrontendKey, flow: &abi::Flow| owners.get(&key).is_some_and(|now| *now != Some(flow.service));
        if owners.keys().any(|key| key.address.is_ipv4()) {
            let mut gone = self.v4.entries()?.into_iter().filter(|(key, flow)| left(keys::flow_frontend4(key), flow));
            gone.try_for_each(|(key, _)| self.v4.remove(&key).map(drop))?;
        }
        if owners.keys().any(|key| key.address.is_ipv6()) {
            let mut gone = self.v6.entries()?.into_iter().filter(|(key, flow)| left(keys::flow_frontend6(key), flow));
            gone.try_for_each(|(key, _)| self.v6.remove(&key).map(drop))?;
        }
        Ok(())
    }
}
