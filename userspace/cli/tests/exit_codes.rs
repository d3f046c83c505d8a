//! What every command ends with: 0 done, 1 no, 2 wrong, 3 not allowed, 4 not there; and a reader that goes away is no error.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod node;

use std::fs::{self, Permissions};
use std::io::pipe;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use node::{Pins, fill, text};

/// `nobody`, on every system.
const NOBODY: u32 = 65_534;

/// Commands that answer from the maps alone.
const OF_THE_MAPS: [&[&str]; 8] = [
    &["status"],
    &["services", "-A"],
    &["endpoints", "-A"],
    &["flows"],
    &["drops", "--all"],
    &["map", "list"],
    &["map", "dump", "services"],
    &["cleanup", "--dry-run"],
];

#[test]
fn a_reader_that_goes_away_is_no_error_whatever_the_command() {
    let Some(pins) = Pins::new("readers") else { return };
    drop(fill(&pins));
    let others: [&[&str]; 5] =
        [&["version"], &["completion", "bash"], &["--help"], &["services", "--help"], &["drops", "-w", "-o", "json"]];
    for args in OF_THE_MAPS.iter().chain(&others) {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let output = command.args(*args).env("WEIR_PIN_DIR", &pins.0).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
        let error = text(&output.stderr);
        assert!(!error.contains("pipe") && !error.contains("panicked"), "{args:?}: {error}");
    }
}

#[test]
fn who_may_not_open_the_maps_gets_3_and_the_way_to_get_there() {
    let Some(pins) = Pins::new("rights") else { return };
    drop(fill(&pins));
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    // A checkout may be in a home directory.
    let program = dir.path().join("weir");
    fs::copy(env!("CARGO_BIN_EXE_weir"), &program).unwrap();
    for args in OF_THE_MAPS.iter().filter(|args| args[0] != "cleanup") {
        let mut command = Command::new(&program);
        command.args(*args).env("WEIR_PIN_DIR", &pins.0).current_dir("/").uid(NOBODY).gid(NOBODY);
        let output = command.output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(3), 0), "{args:?}: {output:?}");
        assert!(text(&output.stderr).contains("root"), "{args:?}: {output:?}");
    }
}

#[test]
fn a_screen_needs_a_terminal() {
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).arg("top").stdin(Stdio::null()).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{output:?}");
    assert!(text(&output.stderr).contains("draws on a terminal"), "{output:?}");
}

#[test]
fn what_is_not_there_is_4_and_what_is_wrong_is_2() {
    let nowhere = ["--pin-dir", "/sys/fs/bpf/weir-nowhere"];
    let code = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_weir")).args(args).args(nowhere).output().unwrap();
        (output.status.code(), output)
    };
    for args in OF_THE_MAPS.iter().filter(|args| args[0] != "cleanup") {
        let (code, output) = code(args);
        assert_eq!(code, Some(4), "{args:?}: {output:?}");
    }
    for args in [&["weights"][..], &["explain", "web"]] {
        assert_eq!(code(args).0, Some(4), "{args:?}");
    }
    for args in [&["services", "--nope"][..], &["map", "dump"], &["nope"], &["top", "--interval", "0"], &[]] {
        assert_eq!(code(args).0, Some(2), "{args:?}");
    }
}
