//! A way into a server on loopback from another network namespace.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use nix::sys::socket::{Shutdown, shutdown};
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use crate::netns::Entry;
use crate::{Error, Result};

/// Pause after a connection that could not be taken: its reason may stay for a while, as where the process has too many files open.
const PAUSE: Duration = Duration::from_millis(100);

/// Listens at all addresses of a namespace, and connects on to a server whoever connects there. On drop nobody is let in any more, and who is in
/// is put out.
#[derive(Debug)]
pub(crate) struct Entrance {
    listener: TcpListener,
    /// Taken on drop only.
    runtime: Option<Runtime>,
}

impl Entrance {
    /// From a port of the namespace to a server in the calling thread's.
    pub(crate) fn open(outside: &Entry, port: u16, server: SocketAddr) -> Result<Self> {
        let failed = || Error::io(format!("listen at port {port} of another namespace"));
        let listen = || -> io::Result<TcpListener> {
            let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener = outside.enter(listen).map_err(failed())?;
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().map_err(failed())?;
        let shared = listener.try_clone().map_err(failed())?;
        let door = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(shared).map_err(failed())?
        };
        runtime.spawn(let_in(door, server));
        Ok(Self { listener, runtime: Some(runtime) })
    }
}

async fn let_in(door: tokio::net::TcpListener, server: SocketAddr) {
    loop {
        match door.accept().await {
            Ok((outside, _)) => drop(tokio::spawn(lead_on(outside, server))),
            Err(error) => {
                eprintln!("nobody comes in to {server}: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Carries bytes in both directions until one side ends it.
async fn lead_on(mut outside: TcpStream, server: SocketAddr) -> io::Result<()> {
    let mut inside = TcpStream::connect(server).await?;
    outside.set_nodelay(true)?;
    inside.set_nodelay(true)?;
    copy_bidirectional(&mut outside, &mut inside).await.map(drop)
}

impl Drop for Entrance {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        // It waits for its tasks, which a thread of another runtime must not do by itself.
        thread::scope(|scope| {
            scope.spawn(|| drop(runtime));
        });
        // A program that another test starts has a copy of the listener until it runs: closing this one would not end it.
        if let Err(error) = shutdown(self.listener.as_raw_fd(), Shutdown::Both) {
            eprintln!("somebody may still come in at {:?}: {error}", self.listener);
        }
    }
}
