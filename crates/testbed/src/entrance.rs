//! A way into a server on loopback from another network namespace.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::thread;

use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use crate::netns::Netns;
use crate::{Error, Result};

/// Listens at all addresses of a namespace, and connects on to a server whoever connects there. On drop nobody is let in any more, and who is in
/// is put out.
#[derive(Debug)]
pub(crate) struct Entrance {
    /// Taken on drop only.
    runtime: Option<Runtime>,
}

impl Entrance {
    /// From a port of the namespace to a server in the calling thread's.
    pub(crate) fn open(netns: &Netns, port: u16, server: SocketAddr) -> Result<Self> {
        let failed = || Error::io(format!("listen at port {port} of {}", netns.name()));
        let listen = || -> io::Result<TcpListener> {
            let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener = netns.enter(listen).map_err(failed())?;
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_io().build().map_err(failed())?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener).map_err(failed())?
        };
        runtime.spawn(async move {
            while let Ok((outside, _)) = listener.accept().await {
                tokio::spawn(lead_on(outside, server));
            }
        });
        Ok(Self { runtime: Some(runtime) })
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
    }
}
