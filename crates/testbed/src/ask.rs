//! Asking a server of [`crate::serve`] once. The calling thread's namespace is where the client is: call these inside
//! [`crate::Netns::enter`].

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
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
    ask_over(udp_socket(server), server, limit)
}

/// [`udp_ask_within`] from this source port; 0: any free one, which a socket before may have had.
///
/// # Errors
/// As [`udp_ask`], and when the port is taken.
pub fn udp_ask_from(port: u16, server: SocketAddr, limit: Duration) -> Result<Answer> {
    ask_over(UdpSocket::bind((any(server), port)), server, limit)
}

/// A UDP socket for the family of `server`, with the port after the one that this process has given out last, of those that Linux draws
/// from. Linux draws at random, and a port that comes again within seconds is the same client to the endpoint's node: if it takes another
/// way there, one of the two gets no answer.
///
/// # Errors
/// When all ports are taken.
pub fn udp_socket(server: SocketAddr) -> io::Result<UdpSocket> {
    /// `net.ipv4.ip_local_port_range` of a new namespace.
    const PORTS: RangeInclusive<u16> = 32_768..=60_999;
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    for _ in PORTS {
        let turn = NEXT.fetch_add(1, Ordering::Relaxed) % PORTS.len();
        let port = PORTS.start() + u16::try_from(turn).map_err(io::Error::other)?;
        match UdpSocket::bind((any(server), port)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            bound => return bound,
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// Any address of the family of `server`.
fn any(server: SocketAddr) -> IpAddr {
    if server.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// Asks with one datagram over a socket that was just made.
fn ask_over(socket: io::Result<UdpSocket>, server: SocketAddr, limit: Duration) -> Result<Answer> {
    let ask = || {
        let socket = socket?;
        socket.set_read_timeout(Some(limit))?;
        // A connected socket accepts answers from the asked address only, as a service's clients do.
        socket.connect(server)?;
        socket.send(b"who")?;
        let mut buffer = [0; ANSWER_BYTES];
        let length = socket.recv(&mut buffer)?;
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_port_that_was_given_back_does_not_come_again_at_once() {
        /// Among so many that are drawn at random one comes twice in 99 of 100 runs.
        const SOCKETS: usize = 512;
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
        let port = |_| udp_socket(server).unwrap().local_addr().unwrap().port();
        assert_eq!((0..SOCKETS).map(port).collect::<BTreeSet<_>>().len(), SOCKETS);
    }
}
