//! Which source ranges a service admits. A range is there before the service asks for ranges, and goes after it has
//! stopped to: nobody is admitted or shut out in between by mistake.

use std::collections::BTreeSet;

use ipnet::IpNet;

use super::replace::Stage;
use super::{Tables, TablesError};
use crate::ops::{MapOp, SourceRange};

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
            return Err(TablesError::Full { map: "source_ranges", size, option: "--max-source-ranges" });
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
