//! What ICMP errors tell a socket of datagrams, and about which of these.

use std::io::{IoSliceMut, Result};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc::{sock_extended_err, sockaddr_in6};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt};

/// An error as its socket hears it (`IP_RECVERR` of ip(7)).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Told {
    /// What the socket's next call would have failed with.
    pub error: Errno,
    /// Type and code of the ICMP error.
    pub kind: [u8; 2],
    /// Who tells.
    pub teller: IpAddr,
    /// Where the datagram was sent that it is about.
    pub about: SocketAddr,
}

/// Lets a socket of one family hear from now on of every error about what it sends.
///
/// # Errors
/// When the kernel refuses.
pub fn listen(socket: &UdpSocket) -> Result<()> {
    match socket.local_addr()? {
        SocketAddr::V4(_) => setsockopt(socket, sockopt::Ipv4RecvErr, &true)?,
        SocketAddr::V6(_) => setsockopt(socket, sockopt::Ipv6RecvErr, &true)?,
    }
    Ok(())
}

/// What the socket is told next; None if nothing within the limit.
///
/// # Errors
/// When the socket fails, or what it hears is no ICMP error.
pub fn next(socket: &UdpSocket, limit: Duration) -> Result<Option<Told>> {
    // Errors wake whoever waits for nothing.
    let mut wanted = [PollFd::new(socket.as_fd(), PollFlags::empty())];
    if poll(&mut wanted, PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX))? == 0 {
        return Ok(None);
    }
    let (mut sent, mut space) = ([0; 64], nix::cmsg_space!(sock_extended_err, sockaddr_in6));
    let mut buffer = [IoSliceMut::new(&mut sent)];
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut buffer, Some(&mut space), flags)?;
    let about = message.address.as_ref().and_then(address).ok_or(Errno::EBADMSG)?;
    for part in message.cmsgs()? {
        let (heard, teller) = match part {
            ControlMessageOwned::Ipv4RecvErr(heard, from) => (heard, from.map(|from| ipv4(from.sin_addr.s_addr))),
            ControlMessageOwned::Ipv6RecvErr(heard, from) => (heard, from.map(|from| from.sin6_addr.s6_addr.into())),
            _ => continue,
        };
        let teller = teller.ok_or(Errno::EBADMSG)?;
        let error = Errno::from_raw(heard.ee_errno.cast_signed());
        return Ok(Some(Told { error, kind: [heard.ee_type, heard.ee_code], teller, about }));
    }
    Err(Errno::EBADMSG.into())
}

/// An address of C's, whose bytes are in the network's order.
fn ipv4(address: u32) -> IpAddr {
    address.to_ne_bytes().into()
}

fn address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = storage.as_sockaddr_in().map(|address| SocketAddr::V4((*address).into()));
    v4.or_else(|| storage.as_sockaddr_in6().map(|address| SocketAddr::new(address.ip().into(), address.port())))
}
