//! Servers for pods. Each says who it is and whom it sees: `name client-ip:port`.
//!
//! * HTTP/1.1: any request without a body is answered with that line as body and the name in `Server-Name`; connections
//!   stay open unless the client asks for `Connection: close`. `GET /burn/N` costs N microseconds of CPU time before.
//! * TCP echo: each line is answered by that line, a blank and the client's own words.
//! * UDP echo: the same for each datagram, sent from the address that was asked.
//!
//! A server is one thread in its namespace and serves both families on one socket.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::time::{ClockId, clock_gettime};
use socket2::{Domain, Socket, Type};

use crate::netns::Netns;
use crate::{Error, Result};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// Events taken from the kernel at once.
const EVENTS: usize = 256;

/// Most bytes of an unfinished request; a client that sends more is cut off.
const REQUEST_BYTES: usize = 16 * 1024;

/// A running server. Stops on drop; open connections are reset or closed then.
#[derive(Debug)]
pub struct Server {
    port: u16,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// The port that it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.stop.write(1).is_ok() && self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            eprintln!("the server on port {} has panicked", self.port);
        }
    }
}

/// Starts an HTTP/1.1 server in a namespace. Port 0 means any free one.
///
/// # Errors
/// When the port is taken.
pub fn http(netns: &Netns, name: &str, port: u16) -> Result<Server> {
    tcp(netns, name, port, Protocol::Http)
}

/// Serves HTTP/1.1 in the calling thread and its namespace, for ever: what a process of its own does.
///
/// # Errors
/// When the port is taken or the server fails.
pub fn http_here(name: &str, port: u16) -> Result<()> {
    let action = format!("serve TCP port {port}");
    let serve = || {
        let stop = EventFd::new()?;
        TcpLoop::new(listen(port)?, name.to_owned(), Protocol::Http, &stop)?.run()
    };
    serve().map_err(Error::io(action))
}

/// Starts a TCP echo server in a namespace. Port 0 means any free one.
///
/// # Errors
/// When the port is taken.
pub fn tcp_echo(netns: &Netns, name: &str, port: u16) -> Result<Server> {
    tcp(netns, name, port, Protocol::Lines)
}

/// Starts a UDP echo server in a namespace. Port 0 means any free one.
///
/// # Errors
/// When the port is taken.
pub fn udp_echo(netns: &Netns, name: &str, port: u16) -> Result<Server> {
    let action = format!("serve UDP port {port} in {}", netns.name());
    let socket: UdpSocket = netns.enter(|| bind(Type::DGRAM, port)).map_err(Error::io(action))?.into();
    let address = socket.local_addr();
    let name = name.to_owned();
    start(netns, address, move |stop| crate::udp::serve(&socket, &name, stop))
}

fn tcp(netns: &Netns, name: &str, port: u16, protocol: Protocol) -> Result<Server> {
    let action = format!("serve TCP port {port} in {}", netns.name());
    let listener = netns.enter(|| listen(port)).map_err(Error::io(action))?;
    let address = listener.local_addr();
    let name = name.to_owned();
    start(netns, address, move |stop| TcpLoop::new(listener, name, protocol, stop)?.run())
}

fn listen(port: u16) -> io::Result<TcpListener> {
    let socket = bind(Type::STREAM, port)?;
    socket.listen(BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// A non-blocking socket for both families.
fn bind(kind: Type, port: u16) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV6, kind, None)?;
    socket.set_only_v6(false)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
    Ok(socket)
}

fn start(
    netns: &Netns,
    address: io::Result<SocketAddr>,
    serve: impl FnOnce(&EventFd) -> io::Result<()> + Send + 'static,
) -> Result<Server> {
    let port = address.map_err(Error::io("read a server's port"))?.port();
    let stop = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).map_err(Error::nix("create an eventfd"))?;
    let stop = Arc::new(stop);
    let stopped = Arc::clone(&stop);
    let thread = netns.spawn(&format!("serve {port}"), move || {
        if let Err(error) = serve(&stopped) {
            eprintln!("the server on port {port} has failed: {error}");
        }
    })?;
    Ok(Server { port, stop, thread: Some(thread) })
}

/// What a TCP server speaks.
#[derive(Clone, Copy, Debug)]
enum Protocol {
    Http,
    Lines,
}

/// One accepted connection with what it has sent so far.
struct Connection {
    stream: TcpStream,
    client: SocketAddr,
    input: Vec<u8>,
}

struct TcpLoop<'a> {
    listener: TcpListener,
    name: String,
    protocol: Protocol,
    epoll: Epoll,
    connections: HashMap<RawFd, Connection>,
    stop: &'a EventFd,
}

impl<'a> TcpLoop<'a> {
    fn new(listener: TcpListener, name: String, protocol: Protocol, stop: &'a EventFd) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, token(&listener)))?;
        epoll.add(stop, EpollEvent::new(EpollFlags::EPOLLIN, token(stop)))?;
        Ok(Self { listener, name, protocol, epoll, connections: HashMap::new(), stop })
    }

