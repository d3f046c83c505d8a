//! What programs of a test promise.

use std::fs;
use std::process::Command;
use std::time::Duration;

use weir_testbed::process::Process;
use weir_testbed::wait;

const LIMIT: Duration = Duration::from_secs(10);

/// The letter of its state: proc_pid_stat(5).
fn state(process: &Process) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{}/stat", process.id())).ok()?;
    text.rsplit_once(") ")?.1.chars().next()
}

#[test]
fn a_paused_program_is_stopped_until_it_is_resumed_and_can_be_killed_meanwhile() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new("sleep");
    command.arg("1000");
    let process = Process::start(command, "sleep", &directory.path().join("log")).unwrap();
    process.pause().unwrap();
    wait::until("a stopped program", LIMIT, || state(&process) == Some('T')).unwrap();
    process.resume().unwrap();
    wait::until("a program that goes on", LIMIT, || state(&process) == Some('S')).unwrap();
    process.pause().unwrap();
    process.kill().unwrap();
}
