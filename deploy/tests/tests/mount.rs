//! `weir mount`, which the chart's init container runs: in a mount namespace that lacks both file systems.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::process::Command;

use weir_deploy_tests::programs::{ours, run};
use weir_testbed::{bpffs, cgroup, require_root};

/// Runs lines of a shell in a mount namespace of its own, where the words before `weir` in each line are gone.
fn in_own_namespace(script: &str, directory: &str) -> weir_testbed::Result<String> {
    let weir = ours("weir-cli", "weir")?;
    run(Command::new("unshare")
        .args(["--mount", "--propagation", "private", "bash", "-euo", "pipefail", "-c", script])
        .args(["test", &weir.display().to_string(), directory]))
}

/// Takes all mounts of both kinds away, however many lie above each other.
const UNMOUNT: &str = r#"
weir=$1 dir=$2
while read -r _ target kind _; do [[ $kind != bpf && $kind != cgroup2 ]] || umount -l "$target"; done </proc/self/mounts
mkdir -p "$dir/bpf"
"#;

#[test]
fn what_is_missing_is_mounted_and_what_is_there_is_left_alone() {
    if !require_root("weir mount") {
        return;
    }
    bpffs::ensure_mounted().unwrap();
    cgroup::root().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let script = format!(
        r#"{UNMOUNT}
        mount=("$weir" --no-headers mount --bpffs-at "$dir/bpf" --cgroup-at "$dir/run/cgroup2")
        "${{mount[@]}}"
        stat -f -c %T "$dir/bpf" "$dir/run/cgroup2"
        stat -c %i "$dir/run/cgroup2"
        "${{mount[@]}}"
        grep -c -E " ($dir/bpf bpf|$dir/run/cgroup2 cgroup2) " /proc/self/mounts"#
    );
    let path = directory.path().display().to_string();
    let said = in_own_namespace(&script, &path).unwrap().replace(&path, "DIR");
    let words: Vec<Vec<&str>> = said.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        words,
        [
            vec!["bpf", "DIR/bpf", "mounted"],
            vec!["cgroup2", "DIR/run/cgroup2", "mounted"],
            vec!["bpf_fs"],
            vec!["cgroup2fs"],
            // The root of all cgroups.
            vec!["1"],
            vec!["bpf", "DIR/bpf", "was", "mounted"],
            vec!["cgroup2", "DIR/run/cgroup2", "was", "mounted"],
            // One of each.
            vec!["2"],
        ]
    );
}

#[test]
fn a_part_of_the_cgroups_is_not_mounted_in_place_of_the_root() {
    if !require_root("weir mount in a cgroup namespace") {
        return;
    }
    let cgroup = weir_testbed::Cgroup::create(&format!("weir-mount-{}", std::process::id())).unwrap();
    let directory = tempfile::tempdir().unwrap();
    // The shell goes into the group, and what it starts into a namespace that sees only this group.
    let script = format!(
        r#"echo $$ >{}/cgroup.procs
        {UNMOUNT}
        mount -t bpf bpf "$dir/bpf"
        unshare --cgroup "$weir" mount --bpffs-at "$dir/bpf" --cgroup-at "$dir/cgroup2" 2>&1 || echo "exit code $?"
        grep -c " $dir/cgroup2 " /proc/self/mounts || :"#,
        cgroup.path().display()
    );
    let said = in_own_namespace(&script, &directory.path().display().to_string()).unwrap();
    for part in ["not the root of the node's cgroups", "privileged container", "exit code 2"] {
        assert!(said.contains(part), "{part:?} is not in\n{said}");
    }
    assert!(said.ends_with("\n0\n"), "nothing stays mounted: {said}");
}
