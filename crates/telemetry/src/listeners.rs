//! Sockets that listen, and the connections behind them, bounded in number and time: whoever can reach the port must not
//! be able to make the process run out of memory or file descriptors.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::{Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1::{self, Parts};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// Connections that wait to be accepted.
pub(crate) const BACKLOG: i32 = 128;
/// How long answers that are under way may take after the stop.
const DRAIN: Duration = Duration::from_secs(2);
/// The answer to a request whose header did not come in time.
const TOO_SLOW: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
/// Clients that may not be answered and are told so at a time; others of them find their connection closed.
const REFUSALS: usize = 4;
/// Pause when the system gives us no connection, as without file descriptors.
const PAUSE: Duration = Duration::from_secs(1);

/// What a [`Room`] grants its clients.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Connections that are answered at once, 1 or more. Of further ones each socket holds the first, and the others
    /// wait to be accepted.
    pub connections: usize,
    /// Whether a connection may bring another request after the first.
    pub keep_alive: bool,
    /// How long a request's header may take, and how long a connection may idle before the next one.
    pub header: Duration,
    /// How long a connection may last, and an answer that is under way then two seconds more: a client that never reads
    /// its answer gives its place back.
    pub connection: Duration,
    /// Size of a request's header, in bytes; 8192 or more.
    pub header_bytes: usize,
}

impl Limits {
    /// Plenty for load balancers that probe from several places and for a few scrapers.
    pub const DEFAULT: Self = Self {
        connections: 64,
        keep_alive: true,
        header: Duration::from_secs(10),
        connection: Duration::from_secs(300),
        header_bytes: 16_384,
    };

    /// For ports that anybody outside may ask. A probe is one short question, so whoever holds a connection for longer
    /// keeps others from asking: it gets one answer, and five seconds in all. As many connections fit well into the
    /// usual 1024 file descriptors of a process, beside its maps, programs and watches.
    pub const PROBES: Self = Self {
        connections: 256,
        keep_alive: false,
        header: Duration::from_secs(2),
        connection: Duration::from_secs(3),
        ..Self::DEFAULT
    };

    /// For people at the [admin socket](crate::admin): a question is a line, an answer may be megabytes.
    pub const ADMIN: Self = Self {
        connections: 16,
        keep_alive: false,
        header: Duration::from_secs(2),
        connection: Duration::from_secs(10),
        header_bytes: 8192,
    };
}

/// Ends the connection that a request came over, at once and whatever is still to be sent: for an answer without end whose
/// client does not read it. Handlers get it as an extension.
#[derive(Clone, Debug, Default)]
pub struct HangUp(CancellationToken);

impl HangUp {
    /// Does it.
    pub fn now(&self) {
        self.0.cancel();
    }

    /// Whether somebody did.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.0.is_cancelled()
    }
}

/// Places for connections. Clones share them, and so do all listeners in one room, however many those are: a place that
/// is given back goes to the socket that has waited longest, so a flood at one of them does not starve the others.
#[derive(Clone, Debug)]
pub struct Room {
    limits: Limits,
    places: Arc<Semaphore>,
}

impl Room {
    /// An empty room.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, places: Arc::new(Semaphore::new(limits.connections)) }
    }
}

/// An address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for {what}: {cause}")]
pub struct BindError {
    /// What for.
    pub what: &'static str,
    /// The address.
    pub address: SocketAddr,
    /// Why.
    pub cause: io::Error,
}

impl BindError {
    /// Whether it is about `::1` on a machine without IPv6, as many are: that one of IPv4 is enough there.
    #[must_use]
    pub fn is_loopback_without_ipv6(&self) -> bool {
        self.address.ip() == Ipv6Addr::LOCALHOST && lacks_family(&self.cause)
    }

    /// The same about `::`, all addresses of IPv6, of which such a machine has none.
    fn is_wildcard_without_ipv6(&self) -> bool {
        self.address.ip() == Ipv6Addr::UNSPECIFIED && lacks_family(&self.cause)
    }
}

