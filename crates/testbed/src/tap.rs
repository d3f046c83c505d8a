//! TAP and TUN devices: interfaces whose other end is a file descriptor.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::netns::Netns;
use crate::{Error, Result};

nix::ioctl_write_int!(tunsetiff, b'T', 202);

/// What a device carries.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Carries {
    /// Ethernet frames: TAP.
    Frames,
    /// IP packets without a link header, as WireGuard does: TUN.
    Packets,
}

impl Carries {
    /// Without a header of the driver's own. The flags fit a short: they are 0x0001, 0x0002 and 0x1000.
    #[expect(clippy::cast_possible_truncation, reason = "the constants are below 2^15")]
    const fn flags(self) -> libc::c_short {
        let kind = match self {
            Self::Frames => libc::IFF_TAP,
            Self::Packets => libc::IFF_TUN,
        };
        (kind | libc::IFF_NO_PI) as libc::c_short
    }
}

/// A TAP or TUN device, gone when it is dropped. Reads and writes never block.
///
/// Frames that the kernel sends carry full checksums, as on a wire: the device offers no offload.
#[derive(Debug)]
pub(crate) struct Tap {
    file: File,
}

impl Tap {
    /// Makes the device `name` in a namespace.
    pub(crate) fn create(netns: &Netns, name: &str, carries: Carries) -> Result<Self> {
        // The device is born in the namespace of the thread that asks.
        let created = netns.enter(|| Self::create_here(name, carries));
        created.map_err(Error::io(format!("create a device {name} of {carries:?} in {}", netns.name())))
    }

    fn create_here(name: &str, carries: Carries) -> io::Result<Self> {
        // SAFETY: `ifreq` is plain data for which all zeroes is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if name.is_empty() || name.len() >= request.ifr_name.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "an interface name has 1 to 15 bytes"));
        }
        for (slot, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *slot = byte.cast_signed();
        }
        request.ifr_ifru.ifru_flags = carries.flags();
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
        // SAFETY: the request is a live `ifreq`, which is what TUNSETIFF reads and writes.
        unsafe { tunsetiff(file.as_raw_fd(), (&raw mut request) as libc::c_ulong) }?;
        Ok(Self { file })
    }

    /// Reads one frame; `None` when there is none now.
    pub(crate) fn read(&self, frame: &mut [u8]) -> io::Result<Option<usize>> {
        match nix::unistd::read(&self.file, frame) {
            Ok(length) => Ok(Some(length)),
            Err(nix::Error::EAGAIN) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Writes one frame. Returns false when the device does not take it, because it is down or full.
    pub(crate) fn write(&self, frame: &[u8]) -> io::Result<bool> {
        match nix::unistd::write(&self.file, frame) {
            Ok(_) => Ok(true),
            Err(nix::Error::EIO | nix::Error::EAGAIN | nix::Error::ENOBUFS | nix::Error::EINVAL) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
