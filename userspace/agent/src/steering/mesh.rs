//! The mesh's task: its sockets follow the addresses of this node.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use tokio::sync::watch;
use tracing::{info, warn};
use weir_mesh::{Config, KeyFile, Link, Mesh, Socket, now};

use crate::host;

/// After a socket could not be bound or read: an address of IPv6 may still be tentative.
const AGAIN: Duration = Duration::from_secs(2);

/// Where the cluster's key is, and where agents listen.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) file: PathBuf,
    /// The same on all nodes.
    pub(crate) port: u16,
}

/// See the module's description.
pub(crate) struct MeshTask {
    /// Read at the start; a file that is wrong later leaves its keys in force.
    keys: KeyFile,
    port: u16,
    link: Link,
    addresses: watch::Receiver<Vec<IpAddr>>,
}

impl MeshTask {
    /// A mesh that runs as soon as the node's addresses are known.
    ///
    /// # Errors
    /// If the key file holds no key.
    pub(crate) fn new(node: &str, key: Key, addresses: watch::Receiver<Vec<IpAddr>>) -> Result<Self> {
        let Key { file, port } = key;
        let (keys, ring) = KeyFile::open(file)?;
        let seed = u64::from_ne_bytes(host::random()?);
        let mesh = Mesh::new(node, Config::default().checked()?, ring, seed, now());
        Ok(Self { keys, port, link: Link::new(mesh), addresses })
    }

    /// To tell it and ask it.
    pub(crate) const fn link(&self) -> &Link {
        &self.link
    }

    /// Keeps one socket of each family, for ever: where one cannot be had, the other goes on.
    pub(crate) async fn run(self) {
        let Self { mut keys, port, link, mut addresses } = self;
        let mut binding = Binding::default();
        loop {
            let wanted = wanted(&addresses.borrow_and_update(), port);
            link.keep(&wanted);
            let bound = link.addresses();
            let missing: Vec<_> = wanted.into_iter().filter(|address| !bound.contains(address)).collect();
            tokio::select! {
                failed = link.watch(&mut keys) => {
                    binding.complain(failed.address, &failed.into());
                    binding.pause = AGAIN;
                }
                socket = binding.any(&missing), if !missing.is_empty() => {
                    info!(address = %socket.address(), "probing other nodes");
                    link.add(socket);
                }
                changed = addresses.changed() => if changed.is_err() { return },
            }
        }
    }
}

/// The first address of each family.
fn wanted(own: &[IpAddr], port: u16) -> Vec<SocketAddr> {
    let families = [own.iter().find(|ip| ip.is_ipv4()), own.iter().find(|ip| ip.is_ipv6())];
    families.into_iter().flatten().map(|ip| SocketAddr::new(*ip, port)).collect()
}

/// Sockets that cannot be had now.
#[derive(Default)]
struct Binding {
    /// What was logged about each address, so that it is logged once.
    told: HashMap<SocketAddr, String>,
    /// Before the next try.
    pause: Duration,
}

impl Binding {
    /// Binds to the first of the addresses, at least one, that works. Tries for ever.
    async fn any(&mut self, addresses: &[SocketAddr]) -> Socket {
        loop {
            tokio::time::sleep(std::mem::take(&mut self.pause)).await;
            for address in addresses {
                match Socket::bind(*address) {
                    Ok(socket) => {
                        self.told.remove(address);
                        return socket;
                    }
                    Err(failed) => self.complain(*address, &failed.into()),
                }
            }
            self.pause = AGAIN;
        }
    }

    fn complain(&mut self, address: SocketAddr, cause: &anyhow::Error) {
        let text = format!("{cause:#}");
        if self.told.get(&address) != Some(&text) {
            warn!(%address, cause = %text, "nodes of this family are not probed; tried again every {AGAIN:?}");
            self.told.insert(address, text);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

    use std::net::UdpSocket;

    use weir_testbed::loopback;

    use super::*;

    /// Between two turns of the steering loop, which these tests have none of.
    const TURN: Duration = Duration::from_millis(10);

    /// A node's mesh task, and a peer at other addresses of the loopback that probes it in one family.
    struct Bed {
        addresses: watch::Sender<Vec<IpAddr>>,
        port: u16,
        key: tempfile::NamedTempFile,
        task: tokio::task::JoinHandle<()>,
    }

    impl Bed {
        /// The task's port is free, but in IPv6, where the socket has it that is returned.
        fn start() -> (Self, UdpSocket) {
            let [port] = loopback::ports().unwrap();
            let taken = UdpSocket::bind(("::1", port)).unwrap();
            let key = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(key.path(), "0123456789abcdef0123456789abcdef").unwrap();
            let (addresses, own) = watch::channel(Vec::new());
            let place = Key { file: key.path().to_owned(), port };
            let task = MeshTask::new("here", place, own).unwrap();
            let turns = turns(task.link().clone());
            let task = tokio::spawn(async move {
                tokio::join!(task.run(), turns);
            });
            (Self { addresses, port, key, task }, taken)
        }

        /// Waits until a node that probes `own` has its answer.
        async fn answers_at(&self, own: &str, bind: &str) {
            let (mut keys, ring) = KeyFile::open(self.key.path()).unwrap();
            let peer = Link::new(Mesh::new("there", Config::default(), ring, 1, now()));
            let here = SocketAddr::new(own.parse().unwrap(), self.port);
            peer.with(|mesh, _| mesh.set_peers([("here".into(), here)]));
            peer.add(Socket::bind(SocketAddr::new(bind.parse().unwrap(), 0)).unwrap());
            let measured = async {
                while peer.with(|mesh, now| mesh.peers(now)[0].rtt.is_none()) {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                failed = peer.watch(&mut keys) => panic!("{failed:?}"),
                () = turns(peer.clone()) => {}
                () = measured => {}
                () = tokio::time::sleep(Duration::from_secs(20)) => panic!("{own} does not answer"),
            }
        }
    }

    async fn turns(link: Link) {
        loop {
            link.hear();
            link.speak();
            tokio::time::sleep(TURN).await;
        }
    }

    impl Drop for Bed {
        fn drop(&mut self) {
            self.task.abort();
        }
    }

    #[tokio::test]
    async fn a_family_that_cannot_be_bound_leaves_the_other_alone_and_is_tried_again() {
        let (bed, taken) = Bed::start();
        bed.addresses.send(vec!["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()]).unwrap();
        bed.answers_at("127.0.0.1", "127.0.0.2").await;
        drop(taken);
        bed.answers_at("::1", "::1").await;
        bed.answers_at("127.0.0.1", "127.0.0.2").await;
    }

    #[tokio::test]
    async fn a_key_file_that_is_gone_when_addresses_change_stops_nothing() {
        let (bed, _taken) = Bed::start();
        bed.addresses.send(vec!["127.0.0.1".parse().unwrap()]).unwrap();
        bed.answers_at("127.0.0.1", "127.0.0.2").await;
        let text = std::fs::read(bed.key.path()).unwrap();
        std::fs::write(bed.key.path(), "").unwrap();
        bed.addresses.send(vec!["127.0.0.3".parse().unwrap()]).unwrap();
        // Nobody listens there any more, since the task has another socket now.
        while UdpSocket::bind(("127.0.0.1", bed.port)).is_err() {
            tokio::task::yield_now().await;
        }
        std::fs::write(bed.key.path(), text).unwrap();
        bed.answers_at("127.0.0.3", "127.0.0.2").await;
    }
}
