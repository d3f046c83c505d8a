//! The page: where it is, and under which names.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Instant;

use crate::CLUSTER;
use crate::harness::SOON;
use crate::harness::http::{self, ask_agent};

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
