//! Who may ask the agent, and what the command line says to those who may not.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use weir_telemetry::weights::{Node, Weights};

use crate::node::told::Told;
use crate::node::{NOBODY, program_for_all, text};

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

/// Commands that only the agent can answer.
const OF_THE_AGENT: [&[&str]; 3] = [&["weights"], &["explain", "shop/web"], &["config", "view"]];

fn ask(program: &Path, args: &[&str], socket: &Path, uid: u32) -> Output {
    let mut command = Command::new(program);
    command.args(args).args(["-o", "json", "--socket"]).arg(socket).current_dir("/").uid(uid).gid(uid);
    command.output().unwrap()
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
    let socket = told.socket();
    let answered = || {
        let own = ask(&program, &["weights"], &socket, 0);
        assert_eq!(own.status.code(), Some(0), "{own:?}");
        assert!(text(&own.stdout).contains("edge-1"), "{own:?}");
    };
    let refused = |said: &str| {
        for args in OF_THE_AGENT {
            let refused = ask(&program, args, &socket, NOBODY);
            assert_eq!((refused.status.code(), refused.stdout.len()), (Some(3), 0), "{args:?}: {refused:?}");
            let error = text(&refused.stderr);
            assert!(error.contains(said) && !error.contains("edge-1"), "{args:?}: {error}");
        }
    };
    answered();
    refused("Permission denied");

    // Somebody has opened it to all: the kernel still says who asks.
    let directory = socket.parent().unwrap();
    fs::set_permissions(directory.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&socket, Permissions::from_mode(0o666)).unwrap();
    refused("answers root and its own user (uid 0) alone, and you are uid 65534");
    // Others are answered as before.
    answered();
}

#[test]
fn where_nobody_listens_is_exit_code_4_with_the_way_on() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    for socket in [dir.path().join("none.sock"), file] {
        for command in OF_THE_AGENT {
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
