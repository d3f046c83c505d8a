//! Sockets that listen, and the connections behind them, bounded in number and time: whoever can reach the port must not
//! be able to make the process run out of memory or file descriptors.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// How long answers that are under way may take after the stop.
const DRAIN: Duration = Duration::from_secs(2);
/// Pause when the system gives us no connection, as without file descriptors.
const PAUSE: Duration = Duration::from_secs(1);

/// What one set of listeners grants its clients.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Connections at once; further ones wait to be accepted.
    pub connections: usize,
    /// How long a request's header may take, and how long a connection may idle before the next one.
    pub header: Duration,
    /// How long a connection may last: a client that never reads its answer gives its place back.
    pub connection: Duration,
    /// Size of a request's header, in bytes; 8192 or more.
    pub header_bytes: usize,
}

impl Limits {
    /// Plenty for load balancers that probe from several places and for a few scrapers.
    pub const DEFAULT: Self = Self {
        connections: 64,
        header: Duration::from_secs(10),
        connection: Duration::from_secs(300),
        header_bytes: 16_384,
    };
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
    pub cause: std::io::Error,
}

/// Sockets that listen; connections queue until they are [served](Self::serve).
#[derive(Debug)]
pub struct Listeners {
    sockets: Vec<TcpListener>,
    limits: Limits,
}

impl Listeners {
    /// Listens on every address, or on none. `[::]` means IPv6 alone, so that it can stand beside `0.0.0.0`. `what` is
    /// for the error's text, such as `health checks`.
    ///
    /// # Errors
    /// If an address is used by somebody else or is not this machine's.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn bind(what: &'static str, addresses: &[SocketAddr]) -> Result<Self, BindError> {
        let bound =
            addresses.iter().map(|&address| listen(address).map_err(|cause| BindError { what, address, cause }));
        Ok(Self { sockets: bound.collect::<Result<_, _>>()?, limits: Limits::DEFAULT })
    }

    /// The same with other limits.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// The addresses, with the ports that the kernel chose for port 0.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Answers until `stop`, then finishes what is under way, for at most two seconds.
    pub async fn serve(self, router: Router, stop: CancellationToken) {
        let Self { sockets, limits } = self;
        let room = Arc::new(Semaphore::new(limits.connections));
        let mut servers = JoinSet::new();
        for socket in sockets {
            servers.spawn(accept(socket, router.clone(), limits, Arc::clone(&room), stop.clone()));
        }
        while servers.join_next().await.is_some() {}
    }
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
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

async fn accept(socket: TcpListener, router: Router, limits: Limits, room: Arc<Semaphore>, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = next(&socket, &room) => accepted,
            () = stop.cancelled() => break,
        };
        let Some((permit, stream)) = accepted else { break };
        while connections.try_join_next().is_some() {}
        let answered = answer(stream, router.clone(), limits, stop.clone());
        connections.spawn(async move {
            answered.await;
            drop(permit);
        });
    }
    drop(socket);
    while connections.join_next().await.is_some() {}
}

/// The next connection, once there is room for it.
async fn next(socket: &TcpListener, room: &Arc<Semaphore>) -> Option<(OwnedSemaphorePermit, TcpStream)> {
    let permit = Arc::clone(room).acquire_owned().await.ok()?;
    loop {
        match socket.accept().await {
            Ok((stream, _)) => return Some((permit, stream)),
            // The client has gone before we came.
            Err(cause) if matches!(cause.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) => {}
            Err(cause) => {
                warn!(%cause, "no connection can be accepted; trying again");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn answer(stream: TcpStream, router: Router, limits: Limits, stop: CancellationToken) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header)
        .max_buf_size(limits.header_bytes)
        // As Go writes them, for whoever compares.
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    tokio::select! {
        // Whatever went wrong with it is the client's own matter.
        _ = connection.as_mut() => return,
        () = tokio::time::sleep(limits.connection) => {}
        () = stop.cancelled() => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(DRAIN, connection).await;
}
