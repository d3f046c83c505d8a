//! Who may ask the agent, and what the command line says to those who may not.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod node;

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use node::text;
use node::told::Told;
use weir_telemetry::weights::{Node, Weights};

/// `nobody`, on every system.
const NOBODY: u32 = 65_534;

fn weights() -> Weights {
    let node = Node {
        name: "edge-1".to_owned(),
        cpu: None,
        memory: None,
        network: None,
        pressure: None,
        cores: 4.0,
        bandwidth: 0.0,
    };
    Weights {
        node,
        mesh: false,
        peers: Vec::new(),
        mesh_refused: BTreeMap::new(),
        sources: Vec::new(),
        services: Vec::new(),
    }
}

fn ask(program: &Path, socket: &Path, uid: u32) -> Output {
    let mut command = Command::new(program);
    command.args(["weights", "-o", "json", "--socket"]).arg(socket).current_dir("/").uid(uid).gid(uid);
    command.output().unwrap()
}

/// The program where everybody may start it: a checkout may be in a home directory.
fn program_for_all(dir: &Path) -> PathBuf {
    fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
    let program = dir.join("weir");
    fs::copy(env!("CARGO_BIN_EXE_weir"), &program).unwrap();
    program
}

#[test]
fn root_gets_an_answer_and_another_user_exit_code_3_whatever_the_modes_are() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: another user at the admin socket: only root can become one; run it with sudo");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = program_for_all(dir.path());
    let told = Told::start(&weights());
    let own = ask(&program, &told.socket(), 0);
    assert_eq!(own.status.code(), Some(0), "{own:?}");
    assert!(text(&own.stdout).contains("edge-1"), "{own:?}");

    let kept_out = ask(&program, &told.socket(), NOBODY);
    assert_eq!((kept_out.status.code(), kept_out.stdout.len()), (Some(3), 0), "{kept_out:?}");
    assert!(text(&kept_out.stderr).contains("Permission denied"), "{kept_out:?}");

    // Somebody has opened it to all: the kernel still says who asks.
    let directory = told.socket().parent().unwrap().to_owned();
    fs::set_permissions(directory.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(told.socket(), Permissions::from_mode(0o666)).unwrap();
    let refused = ask(&program, &told.socket(), NOBODY);
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(3), 0), "{refused:?}");
    let error = text(&refused.stderr);
    assert!(error.contains("answers root and its own user (uid 0) alone, and you are uid 65534"), "{error}");
    assert!(!error.contains("edge-1"), "{error}");
    assert_eq!(ask(&program, &told.socket(), 0).status.code(), Some(0), "others are answered as before");
}

#[test]
fn where_nobody_listens_is_exit_code_4_with_the_way_on() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    for socket in [dir.path().join("none.sock"), file] {
        for command in [&["weights"][..], &["explain", "shop/web"]] {
            let output = Command::new(env!("CARGO_BIN_EXE_weir")).args(command).arg("--socket").arg(&socket).output();
            let output = output.unwrap();
            assert_eq!(output.status.code(), Some(4), "{output:?}");
            let error = text(&output.stderr);
            assert!(error.contains("no weir-agent listens at") && error.contains("--socket"), "{error}");
        }
    }
}

#[test]
fn the_socket_follows_the_pin_directory() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_weir")).args(["weights", "--pin-dir", "/sys/fs/bpf/nowhere"]).output();
    let error = text(&output.unwrap().stderr);
    assert!(error.contains("/run/weir/nowhere.sock"), "{error}");
}
