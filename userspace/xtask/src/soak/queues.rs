//! Packets that a CPU's queue had no room for. Whoever has sent one of them hears nothing of that, and no program of ours has seen it.

use std::{fs, io};

/// A line for each CPU, the same in every namespace.
const FILE: &str = "/proc/net/softnet_stat";
/// The number among those of a line, which are hexadecimal (softnet_seq_show() in net/core/net-procfs.c).
const DROPPED: usize = 1;

/// So many were dropped so far, by all CPUs.
///
/// # Errors
/// When the kernel does not tell.
pub(super) fn dropped() -> io::Result<u64> {
    sum(&fs::read_to_string(FILE)?).ok_or_else(|| io::Error::other(format!("{FILE} has no such number")))
}

fn sum(text: &str) -> Option<u64> {
    text.lines().map(|line| u64::from_str_radix(line.split_whitespace().nth(DROPPED)?, 16).ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_cpus_have_dropped_is_added_up() {
        assert_eq!(sum("0000cd0d 00000010 00000002\n0000ab01 0000000a 00000000\n"), Some(26));
        assert_eq!(sum("0000cd0d\n"), None);
    }
}
