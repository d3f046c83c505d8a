//! Asking a server of [`crate::serve`] once. The calling thread's namespace is where the client is: call these inside
//! [`crate::Netns::enter`].

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::{Error, Result};

/// How long one question may take unless the caller says otherwise.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Longest answer: a name, an address and a short line.
const ANSWER_BYTES: usize = 1024;

/// Who answered, and whom it saw.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Answer {
    /// The server's name.
    pub name: String,
    /// The client as the server saw it; an IPv4 client is an IPv4 address.
    pub client: SocketAddr,
}

impl FromStr for Answer {
    type Err = ();

    /// Reads `name client-ip:port`, ignoring what follows.
    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        let mut words = text.split_whitespace();
        let name = words.next().ok_or(())?.to_owned();
        let client = words.next().and_then(|word| word.parse().ok()).ok_or(())?;
        Ok(Self { name, client })
    }
}

/// Asks a TCP echo server over a new connection, within [`PATIENCE`].
///
/// # Errors
/// When the connection fails or breaks, nothing comes in time, or the answer is not one.
pub fn tcp_ask(server: SocketAddr) -> Result<Answer> {
    tcp_ask_within(server, PATIENCE)
}

/// [`tcp_ask`] with another limit for connecting and for the answer.
///
/// # Errors
/// As [`tcp_ask`].
pub fn tcp_ask_within(server: SocketAddr, limit: Duration) -> Result<Answer> {
    let text = exchange(server, limit, b"who\n", |answer| answer.ends_with(b"\n")).map_err(asking(server))?;
    understand(server, &text)
}

/// Asks an HTTP server over a new connection, which the server closes, within [`PATIENCE`].
///
/// # Errors
/// As [`tcp_ask`].
pub fn http_ask(server: SocketAddr) -> Result<Answer> {
    http_ask_within(server, PATIENCE)
}

/// [`http_ask`] with another limit for connecting and for the answer.
///
/// # Errors
/// As [`tcp_ask`].
pub fn http_ask_within(server: SocketAddr, limit: Duration) -> Result<Answer> {
    http_ask_for_work(server, Duration::ZERO, limit)
}

/// [`http_ask_within`], where the answer costs the server this much CPU time, in whole microseconds.
///
/// # Errors
/// As [`tcp_ask`].
pub fn http_ask_for_work(server: SocketAddr, cost: Duration, limit: Duration) -> Result<Answer> {
    let path = if cost.is_zero() { "/".to_owned() } else { format!("/burn/{}", cost.as_micros()) };
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    let text = exchange(server, limit, request.as_bytes(), |_| false).map_err(asking(server))?;
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    understand(server, body)
}

/// Asks a UDP echo server with one datagram from a new socket, within [`PATIENCE`].
///
/// # Errors
/// When nothing comes in time, the port is refused, or the answer is not one.
pub fn udp_ask(server: SocketAddr) -> Result<Answer> {
    udp_ask_within(server, PATIENCE)
}

/// [`udp_ask`] with another limit for the answer.
///
/// # Errors
/// As [`udp_ask`].
pub fn udp_ask_within(server: SocketAddr, limit: Duration) -> Result<Answer> {
    udp_ask_from(0, server, limit)
}

/// [`udp_ask_within`] from this source port; 0: any free one.
///
/// # Errors
/// As [`udp_ask`], and when the port is taken.
pub fn udp_ask_from(port: u16, server: SocketAddr, limit: Duration) -> Result<Answer> {
    let any = if server.is_ipv6() { IpAddr::from(Ipv6Addr::UNSPECIFIED) } else { Ipv4Addr::UNSPECIFIED.into() };
    let ask = || {
        let mut socket = Socket::new(Domain::for_address(server), Type::DGRAM, None)?;
        socket.bind(&SocketAddr::new(any, port).into())?;
        socket.set_read_timeout(Some(limit))?;
        // A connected socket accepts answers from the asked address only, as a service's clients do.
        socket.connect(&server.into())?;
        socket.send(b"who")?;
        let mut buffer = [0; ANSWER_BYTES];
        let length = socket.read(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    };
    let text = ask().map_err(timely).map_err(asking(server))?;
    understand(server, &text)
}

/// Connects with the limit on connecting, on each write and on each read.
pub(crate) fn connect(server: SocketAddr, limit: Duration) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
    // A blocking connect obeys the send timeout, which saves the system calls of a non-blocking one.
    socket.set_write_timeout(Some(limit))?;
    socket.set_read_timeout(Some(limit))?;
    socket.set_tcp_nodelay(true)?;
    socket.connect(&server.into()).map_err(timely)?;
    Ok(socket)
}

/// Sends a request over a new connection and reads until `complete` says so or the server closes.
fn exchange(
    server: SocketAddr,
    limit: Duration,
    request: &[u8],
    complete: impl Fn(&[u8]) -> bool,
) -> io::Result<String> {
    let mut socket = connect(server, limit)?;
    socket.write_all(request).map_err(timely)?;
    let mut buffer = [0; ANSWER_BYTES];
    let mut filled = 0;
    while filled < buffer.len() && !complete(&buffer[..filled]) {
        match socket.read(&mut buffer[filled..]).map_err(timely)? {
            0 => break,
            length => filled += length,
        }
    }
    if filled == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(String::from_utf8_lossy(&buffer[..filled]).into_owned())
}

/// The kernel's names for a passed socket timeout, as one kind.
pub(crate) fn timely(error: io::Error) -> io::Error {
    let timed_out = error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::EINPROGRESS);
    if timed_out { io::ErrorKind::TimedOut.into() } else { error }
}

pub(crate) fn asking(server: SocketAddr) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { action: format!("ask {server}"), source }
}

pub(crate) fn understand(server: SocketAddr, text: &str) -> Result<Answer> {
    text.parse().map_err(|()| Error::Answer { peer: server.to_string(), answer: text.to_owned() })
}
