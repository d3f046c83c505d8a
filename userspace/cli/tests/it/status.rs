//! `weir status --wait`, as a script uses it that has just started an agent.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::time::{Duration, Instant};

use weir_testbed::wait;

use crate::node::serving::Serving;
use crate::node::told::Told;
use crate::node::{Pins, fill, text};

/// Far more than anything here takes.
const SOON: Duration = Duration::from_secs(30);

#[test]
fn status_waits_for_an_agent_and_says_ok_as_soon_as_it_answers() {
    let Some(pins) = Pins::new("wait") else { return };
    let serving = Serving::leave_behind(&pins, true);
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("agent.sock");
    let silent = UnixListener::bind(&socket).unwrap();
    silent.set_nonblocking(true).unwrap();
    let mut waiting = serving.command(&pins);
    waiting.args(["status", "--brief", "--wait", "60", "--state-dir"]).arg(dir.path()).arg("--socket").arg(&socket);
    let waiting = waiting.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It has looked when it has asked, and there it gets no answer.
    wait::until("the first look", SOON, || silent.accept().is_ok()).unwrap();
    fs::remove_file(&socket).unwrap();
    drop(silent);
    let told = Told::start(&serde_json::from_str(include_str!("fixtures/weights.json")).unwrap());
    symlink(told.socket(), &socket).unwrap();
    let output = waiting.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "ok\n".to_owned()), "{output:?}");
}

#[test]
fn status_that_waits_in_vain_says_in_the_end_what_it_would_have_said_at_once() {
    let Some(pins) = Pins::new("wait-in-vain") else { return };
    let patience = Duration::from_secs(1);
    let wait = || {
        let start = Instant::now();
        let output = pins.weir(&["status", "--brief", "--wait", "1", "--socket", "/nonexistent/agent.sock"]);
        assert!(start.elapsed() >= patience, "{output:?}");
        (output.status.code(), text(&output.stdout))
    };
    assert_eq!(wait(), (Some(4), String::new()), "nothing is pinned");
    drop(fill(&pins));
    assert_eq!(wait(), (Some(1), "degraded: links, agent\n".to_owned()));
}