    fn run(mut self) -> io::Result<()> {
        let (listener, stop) = (token(&self.listener), token(self.stop));
        let mut events = [EpollEvent::empty(); EVENTS];
        loop {
            let count = match self.epoll.wait(&mut events, EpollTimeout::NONE) {
                Err(nix::Error::EINTR) => continue,
                other => other?,
            };
            for event in &events[..count] {
                match event.data() {
                    token if token == stop => return Ok(()),
                    token if token == listener => self.accept()?,
                    token => self.serve(token),
                }
            }
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let (stream, client) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // The client gave up before it was accepted.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error),
            };
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            self.epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, token(&stream)))?;
            let client = canonical(client);
            self.connections.insert(stream.as_raw_fd(), Connection { stream, client, input: Vec::new() });
        }
    }

    /// Reads what a connection has sent and answers it. Dropping the connection closes it and takes it out of epoll.
    fn serve(&mut self, token: u64) {
        let Ok(descriptor) = RawFd::try_from(token) else { return };
        let Some(connection) = self.connections.get_mut(&descriptor) else { return };
        // A broken connection is the client's affair, and it sees it.
        if !connection.serve(&self.name, self.protocol).unwrap_or(false) {
            self.connections.remove(&descriptor);
        }
    }
}

impl Connection {
    /// True while the connection stays open.
    fn serve(&mut self, name: &str, protocol: Protocol) -> io::Result<bool> {
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(false),
                Ok(length) => self.input.extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            let open = self.answer(name, protocol)?;
            if !open || self.input.len() > REQUEST_BYTES {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Answers all complete requests. A client that does not read its answers gets an error, and is closed.
    fn answer(&mut self, name: &str, protocol: Protocol) -> io::Result<bool> {
        let end: &[u8] = match protocol {
            Protocol::Http => b"\r\n\r\n",
            Protocol::Lines => b"\n",
        };
        while let Some(at) = self.input.windows(end.len()).position(|window| window == end) {
            let request: Vec<u8> = self.input.drain(..at + end.len()).take(at).collect();
            let who = format!("{name} {}", self.client);
            match protocol {
                Protocol::Lines => {
                    let answer = [who.as_bytes(), b" ", &request, b"\n"].concat();
                    self.stream.write_all(&answer)?;
                }
                Protocol::Http => {
                    burn(cost_of(&request))?;
                    let close = wants_close(&request);
                    self.stream.write_all(http_answer(name, &who, close).as_bytes())?;
                    if close {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }
}

fn http_answer(name: &str, who: &str, close: bool) -> String {
    let connection = if close { "close" } else { "keep-alive" };
    format!(
        "HTTP/1.1 200 OK\r\nServer-Name: {name}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: {connection}\r\n\r\n{who}\n",
        who.len() + 1
    )
}

/// The CPU time that an HTTP request asks for: `GET /burn/N` N microseconds, a second at most; others nothing.
fn cost_of(request: &[u8]) -> Duration {
    const MOST: u64 = 1_000_000;
    let micros = || {
        let digits = request.strip_prefix(b"GET /burn/")?.split(|byte| *byte == b' ').next()?;
        str::from_utf8(digits).ok()?.parse::<u64>().ok()
    };
    Duration::from_micros(micros().unwrap_or_default().min(MOST))
}

/// Keeps the thread busy for this much CPU time: however long that takes where the thread may not run all the time.
fn burn(cost: Duration) -> io::Result<()> {
    if cost.is_zero() {
        return Ok(());
    }
    let used = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from);
    let end = used()? + cost;
    while used()? < end {
        std::hint::spin_loop();
    }
    Ok(())
}

/// Whether an HTTP request (its lines, without the blank one) ends the connection.
fn wants_close(request: &[u8]) -> bool {
    let request = String::from_utf8_lossy(request).to_ascii_lowercase();
    let mut lines = request.lines();
    let old = lines.next().is_some_and(|line| line.ends_with("http/1.0"));
    let named = lines.filter_map(|line| line.strip_prefix("connection:")).map(str::trim).next();
    named.map_or(old, |value| value == "close")
}

/// An IPv4 client of a socket for both families, as an IPv4 address.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn token(descriptor: &impl AsRawFd) -> u64 {
    u64::from(descriptor.as_raw_fd().unsigned_abs())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{cost_of, wants_close};

    #[test]
    fn a_request_costs_the_cpu_time_that_it_names() {
        let costs = |request: &str| cost_of(request.as_bytes());
        assert_eq!(costs("GET /burn/250 HTTP/1.1\r\nHost: a"), Duration::from_micros(250));
        assert_eq!(costs("GET /burn/99999999 HTTP/1.0"), Duration::from_secs(1));
        for free in ["GET / HTTP/1.1", "GET /burn/ HTTP/1.1", "GET /burn/x HTTP/1.1", "POST /burn/250 HTTP/1.1"] {
            assert_eq!(costs(free), Duration::ZERO, "{free}");
        }
    }

    #[test]
    fn an_http_connection_stays_open_unless_the_client_wants_it_closed() {
        assert!(!wants_close(b"GET / HTTP/1.1\r\nHost: a"));
        assert!(wants_close(b"GET / HTTP/1.1\r\nConnection: Close"));
        assert!(wants_close(b"GET / HTTP/1.0\r\nHost: a"));
        assert!(!wants_close(b"GET / HTTP/1.0\r\nConnection: keep-alive"));
    }
}
