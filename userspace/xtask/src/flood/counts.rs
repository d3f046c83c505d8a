//! What the kernel has counted of TCP in namespaces, and the programs of a node of packets that they did not let through:
//! whence failures come.

use std::collections::BTreeMap;
use std::{fs, io};

use anyhow::{Context, Result};
use weir_abi as abi;
use weir_abi::names::{reason_name, verdict_name};
use weir_datapath::View;
use weir_testbed::Netns;

/// Counters by name.
pub(super) type Counts = BTreeMap<String, u64>;

/// Counters of the namespace whose thread reads them: proc_pid_net(5).
const FILES: [&str; 2] = ["/proc/thread-self/net/snmp", "/proc/thread-self/net/netstat"];
/// Those that say what became of SYNs, of their answers and of those who got these: networking/snmp_counter of the kernel's
/// documentation.
const NAMES: [&str; 9] = [
    "AttemptFails",
    "EstabResets",
    "RetransSegs",
    "SyncookiesSent",
    "SyncookiesFailed",
    "ListenDrops",
    "TCPACKSkippedSynRecv",
    "TCPReqQFullDrop",
    "TCPSynRetrans",
];

/// Connections that the programs met in their middle: nothing was remembered of their SYN, or their flow was forgotten.
pub(super) const ADOPTED: &str = "adopted";

/// What the kernel has counted in namespaces so far, all together.
///
/// # Errors
/// When /proc cannot be read.
pub(super) fn of_kernel<'a>(all: impl IntoIterator<Item = &'a Netns>) -> Result<Counts> {
    let read = || FILES.iter().map(fs::read_to_string).collect::<io::Result<Vec<_>>>();
    let mut texts = Vec::new();
    for netns in all {
        texts.extend(netns.enter(read).with_context(|| format!("cannot read the counters of {}", netns.name()))?);
    }
    Ok(sum(&texts))
}

/// The counters in all of these texts, those of one name added up.
fn sum(texts: &[String]) -> Counts {
    let mut counts = Counts::new();
    for (name, count) in texts.iter().flat_map(|text| counters(text)) {
        *counts.entry(name).or_default() += count;
    }
    counts
}

/// A line of names and one of values for each protocol.
fn counters(text: &str) -> Vec<(String, u64)> {
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().skip(1).collect()).collect();
    let pairs = lines.chunks_exact(2).flat_map(|pair| pair[0].iter().zip(&pair[1]));
    let wanted = pairs.filter(|(name, _)| NAMES.contains(name));
    wanted.filter_map(|(name, value)| Some(((*name).to_owned(), value.parse().ok()?))).collect()
}

/// Packets that the programs of a node have answered themselves or dropped so far, by reason, and connections that are [`ADOPTED`].
///
/// # Errors
/// When a map cannot be read.
pub(super) fn of_programs(view: &View) -> Result<Counts> {
    let mut counts = Counts::from([(ADOPTED.to_owned(), view.counters().adopted()?)]);
    for reason in (0..abi::REASON_COUNT).filter(|reason| matches!(verdict_name(*reason), "answered" | "dropped")) {
        for hook in 0..abi::HOOK_COUNT {
            *counts.entry(reason_name(reason).to_owned()).or_default() +=
                view.counters().counter(hook, reason)?.packets;
        }
    }
    Ok(counts)
}

/// What has been counted since, without what has not.
pub(super) fn grown(before: &Counts, after: &Counts) -> Counts {
    let since = |(name, now): (&String, &u64)| (name.clone(), now - before.get(name).copied().unwrap_or(0).min(*now));
    after.iter().map(since).filter(|(_, count)| *count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_name_whatever_else_there_is() {
        let text = "Tcp: MaxConn AttemptFails\nTcp: -1 7\nTcpExt: SyncookiesSent TCPFastOpen\nTcpExt: 12 3\n";
        let found = counters(text);
        assert_eq!(found, [("AttemptFails".to_owned(), 7), ("SyncookiesSent".to_owned(), 12)]);
    }

    #[test]
    fn several_namespaces_are_told_of_as_one() {
        let text = |cookies: u64| format!("TcpExt: SyncookiesSent ListenDrops\nTcpExt: {cookies} 1\n");
        let all = sum(&[12, 30].map(text));
        assert_eq!(all, Counts::from([("ListenDrops".to_owned(), 2), ("SyncookiesSent".to_owned(), 42)]));
    }

    #[test]
    fn only_what_has_grown_is_told() {
        let counts = |all: &[(&str, u64)]| all.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        let (before, after): (Counts, Counts) =
            (counts(&[("a", 1), ("b", 2)]), counts(&[("a", 1), ("b", 5), ("c", 1)]));
        assert_eq!(grown(&before, &after), counts(&[("b", 3), ("c", 1)]));
    }
}
