//! Frames: well formed first, then bent.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use etherparse::TcpHeader;
use weir_core::model::Family;
use weir_model::{End, Key};
use weir_testbed::packet::{AUTHENTICATION, Extension, Fragment, Packet, Transport};

use super::odd::Odd;
use super::step::{Segment, Shape};

pub(super) fn socket(family: Family, end: End) -> SocketAddr {
    let ip = match family {
        Family::V4 => end.addr.ip(),
        Family::V6 => IpAddr::V6(Ipv6Addr::from(end.addr.octets())),
    };
    SocketAddr::new(ip, end.port)
}

pub(super) fn key(protocol: u8, from: SocketAddr, to: SocketAddr) -> Key {
    let end = |at: SocketAddr| End { addr: at.ip().into(), port: at.port() };
    Key { family: Family::of(to.ip()), protocol, from: end(from), to: end(to) }
}

/// Every other reset is one that answers an acknowledgement of nothing, and has none of its own.
fn tcp(segment: Segment, shape: &Shape) -> TcpHeader {
    let of_nothing = matches!(segment, Segment::Reset) && shape.payload % 2 == 1;
    let (sequence, acknowledgment) = shape.numbers;
    let mut header = TcpHeader {
        sequence_number: 1000u32.wrapping_add(sequence),
        acknowledgment_number: 5000u32.wrapping_add(acknowledgment),
        window_size: 512,
        ack: !matches!(segment, Segment::Syn | Segment::Nothing) && !of_nothing,
        ..TcpHeader::default()
    };
    match segment {
        Segment::Syn | Segment::SynAck => header.syn = true,
        Segment::Data => header.psh = true,
        Segment::Fin => header.fin = true,
        Segment::Reset => header.rst = true,
        Segment::Nothing => {}
    }
    header.fin ^= shape.flags & Odd::FIN != 0;
    header.syn ^= shape.flags & Odd::SYN != 0;
    header.rst ^= shape.flags & Odd::RST != 0;
    header.ack ^= shape.flags & Odd::ACK != 0;
    header.set_options_raw(&vec![1; 4 * shape.tcp_options]).expect("40 bytes at most");
    header
}

fn chunk(segment: Segment) -> u8 {
    match segment {
        Segment::Syn => 1,
        Segment::Data => 0,
        Segment::Fin => 8,
        Segment::Reset => 6,
        Segment::SynAck => 2,
        Segment::Nothing => 14,
    }
}

/// A packet between two ends.
pub(super) fn packet(key: &Key, segment: Segment, shape: &Shape) -> Vec<u8> {
    let (from, to) = (socket(key.family, key.from), socket(key.family, key.to));
    let payload = vec![0x5a; shape.payload];
    let packet = match key.protocol {
        6 => Packet::tcp(from, to, tcp(segment, shape), &payload),
        17 => {
            let (source_port, destination_port, checksum) = (from.port(), to.port(), !shape.no_checksum);
            Packet::new(from.ip(), to.ip(), Transport::Udp { source_port, destination_port, checksum, payload })
        }
        protocol => {
            let mut bytes = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
            bytes.extend([0xaa, 0xbb, 0xcc, 0xdd, 0x12, 0x34, 0x56, 0x78, chunk(segment), 3, 0, 8]);
            bytes.extend(payload);
            Packet::new(from.ip(), to.ip(), Transport::Other { protocol, bytes })
        }
    };
    bend(packet, shape)
}

/// An ICMP message around a part of a packet.
pub(super) fn icmp(from: IpAddr, to: IpAddr, (kind, code): (u8, u8), quoted: &[u8], shape: &Shape) -> Vec<u8> {
    let transport = Transport::Icmp { kind, code, rest: [0, 0, 5, 0], body: quoted.to_vec() };
    bend(Packet::new(from, to, transport), shape)
}

/// A packet as another node sends it to an endpoint.
pub(super) fn wrap(frame: &[u8], from: IpAddr, to: IpAddr) -> Vec<u8> {
    let protocol = if from.is_ipv4() { 4 } else { 41 };
    Packet::new(from, to, Transport::Other { protocol, bytes: frame[14..].to_vec() }).to_bytes()
}

fn bend(mut packet: Packet, shape: &Shape) -> Vec<u8> {
    packet.ttl = shape.ttl.unwrap_or(packet.ttl);
    packet.dont_fragment &= !shape.may_be_cut;
    packet.vlans = (0..shape.vlans).map(|tag| u16::try_from(tag).unwrap() + 7).collect();
    packet.fragment = shape.fragment.map(|piece| Fragment { offset: piece.offset, more: piece.more });
    if let Some(piece) = shape.fragment {
        packet.identification = piece.id;
    }
    match packet.source {
        IpAddr::V4(_) => packet.options = vec![1; shape.extra * 4],
        IpAddr::V6(_) => {
            let kinds = [0, 60, 43, 60];
            // One alone may be as long as headers can be.
            let length = |n: usize| if shape.extra == 8 { 6 + 448 } else { 6 + 8 * (n % 2) };
            let header = |n: usize| Extension { kind: kinds[n % kinds.len()], data: vec![0; length(n)] };
            // Its length is in words, less two: here as long as the others, of sixteen bytes.
            let authentication = shape.is_authenticated.then(|| Extension { kind: AUTHENTICATION, data: vec![0; 14] });
            let others = (0..if shape.extra == 8 { 1 } else { shape.extra }).map(header);
            packet.extensions = authentication.into_iter().chain(others).collect();
        }
    }
    let mut frame = packet.to_bytes();
    if let Some(length) = shape.length {
        let at = 14 + 4 * shape.vlans + if packet.source.is_ipv4() { 2 } else { 4 };
        frame[at..at + 2].copy_from_slice(&length.to_be_bytes());
    }
    for (at, value) in &shape.set {
        if let Some(byte) = frame.get_mut(*at) {
            *byte = *value;
        }
    }
    // The kernel runs nothing on less than Ethernet's header.
    frame.truncate(frame.len().saturating_sub(shape.cut).max(14));
    frame
}
