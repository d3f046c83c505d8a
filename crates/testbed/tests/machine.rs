//! A node's machine: what runs on it gets its cores and no more, and goes with it.

use std::process::Command;
use std::time::{Duration, Instant};

use weir_testbed::{Machine, Process, require_root, wait};

/// Cores of the machine.
const CORES: f64 = 0.2;
/// CPU time to wait for: many periods of the quota.
const WORK: Duration = Duration::from_millis(200);

#[test]
fn a_pod_gets_the_cores_of_its_machine_and_goes_with_it() {
    if !require_root("a machine with a CPU quota") {
        return;
    }
    let machine = Machine::create("machine", CORES).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "while :; do :; done"]);
    machine.attach("00000000-0000-4000-8000-000000000001", &mut command).unwrap();
    let mut busy = Process::start(command, "a busy loop", &directory.path().join("log")).unwrap();

    let (begin, before) = (Instant::now(), machine.cpu_time().unwrap());
    let used = || machine.cpu_time().unwrap() - before;
    wait::until("some work", Duration::from_secs(20), || used() >= WORK).unwrap();
    let share = used().as_secs_f64() / begin.elapsed().as_secs_f64();
    // A busy real machine may give less.
    assert!(share < 1.3 * CORES, "{share} of a core");

    machine.set_cores(1.0).unwrap();
    drop(machine);
    wait::until("the end of the loop", Duration::from_secs(5), || busy.exit_status().unwrap().is_some()).unwrap();
}
