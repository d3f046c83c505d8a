//! Cgroups of whole nodes.

use std::fs;
use std::process::Command;
use std::time::Duration;

use weir_testbed::{Cgroup, Process, require_root, wait};

#[test]
fn the_cgroup_of_a_node_goes_with_all_that_is_in_it() {
    if !require_root("cgroups of nodes") {
        return;
    }
    let cgroup = Cgroup::create_for_node("test").unwrap();
    let pod = cgroup.path().join("kubepods/pod1");
    fs::create_dir_all(&pod).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut sleep = Command::new("sleep");
    sleep.arg("infinity");
    cgroup.attach(&mut sleep).unwrap();
    let mut process = Process::start(sleep, "sleep", &directory.path().join("log")).unwrap();
    // As a container's runtime does.
    fs::write(pod.join("cgroup.procs"), process.id().to_string()).unwrap();
    let hierarchy = cgroup.path().parent().unwrap().to_owned();
    let path = cgroup.path().to_owned();

    cgroup.delete().unwrap();

    wait::until("the end of the process", Duration::from_secs(5), || process.exit_status().unwrap().is_some()).unwrap();
    assert!(!path.exists(), "{}", path.display());
    let name = path.file_name().unwrap();
    // Beside the v2 hierarchy lie those of v1 controllers, where there are any.
    for beside in fs::read_dir(hierarchy.parent().unwrap()).unwrap() {
        let twin = beside.unwrap().path().join(name);
        assert!(!twin.exists(), "{}", twin.display());
    }
}
