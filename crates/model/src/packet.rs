//! What a frame says of itself: Ethernet, up to two VLAN tags, IP with options or extension headers, a transport header. Lengths
//! that lie and headers that are cut short are the frame's problem: nothing beyond its end is ever read.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_abi as abi;
use weir_abi::Addr;
use weir_core::model::Family;

use crate::Reason;

pub(crate) const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
const IPV6: u8 = 41;
pub(crate) const ICMPV6: u8 = 58;
pub(crate) const SCTP: u8 = 132;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;

/// VLAN tags that are looked behind.
const VLANS: usize = 2;
/// Headers that may follow that of IPv6, the transport's included.
const HEADERS: usize = 7;
/// Headers end before this offset, or the packet is malformed.
const HEADERS_END: usize = 512;

/// One end of a flow.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct End {
    /// Address; of IPv4 v4-mapped.
    pub addr: Addr,
    /// Port.
    pub port: u16,
}

/// What tells the packets of one direction of a flow.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Key {
    /// Of the packet, whatever its addresses look like.
    pub family: Family,
    /// IP protocol number.
    pub protocol: u8,
    /// Source.
    pub from: End,
    /// Destination.
    pub to: End,
}

impl Key {
    /// The other direction.
    #[must_use]
    pub const fn turned(self) -> Self {
        Self { from: self.to, to: self.from, ..self }
    }
}

/// Which part of a datagram a packet is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Piece {
    Whole,
    /// With the ports.
    First,
    /// Without.
    Later,
}

/// What was read of a packet until something stopped it; the rest is zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    /// Whose frame it is in.
    pub(crate) mac: [u8; 6],
    pub(crate) family: Family,
    pub(crate) src: Addr,
    pub(crate) dst: Addr,
    pub(crate) sport: u16,
    pub(crate) dport: u16,
    pub(crate) protocol: u8,
    /// Offsets of the IP and of the transport header.
    pub(crate) l3: usize,
    pub(crate) l4: usize,
    pub(crate) ttl: u8,
    /// Type of service, or traffic class.
    pub(crate) tos: u8,
    /// Of the IP packet, as it says itself.
    pub(crate) length: u16,
    /// Bytes of the frame.
    pub(crate) frame: u32,
    pub(crate) vlan: bool,
    pub(crate) piece: Piece,
    /// Routers may cut it: IPv4 without "do not fragment".
    pub(crate) may_be_cut: bool,
    /// What the pieces of a datagram have in common.
    pub(crate) fragment_id: u32,
    /// Opens a connection.
    pub(crate) syn: bool,
    /// Agrees to one.
    pub(crate) syn_ack: bool,
    /// Ends it.
    pub(crate) ending: bool,
    /// Ends it for both sides.
    pub(crate) reset: bool,
    /// The same, and may answer the packet that was to begin it.
    pub(crate) refuses: bool,
    /// Of TCP: what it acknowledges, a SYN-ACK what its own ACK will, an end where it is; 0 of others. See [`abi::HEARD_KNOWN`].
    pub(crate) heard: u16,
    /// Of the way, where the packet is too big for it.
    pub(crate) mtu: u32,
    /// Came wrapped: the slot of the endpoint that another node has chosen.
    pub(crate) endpoint: Option<u32>,
}

impl Packet {
    fn of(family: Family, l3: usize, vlan: bool, frame: &[u8]) -> Self {
        Self {
            mac: frame.first_chunk().copied().unwrap_or_default(),
            family,
            src: Addr::UNSET,
            dst: Addr::UNSET,
            sport: 0,
            dport: 0,
            protocol: 0,
            l3,
            l4: 0,
            ttl: 0,
            tos: 0,
            length: 0,
            frame: u32::try_from(frame.len()).unwrap_or(u32::MAX),
            vlan,
            piece: Piece::Whole,
            may_be_cut: false,
            fragment_id: 0,
            syn: false,
            syn_ack: false,
            ending: false,
            reset: false,
            refuses: false,
            heard: 0,
            mtu: 0,
            endpoint: None,
        }
    }

    pub(crate) const fn source(&self) -> End {
        End { addr: self.src, port: self.sport }
    }

    pub(crate) const fn destination(&self) -> End {
        End { addr: self.dst, port: self.dport }
    }

    pub(crate) const fn key(&self) -> Key {
        Key { family: self.family, protocol: self.protocol, from: self.source(), to: self.destination() }
    }

    /// Whether it asks its backend to agree to a connection. Of one whose way ends here another node's backend never hears.
    pub(crate) const fn asks(&self) -> bool {
        self.syn && self.ttl > 1
    }

    /// Whether only addresses may change: a CRC covers SCTP's ports, and later pieces have none.
    pub(crate) fn keeps_ports(&self) -> bool {
        self.protocol == SCTP || self.piece == Piece::Later
    }

