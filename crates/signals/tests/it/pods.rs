//! The pods' groups, in all the places where kubelet puts them.

use std::os::unix::fs::MetadataExt;

use weir_signals::cgroup::Hierarchies;
use weir_signals::cgroup::kubelet::KubeletRoot;
use weir_signals::{FailureKind, Pods};

use crate::build::{Tree, at, millis, near};

const UID: &str = "759feec8-156b-41c2-bd4c-3e7a6c06947a";
const CONTAINER: &str = "cri-containerd-0a7d6ff5.scope";
/// With the systemd driver.
const SLICE: &str =
    "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod759feec8_156b_41c2_bd4c_3e7a6c06947a.slice";

/// A machine of v2 without pods.
fn machine() -> Tree {
    Tree::with(&[("cgroup.controllers", "cpu memory\n")])
}

/// A group that has these limits, has used this many milliseconds of CPU and holds 600 bytes of memory.
fn group(tree: &Tree, path: &str, cpu_max: &str, memory_max: &str, used_millis: u64) {
    tree.write(&format!("{path}/cpu.max"), format!("{cpu_max} 100000\n"));
    tree.write(&format!("{path}/memory.max"), format!("{memory_max}\n"));
    tree.write(&format!("{path}/memory.current"), "1000\n");
    tree.write(&format!("{path}/memory.stat"), "inactive_file 400\n");
    use_cpu(tree, path, used_millis);
}

fn use_cpu(tree: &Tree, path: &str, used_millis: u64) {
    tree.write(&format!("{path}/cpu.stat"), format!("usage_usec {}\n", used_millis * 1000));
}

fn pods_below(tree: &Tree, root: &str) -> Pods {
    let mut pods = Pods::new(Hierarchies::find(tree.root()).unwrap(), KubeletRoot::new(root));
    pods.watch([UID]);
    pods
}

fn pods(tree: &Tree) -> Pods {
    pods_below(tree, "")
}

#[test]
fn a_pod_is_found_whatever_its_class_and_the_driver() {
    let below = |root, group: &str| (root, group.to_owned());
    let underscored = UID.replace('-', "_");
    let places = [
        below("", &format!("kubepods/pod{UID}")),
        below("", &format!("kubepods/burstable/pod{UID}")),
        below("/", &format!("kubepods/besteffort/pod{UID}")),
        below("", &format!("kubepods.slice/kubepods-pod{underscored}.slice")),
        below("", SLICE),
        below("/kubelet", &format!("kubelet/kubepods/pod{UID}")),
        // What kind's nodes have.
        below(
            "/kubelet",
            &format!(
                "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/\
                 kubelet-kubepods-besteffort-pod{underscored}.slice"
            ),
        ),
    ];
    for (root, place) in places {
        let tree = machine();
        let id = || KubeletRoot::new(root).group_id(tree.root(), UID.parse().unwrap());
        assert_eq!(id(), None, "{place}");
        group(&tree, &place, "max", "max", 0);
        assert_eq!(id(), Some(tree.root().join(&place).metadata().unwrap().ino()), "{place}");
        let mut pods = pods_below(&tree, root);
        pods.tick(at(0));
        let load = pods.load(UID, at(0)).unwrap_or_else(|| panic!("no pod at {place}"));
        assert_eq!(load.bytes.map(|bytes| bytes.value), Some(600), "{place}");
    }
}

#[test]
fn a_pod_in_the_hierarchies_of_v1_is_found() {
    let pod = format!("kubepods/burstable/pod{UID}");
    let tree = Tree::with(&[
        ("cpu/cgroup.procs", ""),
        ("cpuacct/cgroup.procs", ""),
        ("memory/cgroup.procs", ""),
        (&format!("cpu/{pod}/cpu.cfs_quota_us"), "50000\n"),
        (&format!("cpu/{pod}/cpu.cfs_period_us"), "100000\n"),
        (&format!("cpuacct/{pod}/cpuacct.usage"), "0\n"),
        (&format!("memory/{pod}/memory.usage_in_bytes"), "1000\n"),
        (&format!("memory/{pod}/memory.limit_in_bytes"), "2000\n"),
        (&format!("memory/{pod}/memory.stat"), "total_inactive_file 400\n"),
    ]);
    let mut pods = pods(&tree);
    pods.tick(at(0));
    tree.write(&format!("cpuacct/{pod}/cpuacct.usage"), "250000000\n");
    pods.tick(at(1000));
    let load = pods.load(UID, at(1200)).unwrap();
    assert!(near(load.cpu.unwrap().value.get(), 0.5));
    assert_eq!(load.cpu.unwrap().age, millis(200));
    assert!(near(load.memory.unwrap().value.get(), 0.3));
    assert!(near(load.cores_limit.unwrap(), 0.5));
}

