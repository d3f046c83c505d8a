//! Sockets of our network namespace, listed and destroyed by sock_diag(7) as `ss` does. The only file that knows its crates.

use std::io;
use std::net::SocketAddr;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable,
};
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP, IPPROTO_UDP};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, InetResponseHeader, SocketId, StateFlags};
use netlink_packet_sock_diag::{SockDiagDestroy, SockDiagMessage};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use nix::libc;

/// Length of netlink messages in a buffer: a multiple of this.
const ALIGNMENT: usize = 4;

/// A conversation with the kernel. After an error it is to be dropped: an answer may still be on its way.
#[derive(Debug)]
pub(crate) struct Diag(Socket);

/// A connected UDP socket.
#[derive(Debug)]
pub(crate) struct Connected {
    /// A socket of IPv6 that is connected to a v4-mapped address is one of IPv6.
    family: u8,
    id: SocketId,
}

impl Connected {
    /// As `bpf_get_socket_cookie` has it.
    pub(crate) fn cookie(&self) -> u64 {
        // Two words of the host's byte order, the lower one first: sock_diag_save_cookie of net/core/sock_diag.c.
        let [a, b, c, d, e, f, g, h] = self.id.cookie;
        u64::from(u32::from_ne_bytes([a, b, c, d])) | u64::from(u32::from_ne_bytes([e, f, g, h])) << u32::BITS
    }

    /// Where it is connected to.
    pub(crate) fn remote(&self) -> SocketAddr {
        SocketAddr::new(self.id.destination_address, self.id.destination_port)
    }
}

impl Diag {
    pub(crate) fn open() -> io::Result<Self> {
        let socket = Socket::new(NETLINK_SOCK_DIAG)?;
        socket.connect(&netlink_sys::SocketAddr::new(0, 0))?;
        Ok(Self(socket))
    }

    /// All connected UDP sockets, of both families. Fails with `ENOENT` on kernels without `CONFIG_INET_UDP_DIAG`.
    pub(crate) fn connected_udp(&self) -> io::Result<Vec<Connected>> {
        let mut found = Vec::new();
        // What is connected is "established" also of UDP.
        self.list(IPPROTO_UDP, &StateFlags::ESTABLISHED, |socket| {
            found.push(Connected { family: socket.family, id: socket.socket_id });
        })?;
        Ok(found)
    }

    /// Ports of TCP sockets that listen, or of all that are not over, and of all UDP sockets, of both families, those of the kernel itself
    /// (VXLAN) included; in no order, some of them twice. Fails with `ENOENT` on kernels without `CONFIG_INET_TCP_DIAG` or
    /// `CONFIG_INET_UDP_DIAG`.
    pub(crate) fn bound_ports(&self, connections: bool) -> io::Result<Vec<u16>> {
        let mut found = Vec::new();
        let mut note = |socket: InetResponseHeader| found.push(socket.socket_id.source_port);
        let over = StateFlags::TIME_WAIT | StateFlags::CLOSE;
        let states = if connections { StateFlags::all() - over } else { StateFlags::LISTEN };
        self.list(IPPROTO_TCP, &states, &mut note)?;
        // A UDP socket that is bound and not connected is "closed".
        self.list(IPPROTO_UDP, &(StateFlags::ESTABLISHED | StateFlags::CLOSE), &mut note)?;
        Ok(found)
    }

    /// Shows all sockets of a protocol in these states to `visit`, of both families.
    fn list(&self, protocol: u8, states: &StateFlags, mut visit: impl FnMut(InetResponseHeader)) -> io::Result<()> {
        for (family, anyone) in [(AF_INET, SocketId::new_v4()), (AF_INET6, SocketId::new_v6())] {
            let request = SockDiagMessage::InetRequest(request(family, protocol, states.clone(), anyone));
            self.send(NLM_F_REQUEST | NLM_F_DUMP, request)?;
            self.receive(&mut visit)?;
        }
        Ok(())
    }

    /// Makes a socket fail with `ECONNABORTED` and forget its peer. False if it is not connected there any more. Fails with
    /// `EPERM` without `CAP_NET_ADMIN`, and with `EOPNOTSUPP` on kernels without `CONFIG_INET_DIAG_DESTROY`.
    pub(crate) fn destroy(&self, socket: &Connected) -> io::Result<bool> {
        let request = request(socket.family, IPPROTO_UDP, StateFlags::ESTABLISHED, socket.id.clone());
        let request = SockDiagMessage::InetRequest(request);
        self.send(NLM_F_REQUEST | NLM_F_ACK, SockDiagDestroy::new(request))?;
        match self.receive(drop) {
            Ok(()) => Ok(true),
            Err(cause) if cause.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(cause) => Err(cause),
        }
    }

    fn send<M>(&self, flags: u16, message: M) -> io::Result<()>
    where
        M: NetlinkSerializable + NetlinkDeserializable + Into<NetlinkPayload<M>>,
    {
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        let mut message = NetlinkMessage::new(header, message.into());
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.0.send(&bytes, 0).map(drop)
    }

    /// Reads sockets up to the end of the answer.
    fn receive(&self, mut visit: impl FnMut(InetResponseHeader)) -> io::Result<()> {
        loop {
            let (bytes, _) = self.0.recv_from_full()?;
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let message = NetlinkMessage::<SockDiagMessage>::deserialize(rest).map_err(io::Error::other)?;
                match message.payload {
                    NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(socket)) => {
                        visit(socket.header);
                    }
                    NetlinkPayload::Done(end) if end.code == 0 => return Ok(()),
                    NetlinkPayload::Done(end) => return Err(io::Error::from_raw_os_error(-end.code)),
                    NetlinkPayload::Error(end) if end.code.is_none() => return Ok(()),
                    NetlinkPayload::Error(end) => return Err(end.to_io()),
                    other => return Err(io::Error::other(format!("unexpected message {other:?}"))),
                }
                rest = rest.get((message.header.length as usize).next_multiple_of(ALIGNMENT)..).unwrap_or_default();
            }
        }
    }
}

const fn request(family: u8, protocol: u8, states: StateFlags, socket_id: SocketId) -> InetRequest {
    InetRequest { family, protocol, extensions: ExtensionFlags::empty(), states, socket_id }
}
