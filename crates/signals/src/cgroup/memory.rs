//! Memory of a group against its limit. What counts is the working set, as kubelet has it when it evicts: all but the
//! file pages that were not used for long (`setMemoryStats` of cAdvisor).

use std::path::Path;
use std::time::Instant;

use weir_core::load::{Lie, Share};

use super::{MemoryHierarchy, below};
use crate::meter::number;
use crate::source::{Failure, Source};
use crate::text::{TextFile, integer_after, only_integer};

/// v1 says this and more for no limit: 2^63, rounded to pages of any size.
const V1_UNLIMITED: u64 = 1 << 62;
/// A limit that was lowered, and pages charged in batches, let a group be above it for a moment.
const OVERSHOOT: f64 = 1.1;

/// Memory that a group uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupMemoryUse {
    /// Working set in bytes.
    pub bytes: u64,
    /// Bytes that the group may have; `None` without a limit.
    pub limit: Option<u64>,
    /// Its use of the limit.
    pub share: Option<Share>,
}

/// Memory of a group.
#[derive(Debug)]
pub struct GroupMemory {
    usage: TextFile,
    limit: TextFile,
    stat: TextFile,
    /// The line of `stat` with the file pages that were not used for long.
    inactive_file: &'static [u8],
}

impl GroupMemory {
    pub(super) fn new(hierarchy: &MemoryHierarchy, group: &Path) -> Self {
        let (root, [usage, limit], inactive_file): (_, _, &[u8]) = match hierarchy {
            MemoryHierarchy::V1(root) => {
                (root, ["memory.usage_in_bytes", "memory.limit_in_bytes"], b"total_inactive_file")
            }
            MemoryHierarchy::V2(root) => (root, ["memory.current", "memory.max"], b"inactive_file"),
        };
        let file = |name| TextFile::new(below(root, group).join(name));
        Self { usage: file(usage), limit: file(limit), stat: file("memory.stat"), inactive_file }
    }

    /// Whether the group has a limit of its own.
    ///
    /// # Errors
    /// As reading it.
    pub(crate) fn is_limited(&mut self) -> Result<bool, Failure> {
        Ok(self.limit()?.is_some())
    }

    fn limit(&mut self) -> Result<Option<u64>, Failure> {
        let Some(text) = self.limit.read_if_exists()? else { return Ok(None) };
        match (text, only_integer(text)) {
            (b"max\n", _) => Ok(None),
            (_, Some(limit)) => Ok((limit < V1_UNLIMITED).then_some(limit)),
            (_, None) => Err(self.limit.malformed("limit in bytes, or max")),
        }
    }
}

impl Source for GroupMemory {
    type Value = GroupMemoryUse;

    fn name(&self) -> &'static str {
        "cgroup-memory"
    }

    fn read(&mut self, _now: Instant) -> Result<Option<GroupMemoryUse>, Failure> {
        let used = self.usage.parse("use in bytes", only_integer)?;
        let key = self.inactive_file;
        let inactive = self.stat.parse("inactive file pages", |text| integer_after(text, key))?;
        // Both are read one after the other, so the part can be larger than the whole.
        let bytes = used.saturating_sub(inactive);
        let Some(limit) = self.limit()? else { return Ok(Some(GroupMemoryUse { bytes, limit: None, share: None })) };
        let share = number(bytes) / number(limit);
        // Of a limit of nothing it is no number, which is not in the range either.
        if !(0.0..=OVERSHOOT).contains(&share) {
            return Err(Failure::Lie { object: self.usage.object(), cause: Lie::Share(share) });
        }
        Ok(Some(GroupMemoryUse { bytes, limit: Some(limit), share: Some(Share::clamped(share)) }))
    }
}
