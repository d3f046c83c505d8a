//! Sockets of processes on the host: which of them are left with an endpoint that is gone, or with none.

use std::net::SocketAddr;

use weir_abi as abi;
use weir_core::model::Protocol;
use weir_core::ops::FrontendKey;
use weir_core::sockets;

use crate::error::Result;
use crate::frontends::Frontends;
use crate::map::{Mapped, Table};
use crate::pins::{PinDir, READ_ONLY};

/// What the hooks noted about sockets, and what tells whether it still holds.
#[derive(Debug)]
pub struct Sockets {
    peers: Table<abi::SocketKey, abi::SocketPeer>,
    backends: Mapped<abi::Backend>,
    frontends: Frontends,
    config: Mapped<abi::Config>,
    hooked: bool,
}

impl Sockets {
    /// Opens the maps. `hooked`: hooks translate what sockets connect to from now on.
    ///
    /// # Errors
    /// No pins there, no right to open them, or another layout.
    pub fn open(pins: &PinDir, hooked: bool) -> Result<Self> {
        Ok(Self {
            peers: pins.table("socket_peers", 0)?,
            backends: pins.mapped("backends", READ_ONLY)?,
            frontends: Frontends::open(pins, READ_ONLY)?,
            config: pins.mapped("config", READ_ONLY)?,
            hooked,
        })
    }

    /// Whether a connected UDP socket is left with an endpoint that is none of its frontend's any more, or with a cluster IP itself.
    /// `remote` is where it is connected to, behind the translation. False for other sockets that no hook is known to have translated:
    /// they are connected to an endpoint of their owner's choice, or the kernel has dropped their entry for want of room.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn is_stranded(&self, cookie: u64, remote: SocketAddr) -> Result<bool> {
        let Some(peer) = self.peers.get(&key(cookie, remote))? else { return self.is_untranslated(remote) };
        // A slot beyond the end is one of a larger map that was replaced.
        let backend = (peer.backend < self.backends.len()).then(|| self.backends.get(peer.backend)).transpose()?;
        let frontend = FrontendKey { address: peer.addr.ip(), port: peer.port.get(), protocol: Protocol::Udp.number() };
        Ok(sockets::is_stranded(&peer, backend.as_ref(), self.frontends.get(&frontend)?.as_ref()))
    }

    /// Whether a socket is connected to a cluster IP that only its next `connect()` would translate. Another proxy may serve it as it is.
    fn is_untranslated(&self, remote: SocketAddr) -> Result<bool> {
        if !self.hooked || self.config.get(0)?.flags & abi::CONFIG_BESIDE != 0 {
            return Ok(false);
        }
        let address = remote.ip().to_canonical();
        let at = FrontendKey { address, port: remote.port(), protocol: Protocol::Udp.number() };
        Ok(sockets::is_untranslated(self.frontends.get(&at)?.as_ref()))
    }

    /// Forgets that a socket was translated, if it is stranded: its owner may connect it to the same address directly.
    ///
    /// # Errors
    /// When a map cannot be read or written.
    pub fn forget_stranded(&self, cookie: u64, remote: SocketAddr) -> Result<()> {
        // Its owner may have been given the same address anew meanwhile.
        if self.is_stranded(cookie, remote)? {
            self.peers.remove(&key(cookie, remote))?;
        }
        Ok(())
    }
}

/// Under which a hook notes the frontend of a UDP socket.
fn key(cookie: u64, remote: SocketAddr) -> abi::SocketKey {
    abi::SocketKey {
        cookie,
        addr: remote.ip().into(),
        port: abi::Be16::new(remote.port()),
        proto: Protocol::Udp.number(),
        pad: [0; 5],
    }
}
