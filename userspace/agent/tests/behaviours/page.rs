//! The page: where it is, and under which names.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Instant;

use weir_testbed::objects::service;

use crate::CLUSTER;
use crate::harness::http::{self, ask_agent};
use crate::harness::traffic::{Client, Traffic};
use crate::harness::{HTTP, SOON, cluster_sockets};

const PORT: u16 = 10298;

#[test]
fn the_page_is_for_this_machine_and_tells_how_the_node_stands() {
    let Some(cluster) = CLUSTER.join("the page") else { return };
    let node = cluster.world.node(1);
    // By a name that could lead here from anywhere.
    let named = ask_agent(node, PORT, "/");
    assert_eq!(named.status, 421, "{named:?}");
    let outside = SocketAddr::new(IpAddr::V4(node.address().v4), PORT);
    let refused = node.netns().enter(|| http::get(outside, "/")).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);

    let server = SocketAddr::new(IpAddr::from(Ipv4Addr::LOCALHOST), PORT);
    let other = format!("\"name\":\"{}\",\"state\":\"unknown\"", cluster.world.node(2).name());
    // Without a mesh it knows no more than the name, once the API server has told it.
    let told = node.netns().enter(|| follow(server, &other));
    assert!(told.contains(&format!("\"here\":\"{}\"", node.name())), "{told}");
}

/// What `/events` tells until it has told this.
fn follow(server: SocketAddr, awaited: &str) -> String {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    write!(stream, "GET /events HTTP/1.1\r\nHost: {server}\r\n\r\n").unwrap();
    let (mut text, mut piece, end) = (String::new(), [0; 4096], Instant::now() + SOON);
    while !text.contains(awaited) {
        let length = stream.read(&mut piece).unwrap();
        assert!(length > 0 && Instant::now() < end, "it does not tell {awaited}: {text}");
        text.push_str(&String::from_utf8_lossy(&piece[..length]));
    }
    text
}

/// What the page answers to these bytes.
fn status_of(server: SocketAddr, sent: &str) -> u16 {
    let stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    http::status_of(stream, sent)
}

#[test]
fn what_strangers_send_to_the_page_harms_no_connection() {
    let what = "strangers at the page";
    let Some(cluster) = CLUSTER.join(what) else { return };
    let (node, far) = (cluster.world.node(1), cluster.world.node(2));
    let served = cluster.publish(&service("beside-strangers", 80, "TCP"), HTTP, &far.pods());
    let endpoints: Vec<_> = far.pods().iter().flat_map(|pod| pod.address().both()).collect();
    cluster.agents[0].await_backends("beside-strangers", endpoints);
    let mut traffic = Traffic::default();
    for socket in cluster_sockets(&served) {
        cluster.await_frontend(socket.ip(), socket.port());
        traffic.stream("pod", Client::Netns(node.pod(1).netns()), socket);
    }
    traffic.goes_on();
    let server = SocketAddr::new(IpAddr::from(Ipv4Addr::LOCALHOST), PORT);
    let request = |path: &str, more: &str| format!("GET {path} HTTP/1.1\r\nHost: {server}\r\n{more}\r\n");
    node.netns().enter(|| {
        for path in ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/main.js/../../etc/passwd"] {
            assert_eq!(status_of(server, &request(path, "")), 404, "{path}");
        }
        assert_eq!(status_of(server, &request("/", &format!("X: {}\r\n", "x".repeat(1 << 20)))), 431);
        assert_eq!(status_of(server, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"), 405);
        // Slow ones, as many as there is room for and more, are held while connections go on.
        let slow: Vec<_> = (0..100).filter_map(|_| TcpStream::connect(server).ok()).collect();
        slow.iter().for_each(|mut stream| drop(stream.write_all(b"GET / HT")));
        traffic.goes_on();
    });
    assert_eq!(node.netns().enter(|| status_of(server, &request("/", ""))), 200, "they have gone");
    traffic.unharmed_by(what);
}
