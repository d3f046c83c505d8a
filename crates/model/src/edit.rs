//! What is done with the bytes: fields are replaced, and each checksum that covers them by as much (RFC 1624).

use weir_core::model::Family;

use crate::Route;
use crate::packet::{End, ICMPV6, Packet, TCP, UDP};
use crate::path::Translated;

/// A checksum's place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Check {
    at: usize,
    /// UDP's: zero means that there is none.
    optional: bool,
}

/// A frame while it is changed.
#[derive(Clone, Debug)]
pub(crate) struct Edit {
    pub(crate) frame: Vec<u8>,
}

/// Folds a sum of 16-bit words to one of them.
const fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    #[expect(clippy::cast_possible_truncation, reason = "folded twice it has 16 bits")]
    let folded = sum as u16;
    folded
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes.chunks(2).map(|pair| u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or_default()]))
}

/// The Internet checksum of bytes (RFC 1071), in host order.
pub(crate) fn checksum(parts: &[&[u8]]) -> u16 {
    !fold(parts.iter().flat_map(|part| words(part)).map(u32::from).sum())
}

/// The checksum of the IPv4 header at an offset.
pub(crate) const fn check_of_ipv4(l3: usize) -> Check {
    Check { at: l3 + 10, optional: false }
}

/// That of ICMP, whose header is at an offset.
pub(crate) const fn check_of_icmp(l4: usize) -> Check {
    Check { at: l4 + 2, optional: false }
}

/// What covers the transport header and its addresses, if that may change.
fn check_of_transport(p: &Packet) -> Option<Check> {
    match p.protocol {
        _ if p.keeps_ports() => None,
        TCP => Some(Check { at: p.l4 + 16, optional: false }),
        UDP => Some(Check { at: p.l4 + 6, optional: true }),
        ICMPV6 => Some(check_of_icmp(p.l4)),
        _ => None,
    }
}

impl Edit {
    pub(crate) fn of(frame: &[u8]) -> Self {
        Self { frame: frame.to_vec() }
    }

    /// Replaces bytes and brings checksums up to date.
    pub(crate) fn replace(&mut self, at: usize, new: &[u8], checks: impl IntoIterator<Item = Check>) {
        let range = at..at + new.len();
        let change = words(&self.frame[range.clone()]).map(|old| u32::from(!old)).sum::<u32>()
            + words(new).map(u32::from).sum::<u32>();
        self.frame[range].copy_from_slice(new);
        for Check { at, optional } in checks {
            let old = u16::from_be_bytes([self.frame[at], self.frame[at + 1]]);
            if optional && old == 0 {
                continue;
            }
            let new = !fold(u32::from(!old) + u32::from(fold(change)));
            let new = if optional && new == 0 { u16::MAX } else { new };
            self.frame[at..at + 2].copy_from_slice(&new.to_be_bytes());
        }
    }

    /// Replaces an address of the IP header at `l3`.
    pub(crate) fn replace_addr(
        &mut self,
        family: Family,
        l3: usize,
        source: bool,
        addr: weir_abi::Addr,
        checks: impl IntoIterator<Item = Check>,
    ) {
        let octets = addr.octets();
        match family {
            Family::V4 => self.replace(l3 + if source { 12 } else { 16 }, &octets[12..], checks),
            Family::V6 => self.replace(l3 + if source { 8 } else { 24 }, &octets, checks),
        }
    }

    /// Replaces one end of a packet: the address, and the port where there is one that may change.
    fn replace_end(&mut self, p: &Packet, source: bool, end: End) {
        let of_header = match p.family {
            Family::V4 => Some(check_of_ipv4(p.l3)),
            Family::V6 => None,
        };
        let transport = check_of_transport(p);
        self.replace_addr(p.family, p.l3, source, end.addr, of_header.into_iter().chain(transport));
        if !p.keeps_ports() {
            self.replace(p.l4 + if source { 0 } else { 2 }, &end.port.to_be_bytes(), transport);
        }
    }

    /// Replaces an address of a packet of ICMP, which has no ports.
    pub(crate) fn replace_outer(&mut self, p: &Packet, source: bool, addr: weir_abi::Addr) {
        let check = match p.family {
            // Of IPv4 its checksum covers no address.
            Family::V4 => check_of_ipv4(p.l3),
            Family::V6 => check_of_icmp(p.l4),
        };
        self.replace_addr(p.family, p.l3, source, addr, [check]);
    }

