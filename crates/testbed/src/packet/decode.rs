//! From a frame to a [`Packet`]: strict, so that whatever a program under test broke is an error.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::checksum::Sum16BitWords;
use etherparse::{
    EtherType, Ethernet2Header, IpAuthHeader, IpNumber, Ipv4Header, Ipv6FragmentHeader, Ipv6Header, Ipv6RawExtHeader,
    SingleVlanHeader, TcpHeader, UdpHeader,
};

use super::{Extension, Fragment, Mac, Packet, Transport, sum};

/// Why a frame is not a good one.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum DecodeError {
    /// A header does not fit or contradicts itself.
    #[error("bad {layer} header: {reason}")]
    Header {
        /// Which one.
        layer: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// Neither IPv4 nor IPv6.
    #[error("ethertype {0:#06x} is neither IPv4 nor IPv6")]
    NotIp(u16),
    /// A length field does not fit what is there.
    #[error("{layer} length says {said} bytes, the frame has {there}")]
    Length {
        /// Which one.
        layer: &'static str,
        /// What the field says.
        said: usize,
        /// What there is.
        there: usize,
    },
    /// A checksum is wrong.
    #[error("{layer} checksum {found:#06x} is wrong")]
    Checksum {
        /// Which one.
        layer: &'static str,
        /// The one in the frame.
        found: u16,
    },
}

fn header<E: std::fmt::Display>(layer: &'static str) -> impl Fn(E) -> DecodeError {
    move |error| DecodeError::Header { layer, reason: error.to_string() }
}

fn length(layer: &'static str, said: usize, there: usize) -> Result<(), DecodeError> {
    if said == there { Ok(()) } else { Err(DecodeError::Length { layer, said, there }) }
}

/// Decodes a frame and verifies every length and checksum in it.
///
/// # Errors
/// The first thing that is wrong with the frame.
pub fn decode(frame: &[u8]) -> Result<Packet, DecodeError> {
    let (ethernet, mut rest) = Ethernet2Header::from_slice(frame).map_err(header("Ethernet"))?;
    let mut ether_type = ethernet.ether_type;
    let mut vlans = Vec::new();
    while matches!(ether_type, EtherType(0x8100 | 0x88a8)) {
        let (tag, inner) = SingleVlanHeader::from_slice(rest).map_err(header("VLAN"))?;
        vlans.push(u16::from_be_bytes([rest[0], rest[1]]));
        (ether_type, rest) = (tag.ether_type, inner);
    }
    let packet = match ether_type {
        EtherType::IPV4 => ipv4(rest)?,
        EtherType::IPV6 => ipv6(rest)?,
        EtherType(other) => return Err(DecodeError::NotIp(other)),
    };
    Ok(Packet { source_mac: Mac(ethernet.source), destination_mac: Mac(ethernet.destination), vlans, ..packet })
}

fn ipv4(bytes: &[u8]) -> Result<Packet, DecodeError> {
    let (ip, rest) = Ipv4Header::from_slice(bytes).map_err(header("IPv4"))?;
    length("IPv4", ip.total_len.into(), bytes.len())?;
    if Sum16BitWords::new().add_slice(&bytes[..ip.header_len()]).ones_complement() != 0 {
        return Err(DecodeError::Checksum { layer: "IPv4", found: ip.header_checksum });
    }
    let (source, destination) = (Ipv4Addr::from(ip.source).into(), Ipv4Addr::from(ip.destination).into());
    let offset = ip.fragment_offset.value();
    let fragment = (offset != 0 || ip.more_fragments).then_some(Fragment { offset, more: ip.more_fragments });
    Ok(Packet {
        ttl: ip.time_to_live,
        traffic_class: ip.dscp.value() << 2 | ip.ecn.value(),
        identification: ip.identification,
        dont_fragment: ip.dont_fragment,
        options: ip.options.to_vec(),
        fragment,
        ..Packet::new(source, destination, transport(source, destination, ip.protocol, rest, fragment)?)
    })
}

fn ipv6(bytes: &[u8]) -> Result<Packet, DecodeError> {
    let (ip, mut rest) = Ipv6Header::from_slice(bytes).map_err(header("IPv6"))?;
    length("IPv6", ip.payload_length.into(), rest.len())?;
    let (source, destination) = (Ipv6Addr::from(ip.source).into(), Ipv6Addr::from(ip.destination).into());
    let (mut extensions, mut fragment, mut identification) = (Vec::new(), None, 0);
    let mut next = ip.next_header;
    loop {
        match next {
            IpNumber::IPV6_HEADER_HOP_BY_HOP | IpNumber::IPV6_ROUTE_HEADER | IpNumber::IPV6_DESTINATION_OPTIONS => {
                let (extension, inner) = Ipv6RawExtHeader::from_slice(rest).map_err(header("IPv6 extension"))?;
                extensions.push(Extension { kind: next.0, data: extension.payload().to_vec() });
                (next, rest) = (extension.next_header, inner);
            }
            IpNumber::AUTHENTICATION_HEADER => {
                let (authentication, inner) = IpAuthHeader::from_slice(rest).map_err(header("IPv6 authentication"))?;
                let data = authentication.to_bytes()[2..].to_vec();
                extensions.push(Extension { kind: next.0, data });
                (next, rest) = (authentication.next_header, inner);
            }
            IpNumber::IPV6_FRAGMENTATION_HEADER => {
                let (part, inner) = Ipv6FragmentHeader::from_slice(rest).map_err(header("IPv6 fragment"))?;
                fragment = Some(Fragment { offset: part.fragment_offset.value(), more: part.more_fragments });
                identification = part.identification;
                (next, rest) = (part.next_header, inner);
            }
            _ => break,
        }
    }
    Ok(Packet {
        ttl: ip.hop_limit,
        traffic_class: ip.traffic_class,
        identification: u16::try_from(identification).unwrap_or(u16::MAX),
        flow_label: ip.flow_label.value(),
        extensions,
        fragment,
        ..Packet::new(source, destination, transport(source, destination, next, rest, fragment)?)
    })
}

