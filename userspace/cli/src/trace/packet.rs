//! The synthetic packet, and what a frame is in words.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use etherparse::{IpNumber, LaxNetSlice, LaxSlicedPacket, PacketBuilder, PacketBuilderStep, TransportSlice};
use serde::Serialize;
use weir_core::model::Protocol;

use crate::index::protocol_name;

/// Hops that the packet has left.
const TTL: u8 = 64;
/// The sender's, locally administered: nobody answers to it.
const SOURCE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// An INIT chunk (RFC 9260, section 3.3.2): type, flags, length, tag, window, streams out and in, first number.
const SCTP_INIT: [u8; 20] = [1, 0, 0, 20, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1];
/// A DATA chunk without data (section 3.3.1).
const SCTP_DATA: [u8; 16] = [0, 3, 0, 16, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];

/// What a client connects to: `ADDRESS:PORT/PROTOCOL`, TCP if none is said.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Target {
    /// Address and port.
    pub(crate) address: SocketAddr,
    /// Protocol.
    pub(crate) protocol: Protocol,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let protocol = match protocol.to_ascii_lowercase().as_str() {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            "sctp" => Protocol::Sctp,
            _ => return Err(format!("{protocol:?} is not tcp, udp or sctp")),
        };
        let address = address.parse().map_err(|why| {
            format!("{address:?} is not an address with a port, such as 10.96.0.20:80 or [fd00:96::20]:80: {why}")
        })?;
        Ok(Self { address, protocol })
    }
}

/// A packet that begins a flow, or one in its middle.
pub(crate) fn frame(from: SocketAddr, to: Target, begins: bool, destination_mac: [u8; 6]) -> Result<Vec<u8>> {
    let link = PacketBuilder::ethernet2(SOURCE_MAC, destination_mac);
    let ip = match (from.ip(), to.address.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => link.ipv4(from.octets(), to.octets(), TTL),
        (IpAddr::V6(from), IpAddr::V6(to)) => link.ipv6(from.octets(), to.octets(), TTL),
        (from, to) => bail!("{from} and {to} are of different families"),
    };
    transport(ip, (from.port(), to.address.port()), to.protocol, begins)
}

fn transport(
    ip: PacketBuilderStep<etherparse::IpHeaders>,
    (sport, dport): (u16, u16),
    protocol: Protocol,
    begins: bool,
) -> Result<Vec<u8>> {
    let mut frame = Vec::new();
    let written = match protocol {
        Protocol::Tcp if begins => ip.tcp(sport, dport, 1, u16::MAX).syn().write_to_vec(&mut frame, &[]),
        Protocol::Tcp => ip.tcp(sport, dport, 2, u16::MAX).ack(1).write_to_vec(&mut frame, b"trace"),
        Protocol::Udp => ip.udp(sport, dport).write_to_vec(&mut frame, b"trace"),
        Protocol::Sctp => {
            let (tag, chunk) = if begins { (0u32, &SCTP_INIT[..]) } else { (1, &SCTP_DATA[..]) };
            // The checksum stays zero: programs neither read nor change it.
            let bytes = [&sport.to_be_bytes()[..], &dport.to_be_bytes(), &tag.to_be_bytes(), &[0; 4], chunk].concat();
            ip.write_to_vec(&mut frame, IpNumber::SCTP, &bytes)
        }
    };
    written.context("cannot build the packet")?;
    Ok(frame)
}

/// What a frame says of itself.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Summary {
    /// `TCP`, `UDP`, `SCTP`, `ICMP`, or the number of another protocol.
    pub(crate) protocol: String,
    /// With the port, where the protocol has ports.
    pub(crate) source: String,
    pub(crate) destination: String,
    /// `SYN`, `RST`, `unreachable` and so on; empty if there is nothing to add.
    pub(crate) kind: String,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { protocol, source, destination, kind } = self;
        write!(f, "{protocol} {source} > {destination}")?;
        if kind.is_empty() { Ok(()) } else { write!(f, ", {kind}") }
    }
}

