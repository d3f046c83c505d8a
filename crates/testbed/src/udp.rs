//! The UDP echo server's loop.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn6, recvmsg, sendmsg, setsockopt, sockopt,
};

use crate::serve::canonical;

/// Longest datagram that is echoed whole.
const DATAGRAM_BYTES: usize = 16 * 1024;

/// A datagram's sender and the local address that it was sent to.
struct Arrival {
    length: usize,
    client: SocketAddrV6,
    asked: libc::in6_pktinfo,
}

/// Answers datagrams until `stop` is signalled.
pub(crate) fn serve(socket: &UdpSocket, name: &str, stop: &EventFd) -> io::Result<()> {
    setsockopt(socket, sockopt::Ipv6RecvPacketInfo, &true)?;
    let mut buffer = [0; DATAGRAM_BYTES];
    loop {
        let mut watched =
            [PollFd::new(socket.as_fd(), PollFlags::POLLIN), PollFd::new(stop.as_fd(), PollFlags::POLLIN)];
        match poll(&mut watched, PollTimeout::NONE) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if watched[1].revents().is_some_and(|events| !events.is_empty()) {
            return Ok(());
        }
        while let Some(arrival) = receive(socket, &mut buffer)? {
            // UDP promises nothing: an answer that cannot be sent is lost, as from an address that went meanwhile, and the server lives on.
            let _ = answer(socket, name, &arrival, &buffer[..arrival.length]);
        }
    }
}

/// The next datagram; `None` when there is none now.
fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<Option<Arrival>> {
    let mut space = nix::cmsg_space!(libc::in6_pktinfo);
    let mut parts = [IoSliceMut::new(buffer)];
    let message = match recvmsg::<SockaddrIn6>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty()) {
        Ok(message) => message,
        Err(nix::Error::EAGAIN) => return Ok(None),
        // A client that is gone refused an earlier answer.
        Err(nix::Error::ECONNREFUSED | nix::Error::EHOSTUNREACH | nix::Error::ENETUNREACH) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let asked = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::Ipv6PacketInfo(info) => Some(info),
        _ => None,
    });
    let (Some(asked), Some(client)) = (asked, message.address) else {
        return Err(io::Error::other("a datagram came without its addresses"));
    };
    Ok(Some(Arrival { length: message.bytes, client: client.into(), asked }))
}

/// Sends the answer from the address that was asked: a host has several, and the client waits for that one.
fn answer(socket: &UdpSocket, name: &str, arrival: &Arrival, words: &[u8]) -> nix::Result<()> {
    let client = canonical(SocketAddr::V6(arrival.client));
    let text = [format!("{name} {client} ").as_bytes(), words].concat();
    // The interface is left to routing: the way back may be another one.
    let source = libc::in6_pktinfo { ipi6_addr: arrival.asked.ipi6_addr, ipi6_ifindex: 0 };
    let control = [ControlMessage::Ipv6PacketInfo(&source)];
    let target = SockaddrIn6::from(arrival.client);
    sendmsg(socket.as_raw_fd(), &[IoSlice::new(&text)], &control, MsgFlags::empty(), Some(&target)).map(drop)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;
    use std::thread;
    use std::time::Duration;

    use crate::{Netns, require_root};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(2);

    #[test]
    fn a_server_lives_on_when_an_address_is_gone_that_was_asked() {
        if !require_root("a UDP server whose address goes") {
            return;
        }
        let netns = Netns::create(&format!("w{}-udp", std::process::id())).unwrap();
        // RFC 3849: nobody else has it.
        let gone = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
        netns.ip(&format!("addr add {gone}/128 dev lo nodad")).unwrap();
        netns.await_own(gone.into(), LIMIT).unwrap();
        let socket = || netns.enter(|| UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap());
        let (server, client, stop) = (socket(), socket(), EventFd::new().unwrap());
        server.set_nonblocking(true).unwrap();
        setsockopt(&server, sockopt::Ipv6RecvPacketInfo, &true).unwrap();
        let port = server.local_addr().unwrap().port();
        client.send_to(b"first", (gone, port)).unwrap();
        netns.ip(&format!("addr del {gone}/128 dev lo")).unwrap();
        client.send_to(b"second", (Ipv6Addr::LOCALHOST, port)).unwrap();

        let mut buffer = [0; 64];
        client.set_read_timeout(Some(LIMIT)).unwrap();
        thread::scope(|scope| {
            let served = scope.spawn(|| serve(&server, "pod", &stop));
            let heard = client.recv(&mut buffer).map(|length| &buffer[..length]);
            stop.write(1).unwrap();
            served.join().unwrap().unwrap();
            let heard = String::from_utf8_lossy(heard.unwrap());
            assert!(heard.starts_with("pod ") && heard.ends_with(" second"), "{heard}");
        });
    }
}