    /// So many hops to live.
    pub(crate) fn set_ttl(&mut self, p: &Packet, ttl: u8) {
        match p.family {
            Family::V4 => {
                let word = [ttl, self.frame[p.l3 + 9]];
                self.replace(p.l3 + 8, &word, [check_of_ipv4(p.l3)]);
            }
            Family::V6 => self.frame[p.l3 + 7] = ttl,
        }
    }

    /// One hop less to live.
    pub(crate) fn decrement_ttl(&mut self, p: &Packet) {
        self.set_ttl(p, p.ttl - 1);
    }

    /// Ethernet's addresses of the next hop, where the kernel does not fill them in.
    pub(crate) fn address_frame(&mut self, route: &Route) {
        self.frame[..6].copy_from_slice(&route.neighbour.unwrap_or_default());
        self.frame[6..12].copy_from_slice(&route.mac);
    }

    /// Puts an IP header around the packet (RFC 2003, RFC 2473), which says nothing of congestion (RFC 6040, 4.3).
    fn wrap(&mut self, p: &Packet, from: [u8; 16], to: [u8; 16]) {
        const TTL: u8 = 64;
        let tos = p.tos & 0xfc;
        let header = match p.family {
            Family::V4 => {
                let length = p.length.wrapping_add(20).to_be_bytes();
                let mut ip =
                    [&[0x45, tos], &length[..], &[0, 0, 0x40, 0, TTL, 4, 0, 0], &from[12..], &to[12..]].concat();
                let sum = checksum(&[&ip]).to_be_bytes();
                ip[10..12].copy_from_slice(&sum);
                ip
            }
            Family::V6 => {
                [&[0x60 | tos >> 4, tos << 4, 0, 0], &p.length.to_be_bytes()[..], &[41, TTL], &from, &to].concat()
            }
        };
        self.frame.splice(p.l3..p.l3, header);
    }

    pub(crate) fn translate(&mut self, p: &Packet, how: &Translated) {
        match *how {
            Translated::Destination { to, sport, is_pod: _ } => {
                self.replace_end(p, false, to);
                if let Some(port) = sport {
                    self.replace_end(p, true, End { addr: p.src, port });
                }
            }
            Translated::Source { from, dport } => {
                self.replace_end(p, true, from);
                if dport != p.dport {
                    self.replace_end(p, false, End { addr: p.dst, port: dport });
                }
            }
            Translated::Both { from, to, route: _ } => {
                self.replace_end(p, true, from);
                self.replace_end(p, false, to);
                self.decrement_ttl(p);
            }
            Translated::Wrapped { from, to, route: _ } => {
                self.decrement_ttl(p);
                self.wrap(p, from.octets(), to.octets());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_that_was_right_is_right_after_any_replacement() {
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..1000 {
            let mut frame: Vec<u8> = (0..40).map(|_| rng.u8(..)).collect();
            frame[..2].fill(0);
            let sum = checksum(&[&frame]).to_be_bytes();
            frame[..2].copy_from_slice(&sum);
            let mut edit = Edit { frame };
            let (at, words) = (2 + 2 * rng.usize(..10), 1 + rng.usize(..8));
            let new: Vec<u8> = (0..2 * words).map(|_| rng.u8(..)).collect();
            edit.replace(at, &new, [Check { at: 0, optional: false }]);
            // Of a sum there are two zeros.
            assert!(matches!(checksum(&[&edit.frame]), 0 | u16::MAX), "{:?}", edit.frame);
        }
    }

    #[test]
    fn datagrams_without_a_checksum_stay_without_and_others_never_lose_theirs() {
        let optional = Check { at: 0, optional: true };
        let mut edit = Edit { frame: vec![0, 0, 1, 2] };
        edit.replace(2, &[3, 4], [optional]);
        assert_eq!(edit.frame, [0, 0, 3, 4]);
        let mut edit = Edit { frame: vec![0xff, 0xfe, 0, 1] };
        edit.replace(2, &[0, 0], [optional]);
        assert_eq!(edit.frame, [0xff, 0xff, 0, 0]);
    }
}
