//! The admin socket of an agent that serves.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use crate::harness::http;
use crate::harness::standalone::{self, Standalone, Web, yaml};

#[test]
fn an_agent_that_was_killed_leaves_a_socket_that_the_next_one_replaces_and_one_that_stops_leaves_none() {
    if !standalone::can_run("the admin socket") {
        return;
    }
    let mut node = Standalone::start(1, &yaml(&[]), &[]);
    assert!(node.agent.told("/readyz").contains(r#""name":"maps""#));
    node.agent.kill();
    assert!(node.agent.socket().exists());
    node.agent.start_again(&node.world);
    node.agent.await_ready(&node.world);
    assert!(node.agent.told("/weights").contains(r#""services""#));
    assert!(node.agent.stop().success());
    assert!(!node.agent.socket().exists());
}

#[test]
fn a_socket_that_cannot_be_is_told_and_keeps_nobody_from_being_served() {
    if !standalone::can_run("an agent without its socket") {
        return;
    }
    let exposed = tempfile::tempdir().unwrap();
    fs::set_permissions(exposed.path(), Permissions::from_mode(0o777)).unwrap();
    let socket = exposed.path().join("agent.sock");
    let service = Web::new("web", 20, &[1]);
    let option = format!("--admin-socket={}", socket.display());
    let node = Standalone::start(1, &yaml(std::slice::from_ref(&service)), &[&option]);
    node.assert_served(&service);
    node.agent.await_log("others may write there");
    assert!(http::get_at(&socket, "/weights").is_err());
    assert!(!node.agent.socket().exists());
}
