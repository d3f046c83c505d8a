//! Answers in the service's name: the packet is turned around and sent back out of the interface that it came from.

use weir_core::model::Family;

use crate::edit::{Check, Edit, check_of_icmp, checksum};
use crate::packet::{ICMP, ICMPV6, Packet, Piece, TCP};

const TTL: u8 = 64;
/// What is quoted of a packet behind its IP header: of TCP all of the usual header, else eight bytes (RFC 792).
fn quoted(p: &Packet) -> usize {
    if p.protocol == TCP && p.piece != Piece::Later { 20 } else { 8 }
}

/// Why an ICMP error is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cause {
    PortUnreachable,
    TooBig { mtu: u32 },
    TimeExceeded,
}

/// A frame from the packet's destination to its source, around a transport header whose checksum is zero so far.
fn frame_around(frame: &[u8], p: &Packet, protocol: u8, mut payload: Vec<u8>, check: usize) -> Vec<u8> {
    let (src, dst) = (p.dst.octets(), p.src.octets());
    let length = u16::try_from(payload.len()).unwrap_or(u16::MAX);
    let (header, pseudo) = match p.family {
        Family::V4 => {
            let mut ip = [&[0x45, 0], &(length + 20).to_be_bytes()[..], &[0, 0, 0x40, 0, TTL, protocol, 0, 0]].concat();
            ip.extend([&src[12..], &dst[12..]].concat());
            let sum = checksum(&[&ip]).to_be_bytes();
            ip[10..12].copy_from_slice(&sum);
            (ip, [&src[12..], &dst[12..], &[0, protocol], &length.to_be_bytes()].concat())
        }
        Family::V6 => {
            let ip = [&[0x60, 0, 0, 0], &length.to_be_bytes()[..], &[protocol, TTL], &src, &dst].concat();
            (ip, [&src[..], &dst, &u32::from(length).to_be_bytes(), &[0, 0, 0, protocol]].concat())
        }
    };
    let covered = if protocol == ICMP { &[][..] } else { &pseudo };
    let sum = checksum(&[covered, &payload]).to_be_bytes();
    payload[check..check + 2].copy_from_slice(&sum);
    // The link header with its tags, its ends swapped.
    let mut link = frame[..p.l3].to_vec();
    link[..12].rotate_left(6);
    [link, header, payload].concat()
}

/// A reset (RFC 9293, 3.10.7.1).
pub(crate) fn reset(frame: &[u8], p: &Packet) -> Vec<u8> {
    let tcp = &frame[p.l4..p.l4 + 20];
    let word = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
    let [fin, syn, ack] = [1, 2, 16].map(|flag| tcp[13] & flag != 0);
    let (seq, ack_seq, flags) = if ack {
        (word(8), 0, 4)
    } else {
        let headers = u32::try_from(p.l4 - p.l3).unwrap_or_default() + u32::from(tcp[12] >> 4) * 4;
        let payload = u32::from(p.length).wrapping_sub(headers);
        (0, word(4).wrapping_add(u32::from(syn) + u32::from(fin)).wrapping_add(payload), 4 | 16)
    };
    let mut header = [&tcp[2..4], &tcp[..2], &seq.to_be_bytes(), &ack_seq.to_be_bytes()].concat();
    header.extend([0x50, flags, 0, 0, 0, 0, 0, 0]);
    frame_around(frame, p, TCP, header, 16)
}

/// An echo reply to an echo request.
pub(crate) fn echo(frame: &[u8], p: &Packet) -> Vec<u8> {
    let mut edit = Edit::of(frame);
    let kind = match p.family {
        Family::V4 => 0,
        Family::V6 => 129,
    };
    // Their order changes no sum.
    let none: [Check; 0] = [];
    edit.replace_addr(p.family, p.l3, true, p.dst, none);
    edit.replace_addr(p.family, p.l3, false, p.src, none);
    edit.replace(p.l4, &[kind, 0], [check_of_icmp(p.l4)]);
    edit.set_ttl(p, TTL);
    edit.frame[..12].rotate_left(6);
    edit.frame
}

/// An ICMP error that quotes the packet. None where the kernel cannot make room: behind a VLAN tag.
pub(crate) fn error(frame: &[u8], p: &Packet, cause: Cause) -> Option<Vec<u8>> {
    let (protocol, kind, code, rest) = match (p.family, cause) {
        (Family::V4, Cause::PortUnreachable) => (ICMP, 3, 3, 0),
        (Family::V4, Cause::TooBig { mtu }) => (ICMP, 3, 4, mtu),
        (Family::V4, Cause::TimeExceeded) => (ICMP, 11, 0, 0),
        (Family::V6, Cause::TimeExceeded) => (ICMPV6, 3, 0, 0),
        (Family::V6, Cause::PortUnreachable) => (ICMPV6, 1, 4, 0),
        (Family::V6, Cause::TooBig { mtu }) => (ICMPV6, 2, 0, mtu),
    };
    let quotes = frame.get(p.l3..p.l4 + quoted(p))?;
    if p.vlan {
        return None;
    }
    let header = [&[kind, code, 0, 0], &rest.to_be_bytes()[..]].concat();
    Some(frame_around(frame, p, protocol, [&header, quotes].concat(), 2))
}
