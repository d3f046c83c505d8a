//! IPv4 packets that are too big for their way and may be cut.

use crate::edit::checksum;
use crate::packet::{Packet, Piece, is_transport};

/// An IPv4 header without options, of which pieces would not have all.
const HEADER: usize = 20;
/// What every link takes (RFC 791, 3.2).
const LEAST_MTU: u32 = 68;
/// Offsets of pieces count so many bytes.
const UNIT: usize = 8;
const OFFSET: u16 = 0x1fff;
const MORE: u16 = 0x2000;

/// The front piece, which fits and is what `p` is about from here on, and what is behind it. None: it cannot be cut.
pub(crate) fn cut(frame: &[u8], p: &mut Packet) -> Option<[Vec<u8>; 2]> {
    let (l3, length) = (p.l3, usize::from(p.length));
    let front = usize::try_from(p.mtu).ok()?.checked_sub(HEADER)? & !(UNIT - 1);
    let is_too_big = p.mtu >= LEAST_MTU && length > HEADER + front;
    if !p.may_be_cut || !is_transport(p.protocol) || p.endpoint.is_some() || p.l4 != l3 + HEADER || !is_too_big {
        return None;
    }
    let packet = frame.get(l3..l3 + length)?;
    let (header, payload) = packet.split_at(HEADER);
    let (front, rest) = payload.split_at(front);
    let place = u16::from_be_bytes([header[6], header[7]]);
    let further = u16::try_from(front.len() / UNIT).ok()?;
    let fits = |payload: &[u8]| l3 + HEADER + payload.len() <= weir_abi::HELD_BYTES;
    if !fits(front) || !fits(rest) || (place & OFFSET) + further > OFFSET {
        return None;
    }
    let pieces = [(place | MORE, front), (place + further, rest)].map(|(place, payload)| {
        let mut header = header.to_vec();
        let length = u16::try_from(HEADER + payload.len()).unwrap_or(u16::MAX);
        header[2..4].copy_from_slice(&length.to_be_bytes());
        header[6..8].copy_from_slice(&place.to_be_bytes());
        header[10..12].fill(0);
        let sum = checksum(&[&header]).to_be_bytes();
        header[10..12].copy_from_slice(&sum);
        [&frame[..l3], &header, payload].concat()
    });
    (p.frame, p.length) = (u32::try_from(pieces[0].len()).ok()?, u16::try_from(HEADER + front.len()).ok()?);
    if p.piece == Piece::Whole {
        (p.piece, p.fragment_id) = (Piece::First, u16::from_be_bytes([header[4], header[5]]).into());
    }
    Some(pieces)
}
