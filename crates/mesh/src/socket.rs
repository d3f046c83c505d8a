//! One UDP socket of the mesh. The kernel stamps what it receives, so that the time until the agent looks does not
//! count.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use socket2::{Domain, Protocol, Type};

use crate::mesh::{Arrival, Transmit};
use crate::packet::MAX_PACKET;

/// Room for a datagram that is too long, to see that it is.
pub(crate) type Buffer = [u8; MAX_PACKET + 1];

/// A bound socket.
#[derive(Debug)]
pub struct Socket {
    socket: socket2::Socket,
    address: SocketAddr,
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
#[error("mesh address {address}: {step} failed: see who else uses the port, and whether the node has the address")]
pub struct SocketError {
    address: SocketAddr,
    step: &'static str,
    #[source]
    cause: io::Error,
}

impl Socket {
    /// Binds to an address of the node: the replies come from it too. IPv6 only if it is one of IPv6; a node with both
    /// families binds two.
    ///
    /// # Errors
    /// [`SocketError`] with the step that failed.
    pub fn bind(address: SocketAddr) -> Result<Self, SocketError> {
        let error = |step| move |cause| SocketError { address, step, cause };
        let socket = socket2::Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP));
        let socket = socket.map_err(error("making the socket"))?;
        if address.is_ipv6() {
            socket.set_only_v6(true).map_err(error("the option IPV6_V6ONLY"))?;
        }
        let stamps = setsockopt(&socket, sockopt::ReceiveTimestampns, &true).map_err(io::Error::from);
        stamps.map_err(error("the option SO_TIMESTAMPNS"))?;
        socket.set_nonblocking(true).map_err(error("making it non-blocking"))?;
        socket.bind(&address.into()).map_err(error("binding"))?;
        let bound = socket.local_addr().map_err(error("reading its address"))?;
        Ok(Self { socket, address: bound.as_socket().unwrap_or(address) })
    }

    /// Where it is bound, with the port that was chosen if none was given.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next datagram, or None if there is none now.
    pub(crate) fn receive<'a>(&self, buffer: &'a mut Buffer) -> io::Result<Option<Arrival<'a>>> {
        match receive(&self.socket, buffer) {
            Ok((length, from, stamp)) => Ok(Some(Arrival { bytes: &buffer[..length], from, stamp })),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends it now or never.
    pub(crate) fn send(&self, transmit: &Transmit) -> io::Result<()> {
        self.socket.send_to(&transmit.bytes, &transmit.to.into()).map(|_| ())
    }
}

fn receive(socket: &socket2::Socket, buffer: &mut Buffer) -> io::Result<(usize, SocketAddr, Option<Duration>)> {
    let mut control = nix::cmsg_space!(TimeSpec);
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
    let stamp = message.cmsgs()?.find_map(|part| match part {
        ControlMessageOwned::ScmTimestampns(stamp) => Some(Duration::from(stamp)),
        // The type has a variant for every option that a socket may have set; this one has only that.
        _ => None,
    });
    let from = message.address.as_ref().and_then(address).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok((message.bytes, from, stamp))
}

fn address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = storage.as_sockaddr_in().map(|address| SocketAddr::V4((*address).into()));
    v4.or_else(|| storage.as_sockaddr_in6().map(|address| SocketAddr::V6((*address).into())))
}
