//! `weir map list` and `weir map dump`.

mod list;

use std::mem::offset_of;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, bail};
use serde::Serialize;
use weir_abi as abi;
use weir_abi::names::{hook_name, reason_name};
use weir_core::ops::{Dump, FrontendKey};
use weir_datapath::{FlowEntry, RawEntry, View};

use crate::decode::{self, Value, number};
use crate::exit::Answer;
use crate::output::{Kind, Output, Row};

pub(crate) use list::{NEARLY_FULL, is_nearly_full, list};

#[derive(Clone, Debug, Serialize)]
struct EntryRow {
    key: Value,
    value: Value,
}

impl Row for EntryRow {
    const KIND: Kind = Kind::MapEntryList;

    fn headers(_wide: bool) -> Vec<&'static str> {
        vec!["KEY", "VALUE"]
    }

    fn cells(&self, _wide: bool) -> Vec<String> {
        vec![self.key.to_string(), self.value.to_string()]
    }

    fn name(&self) -> String {
        format!("entry/{}", self.key)
    }
}

fn entry((key, value): (Value, Value)) -> EntryRow {
    EntryRow { key, value }
}

fn slot<V>((id, value): &(u32, V), decode: impl Fn(&V) -> Value) -> EntryRow {
    EntryRow { key: number(*id), value: decode(value) }
}

/// Prints a map.
pub(crate) fn dump(view: &View, name: &str, raw: bool, output: &Output) -> Result<Answer> {
    let entries = if raw { raw_entries(view, name)? } else { entries(view, &view.dump()?, name)? };
    let Some(entries) = entries else {
        let names: Vec<_> = view.counters().maps()?.into_iter().map(|map| map.name).collect();
        bail!("there is no map {name}; there are {}", names.join(", "));
    };
    if entries.is_empty() && output.is_table() {
        eprintln!("map {name} is empty");
    }
    output.print(&output.list(&entries)?)?;
    Ok(Answer::Yes)
}

fn raw_entries(view: &View, name: &str) -> Result<Option<Vec<EntryRow>>> {
    let hex = |bytes: Vec<u8>| Value::Text(bytes.iter().map(|byte| format!("{byte:02x}")).collect());
    let row = |(key, value)| entry((hex(key), hex(value)));
    Ok(used_raw(view, name)?.map(|entries| entries.into_iter().map(row).collect()))
}

/// The entries of a map as bytes, in no order. Those of an array are left out if they are zero. `None` if there is no such map.
fn unsorted_raw(view: &View, name: &str) -> Result<Option<Vec<RawEntry>>> {
    let Some(mut entries) = view.raw(name)? else { return Ok(None) };
    let is_array = view.counters().maps()?.iter().any(|map| map.name == name && map.kind.ends_with("array"));
    entries.retain(|(_, value)| !is_array || value.iter().any(|byte| *byte != 0));
    Ok(Some(entries))
}

/// The same in order: by index, or by the bytes of the key.
fn used_raw(view: &View, name: &str) -> Result<Option<Vec<RawEntry>>> {
    let Some(mut entries) = unsorted_raw(view, name)? else { return Ok(None) };
    let order = |key: &[u8]| match <[u8; 4]>::try_from(key) {
        Ok(index) => (u32::from_ne_bytes(index), Vec::new()),
        Err(_) => (0, key.to_vec()),
    };
    entries.sort_by_cached_key(|(key, _)| order(key));
    Ok(Some(entries))
}

fn used_backends(dump: &Dump) -> impl Iterator<Item = &(u32, abi::Backend)> {
    dump.backends.iter().filter(|(_, backend)| backend.flags & abi::BACKEND_USED != 0)
}

fn frontends(dump: &Dump, v4: bool) -> impl Iterator<Item = &(FrontendKey, abi::Frontend)> {
    dump.frontends.iter().filter(move |(key, _)| key.address.is_ipv4() == v4)
}

