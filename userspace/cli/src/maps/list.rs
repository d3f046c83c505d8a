//! `weir map list`: how full the maps are.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;
use weir_abi as abi;
use weir_core::ops::Dump;
use weir_datapath::{MapUse, View};

use super::{entries, frontends, is_awaited, unsorted_raw, used_backends};
use crate::exit::Answer;
use crate::output::{Kind, Output, Row, Tone};
use crate::time::Now;

/// Above this many per cent a map that does not evict soon refuses entries.
pub(crate) const NEARLY_FULL: u64 = 85;

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct MapRow {
    name: &'static str,
    r#type: &'static str,
    used: usize,
    max_entries: u32,
    key_bytes: u32,
    value_bytes: u32,
}

impl Row for MapRow {
    const KIND: Kind = Kind::MapList;

    fn headers(_wide: bool) -> Vec<&'static str> {
        vec!["NAME", "TYPE", "USED", "MAX", "KEY-BYTES", "VALUE-BYTES"]
    }

    fn cells(&self, _wide: bool) -> Vec<String> {
        let Self { name, r#type, used, max_entries, key_bytes, value_bytes } = self;
        let numbers = [used.to_string(), max_entries.to_string(), key_bytes.to_string(), value_bytes.to_string()];
        [(*name).to_owned(), (*r#type).to_owned()].into_iter().chain(numbers).collect()
    }

    fn name(&self) -> String {
        format!("map/{}", self.name)
    }

    fn tone(&self) -> Tone {
        let refuses = refuses(self.r#type, self.name);
        if refuses && is_nearly_full(self.used, self.max_entries) { Tone::Alert } else { Tone::Plain }
    }
}

/// Whether a map refuses entries when it is full.
fn refuses(r#type: &str, name: &str) -> bool {
    match r#type {
        "lru_hash" | "percpu_array" => false,
        // The agent gives out their slots. In the other arrays entries have their places, or take those of older ones.
        "array" => matches!(name, "services" | "backends" | "lines" | "service_counters" | "backend_counters"),
        _ => true,
    }
}

/// Whether entries are about to be refused.
pub(crate) fn is_nearly_full(used: usize, max: u32) -> bool {
    used as u64 * 100 >= u64::from(max) * NEARLY_FULL
}

/// Lists the maps.
pub(crate) fn list(view: &View, output: &Output) -> Result<Answer> {
    let (dump, flows) = (view.dump()?, flow_tables(view)?);
    let row = |map: MapUse| {
        let MapUse { name, kind, max_entries, key_size, value_size } = map;
        Ok(MapRow {
            name,
            r#type: kind,
            used: flows.get(name).copied().map_or_else(|| used(view, &dump, name), Ok)?,
            max_entries,
            key_bytes: key_size,
            value_bytes: value_size,
        })
    };
    let rows = view.counters().maps()?.into_iter().map(row).collect::<Result<Vec<_>>>()?;
    output.print(&output.list(&rows)?)?;
    Ok(Answer::Yes)
}

/// How many entries the tables of flows and of their answers have, each of which is read once.
fn flow_tables(view: &View) -> Result<BTreeMap<&'static str, usize>> {
    let uses = view.flow_uses(Now::read()?.tick())?;
    let mut counts: BTreeMap<_, _> =
        uses.into_iter().map(|(name, used)| (name, used.open as usize + used.over as usize)).collect();
    counts.extend(["replies4", "awaited4"].into_iter().zip(halves(&view.replies4()?)));
    counts.extend(["replies6", "awaited6"].into_iter().zip(halves(&view.replies6()?)));
    Ok(counts)
}

/// How many go on, and how many are awaited.
fn halves<K>(replies: &[(K, abi::Reply)]) -> [usize; 2] {
    let awaited = replies.iter().filter(|(_, reply)| is_awaited(reply)).count();
    [replies.len() - awaited, awaited]
}

/// How many entries of another map are in use.
fn used(view: &View, dump: &Dump, name: &str) -> Result<usize> {
    Ok(match name {
        "services" | "service_counters" => dump.services.len(),
        "backends" | "backend_counters" => used_backends(dump).count(),
        "lines" => dump.lines.len(),
        "frontends4" | "frontends6" => frontends(dump, name == "frontends4").count(),
        "service_names" => dump.service_names.len(),
        "source_ranges" => dump.source_ranges.len(),
        "socket_peers" => view.sockets()?.len(),
        "affinities" => view.affinities()?.len(),
        "fragments" => view.fragments()?.len(),
        "first_syns" | "snat_counters" | "snat_kept" | "displaced" => {
            unsorted_raw(view, name)?.map_or(0, |entries| entries.len())
        }
        // There are few in the rest.
        _ => entries(view, dump, name)?.map_or(0, |entries| entries.len()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_that_refuses_entries_soon_stands_out_and_one_that_evicts_does_not() {
        let row = |name, r#type, used| MapRow { name, r#type, used, max_entries: 100, key_bytes: 4, value_bytes: 8 };
        assert_eq!(row("frontends4", "hash", 85).tone(), Tone::Alert);
        assert_eq!(row("frontends4", "hash", 84).tone(), Tone::Plain);
        assert_eq!(row("source_ranges", "lpm_trie", 85).tone(), Tone::Alert);
        assert_eq!(row("backends", "array", 85).tone(), Tone::Alert);
        assert_eq!(row("flows4", "lru_hash", 100).tone(), Tone::Plain);
        for name in ["openings4", "awaited6", "first_syns", "snat_counters", "snat_kept", "displaced", "held_pieces"] {
            assert_eq!(row(name, "array", 100).tone(), Tone::Plain, "{name}");
        }
    }
}
