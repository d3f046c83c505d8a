//! Runs a [`Mesh`] on sockets: reads clocks, moves datagrams, re-reads the key file. Decides nothing.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::key_file::KeyFile;
use crate::mesh::{Mesh, Now, Transmit};
use crate::packet::MAX_PACKET;
use crate::socket::{Buffer, Socket};

/// How often the key file is read.
const KEYS: Duration = Duration::from_secs(5);
/// Between two turns: what comes meanwhile waits and is handled at once, since waking up costs more than a packet. The
/// kernel's stamps keep this wait out of all measurements.
const PAUSE: Duration = Duration::from_millis(100);
/// The same while there is more to read than fits into one turn: somebody floods, and peers must still be heard.
const SHORT_PAUSE: Duration = Duration::from_millis(10);
/// Datagrams that are read from a socket in one turn: about what its buffer holds by default. It also bounds what a flood
/// costs.
const BATCH: usize = 256;

/// This moment on both clocks.
#[must_use]
pub fn now() -> Now {
    static START: OnceLock<Instant> = OnceLock::new();
    let steady = START.get_or_init(Instant::now).elapsed();
    Now { steady, wall: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() }
}

/// Why the mesh ended.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// A socket cannot be read any more.
    #[error("mesh address {address}: receiving failed: bind it anew, and see whether the node still has the address")]
    Receive {
        /// Where the socket is bound.
        address: SocketAddr,
        /// What the system says.
        #[source]
        cause: io::Error,
    },
}

/// A mesh that runs, shared by its task and those who tell it and ask it.
#[derive(Clone, Debug)]
pub struct Link {
    mesh: Arc<Mutex<Mesh>>,
    changed: Arc<Notify>,
}

impl Link {
    /// Of a mesh, before it runs.
    #[must_use]
    pub fn new(mesh: Mesh) -> Self {
        Self { mesh: Arc::new(Mutex::new(mesh)), changed: Arc::default() }
    }

    /// Tells or asks it something. Takes microseconds; `work` should too.
    pub fn with<R>(&self, work: impl FnOnce(&mut Mesh, Now) -> R) -> R {
        let (result, sooner) = self.locked(|mesh, now| {
            let before = mesh.next_probe();
            let result = work(mesh, now);
            let sooner = mesh.next_probe().is_some_and(|due| before.is_none_or(|before| due < before));
            (result, sooner)
        });
        if sooner {
            self.changed.notify_one();
        }
        result
    }

    /// Runs it on one socket of each family that the node has, until a socket fails. Dropping the future ends it.
    ///
    /// # Errors
    /// [`LinkError`] if a socket cannot be read any more.
    pub async fn run(&self, sockets: &[Socket], keys: &mut KeyFile) -> Result<(), LinkError> {
        let mut complaint = String::new();
        let mut refresh = Instant::now();
        loop {
            let pause = self.turn(sockets)?;
            if Instant::now() >= refresh {
                self.refresh(keys, &mut complaint);
                refresh = Instant::now() + KEYS;
            }
            if let Some(pause) = pause {
                sleep(pause).await;
                continue;
            }
            let idle = self.locked(until_probe).min(refresh.saturating_duration_since(Instant::now()));
            tokio::select! {
                result = timeout(idle, readable(sockets)) => result.unwrap_or(Ok(()))?,
                () = self.changed.notified() => {}
            }
        }
    }

    /// Handles what has come, then sends the probes that are due. Answers with the pause until the next turn, None if there
    /// was nothing to do.
    fn turn(&self, sockets: &[Socket]) -> Result<Option<Duration>, LinkError> {
        let mut pause = None;
        for socket in sockets {
            let next = match self.receive(socket, sockets)? {
                0 => None,
                BATCH => Some(SHORT_PAUSE),
                _ => Some(PAUSE),
            };
            pause = pause.into_iter().chain(next).min();
        }
        while let Some(probe) = self.locked(Mesh::probe) {
            self.send(sockets, &probe);
            pause = pause.or(Some(PAUSE));
        }
        Ok(pause)
    }

    /// A panic of somebody who held the lock left at most one packet unfinished.
    fn locked<R>(&self, work: impl FnOnce(&mut Mesh, Now) -> R) -> R {
        let mut mesh = self.mesh.lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut mesh, now())
    }

    /// Answers with how many datagrams there were, [`BATCH`] at most.
    fn receive(&self, socket: &Socket, sockets: &[Socket]) -> Result<usize, LinkError> {
        let mut buffer: Buffer = [0; MAX_PACKET + 1];
        for turn in 0..BATCH {
            match socket.receive(&mut buffer) {
                Ok(None) => return Ok(turn),
                Ok(Some(arrival)) => match self.locked(|mesh, now| mesh.receive(arrival, now)) {
                    Ok(Some(reply)) => self.send(sockets, &reply),
                    Ok(None) => {}
                    Err(refusal) => tracing::debug!(from = %arrival.from, %refusal, "mesh packet dropped"),
                },
                // An ICMP error about an earlier datagram: that peer's silence is seen anyway.
                Err(error) if is_passing(&error) => {}
                Err(cause) => return Err(LinkError::Receive { address: socket.address(), cause }),
            }
        }
        Ok(BATCH)
    }

    fn send(&self, sockets: &[Socket], transmit: &Transmit) {
        let family = transmit.to.is_ipv4();
        let socket = sockets.iter().find(|socket| socket.address().is_ipv4() == family);
        let result = socket.map_or_else(|| Err(io::ErrorKind::AddrNotAvailable.into()), |socket| socket.send(transmit));
        if let Err(error) = result {
            self.locked(|mesh, _| mesh.unsent());
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
                self.locked(|mesh, _| mesh.set_keys(ring));
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

fn until_probe(mesh: &mut Mesh, now: Now) -> Duration {
    mesh.next_probe().map_or(Duration::MAX, |due| due.saturating_sub(now.steady))
}

fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, Interrupted, NetworkUnreachable};
    matches!(error.kind(), ConnectionRefused | HostUnreachable | Interrupted | NetworkUnreachable)
}

/// Waits until one of them has something to read. The runtime knows them only for that time: else every packet would
/// wake it, also during a pause.
async fn readable(sockets: &[Socket]) -> Result<(), LinkError> {
    let watch =
        |socket: &Socket| socket.watch().map_err(|cause| LinkError::Receive { address: socket.address(), cause });
    let watched = sockets.iter().map(watch).collect::<Result<Vec<_>, _>>()?;
    poll_fn(|context| {
        // Each one is asked, so that each one wakes the task. What is wrong with it is told by reading it.
        let ready = watched.iter().filter(|socket| socket.poll_recv_ready(context).is_ready()).count();
        if ready > 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    Ok(())
}
