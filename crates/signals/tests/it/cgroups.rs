//! Groups of both versions against their limits.

use std::path::Path;

use weir_signals::cgroup::{CpuHierarchy, GroupCpu, GroupMemory, Hierarchies, MemoryHierarchy};
use weir_signals::{FailureKind, Source};

use crate::build::{Tree, at, failure, kind, near, value};

fn v1(quota: &str) -> Tree {
    Tree::with(&[
        ("cpu/cgroup.procs", ""),
        ("cpuacct/cgroup.procs", ""),
        ("memory/cgroup.procs", ""),
        ("unified/cgroup.controllers", "\n"),
        ("cpuacct/a/cpuacct.usage", "0\n"),
        ("cpu/a/cpu.cfs_quota_us", quota),
        ("cpu/a/cpu.cfs_period_us", "100000\n"),
        ("memory/a/memory.usage_in_bytes", "1000\n"),
        ("memory/a/memory.limit_in_bytes", "2000\n"),
        ("memory/a/memory.stat", "inactive_file 7\ntotal_inactive_file 400\n"),
    ])
}

fn v2(max: &str) -> Tree {
    Tree::with(&[
        ("cgroup.controllers", "cpuset cpu io memory pids\n"),
        ("a/cpu.stat", "usage_usec 0\nuser_usec 0\nsystem_usec 0\n"),
        ("a/cpu.max", max),
        ("a/memory.current", "1000\n"),
        ("a/memory.max", "2000\n"),
        ("a/memory.stat", "anon 500\ninactive_file 400\nactive_file 100\n"),
    ])
}

fn cpu(tree: &Tree) -> GroupCpu {
    Hierarchies::find(tree.root()).unwrap().cpu(Path::new("/a"))
}

fn memory(tree: &Tree) -> GroupMemory {
    Hierarchies::find(tree.root()).unwrap().memory(Path::new("a"))
}

/// Sets the CPU time that the group used since it was made.
fn used(tree: &Tree, millis: u64) {
    if tree.path("a").exists() {
        tree.write("a/cpu.stat", format!("usage_usec {}\nuser_usec 0\nsystem_usec 0\n", millis * 1000));
    } else {
        tree.write("cpuacct/a/cpuacct.usage", format!("{}\n", millis * 1_000_000));
    }
}

#[test]
fn controllers_are_found_where_they_are() {
    let tree = v1("-1\n");
    let root = |name| tree.path(name);
    let found = Hierarchies::find(tree.root()).unwrap();
    assert_eq!(found.cpu, CpuHierarchy::V1 { quota: root("cpu"), usage: root("cpuacct") });
    assert_eq!(found.memory, MemoryHierarchy::V1(root("memory")));
    assert_eq!(found.pressure(Path::new("a")), None);

    // Some machines hand only some controllers to v2.
    tree.write("unified/cgroup.controllers", "memory\n");
    let found = Hierarchies::find(tree.root()).unwrap();
    assert_eq!(found.memory, MemoryHierarchy::V2(root("unified")));

    let tree = v2("max 100000\n");
    let found = Hierarchies::find(tree.root()).unwrap();
    assert_eq!(found.cpu, CpuHierarchy::V2(tree.path("")));
    assert_eq!(found.pressure(Path::new("a")), Some(tree.path("a/cpu.pressure")));
}

#[test]
fn a_machine_without_controllers_is_told_apart_from_one_without_cgroups() {
    let tree = Tree::new();
    assert_eq!(Hierarchies::find(tree.root()).unwrap_err().kind(), FailureKind::Malformed);
    assert_eq!(Hierarchies::find(&tree.path("nowhere")).unwrap_err().kind(), FailureKind::Missing);
}

#[test]
fn cpu_time_is_a_share_of_the_quota() {
    for tree in [v1("50000\n"), v2("50000 100000\n")] {
        let mut cpu = cpu(&tree);
        assert!(cpu.read(at(0)).unwrap().is_none());
        used(&tree, 100);
        let used = value(&mut cpu, at(1000));
        assert!(near(used.cores, 0.1));
        assert!(near(used.limit.unwrap(), 0.5));
        assert!(near(used.share.unwrap().get(), 0.2));
    }
}

#[test]
fn without_a_quota_cores_are_known_and_a_share_is_not() {
    for tree in [v1("-1\n"), v2("max 100000\n")] {
        let mut cpu = cpu(&tree);
        cpu.read(at(0)).unwrap();
        used(&tree, 1500);
        let used = value(&mut cpu, at(1000));
        assert!(near(used.cores, 1.5));
        assert_eq!((used.limit, used.share), (None, None));
    }
}

#[test]
fn a_window_that_begins_within_a_period_may_hold_more_than_its_share_and_no_more_than_that() {
    for tree in [v1("50000\n"), v2("50000 100000\n")] {
        let mut cpu = cpu(&tree);
        cpu.read(at(0)).unwrap();
        // Three quotas of 50 ms in 250 ms: periods at both edges.
        used(&tree, 150);
        assert!(near(value(&mut cpu, at(250)).share.unwrap().get(), 1.0));
        used(&tree, 150 + 1000);
        assert_eq!(kind(&mut cpu, at(500)), FailureKind::Lie);
    }
}

