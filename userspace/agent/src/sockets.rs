//! Connected UDP sockets of processes on the host that are left with an endpoint which is gone, or with a cluster IP that nobody has: destroyed,
//! so that their owners connect anew. See docs/adr/0019-udp-sockets.md.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::libc;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use weir_datapath::Sockets;
use weir_telemetry::catalogue;
use weir_telemetry::metrics::Metrics;

use diag::Diag;

pub(crate) mod diag;

/// From a change to the look at the sockets. A burst of changes needs one look, and a connect() that had chosen the endpoint
/// a moment before it went is done by then.
const GATHER: Duration = Duration::from_millis(100);
/// After a failure that may pass.
const RETRY: Duration = Duration::from_secs(5);

/// What became of connected UDP sockets whose endpoint is gone.
#[derive(Clone, Debug)]
pub(crate) struct SocketMetrics {
    destroyed: Counter,
    failures: Counter,
}

impl SocketMetrics {
    /// Metrics at zero, registered.
    pub(crate) fn register(metrics: &mut Metrics) -> Self {
        let new = Self { destroyed: Counter::default(), failures: Counter::default() };
        catalogue::SOCKETS_DESTROYED.register(metrics, new.destroyed.clone());
        catalogue::SOCKET_SWEEP_FAILURES.register(metrics, new.failures.clone());
        new
    }

    /// A search is over.
    fn swept(&self, destroyed: u64, failed: bool) {
        self.destroyed.inc_by(destroyed);
        self.failures.inc_by(failed.into());
    }
}

/// Destroys stranded sockets whenever it is told that there may be some.
#[derive(Debug)]
pub(crate) struct SocketSweeper {
    sockets: Arc<Sockets>,
    metrics: SocketMetrics,
    /// The failure that was told last, until a sweep succeeds.
    told: Option<String>,
}

/// What a sweep did before it ended or failed.
struct Swept {
    destroyed: u64,
    result: Result<()>,
}

impl SocketSweeper {
    pub(crate) fn new(sockets: Sockets, metrics: SocketMetrics) -> Self {
        Self { sockets: Arc::new(sockets), metrics, told: None }
    }

    /// Works until `stop`. `stranded` is notified when map operations that may strand sockets are in force.
    pub(crate) async fn run(mut self, stranded: Arc<Notify>, stop: CancellationToken) {
        let work = async {
            loop {
                stranded.notified().await;
                tokio::time::sleep(GATHER).await;
                while !self.sweep().await {
                    tokio::time::sleep(RETRY).await;
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// Whether that is all that can be done for now.
    async fn sweep(&mut self) -> bool {
        let sockets = Arc::clone(&self.sockets);
        let swept = tokio::task::spawn_blocking(move || sweep(&sockets)).await;
        let Swept { destroyed, result } =
            swept.unwrap_or_else(|cause| Swept { destroyed: 0, result: Err(cause.into()) });
        if destroyed > 0 {
            info!(
                sockets = destroyed,
                "destroyed connected UDP sockets of processes on the host: they had no endpoint, or one that is gone"
            );
        }
        self.metrics.swept(destroyed, result.is_err());
        let Err(cause) = result else {
            self.told = None;
            return true;
        };
        let lasting = lasting(&cause);
        let cause = lasting.map_or_else(|| format!("{cause:#}"), |reason| format!("{cause:#}; {reason}"));
        if self.told.as_ref() != Some(&cause) {
            warn!(%cause, "connected UDP sockets of processes on the host stay with endpoints that are gone");
            self.told = Some(cause);
        }
        lasting.is_some()
    }
}

fn sweep(sockets: &Sockets) -> Swept {
    let mut destroyed = 0;
    let result = destroy_stranded(sockets, &mut destroyed);
    Swept { destroyed, result }
}

fn destroy_stranded(sockets: &Sockets, destroyed: &mut u64) -> Result<()> {
    let diag = Diag::open().context("cannot open a sock_diag socket")?;
    let mut before = usize::MAX;
    loop {
        let mut missed = 0;
        for socket in diag.connected_udp().context("cannot list UDP sockets")? {
            let (cookie, remote) = (socket.cookie(), socket.remote());
            if !sockets.is_stranded(cookie, remote)? {
                continue;
            }
            if diag.destroy(&socket).with_context(|| format!("cannot destroy the UDP socket to {remote}"))? {
                *destroyed += 1;
                sockets.forget_stranded(cookie, remote)?;
            } else {
                missed += 1;
            }
        }
        // Of several sockets with the same two ends the kernel finds one, which may be another than was meant. Whoever connected elsewhere
        // or closed the socket meanwhile is not listed any more.
        if missed == 0 || missed >= before {
            return Ok(());
        }
        before = missed;
    }
}

/// Why a failure will not pass, and what to do, if that is known.
fn lasting(cause: &anyhow::Error) -> Option<&'static str> {
    match cause.downcast_ref::<io::Error>()?.raw_os_error()? {
        libc::EPERM => Some("give the agent CAP_NET_ADMIN"),
        libc::EOPNOTSUPP => Some("the kernel lacks CONFIG_INET_DIAG_DESTROY"),
        libc::ENOENT => Some("the kernel lacks CONFIG_INET_UDP_DIAG"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(errno: i32) -> anyhow::Error {
        Err::<(), _>(io::Error::from_raw_os_error(errno)).context("cannot destroy the UDP socket").unwrap_err()
    }

    #[test]
    fn what_the_kernel_or_a_capability_lacks_does_not_pass_and_is_named() {
        let hints = [libc::EPERM, libc::EOPNOTSUPP, libc::ENOENT].map(|errno| lasting(&failure(errno)).unwrap());
        assert!(hints[0].contains("CAP_NET_ADMIN"), "{hints:?}");
        assert!(hints[1].contains("INET_DIAG_DESTROY") && hints[2].contains("INET_UDP_DIAG"), "{hints:?}");
    }

    #[test]
    fn other_failures_may_pass() {
        assert_eq!(lasting(&failure(libc::ENOBUFS)), None);
        assert_eq!(lasting(&anyhow::anyhow!("a map cannot be read")), None);
    }
}
