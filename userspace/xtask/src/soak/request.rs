//! One request, whose asker knows the port that it came from: a failure can be traced to an endpoint.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::queues;

/// Patience with a connection, and with each of its reads: packets may be lost a few times in a flood.
const PATIENCE: Duration = Duration::from_secs(10);
/// Datagrams are sent again, as a resolver does, from another port.
const DATAGRAMS: u64 = 5;
const DATAGRAM_PATIENCE: Duration = Duration::from_secs(2);
/// An answer that comes is there by then, on a busy machine, too.
const DATAGRAM_DUE: Duration = Duration::from_millis(500);
/// Longest answer.
const ANSWER_BYTES: usize = 1024;

/// A request without an answer.
#[derive(Debug)]
pub(super) struct Unanswered {
    /// The asker's, of the last try; 0 if there was none.
    pub(super) port: u16,
    pub(super) error: io::Error,
}

/// Asks a server of HTTP over a new connection, which the server closes.
///
/// # Errors
/// When there is no whole answer in time.
pub(super) fn http(target: SocketAddr) -> Result<(), Unanswered> {
    let (mut socket, port) = socket(target, Type::STREAM)?;
    let mut exchange = || {
        socket.connect_timeout(&target.into(), PATIENCE)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        socket.write_all(b"GET / HTTP/1.1\r\nHost: soak\r\nConnection: close\r\n\r\n")?;
        let mut answer = Vec::with_capacity(ANSWER_BYTES);
        socket.read_to_end(&mut answer)?;
        let wrong = || io::Error::other(format!("the answer {:?}", String::from_utf8_lossy(&answer)));
        if answer.starts_with(b"HTTP/1.1 200 ") { Ok(()) } else { Err(wrong()) }
    };
    exchange().map_err(|error| Unanswered { port, error })
}

/// Asks an echo server with a datagram, and again when nobody answers, of which `lost` hears each time: from when to when it waited, why not, and
/// how many packets the CPUs' queues have dropped until it was due.
///
/// # Errors
/// When no datagram is answered in time.
pub(super) fn udp(target: SocketAddr, mut lost: impl FnMut([Instant; 2], &Unanswered, u64)) -> Result<(), Unanswered> {
    let mut last = Unanswered { port: 0, error: io::ErrorKind::TimedOut.into() };
    for _ in 0..DATAGRAMS {
        let from = Instant::now();
        let (mut socket, port) = socket(target, Type::DGRAM)?;
        let mut dropped = 0;
        let mut exchange = || {
            let before = queues::dropped()?;
            socket.connect(&target.into())?;
            socket.send(b"who")?;
            socket.set_read_timeout(Some(DATAGRAM_DUE))?;
            let answer = socket.read(&mut [0; ANSWER_BYTES]);
            if !answer.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                return answer;
            }
            dropped = queues::dropped()?.saturating_sub(before);
            socket.set_read_timeout(Some(DATAGRAM_PATIENCE - DATAGRAM_DUE))?;
            let answer = socket.read(&mut [0; ANSWER_BYTES]);
            // Who was refused was not lost in a queue.
            if !answer.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                dropped = 0;
            }
            answer
        };
        match exchange() {
            Ok(_) => return Ok(()),
            Err(error) => last = Unanswered { port, error },
        }
        lost([from, Instant::now()], &last, dropped);
    }
    Err(last)
}

/// A socket with a port of its own already.
fn socket(target: SocketAddr, kind: Type) -> Result<(Socket, u16), Unanswered> {
    let any = match target {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let make = || {
        let socket = Socket::new(Domain::for_address(target), kind, None)?;
        socket.bind(&any.into())?;
        let port = socket.local_addr()?.as_socket().map_or(0, |address| address.port());
        Ok((socket, port))
    };
    make().map_err(|error| Unanswered { port: 0, error })
}