/// Whether the kernel knows nothing of an address's family, or no address of it.
fn lacks_family(cause: &io::Error) -> bool {
    cause.kind() == ErrorKind::AddrNotAvailable || cause.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

/// Sockets that listen; connections queue until they are [served](Self::serve).
#[derive(Debug)]
pub struct Listeners {
    sockets: Vec<TcpListener>,
    room: Room,
}

impl Listeners {
    /// Listens on every address, or on none. `[::]` means IPv6 alone, so that it can stand beside `0.0.0.0`; beside others it is left out on a machine
    /// without IPv6. `what` is for the error's text, such as `health checks`.
    ///
    /// # Errors
    /// If an address is used by somebody else or is not this machine's.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn bind(what: &'static str, addresses: &[SocketAddr]) -> Result<Self, BindError> {
        let mut sockets = Vec::new();
        for &address in addresses {
            match listen(address).map_err(|cause| BindError { what, address, cause }) {
                Ok(socket) => sockets.push(socket),
                Err(error) if error.is_wildcard_without_ipv6() && addresses.len() > 1 => debug!("{error}: IPv6 is off"),
                Err(error) => return Err(error),
            }
        }
        Ok(Self { sockets, room: Room::new(Limits::DEFAULT) })
    }

    /// The same in a room that others may share, instead of one of their own with [`Limits::DEFAULT`].
    #[must_use]
    pub fn in_room(self, room: &Room) -> Self {
        Self { room: room.clone(), ..self }
    }

    /// The addresses, with the ports that the kernel chose for port 0.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Answers until `stop`, then finishes what is under way, for at most two seconds. Handlers learn who asks from
    /// `ConnectInfo<SocketAddr>`.
    pub async fn serve(self, router: Router, stop: CancellationToken) {
        let Self { sockets, room } = self;
        let mut servers = JoinSet::new();
        for socket in sockets {
            servers.spawn(accept(socket, router.clone(), room.clone(), stop.clone()));
        }
        while servers.join_next().await.is_some() {}
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // A restart must not wait for the connections of the process before.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// A socket that connections come from.
pub(crate) trait Door: Send + Sync + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;
    /// Who is at its other end: handlers get it as `ConnectInfo`.
    type Peer: Clone + Send + Sync + Unpin + 'static;

    /// The next connection.
    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<Self::Stream>>;

    /// None if the client has gone.
    fn peer(stream: &Self::Stream) -> Option<Self::Peer>;

    /// Whether the client may be answered. One who may not takes no place from those who may.
    fn admits(&self, _stream: &Self::Stream) -> bool {
        true
    }
}

impl Door for TcpListener {
    type Stream = TcpStream;
    type Peer = SocketAddr;

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<TcpStream>> {
        Self::poll_accept(self, context).map_ok(|(stream, _)| stream)
    }

    fn peer(stream: &TcpStream) -> Option<SocketAddr> {
        stream.peer_addr().ok()
    }
}

/// Answers whoever comes through a door until `stop`, then finishes what is under way.
pub(crate) async fn accept<D: Door>(door: D, router: Router, room: Room, stop: CancellationToken) {
    let Room { limits, places } = room;
    let refusals = Arc::new(Semaphore::new(REFUSALS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = next(&door, &places, &refusals) => accepted,
            () = stop.cancelled() => break,
        };
        let Some((place, stream)) = accepted else { break };
        while connections.try_join_next().is_some() {}
        let answered = answer::<D>(stream, router.clone(), limits, stop.clone());
        connections.spawn(async move {
            answered.await;
            drop(place);
        });
    }
    drop(door);
    while connections.join_next().await.is_some() {}
}

/// The next connection, once there is a place for it. A socket that nobody asks takes none.
async fn next<D: Door>(
    door: &D,
    places: &Arc<Semaphore>,
    refusals: &Arc<Semaphore>,
) -> Option<(OwnedSemaphorePermit, D::Stream)> {
    loop {
        let stream = incoming(door).await;
        if door.admits(&stream) {
            let place = Arc::clone(places).acquire_owned().await.ok()?;
            return Some((place, stream));
        }
        if let Ok(place) = Arc::clone(refusals).try_acquire_owned() {
            return Some((place, stream));
        }
    }
}

async fn incoming<D: Door>(door: &D) -> D::Stream {
    loop {
        match poll_fn(|context| door.poll_accept(context)).await {
            Ok(stream) => return stream,
            // The client has gone before we came.
            Err(cause) if matches!(cause.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) => {}
            Err(cause) => {
                warn!(%cause, "no connection can be accepted; trying again");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn answer<D: Door>(stream: D::Stream, router: Router, limits: Limits, stop: CancellationToken) {
    // The client has gone before we came.
    let Some(peer) = D::peer(&stream) else { return };
    let router = TowerToHyperService::new(router);
    let hang_up = HangUp::default();
    let extension = hang_up.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer.clone()));
        request.extensions_mut().insert(extension.clone());
        Box::pin(router.call(request))
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(limits.keep_alive)
        .header_read_timeout(limits.header)
        .max_buf_size(limits.header_bytes)
        // As Go writes them, for whoever compares.
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        done = poll_fn(|context| connection.poll_without_shutdown(context)) => {
            let Parts { io, read_buf, .. } = connection.into_parts();
            // Whatever else went wrong with it is the client's own matter. Who idles between two requests has sent nothing.
            let slow = done.is_err_and(|cause| cause.is_timeout()) && !read_buf.is_empty();
            return close(io.into_inner(), slow).await;
        }
        () = tokio::time::sleep(limits.connection) => {}
        () = hang_up.0.cancelled() => return,
        () = stop.cancelled() => {}
    }
    let mut connection = pin!(connection);
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(DRAIN, connection).await;
}

/// Ends a connection; who was too slow with a request learns it first, which hyper does not say.
async fn close(mut stream: impl AsyncWrite + Unpin, slow: bool) {
    let end = async {
        if slow {
            stream.write_all(TOO_SLOW).await?;
        }
        stream.shutdown().await
    };
    // A client that is gone by now is told nothing.
    let _ = tokio::time::timeout(DRAIN, end).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(address: &str, errno: i32) -> BindError {
        BindError { what: "tests", address: address.parse().unwrap(), cause: io::Error::from_raw_os_error(errno) }
    }

    /// A kernel that was told `ipv6.disable=1` when it started makes no such socket; one that was later has no such address.
    #[test]
    fn a_machine_without_ipv6_is_told_from_an_address_that_somebody_else_has() {
        for errno in [libc::EAFNOSUPPORT, libc::EADDRNOTAVAIL] {
            assert!(error("[::]:1", errno).is_wildcard_without_ipv6());
            assert!(error("[::1]:1", errno).is_loopback_without_ipv6());
            assert!(!error("127.0.0.2:1", errno).is_loopback_without_ipv6(), "it is IPv4 that is lacking");
            assert!(!error("[2001:db8::1]:1", errno).is_wildcard_without_ipv6(), "whoever names it wants it");
        }
        assert!(!error("[::]:1", libc::EADDRINUSE).is_wildcard_without_ipv6());
        assert!(!error("[::1]:1", libc::EADDRINUSE).is_loopback_without_ipv6());
    }
}
