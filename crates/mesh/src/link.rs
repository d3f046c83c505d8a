//! Runs a [`Mesh`] on sockets: reads clocks, moves datagrams, re-reads the key file. Decides nothing.
//!
//! Who steers calls [`Link::hear`] before it decides and [`Link::speak`] after: to wake up costs more than a packet, and what
//! is told is as fresh as can be. What comes meanwhile waits in the sockets; the kernel's stamps keep this wait out of all
//! measurements.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::key_file::KeyFile;
use crate::mesh::{Mesh, Now, Question, Transmit};
use crate::packet::MAX_PACKET;
use crate::socket::{Buffer, Socket};

/// How often the key file is read.
const KEYS: Duration = Duration::from_secs(5);
/// Until the next look while there is more to read than fits into one: somebody floods, and peers must still be heard.
const FLOODED: Duration = Duration::from_millis(10);
/// Datagrams that are read from a socket at once: about what its buffer holds by default. It also bounds what a flood costs.
const BATCH: usize = 256;

/// This moment on both clocks.
#[must_use]
pub fn now() -> Now {
    static START: OnceLock<Instant> = OnceLock::new();
    let steady = START.get_or_init(Instant::now).elapsed();
    Now { steady, wall: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() }
}

/// Why a socket is not used any more.
#[derive(Debug, thiserror::Error)]
#[error("mesh address {address}: receiving failed: bind it anew, and see whether the node still has the address")]
pub struct LinkError {
    /// Where the socket is bound.
    pub address: SocketAddr,
    /// What the system says.
    #[source]
    cause: io::Error,
}

/// A mesh on sockets, shared by who steers, who binds sockets, and those who tell it and ask it.
#[derive(Clone, Debug)]
pub struct Link {
    mesh: Arc<Mutex<Mesh>>,
    wires: Arc<Mutex<Wires>>,
    /// There is more to read than what was, or a socket has failed.
    urgent: Arc<Notify>,
}

/// The sockets and what hangs on them.
#[derive(Debug, Default)]
struct Wires {
    /// One of each family that the node has.
    sockets: Vec<Socket>,
    /// Probes that wait for their replies.
    questions: Vec<Question>,
    failed: Option<LinkError>,
    flooded: bool,
}

impl Link {
    /// Of a mesh without sockets.
    #[must_use]
    pub fn new(mesh: Mesh) -> Self {
        Self { mesh: Arc::new(Mutex::new(mesh)), wires: Arc::default(), urgent: Arc::default() }
    }

    /// Tells or asks it something. Takes microseconds; `work` should too.
    pub fn with<R>(&self, work: impl FnOnce(&mut Mesh, Now) -> R) -> R {
        // A panic of somebody who held the lock left at most one packet unfinished.
        let mut mesh = self.mesh.lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut mesh, now())
    }

    /// From now on it is used, too.
    pub fn add(&self, socket: Socket) {
        self.wires().sockets.push(socket);
    }

    /// Closes all sockets but those at these addresses.
    pub fn keep(&self, addresses: &[SocketAddr]) {
        self.wires().sockets.retain(|socket| addresses.contains(&socket.address()));
    }

    /// Where its sockets are bound.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.wires().sockets.iter().map(Socket::address).collect()
    }

    /// Takes what has come. A socket that cannot be read any more is closed, and [`Link::watch`] tells of it.
    pub fn hear(&self) {
        let mut wires = self.wires();
        let Wires { sockets, questions, failed, flooded } = &mut *wires;
        *flooded = false;
        sockets.retain(|socket| match self.read(socket, questions) {
            Ok(all) => {
                *flooded |= !all;
                true
            }
            Err(cause) => {
                *failed = Some(LinkError { address: socket.address(), cause });
                false
            }
        });
        if *flooded || failed.is_some() {
            self.urgent.notify_one();
        }
    }

    /// Answers the probes that were taken, and sends those that are due.
    pub fn speak(&self) {
        let mut wires = self.wires();
        for question in std::mem::take(&mut wires.questions) {
            match self.with(|mesh, now| mesh.reply(&question, now)) {
                Ok(reply) => self.send(&wires.sockets, &reply),
                Err(refusal) => tracing::debug!(?question, %refusal, "mesh packet not answered"),
            }
        }
        while let Some(probe) = self.with(Mesh::probe) {
            self.send(&wires.sockets, &probe);
        }
    }

    /// Keeps the keys fresh and hears more often in a flood, until a socket fails. Dropping the future ends it.
    pub async fn watch(&self, keys: &mut KeyFile) -> LinkError {
        let mut complaint = String::new();
        let mut refresh = Instant::now();
        loop {
            if Instant::now() >= refresh {
                self.refresh(keys, &mut complaint);
                refresh = Instant::now() + KEYS;
            }
            let idle = refresh.saturating_duration_since(Instant::now());
            // Either way there may be something to do.
            let _ = timeout(idle, self.urgent.notified()).await;
            if let Some(failed) = self.wires().failed.take() {
                return failed;
            }
            // Keys are read and failures told in a flood, too: the next turn does not wait.
            if self.is_flooded() {
                sleep(FLOODED).await;
                self.hear();
            }
        }
    }

    fn wires(&self) -> MutexGuard<'_, Wires> {
        self.wires.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_flooded(&self) -> bool {
        self.wires().flooded
    }

    /// Answers with whether that was all, which is [`BATCH`] at most.
    fn read(&self, socket: &Socket, questions: &mut Vec<Question>) -> io::Result<bool> {
        let mut buffer: Buffer = [0; MAX_PACKET + 1];
        for _ in 0..BATCH {
            match socket.receive(&mut buffer) {
                Ok(None) => return Ok(true),
                Ok(Some(arrival)) => match self.with(|mesh, now| mesh.hear(arrival, now)) {
                    Ok(question) => questions.extend(question),
                    Err(refusal) => tracing::debug!(from = %arrival.from, %refusal, "mesh packet dropped"),
                },
                // An ICMP error about an earlier datagram: that peer's silence is seen anyway.
                Err(error) if is_passing(&error) => {}
                Err(cause) => return Err(cause),
            }
        }
        Ok(false)
    }

    fn send(&self, sockets: &[Socket], transmit: &Transmit) {
        let family = transmit.to.is_ipv4();
        let socket = sockets.iter().find(|socket| socket.address().is_ipv4() == family);
        let result = socket.map_or_else(|| Err(io::ErrorKind::AddrNotAvailable.into()), |socket| socket.send(transmit));
        if let Err(error) = result {
            self.with(|mesh, _| mesh.unsent());
            tracing::debug!(to = %transmit.to, %error, "mesh packet not sent");
        }
    }

    /// The keys from before stay valid while the file is wrong. Each complaint is logged once.
    fn refresh(&self, keys: &mut KeyFile, complaint: &mut String) {
        match keys.refresh() {
            Ok(None) => complaint.clear(),
            Ok(Some(ring)) => {
                complaint.clear();
                tracing::info!(?ring, "mesh keys replaced");
                self.with(|mesh, _| mesh.set_keys(ring));
            }
            Err(error) => {
                let text = error.to_string();
                if text != *complaint {
                    tracing::warn!(error = &error as &dyn std::error::Error, "mesh keys stay as they were");
                    *complaint = text;
                }
            }
        }
    }
}

fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, Interrupted, NetworkUnreachable};
    matches!(error.kind(), ConnectionRefused | HostUnreachable | Interrupted | NetworkUnreachable)
}
