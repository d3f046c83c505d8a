//! Runs a [`Mesh`] on sockets: reads clocks, moves datagrams, re-reads the key file. Decides nothing.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::key_file::KeyFile;
use crate::mesh::{Mesh, Now, Transmit};
use crate::packet::MAX_PACKET;
use crate::socket::{Buffer, Socket};

/// How often the key file is read.
const KEYS: Duration = Duration::from_secs(5);
/// Datagrams that are read from a socket before probes have their turn.
const BATCH: usize = 64;
/// Sleeping without an end is sleeping so long.
const IDLE: Duration = Duration::from_secs(3600);

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
    #[error("mesh: receiving failed: bind the sockets anew and run it again")]
    Receive(#[source] io::Error),
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
        let result = self.locked(work);
        // There may be somebody to probe now.
        self.changed.notify_one();
        result
    }

    /// Runs it on one socket of each family that the node has, until a socket fails. Dropping the future ends it.
    ///
    /// # Errors
    /// [`LinkError`] if a socket cannot be read any more.
    pub async fn run(&self, sockets: &[Socket], mut keys: KeyFile) -> Result<(), LinkError> {
        let mut complaint = String::new();
        let mut refresh = interval(KEYS);
        refresh.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            while let Some(probe) = self.locked(Mesh::probe) {
                self.send(sockets, &probe);
            }
            tokio::select! {
                result = readable(sockets) => {
                    result.map_err(LinkError::Receive)?;
                    for socket in sockets {
                        self.receive(socket, sockets)?;
                    }
                }
                () = sleep(self.locked(until_probe)) => {}
                () = self.changed.notified() => {}
                _ = refresh.tick() => self.refresh(&mut keys, &mut complaint),
            }
        }
    }

    /// A panic of somebody who held the lock left at most one packet unfinished.
    fn locked<R>(&self, work: impl FnOnce(&mut Mesh, Now) -> R) -> R {
        let mut mesh = self.mesh.lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut mesh, now())
    }

    fn receive(&self, socket: &Socket, sockets: &[Socket]) -> Result<(), LinkError> {
        let mut buffer: Buffer = [0; MAX_PACKET + 1];
        for _ in 0..BATCH {
            match socket.receive(&mut buffer) {
                Ok(None) => break,
                Ok(Some(arrival)) => match self.locked(|mesh, now| mesh.receive(arrival, now)) {
                    Ok(Some(reply)) => self.send(sockets, &reply),
                    Ok(None) => {}
                    Err(refusal) => tracing::debug!(from = %arrival.from, %refusal, "mesh packet dropped"),
                },
                // An ICMP error about an earlier datagram: that peer's silence is seen anyway.
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(LinkError::Receive(error)),
            }
        }
        Ok(())
    }

    fn send(&self, sockets: &[Socket], transmit: &Transmit) {
        let family = transmit.to.is_ipv4();
        let socket = sockets.iter().find(|socket| socket.address().is_ok_and(|own| own.is_ipv4() == family));
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
    mesh.next_probe().map_or(IDLE, |due| due.saturating_sub(now.steady))
}

fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, Interrupted, NetworkUnreachable};
    matches!(error.kind(), ConnectionRefused | HostUnreachable | Interrupted | NetworkUnreachable)
}

async fn readable(sockets: &[Socket]) -> io::Result<()> {
    poll_fn(|context| {
        // Each one is asked, so that each one wakes the task.
        let ready = sockets.iter().map(|socket| socket.poll_readable(context));
        ready.fold(Poll::Pending, |first, next| if first.is_ready() { first } else { next })
    })
    .await
}
