//! CPU time of a group against its quota: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/cpuacct.rst,
//! Documentation/scheduler/sched-bwc.rst.

use std::path::Path;
use std::time::{Duration, Instant};

use weir_core::load::{Lie, Share};

use super::{CpuHierarchy, below};
use crate::meter::{Meter, SHORTEST_WINDOW, number};
use crate::source::{Failure, Source};
use crate::text::{TextFile, integer, integer_after, only_integer, words};

/// A window covers parts of periods, and begins after one that was saved for a burst: so many quotas more than its
/// length says can be used in it.
const EDGE_PERIODS: f64 = 3.0;

/// CPU time that a group uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupCpuUse {
    /// Cores in use.
    pub cores: f64,
    /// Cores that its quota allows; `None` without a quota.
    pub limit: Option<f64>,
    /// Its use of the quota.
    pub share: Option<Share>,
}

/// CPU time of a group.
#[derive(Debug)]
pub struct GroupCpu {
    files: Files,
    meter: Meter<1>,
    quota: Option<Quota>,
}

#[derive(Debug)]
enum Files {
    V1 { usage: TextFile, quota: TextFile, period: TextFile },
    V2 { stat: TextFile, max: TextFile },
}

/// So many microseconds of CPU time in each period.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Quota {
    micros: u64,
    period: u64,
}

impl Quota {
    fn cores(self) -> f64 {
        number(self.micros) / number(self.period)
    }

    /// The most cores that the kernel can let a group use in a window.
    fn most(self, window: Duration) -> f64 {
        let period = Duration::from_micros(self.period).as_secs_f64();
        self.cores() * (1.0 + EDGE_PERIODS * period / window.as_secs_f64())
    }
}

impl GroupCpu {
    pub(super) fn new(hierarchy: &CpuHierarchy, group: &Path) -> Self {
        let files = match hierarchy {
            CpuHierarchy::V1 { quota, usage } => {
                let (quota, usage) = (below(quota, group), below(usage, group));
                Files::V1 {
                    usage: TextFile::new(usage.join("cpuacct.usage")),
                    quota: TextFile::new(quota.join("cpu.cfs_quota_us")),
                    period: TextFile::new(quota.join("cpu.cfs_period_us")),
                }
            }
            CpuHierarchy::V2(root) => {
                let group = below(root, group);
                Files::V2 { stat: TextFile::new(group.join("cpu.stat")), max: TextFile::new(group.join("cpu.max")) }
            }
        };
        Self { files, meter: Meter::new(SHORTEST_WINDOW), quota: None }
    }

    /// Whether the group has a quota of its own.
    ///
    /// # Errors
    /// As reading it.
    pub(crate) fn is_limited(&mut self) -> Result<bool, Failure> {
        Ok(self.files.quota()?.is_some())
    }
}

impl Files {
    /// CPU time since the group was made, in nanoseconds.
    fn usage(&mut self) -> Result<u64, Failure> {
        match self {
            Self::V1 { usage, .. } => usage.parse("CPU time in nanoseconds", only_integer),
            Self::V2 { stat, .. } => {
                let micros = |text: &[u8]| integer_after(text, b"usage_usec")?.checked_mul(1000);
                stat.parse("usage_usec", micros)
            }
        }
    }

    fn quota(&mut self) -> Result<Option<Quota>, Failure> {
        let (file, quota) = match self {
            Self::V1 { quota, period, .. } => {
                let Some(micros) = quota.parse("quota in microseconds, or -1", v1_quota)? else { return Ok(None) };
                let period = period.parse("period in microseconds", only_integer)?;
                (quota, Quota { micros, period })
            }
            Self::V2 { max, .. } => {
                // The root has none, nor have groups that the controller was not enabled for.
                let Some(text) = max.read_if_exists()? else { return Ok(None) };
                let Some(quota) = v2_quota(text) else { return Err(max.malformed("quota and period, or max")) };
                let Some(quota) = quota else { return Ok(None) };
                (max, quota)
            }
        };
        let Quota { micros, period } = quota;
        if micros == 0 || period == 0 { Err(file.malformed("quota above 0")) } else { Ok(Some(quota)) }
    }

    fn object(&self) -> String {
        match self {
            Self::V1 { usage: file, .. } | Self::V2 { stat: file, .. } => file.object(),
        }
    }
}

/// -1 is no quota.
fn v1_quota(text: &[u8]) -> Option<Option<u64>> {
    if text == b"-1\n" { Some(None) } else { only_integer(text).map(Some) }
}

/// "max 100000" is no quota.
fn v2_quota(text: &[u8]) -> Option<Option<Quota>> {
    let mut words = words(text.strip_suffix(b"\n")?);
    let (quota, period) = (words.next()?, integer(words.next()?)?);
    if quota == b"max" { Some(None) } else { Some(Some(Quota { micros: integer(quota)?, period })) }
}

impl Source for GroupCpu {
    type Value = GroupCpuUse;

    fn name(&self) -> &'static str {
        "cgroup-cpu"
    }

    fn read(&mut self, now: Instant) -> Result<Option<GroupCpuUse>, Failure> {
        let usage = self.files.usage()?;
        let quota = self.files.quota()?;
        if quota != self.quota {
            // Time used under one quota says nothing about another.
            self.quota = quota;
            self.meter.restart([usage], now);
            return Ok(None);
        }
        let step = self.meter.advance([usage], now).map_err(|gap| gap.failure(self.files.object()))?;
        let Some(step) = step else { return Ok(None) };
        let [nanos] = step.rates();
        let cores = nanos / 1e9;
        let Some(quota) = quota else { return Ok(Some(GroupCpuUse { cores, limit: None, share: None })) };
        if cores > quota.most(step.over) {
            let cause = Lie::Share(cores / quota.cores());
            return Err(Failure::Lie { object: self.files.object(), cause });
        }
        let share = Share::clamped(cores / quota.cores());
        Ok(Some(GroupCpuUse { cores, limit: Some(quota.cores()), share: Some(share) }))
    }
}
