//! What this process may do, as far as loading needs it: the kernel's own refusals do not say what was missing.

use std::fs;

/// Bit of each capability in the kernel's set, from linux/capability.h.
const NEEDED: [(&str, u32); 3] = [("CAP_NET_ADMIN", 12), ("CAP_PERFMON", 38), ("CAP_BPF", 39)];
/// Stands for CAP_PERFMON and CAP_BPF, too.
const SYS_ADMIN: u32 = 21;

/// Names of the needed capabilities that are missing, joined; empty if none is, or if the kernel does not tell.
pub(crate) fn missing() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    missing_of(effective.unwrap_or(u64::MAX))
}

fn missing_of(effective: u64) -> String {
    let has = |bit: u32| effective >> bit & 1 != 0;
    let lacks = |bit: u32| !has(bit) && (bit < SYS_ADMIN || !has(SYS_ADMIN));
    let missing: Vec<_> = NEEDED.iter().filter(|(_, bit)| lacks(*bit)).map(|(name, _)| *name).collect();
    missing.join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        assert_eq!(missing_of(1 << 12 | 1 << 38 | 1 << 39), "");
        assert_eq!(missing_of(1 << 12 | 1 << 39), "CAP_PERFMON");
        assert_eq!(missing_of(1 << 38), "CAP_NET_ADMIN and CAP_BPF");
        assert_eq!(missing_of(0), "CAP_NET_ADMIN and CAP_PERFMON and CAP_BPF");
    }

    #[test]
    fn the_administrators_capability_stands_for_the_newer_ones() {
        assert_eq!(missing_of(1 << SYS_ADMIN | 1 << 12), "");
        assert_eq!(missing_of(1 << SYS_ADMIN), "CAP_NET_ADMIN");
    }
}
