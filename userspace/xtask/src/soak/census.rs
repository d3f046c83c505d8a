//! What a node has of everything that can leak.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use weir_abi as abi;
use weir_datapath::View;

use crate::{guard, ticks};

/// A count of a node at a moment.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Census {
    pub(super) node: u8,
    /// Seconds since the begin.
    pub(super) at: f64,
    pub(super) agent: Process,
    /// What must be as before when everything else is: entries of maps that the agent writes, ports, pins.
    pub(super) owned: BTreeMap<&'static str, usize>,
    /// Entries of maps from which the kernel takes the least recently used: they stay until there is need.
    pub(super) remembered: BTreeMap<&'static str, usize>,
}

/// What the agent's process has.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Process {
    pub(super) id: u32,
    pub(super) rss_kib: u64,
    /// Of that what is neither a file's nor a map's, which are most of it.
    pub(super) own_kib: u64,
    pub(super) files: usize,
    pub(super) threads: u64,
}

impl Census {
    /// Counts. `agent` is the id of the agent's process.
    ///
    /// # Errors
    /// When the maps or /proc cannot be read.
    pub(super) fn take(node: u8, agent: u32, at: f64) -> Result<Self> {
        let pins = guard::pin_dir(node);
        let view = View::open(pins.clone())?;
        let dump = view.dump()?;
        let used = dump.backends.iter().filter(|(_, backend)| backend.flags & abi::BACKEND_USED != 0).count();
        let owned = BTreeMap::from([
            ("services", dump.services.len()),
            ("backends", used),
            ("lines", dump.lines.len()),
            ("frontends", dump.frontends.len()),
            ("service names", dump.service_names.len()),
            ("node names", dump.node_names.len()),
            ("source ranges", dump.source_ranges.len()),
            ("pods with socket hooks", view.hooked_pods()?.len()),
            ("devices", view.devices()?.len()),
            ("source ports that may be given out", view.source_ports()?.len() as usize),
            ("pinned objects", entries_of(&pins.maps())? + entries_of(&pins.links())?),
        ]);
        let remembered = BTreeMap::from([
            ("flows", view.flows()?.len()),
            ("replies", view.replies4()?.len() + view.replies6()?.len()),
            ("affinities", view.affinities()?.len()),
            ("fragments", view.fragments()?.len()),
            ("sockets", view.sockets()?.len()),
        ]);
        Ok(Self { node, at, agent: Process::of(agent)?, owned, remembered })
    }

    /// What is owned in another number than before: name, then, now.
    pub(super) fn differences(&self, before: &Self) -> Vec<(&'static str, usize, usize)> {
        let now = self.owned.iter().map(|(name, now)| (*name, before.owned.get(name).copied().unwrap_or(0), *now));
        now.filter(|(_, then, now)| then != now).collect()
    }
}

/// What open flows hold on a node at a moment.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Held {
    pub(super) node: u8,
    pub(super) flows: usize,
    /// The node's own, which flows to other nodes leave from.
    pub(super) source_ports: usize,
}

impl Held {
    /// Counts. Entries of flows that are over stay where they are, and hold nothing.
    ///
    /// # Errors
    /// When the maps or the clocks cannot be read.
    pub(super) fn count(node: u8) -> Result<Self> {
        let view = View::open(guard::pin_dir(node))?;
        let backends = view.dump()?.backends.into_iter().filter(|(_, b)| b.flags & abi::BACKEND_USED != 0);
        let generations: HashMap<u32, u32> = backends.map(|(id, backend)| (id, backend.generation)).collect();
        let (limits, tick) = (view.idle_limits()?, ticks::now()?);
        let mut held = Self { node, flows: 0, source_ports: 0 };
        for entry in view.flows()? {
            let is_there = generations.get(&entry.flow.backend) == Some(&entry.flow.generation);
            if is_there && limits.is_open(entry.protocol, &entry.flow, tick) {
                held.flows += 1;
                held.source_ports += usize::from(entry.flow.flags & abi::FLOW_SNAT != 0);
            }
        }
        Ok(held)
    }

    /// Whether no more is held than before.
    pub(super) const fn is_within(&self, before: &Self) -> bool {
        self.flows <= before.flows && self.source_ports <= before.source_ports
    }
}

impl Process {
    fn of(id: u32) -> Result<Self> {
        let directory = Path::new("/proc").join(id.to_string());
        let status = directory.join("status");
        let text = fs::read_to_string(&status).with_context(|| format!("cannot read {}", status.display()))?;
        Self::parse(id, &text, entries_of(&directory.join("fd"))?)
            .with_context(|| format!("{} lacks a field", status.display()))
    }

    /// proc_pid_status(5).
    fn parse(id: u32, status: &str, files: usize) -> Option<Self> {
        let field = |name: &str| {
            let rest = status.lines().find_map(|line| line.strip_prefix(name))?;
            rest.split_whitespace().next()?.parse().ok()
        };
        Some(Self { id, rss_kib: field("VmRSS:")?, own_kib: field("RssAnon:")?, files, threads: field("Threads:")? })
    }
}

fn entries_of(directory: &Path) -> Result<usize> {
    Ok(fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))?.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn census(services: usize, flows: usize) -> Census {
        let agent = Process { id: 7, rss_kib: 1, own_kib: 1, files: 2, threads: 3 };
        let owned = BTreeMap::from([("services", services), ("backends", 5)]);
        Census { node: 1, at: 0.0, agent, owned, remembered: BTreeMap::from([("flows", flows)]) }
    }

    #[test]
    fn what_the_kernel_may_keep_is_no_difference() {
        assert_eq!(census(3, 1000).differences(&census(3, 0)), []);
        assert_eq!(census(4, 0).differences(&census(3, 0)), [("services", 3, 4)]);
    }

    #[test]
    fn a_process_tells_its_memory_and_its_threads() {
        let text = "Name:\tweir-agent\nVmHWM:\t   20480 kB\nVmRSS:\t   10240 kB\nRssAnon:\t    4096 kB\nThreads:\t7\n";
        let Some(Process { id, rss_kib, own_kib, files, threads }) = Process::parse(9, text, 30) else {
            panic!("{text}")
        };
        assert_eq!((id, rss_kib, own_kib, files, threads), (9, 10_240, 4096, 30, 7));
        assert!(Process::parse(9, "Name:\tkthreadd\n", 0).is_none());
    }
}