#[test]
fn a_pod_is_as_busy_as_its_busiest_container() {
    let tree = machine();
    let container = format!("{SLICE}/{CONTAINER}");
    group(&tree, SLICE, "100000", "10000", 0);
    group(&tree, &container, "20000", "1000", 0);
    group(&tree, &format!("{SLICE}/cri-containerd-pause.scope"), "max", "max", 0);
    let mut pods = pods(&tree);
    pods.tick(at(0));
    use_cpu(&tree, SLICE, 190);
    use_cpu(&tree, &container, 180);
    pods.tick(at(1000));
    let load = pods.load(UID, at(1000)).unwrap();
    assert!(near(load.cpu.unwrap().value.get(), 0.9), "the pod alone would be at 0.19");
    assert!(near(load.memory.unwrap().value.get(), 0.6), "the pod alone would be at 0.06");
    assert!(near(load.cores.unwrap().value, 0.19), "use is that of the pod");
}

#[test]
fn a_pod_without_limits_uses_cores_and_has_no_share() {
    let tree = machine();
    group(&tree, SLICE, "max", "max", 0);
    let mut pods = pods(&tree);
    pods.tick(at(0));
    use_cpu(&tree, SLICE, 300);
    pods.tick(at(1000));
    let load = pods.load(UID, at(1000)).unwrap();
    assert_eq!((load.cpu, load.memory, load.cores_limit), (None, None, None));
    assert!(near(load.cores.unwrap().value, 0.3));
}

#[test]
fn a_limited_container_that_cannot_be_read_makes_the_pod_unknown_and_not_less_busy() {
    let tree = machine();
    let container = format!("{SLICE}/{CONTAINER}");
    group(&tree, SLICE, "100000", "max", 0);
    group(&tree, &container, "20000", "max", 0);
    tree.write(&format!("{container}/cpu.stat"), "usage_usec lots\n");
    let mut pods = pods(&tree);
    pods.tick(at(0));
    use_cpu(&tree, SLICE, 10);
    pods.tick(at(1000));
    assert_eq!(pods.load(UID, at(1000)).unwrap().cpu, None);
    assert_eq!(pods.counts().failures(FailureKind::Malformed), 2);
    let problems: Vec<_> = pods.problems().map(|(uid, problem)| format!("{uid}: {problem}")).collect();
    assert!(problems[0].starts_with(UID) && problems[0].contains("has no usage_usec"), "{problems:?}");
}

#[test]
fn a_container_that_was_restarted_is_measured_anew_and_the_old_one_forgotten() {
    let tree = machine();
    let (old, new) = (format!("{SLICE}/old.scope"), format!("{SLICE}/new.scope"));
    group(&tree, SLICE, "max", "max", 0);
    group(&tree, &old, "20000", "max", 0);
    let mut pods = pods(&tree);
    pods.tick(at(0));
    use_cpu(&tree, &old, 200);
    pods.tick(at(1000));
    assert!(near(pods.load(UID, at(1000)).unwrap().cpu.unwrap().value.get(), 1.0));

    tree.remove(&old);
    group(&tree, &new, "20000", "max", 0);
    pods.tick(at(2000));
    pods.tick(at(3000));
    use_cpu(&tree, &new, 50);
    pods.tick(at(4000));
    let cpu = pods.load(UID, at(4000)).unwrap().cpu.unwrap();
    assert!(near(cpu.value.get(), 0.25));
    assert_eq!(pods.counts().failures(FailureKind::Missing), 1);
}

#[test]
fn a_pod_that_vanishes_is_unknown_at_once_and_found_when_it_is_back() {
    let tree = machine();
    group(&tree, SLICE, "max", "max", 0);
    let mut pods = pods(&tree);
    pods.tick(at(0));
    assert!(pods.load(UID, at(0)).is_some());
    tree.remove(SLICE);
    pods.tick(at(1000));
    assert!(pods.load(UID, at(1000)).is_none());
    pods.tick(at(2000));
    assert!(pods.problems().any(|(_, problem)| problem.to_string().contains("it has no cgroup")));

    group(&tree, &format!("kubepods/pod{UID}"), "max", "max", 0);
    pods.tick(at(2500));
    assert!(pods.load(UID, at(2500)).is_none(), "looked for once a second");
    pods.tick(at(3000));
    assert!(pods.load(UID, at(3000)).is_some());
    assert!(pods.problems().next().is_none());
}

#[test]
fn counts_stay_when_a_pod_is_no_longer_watched() {
    let mut pods = pods(&machine());
    pods.tick(at(0));
    assert_eq!(pods.counts().failures(FailureKind::Missing), 1);
    pods.watch([]);
    assert_eq!(pods.counts().failures(FailureKind::Missing), 1);
    assert!(pods.load(UID, at(0)).is_none());

    let tree = machine();
    group(&tree, SLICE, "max", "max", 0);
    let mut pods = self::pods(&tree);
    pods.tick(at(0));
    let reads = pods.counts().reads();
    assert_eq!(reads, 2);
    pods.watch([]);
    assert_eq!(pods.counts().reads(), reads);
}

#[test]
fn what_is_no_uid_never_becomes_a_path() {
    let tree = machine();
    group(&tree, "secret", "max", "max", 0);
    group(&tree, "kubepods/pod/here", "max", "max", 0);
    let mut pods = pods(&tree);
    for uid in ["/../../secret", "", "/here", "a b", "a\0b"] {
        pods.watch([uid]);
        pods.tick(at(0));
        assert!(pods.load(uid, at(0)).is_none(), "{uid:?}");
        assert!(pods.problems().next().is_none(), "{uid:?} is not looked for");
    }
}
