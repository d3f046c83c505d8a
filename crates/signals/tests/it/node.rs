//! All signals of a node together.

use std::path::PathBuf;

use weir_core::load::NodeLoad;
use weir_signals::network::Link;
use weir_signals::{Failure, FailureKind, Node, NodeOptions};

use crate::build::{Tree, at, millis, near};

const DEV: &str = "header\nheader\n  eth0: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n";

fn machine() -> Tree {
    Tree::with(&[
        ("proc/stat", "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0\ncpu1 0\nintr 0\n"),
        ("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 750 kB\n"),
        ("proc/pressure/cpu", "some avg10=5.00 avg60=0.00 avg300=0.00 total=0\n"),
        ("proc/net/dev", DEV),
        ("sys/fs/cgroup/cgroup.controllers", "cpu memory\n"),
        ("sys/fs/cgroup/node/cpu.stat", "usage_usec 0\n"),
        ("sys/fs/cgroup/node/cpu.max", "150000 100000\n"),
        ("sys/fs/cgroup/node/cpu.pressure", "some avg10=40.00 avg60=0.00 avg300=0.00 total=0\n"),
        ("sys/fs/cgroup/node/memory.current", "900\n"),
        ("sys/fs/cgroup/node/memory.max", "max\n"),
        ("sys/fs/cgroup/node/memory.stat", "inactive_file 0\n"),
    ])
}

fn node(tree: &Tree, group: Option<&str>) -> Node {
    let links = vec![Link { name: "eth0".to_owned(), rate: Some(8e6) }];
    let group = group.map(PathBuf::from);
    Node::new(NodeOptions { proc: tree.path("proc"), sys: tree.path("sys"), group, links }).unwrap()
}

fn shares(load: &NodeLoad) -> [Option<f64>; 4] {
    [load.cpu, load.memory, load.network, load.pressure].map(|sample| sample.map(|sample| sample.value.get()))
}

#[test]
fn a_whole_machine_is_known_after_two_readings() {
    let tree = machine();
    let mut node = node(&tree, None);
    node.tick(at(0));
    let load = node.load(at(0));
    assert_eq!(shares(&load), [None, Some(0.25), None, Some(0.05)], "counters say nothing yet");
    assert!(near(load.capacity, 0.0), "0 is unknown");

    tree.write("proc/stat", "cpu  80 0 0 120 0 0 0 0 0 0\ncpu0 0\ncpu1 0\nintr 0\n");
    tree.write("proc/net/dev", DEV.replacen("eth0: 0", "eth0: 500000", 1));
    node.tick(at(1000));
    let load = node.load(at(1100));
    assert_eq!(shares(&load), [Some(0.4), Some(0.25), Some(0.5), Some(0.05)]);
    assert!(near(load.capacity, 2.0));
    assert_eq!(load.cpu.unwrap().age, millis(100));

    node.forget();
    assert_eq!((shares(&node.load(at(1100))), node.ages(at(1100)).count()), ([None; 4], 0));
}

#[test]
fn a_node_that_is_a_group_has_the_capacity_and_the_pressure_of_the_group() {
    let tree = machine();
    let mut node = node(&tree, Some("/node"));
    node.tick(at(0));
    tree.write("sys/fs/cgroup/node/cpu.stat", "usage_usec 750000\n");
    node.tick(at(1000));
    let load = node.load(at(1000));
    assert_eq!(shares(&load)[0], Some(0.5));
    assert_eq!(shares(&load)[3], Some(0.4));
    assert!(near(load.capacity, 1.5));
    assert_eq!(shares(&load)[1], Some(0.25), "without a limit of its own the memory is the machine's");
    tree.write("sys/fs/cgroup/node/memory.max", "1000\n");
    node.tick(at(2000));
    assert_eq!(shares(&node.load(at(2000)))[1], Some(0.9));
}

#[test]
fn a_group_without_a_quota_is_no_node() {
    let tree = machine();
    tree.write("sys/fs/cgroup/node/cpu.max", "max 100000\n");
    let mut node = node(&tree, Some("node"));
    node.tick(at(0));
    tree.write("sys/fs/cgroup/node/cpu.stat", "usage_usec 750000\n");
    node.tick(at(1000));
    assert_eq!(node.load(at(1000)).cpu, None);
    let cpu = node.sources().find(|(name, ..)| *name == "cpu").unwrap();
    let problem = cpu.2.map(ToString::to_string).unwrap();
    assert!(
        problem.starts_with("cgroup node has no CPU quota, so that it is no node (set one, or name none)"),
        "{problem}"
    );
}

#[test]
fn sources_fail_one_by_one() {
    let tree = machine();
    tree.remove("proc/pressure");
    tree.write("proc/meminfo", "MemTotal: 10 kB\nMemAvailable: 20 kB\n");
    let mut node = node(&tree, None);
    node.tick(at(0));
    tree.write("proc/stat", "cpu  80 0 0 120 0 0 0 0 0 0\ncpu0 0\nintr 0\n");
    tree.write("proc/net/dev", DEV);
    node.tick(at(1000));
    assert_eq!(shares(&node.load(at(1000))), [Some(0.4), None, Some(0.0), None]);
    let failed: Vec<_> = node
        .sources()
        .map(|(name, counts, problem)| {
            (name, counts.reads(), counts.failures(FailureKind::Missing), problem.map(Failure::kind))
        })
        .collect();
    let expected = [
        ("cpu", 2, 0, None),
        ("memory", 2, 0, Some(FailureKind::Lie)),
        ("network", 2, 0, None),
        ("pressure", 2, 2, Some(FailureKind::Missing)),
    ];
    assert_eq!(failed, expected);
}

#[test]
fn a_machine_that_vanishes_is_unknown_after_ten_seconds_and_never_idle() {
    let tree = machine();
    let mut node = node(&tree, None);
    node.tick(at(0));
    tree.write("proc/stat", "cpu  80 0 0 120 0 0 0 0 0 0\ncpu0 0\nintr 0\n");
    node.tick(at(1000));
    tree.remove("proc");
    for second in 2..11 {
        node.tick(at(second * 1000));
        let load = node.load(at(second * 1000));
        assert_eq!(shares(&load)[0], Some(0.4));
        assert_eq!(load.cpu.unwrap().age, millis((second - 1) * 1000));
    }
    node.tick(at(11_000));
    let load = node.load(at(11_000));
    assert_eq!(shares(&load), [None; 4]);
    assert!(near(load.capacity, 0.0));
    let ages = [("cpu", 59), ("memory", 59), ("network", 59), ("pressure", 59)];
    let ages = ages.map(|(name, seconds)| (name, millis(seconds * 1000)));
    assert_eq!(node.ages(at(60_000)).collect::<Vec<_>>(), ages, "since when is told all the same");
}
