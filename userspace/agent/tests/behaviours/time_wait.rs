//! A client whose short connections come from the same ports over and over: its server, which closes first and remembers each of them
//! for a minute, must see them as it would without a proxy, as one client's later ones.

use std::fs;
use std::io::Read;
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use weir_testbed::ask::PATIENCE;
use weir_testbed::{Netns, Pod, address, objects, wait};

use crate::harness::{self, Cluster, clients, echo};

const PORT: u16 = 9098;
/// Ports of the client's.
const CLIENTS: u16 = 60;
/// Connections from each of them: together more than there are source ports, whose number is no multiple of the clients'.
const CONNECTIONS: u16 = 8;

/// How many source ports the node gives out.
const SOURCE_PORTS: usize = 247;
/// Without an answer a client sends its SYN again so much later (RFC 6298).
const SYN_AGAIN: Duration = Duration::from_millis(900);

/// Closes every connection at once, until the process ends.
fn serve(pod: &Pod) {
    let listener = pod.netns().enter(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT))).unwrap();
    let serve = move || while listener.accept().is_ok() {};
    drop(pod.netns().spawn("server that closes first", serve).unwrap());
}

fn table(netns: &Netns, name: &str) -> String {
    netns.enter(|| fs::read_to_string(format!("/proc/thread-self/net/{name}"))).unwrap()
}

/// Connections that the pod's network stack remembers.
fn remembered(pod: &Pod) -> u16 {
    let text = table(pod.netns(), "sockstat");
    let mut words = text.split_whitespace().skip_while(|word| *word != "tw");
    words.nth(1).unwrap_or_else(|| panic!("no tw in {text}")).parse().unwrap()
}

/// Connections that the client's server has closed, but not yet the client, or of which the client does not know yet that the server knows
/// of that: no other one can begin in their place. A socket that was open when another test started a program is closed when that program runs.
fn closing(client: &Netns) -> usize {
    /// `TCP_CLOSE_WAIT` and `TCP_LAST_ACK`, in the fourth column.
    const CLOSING: [&str; 2] = ["08", "09"];
    let tables = ["tcp", "tcp6"].map(|name| table(client, name));
    tables
        .iter()
        .flat_map(|table| table.lines())
        .filter(|line| line.split_whitespace().nth(3).is_some_and(|state| CLOSING.contains(&state)))
        .count()
}

/// SYNs that it has refused for one of those, as the timestamp was not later. A line of names is above each line of numbers.
fn refused(pod: &Pod) -> u64 {
    let text = table(pod.netns(), "netstat");
    let lines: Vec<&str> = text.lines().collect();
    let mut counters = lines.chunks(2).flat_map(|pair| pair[0].split(' ').zip(pair[1].split(' ')));
    let counter = counters.find(|(name, _)| *name == "PAWSTimewait");
    counter.unwrap_or_else(|| panic!("no PAWSTimewait in {text}")).1.parse().unwrap()
}

/// Connects from a port, and closes when the server has.
fn connect(from: u16, target: SocketAddr) {
    let socket = Socket::new(Domain::for_address(target), Type::STREAM, None).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&clients::any(target, from).into()).unwrap();
    socket.connect_timeout(&target.into(), PATIENCE).unwrap_or_else(|error| {
        let known = ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap());
        panic!("from {from} to {target}: {error}; the client knows of\n{}", known.concat())
    });
    assert_eq!((&socket).read(&mut [0]).unwrap(), 0, "the server closes first");
}

fn start() -> Cluster {
    Cluster::start(2, 1, &["--snat-ports=20000-20246"])
}

/// A Service whose only endpoint is on the other node and closes first, by its node port.
struct Closing {
    cluster: Cluster,
    pod: Pod,
    node_port: u16,
}

impl Closing {
    fn of(cluster: Cluster) -> Self {
        let pod = cluster.world.node(2).pod(1);
        serve(&pod);
        let mut service = objects::service("time-wait", 80, "TCP");
        echo::spec(&mut service).type_ = Some("NodePort".into());
        let made = cluster.publish(&service, PORT, std::slice::from_ref(&pod));
        Self { cluster, pod, node_port: harness::node_port(&made) }
    }

    /// The node port's addresses.
    fn targets(&self) -> [SocketAddr; 2] {
        let targets = address::node(1).both().map(|ip| SocketAddr::new(ip, self.node_port));
        for target in targets {
            self.cluster.agents[0].await_frontend(target.ip(), target.port(), true);
            self.cluster.agents[0].await_backends("time-wait", self.pod.address().both().to_vec());
        }
        targets
    }
}

#[test]
fn a_server_that_remembers_the_last_connections_from_a_clients_ports_takes_their_next_ones_at_once() {
    if !harness::can_run("servers in TIME_WAIT") {
        return;
    }
    let cluster = start();
    // An ACK that a FIN from another CPU has overtaken would be old news to who remembers the connection, who says so to a client that
    // knows of none any more: its reset would end what is remembered (RFC 1337).
    harness::stay_on_one_cpu();
    let closing_first = Closing::of(cluster);
    let Closing { cluster, pod, .. } = &closing_first;
    let ports: Vec<u16> = (0..CLIENTS).map(|_| clients::fresh_port()).collect();
    // It remembers those of the first family meanwhile.
    for (target, most) in closing_first.targets().into_iter().zip([CLIENTS, 2 * CLIENTS]) {
        for round in 0..CONNECTIONS {
            cluster.world.client().enter(|| ports.iter().for_each(|from| connect(*from, target)));
            // The client has closed, but its last FIN, or the answer to it, may still be on its way.
            let all = || match (remembered(pod), closing(cluster.world.client())) {
                (count, 0) if count >= most => Ok(()),
                counts => Err(format!("{counts:?}")),
            };
            wait::until_some("the server to remember all clients, and these to know", PATIENCE, all).unwrap();
            assert_eq!(refused(pod), 0, "{target}, round {round}");
        }
    }
}

/// More connections of different clients than there are source ports, all of which the server still remembers: it asks who comes from there what that
/// is about, and lets it in when it has heard, and asked again. Linux does so after some milliseconds, where a lost SYN costs a second.
#[test]
fn clients_that_come_upon_others_source_ports_while_the_server_remembers_these_get_in_without_a_timeout() {
    if !harness::can_run("source ports of others in TIME_WAIT") {
        return;
    }
    let closing_first = Closing::of(start());
    let Closing { cluster, pod, .. } = &closing_first;
    for target in closing_first.targets() {
        let before = refused(pod);
        for _ in 0..2 * SOURCE_PORTS {
            let begin = Instant::now();
            cluster.world.client().enter(|| connect(clients::fresh_port(), target));
            assert!(begin.elapsed() < SYN_AGAIN, "{target}: {:?}", begin.elapsed());
        }
        assert!(refused(pod) > before, "{target}: no port was anybody's before");
    }
}
