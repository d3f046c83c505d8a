//! Which source ranges a service admits. A range is there before the service asks for ranges, and goes after it has
//! stopped to: nobody is admitted or shut out in between by mistake.

use std::collections::BTreeSet;
use std::sync::Arc;

use ipnet::IpNet;
use weir_abi as abi;

use super::replace::Stage;
use super::{Tables, TablesError};
use crate::ops::{MapOp, SourceRange};
use crate::plan::ServicePlan;

/// Ranges that one service port may have in a family: far more than lists written by people have, and a sixteenth of
/// the default map, so that no single port leaves the others without room.
pub const MAX_SOURCE_RANGES: usize = 1024;

const MAP: &str = "source_ranges";

impl TablesError {
    /// Whether a service can be written in spite of it, if the addresses that its ranges guard are left out.
    pub(super) fn is_of_source_ranges(&self) -> bool {
        match self {
            Self::Full { map, size: _, option: _ } => *map == MAP,
            Self::TooManySourceRanges { .. } => true,
            Self::TooManyEndpoints { .. } => false,
        }
    }
}

/// Whether no port has more ranges than it may.
pub(super) fn check_limit(plans: &[ServicePlan]) -> Result<(), TablesError> {
    match plans.iter().find(|plan| plan.source_ranges.len() > MAX_SOURCE_RANGES) {
        Some(ServicePlan { key, source_ranges, .. }) => Err(TablesError::TooManySourceRanges {
            service: key.service.clone(),
            port_name: Arc::clone(&key.port_name),
            ranges: source_ranges.len(),
        }),
        None => Ok(()),
    }
}

/// The plans without ranges and without what they guard: rather nobody is admitted than everybody.
pub(super) fn closed(plans: &[ServicePlan]) -> Vec<ServicePlan> {
    let mut plans = plans.to_vec();
    for plan in plans.iter_mut().filter(|plan| !plan.source_ranges.is_empty()) {
        plan.source_ranges.clear();
        plan.frontends.retain(|(_, kind)| *kind != abi::KIND_LOAD_BALANCER);
        let served = plan.frontends.iter().filter(|(_, kind)| *kind != abi::KIND_ADDRESS);
        let served: BTreeSet<_> = served.map(|(key, _)| key.address).collect();
        plan.frontends.retain(|(key, _)| served.contains(&key.address));
    }
    plans
}

impl Tables {
    /// Stages what changes for a slot.
    pub(super) fn stage_source_ranges(&self, service: u32, new: &[IpNet], stage: &mut Stage) -> Box<[IpNet]> {
        let old = self.ports.get(&service).map_or(&[][..], |port| &port.source_ranges);
        let old: BTreeSet<_> = old.iter().copied().collect();
        let new: BTreeSet<_> = new.iter().copied().collect();
        let range = |net: &IpNet| SourceRange { service, net: *net };
        stage.new_ranges.extend(new.difference(&old).map(range));
        stage.gone_ranges.extend(old.difference(&new).map(range));
        new.into_iter().collect()
    }

    /// Whether the map has room for the new ranges: they are written before the old ones are deleted.
    pub(super) fn check_room_for_source_ranges(&self, stage: &Stage) -> Result<(), TablesError> {
        let size = self.capacity.source_ranges;
        if stage.new_ranges.len() > size.saturating_sub(self.source_ranges) as usize {
            return Err(TablesError::Full { map: MAP, size, option: "--max-source-ranges" });
        }
        Ok(())
    }

    pub(super) fn put_source_ranges(&mut self, ranges: Vec<SourceRange>, ops: &mut Vec<MapOp>) {
        for range in ranges {
            self.source_ranges += 1;
            ops.push(MapOp::PutSourceRange { range });
        }
    }

    pub(super) fn delete_source_ranges(&mut self, ranges: impl IntoIterator<Item = SourceRange>, ops: &mut Vec<MapOp>) {
        for range in ranges {
            self.source_ranges -= 1;
            ops.push(MapOp::DeleteSourceRange { range });
        }
    }
}