    /// Bytes of the frame behind its link header, which is what a device's MTU limits.
    pub(crate) fn behind_link(&self) -> u32 {
        self.frame.saturating_sub(u32::try_from(self.l3).unwrap_or(u32::MAX))
    }

    pub(crate) fn is_whole_icmp(&self) -> bool {
        let icmp = match self.family {
            Family::V4 => ICMP,
            Family::V6 => ICMPV6,
        };
        self.protocol == icmp && self.piece == Piece::Whole
    }

    fn mark_piece(&mut self, offset: u16, more: bool, id: u32) {
        if offset != 0 || more {
            self.piece = if offset == 0 { Piece::First } else { Piece::Later };
            self.fragment_id = id;
        }
    }
}

pub(crate) const fn is_transport(protocol: u8) -> bool {
    matches!(protocol, TCP | UDP | SCTP)
}

/// The address as the standard library has it; one of IPv6 stays one, though it look like one of IPv4.
pub(crate) fn ip_of(family: Family, addr: Addr) -> IpAddr {
    match family {
        Family::V4 => addr.ip(),
        Family::V6 => Ipv6Addr::from(addr.octets()).into(),
    }
}

/// False for the address that a node does not have.
pub(crate) fn is_set(addr: Addr) -> bool {
    addr.word[0] != abi::Be32::new(0) || addr.word[3] != abi::Be32::new(0)
}

pub(crate) fn is_loopback(family: Family, addr: Addr) -> bool {
    match family {
        Family::V4 => addr.octets()[12] == 127,
        Family::V6 => addr == Addr::from(Ipv6Addr::LOCALHOST),
    }
}

/// Whether an address is of the link alone: from there the kernel names no way that forwards (bpf_ipv6_fib_lookup() in net/core/filter.c).
pub(crate) fn is_of_link(family: Family, addr: Addr) -> bool {
    matches!(ip_of(family, addr), IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Whether an address is that of one host, as a sender's has to be.
pub(crate) fn is_one_host(family: Family, addr: Addr) -> bool {
    let ip = ip_of(family, addr);
    let is_mapped = matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some());
    is_set(addr) && !is_loopback(family, addr) && !ip.is_multicast() && ip != Ipv4Addr::BROADCAST && !is_mapped
}

/// Reads forward, and never beyond the end.
struct Cursor<'a> {
    frame: &'a [u8],
    at: usize,
    headers_end: usize,
}

impl Cursor<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Reason> {
        let bytes = self.frame.get(self.at..self.at + N).and_then(|bytes| bytes.try_into().ok());
        self.at += N;
        bytes.ok_or(abi::REASON_MALFORMED)
    }

    fn skip(&mut self, bytes: usize) -> Result<(), Reason> {
        self.at += bytes;
        if self.at > self.frame.len() { Err(abi::REASON_MALFORMED) } else { Ok(()) }
    }
}

const fn be16(high: u8, low: u8) -> u16 {
    u16::from_be_bytes([high, low])
}

pub(crate) fn addr4(octets: [u8; 4]) -> Addr {
    Ipv4Addr::from(octets).into()
}

pub(crate) fn addr6(octets: [u8; 16]) -> Addr {
    Ipv6Addr::from(octets).into()
}

/// Where the headers of what is wrapped end at most, once the wrapper is off.
pub(crate) const fn inner_headers_end(wrapper: usize) -> usize {
    HEADERS_END - wrapper
}

/// Reads a frame, as [`parse_until`] where headers may end.
pub(crate) fn parse(frame: &[u8]) -> Result<(Packet, Result<(), Reason>), Reason> {
    parse_until(frame, HEADERS_END)
}

/// Reads a frame. The first error: there is no IP packet. The second one: what is known of the packet is not all, and why.
pub(crate) fn parse_until(frame: &[u8], headers_end: usize) -> Result<(Packet, Result<(), Reason>), Reason> {
    let mut cursor = Cursor { frame, at: 0, headers_end };
    let [.., high, low] = cursor.take::<14>()?;
    let (mut ethertype, mut vlan) = (be16(high, low), false);
    for _ in 0..VLANS {
        if !matches!(ethertype, 0x8100 | 0x88a8) {
            break;
        }
        let [_, _, high, low] = cursor.take()?;
        (ethertype, vlan) = (be16(high, low), true);
    }
    let family = match ethertype {
        0x0800 => Family::V4,
        0x86dd => Family::V6,
        _ => return Err(abi::REASON_NOT_IP),
    };
    let mut packet = Packet::of(family, cursor.at, vlan, frame);
    let read = read_ip(&mut cursor, &mut packet);
    Ok((packet, read))
}

