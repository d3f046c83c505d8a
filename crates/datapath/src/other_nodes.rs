//! The other nodes of the cluster: what they have wrapped is opened.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use weir_abi as abi;

use crate::error::Result;
use crate::load::Datapath;

impl Datapath {
    /// So many addresses there may be: two for each node, one of each family.
    #[must_use]
    pub fn other_nodes_most(&self) -> usize {
        usize::try_from(self.capacity().nodes.saturating_mul(2)).unwrap_or(usize::MAX)
    }

    /// Opens what these have wrapped, and nothing else.
    ///
    /// # Errors
    /// When the map cannot be read or written, or is full: what the others of them wrap is not opened then.
    pub fn set_other_nodes(&self, addresses: &BTreeSet<IpAddr>) -> Result<()> {
        let wanted: HashSet<abi::Addr> = addresses.iter().map(|address| (*address).into()).collect();
        let there: HashSet<abi::Addr> = self.other_nodes.entries()?.into_iter().map(|(address, _)| address).collect();
        // Those that leave go first, for the sake of the room.
        for address in there.difference(&wanted) {
            self.other_nodes.remove(address)?;
        }
        for address in wanted.difference(&there) {
            self.other_nodes.put(address, &abi::OtherNode { known: 1 }, 0)?;
        }
        Ok(())
    }
}
