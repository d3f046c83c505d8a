//! The admin socket of an agent that serves.

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Instant;

use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use weir_telemetry::listeners::Limits;

use crate::harness::standalone::{self, Standalone, Web, yaml};
use crate::harness::traffic::{Client, Traffic};
use crate::harness::{SOON, TCP, http};

/// `nobody` and its group, on every system.
const NOBODY: u32 = 65_534;
/// More than the agent answers at once.
const SLOW: usize = 100;

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

/// Does something as another user, on a thread of its own: to the kernel a user is a thread's.
fn as_user<T: Send>(user: u32, group: u32, work: impl FnOnce() -> T + Send) -> T {
    let become_user = || {
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        set_thread_groups(&[])?;
        set_thread_res_gid(group, group, group)?;
        set_thread_res_uid(user, user, user)
    };
    let run = || {
        become_user().unwrap();
        work()
    };
    thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// What the socket answers to these bytes.
fn status_of(socket: &Path, sent: &str) -> u16 {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    http::status_of(stream, sent)
}

/// Questions that are begun and not ended.
fn hold(socket: &Path) -> Vec<UnixStream> {
    let begin = |_| {
        let mut stream = UnixStream::connect(socket).unwrap();
        // The agent may have closed it by now.
        let _ = stream.write_all(b"GET /weights HT");
        stream
    };
    (0..SLOW).map(begin).collect()
}

/// A Service of HTTP, and one at the next address for long connections, both with the first pod.
fn web_and_echo() -> (Web, String) {
    let web = Web::new("web", 20, &[1]);
    let mut text = yaml(std::slice::from_ref(&web));
    let [v4, v6] = weir_testbed::address::pod(1, 1).both();
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "  - name: echo\n    clusterIPs: [10.96.0.21, \"fd00:96::21\"]\n    ports: [{{port: {TCP}}}]\n    endpoints:\n      \
         - {{address: \"{v4}\", node: node1}}\n      - {{address: \"{v6}\", node: node1}}"
    );
    (web, text)
}

#[test]
fn what_strangers_and_slow_people_send_to_the_socket_harms_no_connection_and_its_owner_is_answered() {
    let what = "strangers at the admin socket";
    if !standalone::can_run(what) {
        return;
    }
    let (directory, (web, text)) = (tempfile::tempdir().unwrap(), web_and_echo());
    let socket = directory.path().join("weir/agent.sock");
    let node = Standalone::start(2, &text, &[&format!("--admin-socket={}", socket.display())]);
    let (pod, outside) = (node.world.node(1).pod(2), node.world.client());
    let mut traffic = Traffic::default();
    for (name, client) in [("pod", Client::Netns(pod.netns())), ("outside", Client::Netns(outside))] {
        web.sockets().into_iter().for_each(|target| traffic.stream(name, client, target));
        ["10.96.0.21", "fd00:96::21"].iter().for_each(|address| {
            traffic.connection(name, client, (address.parse::<std::net::IpAddr>().unwrap(), TCP).into());
        });
    }
    traffic.goes_on();
    let owner_is_answered = || {
        let reply = http::get_at(&socket, "/weights").unwrap();
        assert!(reply.status == 200 && reply.body.contains("node1"), "{reply:?}\n{}", node.agent.log());
    };
    let strangers = [(NOBODY, NOBODY), (NOBODY, 0)];

    // One fence: the modes.
    for (user, group) in strangers {
        let refused = as_user(user, group, || UnixStream::connect(&socket)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    }
    as_user(0, NOBODY, owner_is_answered);

    // Somebody has opened it to all. The other one: what the kernel says of who asks.
    for (path, mode) in [(directory.path(), 0o755), (socket.parent().unwrap(), 0o755), (&*socket, 0o666)] {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    for (user, group) in strangers {
        as_user(user, group, || {
            for path in ["/weights", "/readyz", "/nonsense"] {
                let reply = http::get_at(&socket, path).unwrap();
                let said = "answers root and its own user (uid 0) alone, and you are uid 65534";
                assert!(reply.status == 403 && reply.body.contains(said), "{path}: {reply:?}");
                assert!(!reply.body.contains("node1"), "{path}: {reply:?}");
            }
        });
    }
    node.agent.await_log("a user who may not was refused at the admin socket");
    owner_is_answered();

    // What is too long, from either.
    let long = format!("GET /weights HTTP/1.1\r\nHost: node\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    assert_eq!(as_user(NOBODY, NOBODY, || status_of(&socket, &long)), 431);
    assert_eq!(status_of(&socket, &long), 431);
    owner_is_answered();
    traffic.goes_on();

    // Strangers who take their time take nobody else's.
    let slow = as_user(NOBODY, NOBODY, || hold(&socket));
    let start = Instant::now();
    owner_is_answered();
    assert!(start.elapsed() < Limits::ADMIN.header, "the owner was held up for {:?}", start.elapsed());
    traffic.goes_on();
    drop(slow);

    // The owner's own slow questions have an end each, and what comes after them is answered.
    let mut slow: Vec<_> = hold(&socket).into_iter().take(Limits::ADMIN.connections).collect();
    traffic.goes_on();
    let mut told = String::new();
    slow[0].read_to_string(&mut told).unwrap();
    assert!(told.starts_with("HTTP/1.1 408 "), "{told:?}");
    owner_is_answered();
    traffic.unharmed_by(what);
}
