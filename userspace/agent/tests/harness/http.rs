//! Answers of the node's own HTTP servers, with their headers.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;

use weir_testbed::Node;

use super::SOON;

/// An HTTP answer.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Reply {
    /// The value of a header; its name in any case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }
}

/// Sends one request from the calling thread's namespace.
pub(crate) fn request(method: &str, server: SocketAddr, path: &str) -> io::Result<Reply> {
    let stream = TcpStream::connect_timeout(&server, SOON)?;
    stream.set_read_timeout(Some(SOON))?;
    exchange(stream, method, path)
}

fn exchange(mut stream: impl Read + Write, method: &str, path: &str) -> io::Result<Reply> {
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let wrong = || io::Error::other(format!("{text:?} is no HTTP answer"));
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(wrong)?;
    let status = head.split_whitespace().nth(1).and_then(|word| word.parse().ok()).ok_or_else(wrong)?;
    Ok(Reply { status, head: head.to_owned(), body: body.to_owned() })
}

/// The status of the answer to these bytes, whatever they are.
pub(crate) fn status_of(mut stream: impl Read + Write, sent: &str) -> u16 {
    // Who sends too much is answered before all of it is there.
    let _ = stream.write_all(sent.as_bytes());
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    String::from_utf8_lossy(&head[9..]).parse().unwrap()
}

/// GET, from the calling thread's namespace.
pub(crate) fn get(server: SocketAddr, path: &str) -> io::Result<Reply> {
    request("GET", server, path)
}

/// GET at a Unix socket.
pub(crate) fn get_at(socket: &Path, path: &str) -> io::Result<Reply> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(SOON))?;
    exchange(stream, "GET", path)
}

/// What a node's agent says on a port of its own.
pub(crate) fn ask_agent(node: &Node, port: u16, path: &str) -> Reply {
    let server = SocketAddr::new(IpAddr::from(Ipv4Addr::LOCALHOST), port);
    node.netns().enter(|| get(server, path)).unwrap_or_else(|e| panic!("{}, {server}{path}: {e}", node.name()))
}
