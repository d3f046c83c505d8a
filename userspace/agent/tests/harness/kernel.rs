//! What the kernel has on somebody's behalf: sockets that are bound, protocols that were loaded.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use weir_testbed::Netns;

/// Before any agent of this process ran.
static BEFORE: LazyLock<BTreeSet<String>> = LazyLock::new(sctp);

/// Notes what is there before anything is started.
pub(crate) fn remember() {
    LazyLock::force(&BEFORE);
}

/// Asserts that nobody has made the kernel load its SCTP since.
pub(crate) fn assert_no_sctp_loaded() {
    let new: Vec<_> = sctp().difference(&BEFORE).cloned().collect();
    assert!(new.is_empty(), "somebody has loaded the kernel's SCTP: {new:?}");
}

/// Every sign of the kernel's own SCTP: modules, protocols of sockets, settings.
fn sctp() -> BTreeSet<String> {
    let mut signs = BTreeSet::new();
    // A kernel without modules has no such file.
    for file in ["/proc/modules", "/proc/net/protocols"] {
        let text = fs::read_to_string(file).unwrap_or_default();
        let words = text.lines().filter_map(|line| line.split_whitespace().next());
        let of_sctp = words.filter(|word| word.to_lowercase().contains("sctp"));
        signs.extend(of_sctp.map(|word| format!("{word} in {file}")));
    }
    let settings = Path::new("/proc/sys/net/sctp");
    signs.extend(settings.exists().then(|| settings.display().to_string()));
    signs
}

/// Asserts that no socket of a node is bound to one of these ports, of whatever protocol.
pub(crate) fn assert_unbound(node: &Netns, ports: &[u16]) {
    /// Where the agent answers in any case: what is not listed there is not listed at all.
    const HEALTH: u16 = 10256;
    const TABLES: [&str; 4] = ["tcp", "tcp6", "udp", "udp6"];
    let bound = TABLES.map(|table| (table, node.enter(|| local_ports(table))));
    assert!(bound.iter().any(|(_, ports)| ports.contains(&HEALTH)), "the health port is not listed: {bound:?}");
    for port in ports {
        assert!(bound.iter().all(|(_, all)| !all.contains(port)), "port {port} is bound: {bound:?}");
    }
}

/// Local ports in a table of the thread's namespace.
fn local_ports(table: &str) -> Vec<u16> {
    let text = fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap();
    let ports = text.lines().skip(1).map(|line| {
        let (_, port) = line.split_whitespace().nth(1).unwrap().rsplit_once(':').unwrap();
        u16::from_str_radix(port, 16).unwrap()
    });
    ports.collect()
}
