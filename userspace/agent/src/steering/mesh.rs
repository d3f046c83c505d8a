//! The mesh's task: its sockets follow the addresses of this node.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::OtherNode;
use anyhow::Result;
use tokio::sync::watch;
use tracing::{info, warn};
use weir_mesh::{Config, KeyFile, Link, Mesh, Socket, now};

/// After a socket could not be bound or read: an address of IPv6 may still be tentative.
const AGAIN: Duration = Duration::from_secs(2);

/// Where the cluster's key is, and where agents listen.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) file: PathBuf,
    /// The same on all nodes.
    pub(crate) port: u16,
}

/// Where each peer is probed: at its first address of IPv4 if this node has one too, else of IPv6.
pub(super) fn peers(nodes: &[OtherNode], own: &[IpAddr], port: u16) -> impl Iterator<Item = (Arc<str>, SocketAddr)> {
    let has = [own.iter().any(IpAddr::is_ipv4), own.iter().any(IpAddr::is_ipv6)];
    nodes.iter().filter_map(move |OtherNode { name, addresses, capacity: _ }| {
        let v4 = addresses.iter().find(|ip| ip.is_ipv4() && has[0]);
        let address = v4.or_else(|| addresses.iter().find(|ip| ip.is_ipv6() && has[1]))?;
        Some((Arc::clone(name), SocketAddr::new(*address, port)))
    })
}

/// See the module's description.
pub(crate) struct MeshTask {
    key: Key,
    link: Link,
    addresses: watch::Receiver<Vec<IpAddr>>,
}

impl MeshTask {
    /// A mesh that runs as soon as the node's addresses are known.
    ///
    /// # Errors
    /// If the key file holds no key.
    pub(crate) fn new(node: &str, key: Key, addresses: watch::Receiver<Vec<IpAddr>>) -> Result<Self> {
        let (_, keys) = KeyFile::open(&key.file)?;
        let seed = u64::from(super::random()?);
        let mesh = Mesh::new(node, Config::default().checked()?, keys, seed, now());
        Ok(Self { key, link: Link::new(mesh), addresses })
    }

    /// To tell it and ask it.
    pub(crate) const fn link(&self) -> &Link {
        &self.link
    }

    /// Probes for ever.
    pub(crate) async fn run(mut self) {
        let mut told = String::new();
        loop {
            let own = self.addresses.borrow_and_update().clone();
            if own.is_empty() {
                if self.addresses.changed().await.is_err() {
                    return;
                }
                continue;
            }
            let ended = tokio::select! {
                ended = probe(&self.key, &self.link, &own) => ended,
                changed = self.addresses.changed() => match changed {
                    Ok(()) => continue,
                    Err(_closed) => return,
                },
            };
            if let Err(cause) = ended {
                let text = format!("{cause:#}");
                if text != told {
                    warn!(cause = %text, "the mesh does not run; tried again");
                    told = text;
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
}

async fn probe(key: &Key, link: &Link, own: &[IpAddr]) -> Result<()> {
    let families = [own.iter().find(|ip| ip.is_ipv4()), own.iter().find(|ip| ip.is_ipv6())];
    let addresses: Vec<_> = families.into_iter().flatten().map(|ip| SocketAddr::new(*ip, key.port)).collect();
    let sockets = addresses.iter().map(|address| Socket::bind(*address)).collect::<Result<Vec<_>, _>>()?;
    let (file, keys) = KeyFile::open(&key.file)?;
    link.with(|mesh, _| mesh.set_keys(keys));
    info!(?addresses, "probing other nodes");
    Ok(link.run(&sockets, file).await?)
}
