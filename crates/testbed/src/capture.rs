//! What leaves an interface: packets as its driver gets them, behind everything that may have dropped them.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use etherparse::IpSlice;
use nix::sys::socket::{
    AddressFamily, LinkAddr, SockFlag, SockProtocol, SockType, recvfrom, setsockopt, socket, sockopt,
};

use crate::netns::Netns;
use crate::{Error, Result};

/// The longest packet of IPv4.
const LONGEST: usize = u16::MAX as usize;
/// Bytes that may wait, with what the kernel needs beside them: some hundred packets.
const BUFFER: usize = 1 << 22;

/// Sees every packet that leaves an interface from now on. What nobody asks for waits in a buffer of some hundred packets.
#[derive(Debug)]
pub struct Capture {
    socket: OwnedFd,
    interface: usize,
}

impl Capture {
    /// Starts at an interface of a namespace.
    ///
    /// # Errors
    /// Without the right to do so, or such an interface.
    pub fn start(netns: &Netns, interface: &str) -> Result<Self> {
        let action = format!("capture on {interface} of {}", netns.name());
        let open = || {
            let interface = nix::net::if_::if_nametoindex(interface)?;
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let socket = socket(AddressFamily::Packet, SockType::Datagram, flags, SockProtocol::EthAll)?;
            setsockopt(&socket, sockopt::RcvBufForce, &BUFFER)?;
            Ok((socket, interface))
        };
        let (socket, interface) = netns.enter(open).map_err(Error::nix(action))?;
        Ok(Self { socket, interface: interface as usize })
    }

    /// Where the IP packets were sent that have left since the last call, in their order.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn destinations(&self) -> Result<Vec<IpAddr>> {
        let packets = self.packets()?;
        Ok(packets.iter().filter_map(|packet| Some(IpSlice::from_slice(packet).ok()?.destination_addr())).collect())
    }

    /// All packets that have left since the last call, in their order and without link headers.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn packets(&self) -> Result<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        let mut packet = vec![0; LONGEST];
        loop {
            let (length, from) = match recvfrom::<LinkAddr>(self.socket.as_raw_fd(), &mut packet) {
                Ok((length, Some(from))) => (length, from),
                Ok((_, None)) => continue,
                Err(nix::Error::EAGAIN) => return Ok(all),
                Err(error) => return Err(Error::nix("read what was captured")(error)),
            };
            // The socket sees all interfaces, and both directions.
            if from.ifindex() == self.interface && from.pkttype() == libc::PACKET_OUTGOING {
                all.push(packet[..length].to_vec());
            }
        }
    }
}