/// Reads a frame; `None` if it is not IP.
pub(crate) fn summary(frame: &[u8]) -> Option<Summary> {
    let packet = LaxSlicedPacket::from_ethernet(frame).ok()?;
    let (source, destination, number, payload): (IpAddr, IpAddr, _, _) = match packet.net.as_ref()? {
        LaxNetSlice::Ipv4(ip) => {
            let header = ip.header();
            let (source, destination) = (header.source_addr().into(), header.destination_addr().into());
            (source, destination, ip.payload_ip_number(), ip.payload().payload)
        }
        LaxNetSlice::Ipv6(ip) => {
            let (header, payload) = (ip.header(), ip.payload());
            (header.source_addr().into(), header.destination_addr().into(), payload.ip_number, payload.payload)
        }
        LaxNetSlice::Arp(_) => return None,
    };
    let ports = match number {
        IpNumber::TCP | IpNumber::UDP | IpNumber::SCTP => payload.first_chunk::<4>(),
        _ => None,
    };
    let port = |at: usize| ports.map(|bytes| u16::from_be_bytes([bytes[at], bytes[at + 1]]));
    let end = |ip: IpAddr, port: Option<u16>| port.map_or(ip.to_string(), |port| SocketAddr::new(ip, port).to_string());
    Some(Summary {
        protocol: name(number),
        source: end(source, port(0)),
        destination: end(destination, port(2)),
        kind: kind(number, packet.transport.as_ref(), payload),
    })
}

fn name(number: IpNumber) -> String {
    match number {
        IpNumber::ICMP | IpNumber::IPV6_ICMP => "ICMP".to_owned(),
        IpNumber::IPV4 | IpNumber::IPV6 => "IP in IP".to_owned(),
        other => protocol_name(other.0),
    }
}

fn kind(number: IpNumber, transport: Option<&TransportSlice<'_>>, payload: &[u8]) -> String {
    let text = match (number, transport) {
        (_, Some(TransportSlice::Tcp(tcp))) if tcp.rst() => "RST",
        (_, Some(TransportSlice::Tcp(tcp))) if tcp.syn() => "SYN",
        (_, Some(TransportSlice::Icmpv4(icmp))) if icmp.type_u8() == 3 => "unreachable",
        (_, Some(TransportSlice::Icmpv6(icmp))) if icmp.type_u8() == 1 => "unreachable",
        (_, Some(TransportSlice::Icmpv6(icmp))) if icmp.type_u8() == 2 => "too big",
        (IpNumber::SCTP, _) => match payload.get(12) {
            Some(1) => "INIT",
            Some(6) => "ABORT",
            Some(_) | None => "",
        },
        _ => "",
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_of_each_protocol_in_each_family_says_what_it_is() {
        let of = |from: &str, to: &str, begins| {
            let to: Target = to.parse().unwrap();
            summary(&frame(from.parse().unwrap(), to, begins, [0; 6]).unwrap()).unwrap().to_string()
        };
        let v4 = "192.0.2.7:40000";
        assert_eq!(of(v4, "10.96.0.20:80", true), "TCP 192.0.2.7:40000 > 10.96.0.20:80, SYN");
        assert_eq!(of(v4, "10.96.0.20:80/TCP", false), "TCP 192.0.2.7:40000 > 10.96.0.20:80");
        assert_eq!(of(v4, "10.96.0.10:53/udp", true), "UDP 192.0.2.7:40000 > 10.96.0.10:53");
        assert_eq!(of(v4, "10.96.0.10:38412/sctp", true), "SCTP 192.0.2.7:40000 > 10.96.0.10:38412, INIT");
        let v6 = "[2001:db8::7]:40000";
        assert_eq!(of(v6, "[fd00:96::20]:80/tcp", true), "TCP [2001:db8::7]:40000 > [fd00:96::20]:80, SYN");
        assert_eq!(of(v6, "[fd00:96::20]:80/sctp", false), "SCTP [2001:db8::7]:40000 > [fd00:96::20]:80");
    }

    #[test]
    fn two_families_in_one_packet_and_other_protocols_are_refused() {
        let to: Target = "[fd00:96::20]:80".parse().unwrap();
        let error = frame("192.0.2.7:1".parse().unwrap(), to, true, [0; 6]).unwrap_err();
        assert!(error.to_string().contains("different families"), "{error}");
        assert!("10.96.0.20:80/icmp".parse::<Target>().unwrap_err().contains("tcp, udp or sctp"));
        assert!("10.96.0.20".parse::<Target>().unwrap_err().contains("with a port"));
    }
}
