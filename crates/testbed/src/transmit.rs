//! What arrives at an interface: frames that the other end of its cable sends.

use std::os::fd::AsRawFd;

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, sendto, socket};

use crate::netns::Netns;
use crate::{Error, Result};

/// Sends a frame out of an interface of a namespace, as it is.
///
/// # Errors
/// Without the right to do so, or such an interface.
pub fn transmit(netns: &Netns, interface: &str, frame: &[u8]) -> Result<()> {
    let action = format!("send a frame out of {interface} of {}", netns.name());
    let send = || {
        let is_it = |link: &nix::ifaddrs::InterfaceAddress| link.interface_name == interface;
        let links = getifaddrs()?.filter(is_it).find_map(|link| link.address?.as_link_addr().copied());
        let link = links.ok_or(nix::Error::ENODEV)?;
        let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)?;
        sendto(socket.as_raw_fd(), frame, &link, MsgFlags::empty()).map(drop)
    };
    netns.enter(send).map_err(Error::nix(action))
}
