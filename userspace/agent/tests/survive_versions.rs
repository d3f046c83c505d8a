//! An agent whose maps have another layout, and so another ABI version, than those of the agent before it. Both are the
//! same program here: what tells versions apart is the directory of the pins, which is renamed in between.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod harness;

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;

use harness::SOON;
use harness::standalone::{self, Standalone, Web, yaml};
use weir_abi::ABI_VERSION;
use weir_testbed::ask::{self, Answer};

const OLDER: u32 = ABI_VERSION - 1;
const NEWER: u32 = ABI_VERSION + 1;

/// Connections to each address of a Service: some of them meet another endpoint when it is selected anew.
const CONNECTIONS: usize = 8;

/// A connection from outside that stays open.
struct Connection {
    stream: TcpStream,
    /// Who answered the first request.
    server: String,
}

impl Connection {
    fn open(node: &Standalone, target: SocketAddr) -> Self {
        let stream = node.world.client().enter(|| TcpStream::connect_timeout(&target, SOON)).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut connection = Self { stream, server: String::new() };
        connection.server = connection.ask().unwrap();
        connection
    }

    /// Asks once more; who answers.
    fn ask(&mut self) -> io::Result<String> {
        self.stream.write_all(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")?;
        // The servers write an answer at once.
        let mut buffer = [0; 1024];
        let length = self.stream.read(&mut buffer)?;
        let text = String::from_utf8_lossy(&buffer[..length]);
        let answer = text.split_once("\r\n\r\n").and_then(|(_, body)| body.parse::<Answer>().ok());
        answer.map(|answer| answer.name).ok_or_else(|| io::Error::other(format!("{text:?} is no answer")))
    }

    fn assert_goes_on(&mut self) {
        assert_eq!(self.ask().unwrap(), self.server);
    }
}

fn connections(node: &Standalone, service: &Web) -> Vec<Connection> {
    let open = |target| (0..CONNECTIONS).map(move |_| Connection::open(node, target));
    service.sockets().into_iter().flat_map(open).collect()
}

/// Where an agent with maps of this version has them.
fn maps(node: &Standalone, version: u32) -> PathBuf {
    node.agent.pins.join(format!("maps-v{version}"))
}

fn rename_maps(node: &Standalone, from: u32, to: u32) {
    fs::rename(maps(node, from), maps(node, to)).unwrap();
}

/// Asserts that clients of every kind are served: outside, in pods, and processes of the node.
fn assert_served_to_all(node: &Standalone, service: &Web) {
    node.assert_served(service);
    let here = node.world.node(1);
    for target in service.sockets() {
        let answers = [
            here.pod(1).netns().enter(|| ask::http_ask(target)),
            node.agent.cgroup.enter(|| here.netns().enter(|| ask::http_ask(target))).unwrap(),
        ];
        assert!(answers.iter().all(Result::is_ok), "{target}: {answers:?}\n{}", node.agent.log());
    }
}

#[test]
fn maps_of_another_version_serve_until_the_switch_are_left_alone_and_are_taken_up_again_on_the_way_back() {
    if !standalone::can_run("maps of another version") {
        return;
    }
    let (one, two, later) = (Web::new("one", 1, &[1]), Web::new("two", 2, &[1, 2]), Web::new("later", 3, &[2]));
    let mut node = Standalone::start(2, &yaml(&[one.clone(), two.clone()]), &[]);
    let (mut to_one, mut to_two, mut idle) =
        (connections(&node, &one), connections(&node, &two), connections(&node, &two));

    // An upgrade: the new agent finds maps of an older version.
    node.agent.stop();
    rename_maps(&node, ABI_VERSION, OLDER);
    [&one, &two].into_iter().for_each(|service| assert_served_to_all(&node, service));
    to_one.iter_mut().chain(&mut to_two).for_each(Connection::assert_goes_on);
    node.write(&yaml(&[one.clone(), two.clone(), later.clone()]));
    node.agent.start_again(&node.world);
    node.agent.await_ready(&node.world);
    assert!(node.agent.last_log().contains("adopted=false"), "{}", node.agent.last_log());
    // The old maps know nothing of the last one: whoever serves it has the new ones.
    [&one, &two, &later].into_iter().for_each(|service| assert_served_to_all(&node, service));
    // Nothing is known of connections. Their endpoint is selected once more, and another one resets them at once.
    to_one.iter_mut().for_each(Connection::assert_goes_on);
    for connection in &mut to_two {
        match connection.ask() {
            Ok(server) => assert_eq!(server, connection.server),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
        }
    }

    // The way back, while the cluster goes on changing.
    node.agent.stop();
    rename_maps(&node, ABI_VERSION, NEWER);
    rename_maps(&node, OLDER, ABI_VERSION);
    node.write(&yaml(&[two.clone(), later.clone()]));
    node.agent.start_again(&node.world);
    node.agent.await_ready(&node.world);
    assert!(node.agent.last_log().contains("adopted=true"), "{}", node.agent.last_log());
    [&two, &later].into_iter().for_each(|service| assert_served_to_all(&node, service));
    assert!(node.ask(one.sockets()[0]).is_err());
    idle.iter_mut().for_each(Connection::assert_goes_on);

    // What the other version left goes without a trace.
    fs::remove_dir_all(maps(&node, NEWER)).unwrap();
    [&two, &later].into_iter().for_each(|service| assert_served_to_all(&node, service));
    idle.iter_mut().for_each(Connection::assert_goes_on);
}