fn transport(
    source: IpAddr,
    destination: IpAddr,
    protocol: IpNumber,
    bytes: &[u8],
    fragment: Option<Fragment>,
) -> Result<Transport, DecodeError> {
    let verify = |layer, found| match sum(source, destination, protocol.0, bytes) {
        0 => Ok(()),
        _ => Err(DecodeError::Checksum { layer, found }),
    };
    match protocol {
        // A part of a datagram has no checksum of its own.
        _ if fragment.is_some() => Ok(Transport::Other { protocol: protocol.0, bytes: bytes.to_vec() }),
        IpNumber::TCP => {
            let (tcp, payload) = TcpHeader::from_slice(bytes).map_err(header("TCP"))?;
            verify("TCP", tcp.checksum)?;
            Ok(Transport::Tcp { header: TcpHeader { checksum: 0, ..tcp }, payload: payload.to_vec() })
        }
        IpNumber::UDP => {
            let (udp, payload) = UdpHeader::from_slice(bytes).map_err(header("UDP"))?;
            length("UDP", udp.length.into(), bytes.len())?;
            if udp.checksum != 0 {
                verify("UDP", udp.checksum)?;
            }
            Ok(Transport::Udp {
                source_port: udp.source_port,
                destination_port: udp.destination_port,
                checksum: udp.checksum != 0,
                payload: payload.to_vec(),
            })
        }
        IpNumber::ICMP | IpNumber::IPV6_ICMP => {
            let Some((&[kind, code, a, b, ref rest @ ..], body)) = bytes.split_first_chunk::<8>() else {
                return Err(DecodeError::Length { layer: "ICMP", said: 8, there: bytes.len() });
            };
            verify("ICMP", u16::from_be_bytes([a, b]))?;
            Ok(Transport::Icmp { kind, code, rest: *rest, body: body.to_vec() })
        }
        IpNumber(protocol) => Ok(Transport::Other { protocol, bytes: bytes.to_vec() }),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn ends(v4: bool) -> [SocketAddr; 2] {
        if v4 {
            ["198.51.100.2:40000".parse().unwrap(), "10.96.0.1:80".parse().unwrap()]
        } else {
            ["[2001:db8::2]:40000".parse().unwrap(), "[fd00:96::1]:80".parse().unwrap()]
        }
    }

    /// Every kind of packet, with every optional part somewhere.
    fn samples() -> Vec<Packet> {
        let mut samples = Vec::new();
        for v4 in [true, false] {
            let [from, to] = ends(v4);
            let mut header = TcpHeader { sequence_number: 7, syn: true, ..TcpHeader::default() };
            header.set_options_raw(&[2, 4, 5, 180]).unwrap();
            let mut tcp = Packet { traffic_class: 0xb9, ..Packet::tcp(from, to, header, b"odd") };
            if v4 {
                tcp.options = vec![7, 7, 4, 0, 0, 0, 0, 0];
            } else {
                tcp.flow_label = 0xabcde;
                tcp.extensions = vec![
                    Extension { kind: 0, data: vec![1, 4, 0, 0, 0, 0] },
                    Extension { kind: 60, data: vec![1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] },
                ];
            }
            let udp = Packet { vlans: vec![100, 200], ..Packet::udp(from, to, b"12345") };
            let kind = if v4 { 3 } else { 1 };
            let icmp = Transport::Icmp { kind, code: 3, rest: [0; 4], body: b"quoted".to_vec() };
            let other = Transport::Other { protocol: 132, bytes: vec![1, 2, 3] };
            samples.extend([tcp, udp, Packet::new(from.ip(), to.ip(), icmp), Packet::new(from.ip(), to.ip(), other)]);
        }
        samples
    }

    #[test]
    fn a_built_frame_is_decoded_to_the_same_packet() {
        for sample in samples() {
            assert_eq!(decode(&sample.to_bytes()), Ok(sample));
        }
    }

    #[test]
    fn every_changed_bit_behind_the_link_header_is_noticed() {
        for sample in samples() {
            let frame = sample.to_bytes();
            for bit in 14 * 8..frame.len() * 8 {
                let mut changed = frame.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(decode(&changed), Ok(sample.clone()), "bit {bit} of {sample:?}");
            }
        }
    }

    #[test]
    fn a_wrong_checksum_is_an_error() {
        let [from, to] = ends(true);
        let mut frame = Packet::udp(from, to, b"abc").to_bytes();
        *frame.last_mut().unwrap() ^= 1;
        assert!(matches!(decode(&frame), Err(DecodeError::Checksum { layer: "UDP", .. })));
    }

    #[test]
    fn every_truncation_is_an_error() {
        for sample in samples() {
            let frame = sample.to_bytes();
            for length in 0..frame.len() {
                assert!(decode(&frame[..length]).is_err(), "{length} bytes of {sample:?}");
            }
        }
    }
}