/// The entries in use of a map, decoded and in order; `None` if there is no such map.
fn entries(view: &View, dump: &Dump, name: &str) -> Result<Option<Vec<EntryRow>>> {
    let mut rows = match name {
        "config" => vec![EntryRow { key: number(0u32), value: decode::config(&view.config()?) }],
        "services" => dump.services.iter().map(|service| slot(service, decode::service)).collect(),
        "backends" => used_backends(dump).map(|backend| slot(backend, decode::backend)).collect(),
        "lines" => dump.lines.iter().map(|line| slot(line, decode::line)).collect(),
        "service_counters" => {
            let ids = dump.services.iter().map(|(id, _)| *id);
            let read = |id| Ok(slot(&(id, view.service_counters(id)?), decode::service_counters));
            ids.map(read).collect::<Result<_>>()?
        }
        "backend_counters" => {
            let read = |(id, _): &(u32, _)| Ok(slot(&(*id, view.backend_counters(*id)?), decode::backend_counters));
            used_backends(dump).map(read).collect::<Result<_>>()?
        }
        "frontends4" | "frontends6" => {
            let mut frontends: Vec<_> = frontends(dump, name == "frontends4").collect();
            frontends.sort_unstable_by_key(|(key, _)| *key);
            frontends.iter().map(|(key, frontend)| entry(decode::frontend(key, frontend))).collect()
        }
        "service_names" => {
            let mut names: Vec<_> = dump.service_names.iter().collect();
            names.sort_unstable_by_key(|(id, _)| *id);
            names.into_iter().map(|name| slot(name, decode::service_name)).collect()
        }
        "node_names" => {
            let mut names: Vec<_> = dump.node_names.iter().collect();
            names.sort_unstable_by_key(|(id, _)| *id);
            names.into_iter().map(|name| slot(name, decode::node_name)).collect()
        }
        "flows4" | "flows6" | "openings4" | "openings6" => {
            let is_in = |flow: &FlowEntry| {
                let (v4, opening) = (flow.client.ip().is_ipv4(), flow.flow.flags & abi::FLOW_OPENING != 0);
                v4 == name.ends_with('4') && opening == name.starts_with("openings")
            };
            view.flows()?.into_iter().filter(is_in).map(|flow| entry(decode::flow(&flow))).collect()
        }
        "replies4" => replies4(view, false)?,
        "replies6" => replies6(view, false)?,
        "awaited4" => replies4(view, true)?,
        "awaited6" => replies6(view, true)?,
        "socket_peers" => {
            let mut sockets = view.sockets()?;
            sockets.sort_unstable_by_key(|(key, _)| (key.cookie, key.addr.octets(), key.port.get(), key.proto));
            sockets.iter().map(|(key, peer)| entry(decode::socket(key, peer))).collect()
        }
        "hooked_pods" => {
            let mut pods = view.hooked_pods()?;
            pods.sort_unstable_by_key(|(group, _)| *group);
            pods.iter().map(|(group, pod)| entry(decode::hooked_pod(*group, pod))).collect()
        }
        "affinities" => {
            let mut affinities = view.affinities()?;
            affinities.sort_unstable_by_key(|(key, _)| (key.service, key.client.octets()));
            affinities.iter().map(|(key, affinity)| entry(decode::affinity(key, affinity))).collect()
        }
        "source_ranges" => {
            let mut ranges = dump.source_ranges.clone();
            ranges.sort_unstable();
            ranges.iter().map(|range| entry(decode::source_range(range))).collect()
        }
        "fragments" => {
            let mut fragments = view.fragments()?;
            fragments.sort_unstable_by_key(|(key, _)| (key.src.octets(), key.dst.octets(), key.id.get(), key.proto));
            fragments.iter().map(|(key, fragment)| entry(decode::fragment(key, fragment))).collect()
        }
        "held_pieces" => {
            view.held_pieces()?.iter().map(|(slot, piece)| entry(decode::held_piece(*slot, piece))).collect()
        }
        "first_pieces" => of_each_cpu::<abi::HeldPiece>(view, name, &[("bytes", offset_of!(abi::HeldPiece, length))])?,
        "counters" => counters(view)?,
        "routes" => {
            let size = size_of::<abi::Route>();
            let cpus =
                |values: &[u8]| values.chunks_exact(size).enumerate().filter_map(decode::route).collect::<Vec<_>>();
            used_raw(view, name)?.unwrap_or_default().iter().flat_map(|(_, values)| cpus(values)).map(entry).collect()
        }
        "paces" => {
            let fields = [("tick", offset_of!(abi::Pace, tick)), ("flows", offset_of!(abi::Pace, flows))];
            of_each_cpu::<abi::Pace>(view, name, &fields)?
        }
        "devices" => view.devices()?.iter().map(|device| entry(decode::device(device))).collect(),
        "nics" => view.nics()?.into_iter().map(|index| entry(decode::nic(index))).collect(),
        "local_endpoints" => {
            let mut endpoints = view.local_endpoints()?;
            endpoints.sort_unstable_by_key(|(key, _)| (key.service, key.addr.octets()));
            endpoints.iter().map(|(key, endpoint)| entry(decode::local_endpoint(key, endpoint))).collect()
        }
        "other_nodes" => {
            let mut nodes = view.other_nodes()?;
            nodes.sort_unstable_by_key(|(address, _)| address.octets());
            nodes.iter().map(|(address, node)| entry(decode::other_node(*address, node))).collect()
        }
        "shortcuts" => {
            let mut shortcuts = view.shortcuts()?;
            shortcuts.sort_unstable_by_key(|(index, _)| *index);
            shortcuts.iter().map(|(index, shortcut)| entry(decode::shortcut(*index, shortcut))).collect()
        }
        "pod_macs" => {
            let mut macs = view.pod_macs()?;
            macs.sort_unstable();
            macs.iter().map(|(mac, index)| entry(decode::pod_mac(*mac, *index))).collect()
        }
        "frontend_filter" => {
            used_raw(view, name)?.unwrap_or_default().iter().map(|word| entry(decode::filter_word(word))).collect()
        }
        "going_filter" => {
            view.raw(name)?.unwrap_or_default().iter().map(|filter| entry(decode::going_filter(filter))).collect()
        }
        "snat_counters" => {
            let counters = used_raw(view, name)?.unwrap_or_default();
            counters.iter().map(|counter| entry(decode::snat_counter(counter))).collect()
        }
        "first_syns" => {
            used_raw(view, name)?.unwrap_or_default().iter().map(|syns| entry(decode::first_syns(syns))).collect()
        }
        "snat_kept" => {
            let lines = used_raw(view, name)?.unwrap_or_default();
            lines.iter().map(|line| entry(decode::snat_kept(line))).collect()
        }
        "displaced" => {
            let lines = used_raw(view, name)?.unwrap_or_default();
            lines.iter().map(|line| entry(decode::displaced(line))).collect()
        }
        "snat_next" => {
            used_raw(view, name)?.unwrap_or_default().iter().map(|next| entry(decode::snat_next(next))).collect()
        }
        "snat_ports" => {
            used_raw(view, name)?.unwrap_or_default().iter().map(|ports| entry(decode::snat_ports(ports))).collect()
        }
        _ => return Ok(None),
    };
    rows.shrink_to_fit();
    Ok(Some(rows))
}

