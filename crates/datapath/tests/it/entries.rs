//! Entries of the tables that the programs write, made older or taken away: what otherwise only time does.

use std::path::Path;
use std::process::Command;

use crate::node::Node;

fn bpftool(verb: &str, pin: &Path, parts: &[(&str, &[u8])]) {
    let mut command = Command::new("bpftool");
    command.args(["map", verb, "pinned"]).arg(pin);
    for (name, bytes) in parts {
        command.args([name, "hex"]).args(bytes.iter().map(|byte| format!("{byte:02x}")));
    }
    let status = command.status().expect("bpftool is installed");
    assert!(status.success(), "{command:?}");
}

/// A table of flows or replies with that of flows which begin; any other map alone.
fn stages(map: &str) -> impl Iterator<Item = &str> {
    let opening = match map {
        "flows4" => Some("openings4"),
        "flows6" => Some("openings6"),
        "replies4" => Some("awaited4"),
        "replies6" => Some("awaited6"),
        _ => None,
    };
    std::iter::once(map).chain(opening)
}

/// Makes all entries of a table look as if they were last seen so many ticks earlier. `last_seen`: offset of that field.
pub(crate) fn age(node: &Node, map: &str, last_seen: usize, ticks: u32) {
    for map in stages(map) {
        for (key, mut value) in node.view.raw(map).unwrap().unwrap() {
            let field = &mut value[last_seen..last_seen + size_of::<u32>()];
            let seen = u32::from_ne_bytes(field.try_into().unwrap());
            field.copy_from_slice(&seen.wrapping_sub(ticks).to_ne_bytes());
            bpftool("update", &node.pin(map), &[("key", &key), ("value", &value)]);
        }
    }
}

/// Removes all entries of a table, as the kernel does with the oldest ones of a full one.
pub(crate) fn evict(node: &Node, map: &str) {
    for map in stages(map) {
        for (key, _) in node.view.raw(map).unwrap().unwrap() {
            bpftool("delete", &node.pin(map), &[("key", &key)]);
        }
    }
}
