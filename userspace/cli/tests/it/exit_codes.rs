//! What every command ends with: 0 done, 1 no, 2 wrong, 3 not allowed, 4 not there; and a reader that goes away is no error.

use std::fs;
use std::io::pipe;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::node::{NOBODY, Pins, fill, program_for_all, text};

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

/// Commands that change the node.
const OF_ROOT: [&[&str]; 3] = [&["cleanup", "--yes"], &["migrate", "--dry-run"], &["mount", "--bpffs-at", "/tmp"]];

/// The program as `nobody` runs it.
struct Nobodys {
    program: PathBuf,
    _dir: TempDir,
}

impl Nobodys {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let program = program_for_all(dir.path());
        Self { program, _dir: dir }
    }

    #[track_caller]
    fn is_refused(&self, pins: &Pins, args: &[&str]) {
        let mut command = Command::new(&self.program);
        command.args(args).env("WEIR_PIN_DIR", &pins.0).current_dir("/").uid(NOBODY).gid(NOBODY);
        let output = command.output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(3), 0), "{args:?}: {output:?}");
        assert!(text(&output.stderr).contains("root"), "{args:?}: {output:?}");
    }
}

#[test]
fn who_may_not_open_the_maps_gets_3_and_the_way_to_get_there() {
    let Some(pins) = Pins::new("rights") else { return };
    drop(fill(&pins));
    let nobodys = Nobodys::new();
    OF_THE_MAPS.iter().chain(&OF_ROOT).for_each(|args| nobodys.is_refused(&pins, args));
    assert!(pins.dir().map("services").exists());
}

#[test]
fn what_may_not_be_seen_is_not_taken_for_absent() {
    let Some(parent) = Pins::new("hidden") else { return };
    // As systemd mounts the BPF file system.
    fs::DirBuilder::new().mode(0o700).create(&parent.0).unwrap();
    let pins = Pins::at(parent.0.join("weir"));
    drop(fill(&pins));
    let nobodys = Nobodys::new();
    OF_THE_MAPS.iter().chain(&OF_ROOT).for_each(|args| nobodys.is_refused(&pins, args));
    assert!(pins.dir().map("services").exists());
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

#[test]
fn what_is_wrong_with_a_command_is_named_with_the_way_on() {
    for (line, said) in [
        ("nope", "unrecognized subcommand 'nope'"),
        ("services --nope", "unexpected argument '--nope'"),
        ("services -o xml", "[possible values: table, wide, json, yaml, name]"),
        ("top --interval 0", "0 is not in 1.."),
        ("trace 10.0.0.300 10.96.0.20:80", "invalid value '10.0.0.300' for '<SRC>'"),
        ("flows --watch --interval", "a value is required for '--interval <SECONDS>'"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_weir")).args(line.split(' ')).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{line}: {output:?}");
        let error = text(&output.stderr);
        assert!(error.contains(said) && error.contains("try '--help'"), "{line}: {error}");
    }
}