const fn is_awaited(reply: &abi::Reply) -> bool {
    reply.flags & abi::FLOW_OPENING != 0
}

fn replies4(view: &View, awaited: bool) -> Result<Vec<EntryRow>> {
    let end = |word: abi::Be32, port: abi::Be16| SocketAddr::new(IpAddr::V4(word.get().into()), port.get());
    let replies = view.replies4()?.into_iter().filter(|(_, reply)| is_awaited(reply) == awaited);
    Ok(replies_of(replies.map(|(key, reply)| {
        let abi::FlowKey4 { src, dst, sport, dport, proto, pad: _ } = key;
        (end(src, sport), end(dst, dport), proto, reply)
    })))
}

fn replies6(view: &View, awaited: bool) -> Result<Vec<EntryRow>> {
    let end = |word: [abi::Be32; 4], port: abi::Be16| SocketAddr::new(abi::Addr { word }.ip(), port.get());
    let replies = view.replies6()?.into_iter().filter(|(_, reply)| is_awaited(reply) == awaited);
    Ok(replies_of(replies.map(|(key, reply)| {
        let abi::FlowKey6 { src, dst, sport, dport, proto, pad: _ } = key;
        (end(src, sport), end(dst, dport), proto, reply)
    })))
}

fn replies_of(replies: impl Iterator<Item = (SocketAddr, SocketAddr, u8, abi::Reply)>) -> Vec<EntryRow> {
    let mut replies: Vec<_> = replies.collect();
    replies.sort_unstable_by_key(|(from, to, protocol, _)| (*from, *to, *protocol));
    replies
        .iter()
        .map(|(from, to, protocol, reply)| entry((decode::reply_key(*from, *to, *protocol), decode::reply(reply))))
        .collect()
}

/// Those that are not zero.
fn counters(view: &View) -> Result<Vec<EntryRow>> {
    let mut rows = Vec::new();
    for hook in 0..abi::HOOK_COUNT {
        for reason in 0..abi::REASON_COUNT {
            let counter = view.counters().counter(hook, reason)?;
            if counter.packets > 0 {
                let hook = u32::try_from(hook).map_or("unknown", hook_name);
                let key = [("hook", hook), ("reason", reason_name(reason))];
                let key = key.map(|(name, value)| (name, Value::Text(value.to_owned())));
                rows.push(EntryRow { key: Value::Fields(key.into()), value: decode::counter(&counter) });
            }
        }
    }
    Ok(rows)
}

/// Fields of the only entry of a map that has one value for each CPU, by their offset.
fn of_each_cpu<T>(view: &View, map: &str, fields: &[(&'static str, usize)]) -> Result<Vec<EntryRow>> {
    let entries = view.raw(map)?.unwrap_or_default();
    let values = entries.iter().flat_map(|(_, values)| values.chunks_exact(size_of::<T>()));
    let row = |(cpu, value): (usize, &[u8])| {
        let word =
            |at: usize| value.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes);
        EntryRow {
            key: Value::Fields(vec![("cpu", number(cpu as u64))]),
            value: Value::Fields(fields.iter().map(|(name, at)| (*name, number(word(*at)))).collect()),
        }
    };
    Ok(values.enumerate().map(row).collect())
}
