//! An agent whose maps have another layout, and so another ABI version, than those of the agent before it. Both are the
//! same program here: what tells versions apart is the directory of the pins, which is renamed in between.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;

use socket2::{Domain, Socket, Type};
use weir_abi::{ABI_VERSION, Hook, REASON_TO_LOCAL};
use weir_testbed::ask::{self, Answer};
use weir_testbed::wait;

use crate::harness::busy::Busy;
use crate::harness::clients::{any, fresh_port};
use crate::harness::standalone::{self, Standalone, Web, yaml};
use crate::harness::traffic::{Client, Traffic};
use crate::harness::{self, Agent, SOON};

pub(crate) const OLDER: u32 = ABI_VERSION - 1;
const NEWER: u32 = ABI_VERSION + 1;

/// Connections to each address of a Service: some of them meet another endpoint when it is selected anew.
const CONNECTIONS: usize = 8;

/// A connection from outside that stays open.
pub(crate) struct Connection {
    stream: TcpStream,
    /// Who answered the first request.
    server: String,
}

impl Connection {
    fn open(node: &Standalone, target: SocketAddr) -> Self {
        let socket =
            node.world.client().enter(|| Socket::new(Domain::for_address(target), Type::STREAM, None)).unwrap();
        // Maps of one version know nothing of a port that the client has at the same endpoint through the other one's.
        socket.bind(&any(target, fresh_port()).into()).unwrap();
        socket.connect_timeout(&target.into(), SOON).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        let mut connection = Self { stream: socket.into(), server: String::new() };
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

    pub(crate) fn assert_goes_on(&mut self) {
        let answer = self.ask().unwrap_or_else(|error| panic!("{:?} at {}: {error}", self.stream, self.server));
        assert_eq!(answer, self.server);
    }
}

pub(crate) fn connections(node: &Standalone, service: &Web) -> Vec<Connection> {
    let open = |target| (0..CONNECTIONS).map(move |_| Connection::open(node, target));
    service.sockets().into_iter().flat_map(open).collect()
}

/// Where an agent with maps of this version has them.
fn maps(agent: &Agent, version: u32) -> PathBuf {
    agent.pins.join(format!("maps-v{version}"))
}

/// Where an agent of this version keeps the links of another one's programs.
pub(crate) fn former_links(agent: &Agent, version: u32) -> PathBuf {
    agent.pins.join(format!("former-links-v{version}"))
}

/// The mark of a version whose programs serve.
fn serving(agent: &Agent, version: u32) -> PathBuf {
    agent.pins.join(format!("serving-v{version}"))
}

/// Makes what an agent has left that of another version.
pub(crate) fn rename(agent: &Agent, from: u32, to: u32) {
    fs::rename(maps(agent, from), maps(agent, to)).unwrap();
    for path in [former_links, serving] {
        if path(agent, from).exists() {
            fs::rename(path(agent, from), path(agent, to)).unwrap();
        }
    }
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
    rename(&node.agent, ABI_VERSION, OLDER);
    [&one, &two].into_iter().for_each(|service| assert_served_to_all(&node, service));
    to_one.iter_mut().chain(&mut to_two).for_each(Connection::assert_goes_on);
    node.write(&yaml(&[one.clone(), two.clone(), later.clone()]));
    node.agent.start_again(&node.world);
    node.agent.await_ready(&node.world);
    assert!(node.agent.last_log().contains("adopted=false"), "{}", node.agent.last_log());
    // The old maps know nothing of the last one: whoever serves it has the new ones.
    [&one, &two, &later].into_iter().for_each(|service| assert_served_to_all(&node, service));
    // The new maps know nothing of these: they are left to the old programs.
    to_one.iter_mut().chain(&mut to_two).for_each(Connection::assert_goes_on);
    assert!(former_links(&node.agent, ABI_VERSION).exists());
    let mut newer = connections(&node, &two);

    // The way back, while the cluster goes on changing: maps of this version are there since long ago.
    node.agent.stop();
    rename(&node.agent, ABI_VERSION, NEWER);
    rename(&node.agent, OLDER, ABI_VERSION);
    node.write(&yaml(&[two.clone(), later.clone()]));
    node.agent.start_again(&node.world);
    node.agent.await_ready(&node.world);
    assert!(node.agent.last_log().contains("adopted=true"), "{}", node.agent.last_log());
    [&two, &later].into_iter().for_each(|service| assert_served_to_all(&node, service));
    assert!(!former_links(&node.agent, NEWER).exists(), "these programs are in force again");
    idle.iter_mut().chain(&mut newer).for_each(Connection::assert_goes_on);

    // What the other version left goes without a trace, but for the programs that know its connections.
    fs::remove_dir_all(maps(&node.agent, NEWER)).unwrap();
    [&two, &later].into_iter().for_each(|service| assert_served_to_all(&node, service));
    idle.iter_mut().chain(&mut newer).for_each(Connection::assert_goes_on);
    // A Service that was removed ends with the programs that still know it.
    wait::until("the end of what is no Service any more", 8 * SOON, || node.ask(one.sockets()[0]).is_err()).unwrap();
    idle.iter_mut().for_each(Connection::assert_goes_on);
}

/// Asks a Service from everywhere: outside, a pod, a process of the node, 300 new connections a second.
pub(crate) fn streams(node: &Standalone, service: &Web) -> Traffic {
    let (here, mut traffic) = (node.world.node(1), Traffic::default());
    for target in service.sockets() {
        traffic.stream("outside", Client::Netns(node.world.client()), target);
        traffic.stream("pod", Client::Netns(here.pod(1).netns()), target);
        traffic.stream("host", Client::Host(here.netns(), &node.agent.cgroup), target);
    }
    traffic
}

#[test]
fn new_connections_are_served_by_the_old_programs_until_new_maps_hold_the_services() {
    if !standalone::can_run("new connections while the version changes") {
        return;
    }
    let service = Web::new("web", 1, &[1, 2]);
    let mut node = Standalone::start(2, &yaml(std::slice::from_ref(&service)), &[]);
    let (traffic, mut open) = (streams(&node, &service), connections(&node, &service));
    traffic.streams_go_on();
    node.agent.stop();
    rename(&node.agent, ABI_VERSION, OLDER);
    // Agents before there were marks have left none.
    fs::remove_dir(serving(&node.agent, OLDER)).unwrap();
    // For as long as it likes the new agent learns nothing of Services. The next one finds maps of its own, and nothing in them.
    fs::remove_file(&node.file).unwrap();
    for _ in 0..2 {
        node.agent.start_again(&node.world);
        node.agent.await_complaint(&node.world, "static-file", "No such file or directory");
        node.agent.await_complaint(&node.world, "interfaces", "0 interfaces of the node, 0 of pods");
        traffic.streams_go_on();
        node.agent.kill();
    }
    node.agent.start_again(&node.world);
    node.write(&yaml(std::slice::from_ref(&service)));
    node.agent.await_ready(&node.world);
    let counters = || node.agent.view().counters().counter(Hook::PodIn as usize, REASON_TO_LOCAL as usize).unwrap();
    wait::until("packets in the new maps", SOON, || counters().packets > 0).unwrap();
    traffic.streams_go_on();
    open.iter_mut().for_each(Connection::assert_goes_on);
    traffic.unharmed_by("an agent of another ABI version");
}

#[test]
fn connections_between_nodes_and_from_outside_go_on_while_the_version_of_the_maps_changes() {
    if !harness::can_run("connections between nodes while the version changes") {
        return;
    }
    let mut busy = Busy::start(&[]);
    let traffic = busy.traffic();
    traffic.goes_on();
    busy.agents(|agent| {
        agent.stop();
        rename(agent, ABI_VERSION, OLDER);
    });
    traffic.goes_on();
    busy.start_again();
    busy.await_ready();
    assert!(busy.cluster.agents.iter().all(|agent| agent.last_log().contains("adopted=false")));
    traffic.goes_on();
    traffic.unharmed_by("agents of another ABI version");
    busy.assert_no_panic();
}