#[test]
fn time_used_under_another_quota_is_not_held_against_the_new_one() {
    for (tree, file, quota) in
        [(v1("400000\n"), "cpu/a/cpu.cfs_quota_us", "10000\n"), (v2("400000 100000\n"), "a/cpu.max", "10000 100000\n")]
    {
        let mut cpu = cpu(&tree);
        cpu.read(at(0)).unwrap();
        used(&tree, 4000);
        tree.write(file, quota);
        assert!(cpu.read(at(1000)).unwrap().is_none());
        used(&tree, 4050);
        assert!(near(value(&mut cpu, at(2000)).share.unwrap().get(), 0.5));
    }
}

#[test]
fn a_group_that_was_made_again_is_measured_anew() {
    for tree in [v1("50000\n"), v2("50000 100000\n")] {
        used(&tree, 5000);
        let mut cpu = cpu(&tree);
        cpu.read(at(0)).unwrap();
        used(&tree, 10);
        assert_eq!(kind(&mut cpu, at(1000)), FailureKind::Reset);
    }
}

#[test]
fn a_quota_that_is_none_is_not_taken_for_unlimited() {
    for quota in ["nan\n", "NaN\n", "-2\n", "", "5000", "0\n", "1.5\n", "max\n", "18446744073709551616\n"] {
        let tree = v1(quota);
        assert_eq!(kind(&mut cpu(&tree), at(0)), FailureKind::Malformed, "v1 {quota:?}");
    }
    for max in ["nan 100000\n", "50000\n", "50000 0\n", "50000 nan\n", "0 100000\n", "max", "", "-1 100000\n"] {
        let tree = v2(max);
        assert_eq!(kind(&mut cpu(&tree), at(0)), FailureKind::Malformed, "v2 {max:?}");
    }
}

#[test]
fn counters_that_are_none_are_malformed() {
    for text in ["", "12", "-5\n", "1 2\n", "x\n"] {
        let tree = v1("50000\n");
        tree.write("cpuacct/a/cpuacct.usage", text);
        assert_eq!(kind(&mut cpu(&tree), at(0)), FailureKind::Malformed, "v1 {text:?}");
        let tree = v2("50000 100000\n");
        tree.write("a/cpu.stat", format!("user_usec 1\nusage_usec {}", text.replace("1 2", "")));
        assert_eq!(kind(&mut cpu(&tree), at(0)), FailureKind::Malformed, "v2 {text:?}");
    }
}

#[test]
fn a_group_that_vanishes_between_two_readings_is_missing() {
    let tree = v2("50000 100000\n");
    let (mut cpu, mut memory) = (cpu(&tree), memory(&tree));
    cpu.read(at(0)).unwrap();
    memory.read(at(0)).unwrap();
    tree.remove("a");
    let text = failure(&mut cpu, at(1000)).to_string();
    assert!(text.contains("a/cpu.stat: No such file"), "{text}");
    assert_eq!(kind(&mut memory, at(1000)), FailureKind::Missing);
}

#[test]
fn file_pages_that_nobody_used_for_long_are_not_memory_in_use() {
    for tree in [v1("-1\n"), v2("max 100000\n")] {
        let used = value(&mut memory(&tree), at(0));
        assert_eq!((used.bytes, used.limit), (600, Some(2000)));
        assert!(near(used.share.unwrap().get(), 0.3));
    }
}

#[test]
fn no_limit_of_memory_is_written_in_two_ways() {
    let old = v1("-1\n");
    old.write("memory/a/memory.limit_in_bytes", "9223372036854771712\n");
    let new = v2("max 100000\n");
    new.write("a/memory.max", "max\n");
    for tree in [old, new] {
        let used = value(&mut memory(&tree), at(0));
        assert_eq!((used.bytes, used.limit, used.share), (600, None, None));
    }
}

#[test]
fn a_little_more_memory_than_the_limit_is_all_of_it_and_much_more_is_a_lie() {
    let tree = v2("max 100000\n");
    tree.write("a/memory.current", "2500\n");
    assert!(near(value(&mut memory(&tree), at(0)).share.unwrap().get(), 1.0));
    tree.write("a/memory.current", "25000\n");
    assert_eq!(kind(&mut memory(&tree), at(0)), FailureKind::Lie);
    tree.write("a/memory.max", "0\n");
    assert_eq!(kind(&mut memory(&tree), at(0)), FailureKind::Lie);
}

#[test]
fn memory_files_that_were_cut_are_malformed() {
    for file in ["a/memory.current", "a/memory.max", "a/memory.stat"] {
        let tree = v2("max 100000\n");
        tree.write(file, "");
        assert_eq!(kind(&mut memory(&tree), at(0)), FailureKind::Malformed, "{file}");
    }
}
