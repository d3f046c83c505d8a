//! The maps of frontends, of both families as one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_abi as abi;
use weir_core::ops::FrontendKey;

use crate::error::Result;
use crate::map::Table;
use crate::pins::PinDir;

/// The maps `frontends4` and `frontends6`.
#[derive(Debug)]
pub(crate) struct Frontends {
    v4: Table<abi::FrontendKey4, abi::Frontend>,
    v6: Table<abi::FrontendKey6, abi::Frontend>,
}

/// A key as the kernel has it.
enum KernelKey {
    V4(abi::FrontendKey4),
    V6(abi::FrontendKey6),
}

impl Frontends {
    /// Opens them. `flags`: 0, or `BPF_F_RDONLY`.
    ///
    /// # Errors
    /// No pins there, no right to open them, or another layout.
    pub(crate) fn open(pins: &PinDir, flags: u32) -> Result<Self> {
        Ok(Self { v4: pins.table("frontends4", flags)?, v6: pins.table("frontends6", flags)? })
    }

    /// Reads an entry.
    ///
    /// # Errors
    /// When the map cannot be read; a missing entry is `None`.
    pub(crate) fn get(&self, key: &FrontendKey) -> Result<Option<abi::Frontend>> {
        match kernel_key(key) {
            KernelKey::V4(key) => self.v4.get(&key),
            KernelKey::V6(key) => self.v6.get(&key),
        }
    }

    /// Writes an entry.
    ///
    /// # Errors
    /// When the map cannot be written, or is full.
    pub(crate) fn put(&self, key: &FrontendKey, frontend: &abi::Frontend) -> Result<()> {
        match kernel_key(key) {
            KernelKey::V4(key) => self.v4.put(&key, frontend, 0),
            KernelKey::V6(key) => self.v6.put(&key, frontend, 0),
        }
    }

    /// Removes an entry, if there is one.
    ///
    /// # Errors
    /// When the map cannot be written.
    pub(crate) fn remove(&self, key: &FrontendKey) -> Result<()> {
        let found = match kernel_key(key) {
            KernelKey::V4(key) => self.v4.remove(&key),
            KernelKey::V6(key) => self.v6.remove(&key),
        };
        found.map(drop)
    }

    /// All entries, in the order of their keys.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub(crate) fn entries(&self) -> Result<Vec<(FrontendKey, abi::Frontend)>> {
        let mut all = Vec::new();
        self.v4.visit(|key, frontend| {
            let address = Ipv4Addr::from(key.addr.get()).into();
            all.push((FrontendKey { address, port: key.port.get(), protocol: key.proto }, *frontend));
        })?;
        self.v6.visit(|key, frontend| {
            let address = Ipv6Addr::from(abi::Addr { word: key.addr }.octets()).into();
            all.push((FrontendKey { address, port: key.port.get(), protocol: key.proto }, *frontend));
        })?;
        all.sort_by_key(|(key, _)| *key);
        Ok(all)
    }
}

fn kernel_key(key: &FrontendKey) -> KernelKey {
    let addr = abi::Addr::from(key.address);
    let (port, proto, pad) = (abi::Be16::new(key.port), key.protocol, 0);
    match key.address {
        IpAddr::V4(_) => KernelKey::V4(abi::FrontendKey4 { addr: addr.word[3], port, proto, pad }),
        IpAddr::V6(_) => KernelKey::V6(abi::FrontendKey6 { addr: addr.word, port, proto, pad }),
    }
}