fn read_ip(cursor: &mut Cursor<'_>, p: &mut Packet) -> Result<(), Reason> {
    p.protocol = match p.family {
        Family::V4 => read_v4(cursor, p)?,
        Family::V6 => read_v6(cursor, p)?,
    };
    p.l4 = cursor.at;
    match p.piece {
        Piece::Later if is_transport(p.protocol) => Ok(()),
        Piece::Later => Err(abi::REASON_NOT_TRANSPORT),
        Piece::Whole => read_transport(cursor, p),
        // One that is too short to have ports is as good as a later one without a first.
        Piece::First => read_transport(cursor, p).map_err(|reason| match reason {
            abi::REASON_MALFORMED => abi::REASON_FRAGMENT,
            other => other,
        }),
    }
}

fn read_v4(cursor: &mut Cursor<'_>, p: &mut Packet) -> Result<u8, Reason> {
    let ip: [u8; 20] = cursor.take()?;
    let header = usize::from(ip[0] & 15) * 4;
    if ip[0] >> 4 != 4 || header < ip.len() {
        return Err(abi::REASON_MALFORMED);
    }
    let fragment = be16(ip[6], ip[7]);
    p.mark_piece(fragment & 0x1fff, fragment & 0x2000 != 0, be16(ip[4], ip[5]).into());
    p.may_be_cut = fragment & 0x4000 == 0;
    cursor.skip(header - ip.len())?;
    p.src = addr4([ip[12], ip[13], ip[14], ip[15]]);
    p.dst = addr4([ip[16], ip[17], ip[18], ip[19]]);
    (p.tos, p.ttl) = (ip[1], ip[8]);
    p.length = be16(ip[2], ip[3]);
    Ok(ip[9])
}

fn read_v6(cursor: &mut Cursor<'_>, p: &mut Packet) -> Result<u8, Reason> {
    let fixed: [u8; 8] = cursor.take()?;
    let (src, dst) = (cursor.take()?, cursor.take()?);
    if fixed[0] >> 4 != 6 {
        return Err(abi::REASON_MALFORMED);
    }
    (p.src, p.dst) = (addr6(src), addr6(dst));
    (p.tos, p.ttl) = (fixed[0] << 4 | fixed[1] >> 4, fixed[7]);
    p.length = be16(fixed[4], fixed[5]).wrapping_add(40);
    let mut next = fixed[6];
    for _ in 0..HEADERS {
        let units = match next {
            TCP | UDP | SCTP | ICMPV6 | IPV6 => return Ok(next),
            FRAGMENT => {
                // What may still follow is for the receiver alone.
                let [inner, _, high, low, id @ ..] = cursor.take::<8>()?;
                let offset = be16(high, low);
                p.mark_piece(offset & 0xfff8, offset & 1 != 0, u32::from_be_bytes(id));
                return Ok(inner);
            }
            HOP_BY_HOP | ROUTING | DESTINATION => (8, 1),
            AUTHENTICATION => (4, 2),
            _ => return Err(abi::REASON_NOT_TRANSPORT),
        };
        let [inner, length] = cursor.take()?;
        cursor.skip((usize::from(length) + units.1) * units.0 - 2)?;
        if cursor.at > cursor.headers_end {
            return Err(abi::REASON_MALFORMED);
        }
        next = inner;
    }
    Err(abi::REASON_NOT_TRANSPORT)
}

fn read_transport(cursor: &mut Cursor<'_>, p: &mut Packet) -> Result<(), Reason> {
    let mut ports = |header: &[u8]| {
        p.sport = be16(header[0], header[1]);
        p.dport = be16(header[2], header[3]);
    };
    match p.protocol {
        TCP => {
            let tcp: [u8; 20] = cursor.take()?;
            ports(&tcp);
            let [fin, syn, rst, ack] = [1, 2, 4, 16].map(|flag| tcp[13] & flag != 0);
            (p.syn, p.syn_ack) = (syn && !ack && !fin, syn && ack);
            (p.ending, p.reset, p.refuses) = (fin || rst, rst, rst && ack);
            let number = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
            let heard = match (p.syn_ack, p.ending) {
                (true, _) => number(4).wrapping_add(1),
                (false, true) => number(4),
                (false, false) => number(8),
            };
            p.heard = abi::HEARD_KNOWN | u16::try_from(heard >> abi::HEARD_SHIFT).unwrap_or_default();
        }
        UDP => ports(&cursor.take::<8>()?),
        SCTP => {
            // No packet is without a chunk (RFC 9260, 3).
            let sctp: [u8; 16] = cursor.take()?;
            ports(&sctp);
            let chunk = sctp[12];
            (p.syn, p.syn_ack) = (chunk == 1, chunk == 2);
            // ABORT and SHUTDOWN COMPLETE end it for both, SHUTDOWN ACK for one.
            (p.ending, p.reset) = (matches!(chunk, 6 | 8 | 14), matches!(chunk, 6 | 14));
            // Not of whom its sender knows nothing.
            p.refuses = chunk == 6 && sctp[13] & 1 == 0;
        }
        _ => return Err(abi::REASON_NOT_TRANSPORT),
    }
    Ok(())
}
