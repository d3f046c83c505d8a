//! How TCP connections end, with real sockets: one direction at a time, or because their endpoint is gone.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use weir_testbed::ask::PATIENCE;
use weir_testbed::{Netns, Pod, address, objects, wait};

use crate::harness::echo::Talk;
use crate::harness::standalone::{self, Standalone};
use crate::harness::{self, Cluster, SOON};

/// What is not answered within this time is not served.
const SILENCE: Duration = Duration::from_millis(300);
/// Each half of what is sent after the other side has closed.
const HALF: usize = 1 << 20;
const PORT: u16 = 9099;

/// A server that sends twice [`HALF`] once its client has closed, or closes at once and takes what comes.
struct Server {
    /// Lets the second half go.
    go_on: Sender<()>,
    /// How much each client has sent.
    taken: Receiver<usize>,
    thread: JoinHandle<()>,
}

impl Server {
    fn start(pod: &Pod, clients: usize, closes_first: bool) -> Self {
        let listener = pod.netns().enter(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT))).unwrap();
        let (go_on, may_go_on) = channel();
        let (took, taken) = channel();
        let serve = move || {
            for _ in 0..clients {
                let (mut stream, _) = listener.accept().unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                if closes_first {
                    stream.shutdown(Shutdown::Write).unwrap();
                }
                let bytes = stream.read_to_end(&mut Vec::new()).unwrap();
                if !closes_first {
                    stream.write_all(&[7; HALF]).unwrap();
                    may_go_on.recv().unwrap();
                    stream.write_all(&[7; HALF]).unwrap();
                }
                took.send(bytes).unwrap();
            }
        };
        let thread = pod.netns().spawn("half-closing server", serve).unwrap();
        Self { go_on, taken, thread }
    }
}

fn connect(netns: &Netns, target: SocketAddr, limit: Duration) -> std::io::Result<TcpStream> {
    netns.enter(|| {
        let stream = TcpStream::connect_timeout(&target, limit)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    })
}

/// Two nodes, an endpoint on the second one, and one source port that leads there. At each node port of the first one.
fn with_one_port(what: &str, closes_first: bool, talk: impl Fn(&Server, &mut TcpStream, &dyn Fn())) {
    if !harness::can_run(what) {
        return;
    }
    let cluster = Cluster::start(2, 1, &["--snat-ports=20000-20000"]);
    let pod = cluster.world.node(2).pod(1);
    let mut service = objects::service("half-closed", 80, "TCP");
    harness::echo::spec(&mut service).type_ = Some("NodePort".into());
    let made = cluster.publish(&service, PORT, std::slice::from_ref(&pod));
    let node_port = harness::node_port(&made);
    let targets = address::node(1).both().map(|ip| SocketAddr::new(ip, node_port));
    let server = Server::start(&pod, targets.len(), closes_first);
    for target in targets {
        cluster.agents[0].await_frontend(target.ip(), target.port(), true);
        cluster.agents[0].await_backends("half-closed", pod.address().both().to_vec());
        let client = cluster.world.client();
        let mut stream = connect(client, target, SOON).unwrap();
        let no_other = || {
            let other = connect(client, target, SILENCE);
            assert!(other.is_err(), "{target}: the port of a connection that goes on was given to another one");
        };
        talk(&server, &mut stream, &no_other);
    }
    server.thread.join().unwrap();
}

#[test]
fn a_client_that_has_closed_gets_what_the_server_still_sends_and_keeps_its_source_port_meanwhile() {
    with_one_port("downloads after a half-close", false, |server, stream, no_other| {
        stream.write_all(b"all of it").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut half = vec![0; HALF];
        stream.read_exact(&mut half).unwrap();
        no_other();
        server.go_on.send(()).unwrap();
        assert_eq!(stream.read_to_end(&mut half).unwrap(), HALF);
        assert_eq!(server.taken.recv_timeout(PATIENCE), Ok(b"all of it".len()));
    });
}

#[test]
fn a_server_that_has_closed_gets_what_the_client_still_sends_and_the_client_keeps_its_source_port_meanwhile() {
    with_one_port("uploads after a half-close", true, |server, stream, no_other| {
        assert_eq!(stream.read_to_end(&mut Vec::new()).unwrap(), 0);
        stream.write_all(&[7; HALF]).unwrap();
        no_other();
        stream.write_all(&[7; HALF]).unwrap();
        stream.shutdown(Shutdown::Both).unwrap();
        assert_eq!(server.taken.recv_timeout(PATIENCE), Ok(2 * HALF));
    });
}

/// A Service with one endpoint, or none.
fn file(endpoint: bool) -> String {
    let (node, pod) = (address::node(1), address::pod(1, 1));
    let endpoints = if endpoint { format!("{{address: {}, node: node1}}", pod.v4) } else { String::new() };
    format!(
        "nodes: [{{name: node1, addresses: [{}, \"{}\"]}}]\nservices:\n- name: web\n  clusterIPs: [10.96.0.1]\n  ports: [{{port: \
         7, targetPort: {}}}]\n  endpoints: [{endpoints}]\n",
        node.v4,
        node.v6,
        Talk::Tcp.target()
    )
}

#[test]
fn a_connection_to_an_endpoint_that_is_gone_is_reset_unless_the_option_says_not_to() {
    if !standalone::can_run("connections to endpoints that are gone") {
        return;
    }
    for (options, end) in [(&[][..], ErrorKind::ConnectionReset), (&["--drop-stale"][..], ErrorKind::WouldBlock)] {
        let node = Standalone::start(1, &file(true), options);
        let mut stream = connect(node.world.client(), SocketAddr::from(([10, 96, 0, 1], 7)), SOON).unwrap();
        stream.set_read_timeout(Some(SILENCE)).unwrap();
        let mut exchange = || {
            stream.write_all(b"who\n")?;
            stream.read(&mut [0; 1024])
        };
        exchange().unwrap();
        node.write(&file(false));
        let ended = || exchange().err().map(|error| error.kind()).ok_or_else(|| "it is answered".to_owned());
        let ended = wait::until_some("the connection to end", SOON, ended).unwrap();
        assert_eq!(ended, end, "{options:?}\n{}", node.agent.log());
    }
}
