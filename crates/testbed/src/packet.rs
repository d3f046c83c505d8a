//! Frames as values: built with right checksums, and decoded with every checksum verified.
//!
//! A [`Packet`] has no derived fields (lengths, checksums, next protocols), so a test says what it expects by changing
//! the packet that it sent and comparing. Its only I/O is bytes.

mod decode;

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use etherparse::checksum::Sum16BitWords;
use etherparse::{
    EtherType, Ethernet2Header, IpFragOffset, IpNumber, Ipv4Header, Ipv4Options, Ipv6FlowLabel, Ipv6FragmentHeader,
    Ipv6Header, Ipv6RawExtHeader, TcpHeader, UdpHeader,
};

pub use decode::{DecodeError, decode};

/// A MAC address.
#[derive(Clone, Copy, Default, Eq, PartialEq)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An Ethernet frame with an IP packet in it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Packet {
    /// Source MAC address.
    pub source_mac: Mac,
    /// Destination MAC address.
    pub destination_mac: Mac,
    /// Control information of the VLAN tags (priority and id), outermost first.
    pub vlans: Vec<u16>,
    /// Source address.
    pub source: IpAddr,
    /// Destination address; of the same family as the source.
    pub destination: IpAddr,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Type of service, or traffic class.
    pub traffic_class: u8,
    /// IPv4: identification.
    pub identification: u16,
    /// IPv4: do not fragment.
    pub dont_fragment: bool,
    /// IPv4: options, a multiple of four bytes and at most 40.
    pub options: Vec<u8>,
    /// IPv6: flow label, 20 bits.
    pub flow_label: u32,
    /// IPv6: extension headers in front of the transport header.
    pub extensions: Vec<Extension>,
    /// Set if the packet is a fragment. It is built with the transport header nevertheless, and decoded as bytes.
    pub fragment: Option<Fragment>,
    /// What is in the packet.
    pub transport: Transport,
}

/// An IPv6 extension header.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Extension {
    /// Its protocol number: 0 hop-by-hop options, 43 routing, 51 authentication, 60 destination options.
    pub kind: u8,
    /// What follows its length byte: 6 bytes, or 8 for each unit more; of authentication 10, or 4 for each word more.
    pub data: Vec<u8>,
}

/// The protocol number of the authentication header.
pub const AUTHENTICATION: u8 = 51;

impl Extension {
    /// With the protocol number of what follows.
    fn to_bytes(&self, next: IpNumber) -> Vec<u8> {
        if self.kind == AUTHENTICATION {
            // RFC 4302, 2.2: in words, less two.
            let words =
                u8::try_from((self.data.len() + 2) / 4 - 2).expect("an authentication header has less than 1032 bytes");
            return [&[next.0, words][..], &self.data].concat();
        }
        Ipv6RawExtHeader::new_raw(next, &self.data).expect("6 bytes and a multiple of 8").to_bytes().to_vec()
    }
}

/// Which part of a datagram a fragment is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Fragment {
    /// Offset in units of 8 bytes.
    pub offset: u16,
    /// Whether more fragments follow.
    pub more: bool,
}

/// What an IP packet carries.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Transport {
    /// TCP.
    Tcp {
        /// The header; its checksum is derived, and zero in decoded packets.
        header: TcpHeader,
        /// The data.
        payload: Vec<u8>,
    },
    /// UDP.
    Udp {
        /// Source port.
        source_port: u16,
        /// Destination port.
        destination_port: u16,
        /// Whether there is a checksum; without one the field is zero.
        checksum: bool,
        /// The data.
        payload: Vec<u8>,
    },
    /// ICMP of the packet's family.
    Icmp {
        /// Type.
        kind: u8,
        /// Code.
        code: u8,
        /// The four bytes that depend on the type.
        rest: [u8; 4],
        /// What follows the header; of an error the quoted packet.
        body: Vec<u8>,
    },
    /// Anything else, and fragments.
    Other {
        /// IP protocol number.
        protocol: u8,
        /// All bytes behind the IP header.
        bytes: Vec<u8>,
    },
}

impl Packet {
    /// A packet between two addresses of one family, with usual values everywhere else.
    #[must_use]
    pub fn new(source: IpAddr, destination: IpAddr, transport: Transport) -> Self {
        Self {
            source_mac: Mac([2, 0, 0, 0, 0, 1]),
            destination_mac: Mac([2, 0, 0, 0, 0, 2]),
            vlans: Vec::new(),
            source,
            destination,
            ttl: 64,
            traffic_class: 0,
            identification: if source.is_ipv4() { 0x1234 } else { 0 },
            dont_fragment: source.is_ipv4(),
            options: Vec::new(),
            flow_label: 0,
            extensions: Vec::new(),
            fragment: None,
            transport,
        }
    }

    /// A TCP packet.
    #[must_use]
    pub fn tcp(source: SocketAddr, destination: SocketAddr, header: TcpHeader, payload: &[u8]) -> Self {
        let header = TcpHeader { source_port: source.port(), destination_port: destination.port(), ..header };
        Self::new(source.ip(), destination.ip(), Transport::Tcp { header, payload: payload.to_vec() })
    }

    /// A UDP packet with a checksum.
    #[must_use]
    pub fn udp(source: SocketAddr, destination: SocketAddr, payload: &[u8]) -> Self {
        let (source_port, destination_port) = (source.port(), destination.port());
        let transport = Transport::Udp { source_port, destination_port, checksum: true, payload: payload.to_vec() };
        Self::new(source.ip(), destination.ip(), transport)
    }

    /// The same packet from another address and port.
    #[must_use]
    pub fn with_source(mut self, source: SocketAddr) -> Self {
        self.source = source.ip();
        match &mut self.transport {
            Transport::Tcp { header, .. } => header.source_port = source.port(),
            Transport::Udp { source_port, .. } => *source_port = source.port(),
            Transport::Icmp { .. } | Transport::Other { .. } => {}
        }
        self
    }

    /// The same packet to another address and port.
    #[must_use]
    pub fn with_destination(mut self, destination: SocketAddr) -> Self {
        self.destination = destination.ip();
        match &mut self.transport {
            Transport::Tcp { header, .. } => header.destination_port = destination.port(),
            Transport::Udp { destination_port, .. } => *destination_port = destination.port(),
            Transport::Icmp { .. } | Transport::Other { .. } => {}
        }
        self
    }

    /// Source address and port; port 0 without ports.
    #[must_use]
    pub fn source_socket(&self) -> SocketAddr {
        SocketAddr::new(self.source, self.transport.ports().0)
    }

    /// Destination address and port; port 0 without ports.
    #[must_use]
    pub fn destination_socket(&self) -> SocketAddr {
        SocketAddr::new(self.destination, self.transport.ports().1)
    }

    /// The frame, with lengths and checksums filled in.
    ///
    /// # Panics
    /// For what no frame can express: mixed families, odd options, too long parts.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut frame = self.link_header();
        frame.extend(self.ip_bytes());
        frame
    }

    /// The IP packet without the link header.
    ///
    /// # Panics
    /// As [`Packet::to_bytes`].
    #[must_use]
    pub fn ip_bytes(&self) -> Vec<u8> {
        let transport = self.transport.to_bytes(self.source, self.destination);
        let mut bytes = match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                self.ipv4_header(source.octets(), destination.octets(), transport.len())
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                self.ipv6_headers(source.octets(), destination.octets(), transport.len())
            }
            (source, destination) => panic!("{source} and {destination} are of different families"),
        };
        bytes.extend(transport);
        bytes
    }

    /// The pieces that its sender or a router makes of it, each with `size` bytes behind the headers, the last one with the rest.
    /// Extension headers are in all of them.
    ///
    /// # Panics
    /// When `size` is no multiple of eight, and as [`Packet::to_bytes`].
    #[must_use]
    pub fn cut(&self, size: usize) -> Vec<Self> {
        assert!(size > 0 && size.is_multiple_of(8), "pieces are counted in units of eight bytes");
        let bytes = self.transport.to_bytes(self.source, self.destination);
        let protocol = self.transport.protocol(self.source.is_ipv4());
        let last = bytes.len().div_ceil(size) - 1;
        let piece = |(number, bytes): (usize, &[u8])| {
            let offset = u16::try_from(number * size / 8).expect("an IP packet has less than 64 KiB");
            let transport = Transport::Other { protocol, bytes: bytes.to_vec() };
            Self { fragment: Some(Fragment { offset, more: number < last }), transport, ..self.clone() }
        };
        bytes.chunks(size).enumerate().map(piece).collect()
    }

    fn link_header(&self) -> Vec<u8> {
        let inner = if self.source.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
        let tag = |index| if index == 0 && self.vlans.len() > 1 { EtherType(0x88a8) } else { EtherType(0x8100) };
        let mut types: Vec<_> = (0..self.vlans.len()).map(tag).collect();
        types.push(inner);
        let ethernet =
            Ethernet2Header { source: self.source_mac.0, destination: self.destination_mac.0, ether_type: types[0] };
        let mut bytes = ethernet.to_bytes().to_vec();
        for (tag, ether_type) in self.vlans.iter().zip(&types[1..]) {
            bytes.extend(tag.to_be_bytes());
            bytes.extend(ether_type.0.to_be_bytes());
        }
        bytes
    }

    fn ipv4_header(&self, source: [u8; 4], destination: [u8; 4], payload: usize) -> Vec<u8> {
        let fragment = self.fragment.unwrap_or(Fragment { offset: 0, more: false });
        let length = 20 + self.options.len() + payload;
        let mut header = Ipv4Header {
            total_len: length.try_into().expect("an IPv4 packet has less than 64 KiB"),
            identification: self.identification,
            dont_fragment: self.dont_fragment,
            more_fragments: fragment.more,
            fragment_offset: IpFragOffset::try_new(fragment.offset).expect("an offset has 13 bits"),
            time_to_live: self.ttl,
            protocol: IpNumber(self.transport.protocol(true)),
            source,
            destination,
            options: Ipv4Options::try_from(self.options.as_slice()).expect("options are whole words, at most ten"),
            ..Ipv4Header::default()
        };
        header.dscp = (self.traffic_class >> 2).try_into().expect("six bits");
        header.ecn = (self.traffic_class & 3).try_into().expect("two bits");
        header.header_checksum = header.calc_header_checksum();
        header.to_bytes().to_vec()
    }

    fn ipv6_headers(&self, source: [u8; 16], destination: [u8; 16], payload: usize) -> Vec<u8> {
        let mut kinds: Vec<_> = self.extensions.iter().map(|extension| IpNumber(extension.kind)).collect();
        kinds.extend(self.fragment.map(|_| IpNumber::IPV6_FRAGMENTATION_HEADER));
        kinds.push(IpNumber(self.transport.protocol(false)));
        let mut extensions = Vec::new();
        for (extension, next) in self.extensions.iter().zip(&kinds[1..]) {
            extensions.extend(extension.to_bytes(*next));
        }
        if let Some(Fragment { offset, more }) = self.fragment {
            let offset = IpFragOffset::try_new(offset).expect("an offset has 13 bits");
            let header = Ipv6FragmentHeader::new(kinds[kinds.len() - 1], offset, more, u32::from(self.identification));
            extensions.extend(header.to_bytes());
        }
        let header = Ipv6Header {
            traffic_class: self.traffic_class,
            flow_label: Ipv6FlowLabel::try_new(self.flow_label).expect("a flow label has 20 bits"),
            payload_length: (extensions.len() + payload).try_into().expect("an IPv6 payload has less than 64 KiB"),
            next_header: kinds[0],
            hop_limit: self.ttl,
            source,
            destination,
        };
        [header.to_bytes().as_slice(), &extensions].concat()
    }
}

impl Transport {
    /// The IP protocol number.
    #[must_use]
    pub const fn protocol(&self, v4: bool) -> u8 {
        match self {
            Self::Tcp { .. } => 6,
            Self::Udp { .. } => 17,
            Self::Icmp { .. } => {
                if v4 {
                    1
                } else {
                    58
                }
            }
            Self::Other { protocol, .. } => *protocol,
        }
    }

    const fn ports(&self) -> (u16, u16) {
        match self {
            Self::Tcp { header, .. } => (header.source_port, header.destination_port),
            Self::Udp { source_port, destination_port, .. } => (*source_port, *destination_port),
            Self::Icmp { .. } | Self::Other { .. } => (0, 0),
        }
    }

    fn to_bytes(&self, source: IpAddr, destination: IpAddr) -> Vec<u8> {
        let v4 = source.is_ipv4();
        let (mut bytes, checksum_at) = match self {
            Self::Tcp { header, payload } => {
                let header = TcpHeader { checksum: 0, ..header.clone() };
                ([header.to_bytes().as_slice(), payload].concat(), Some(16))
            }
            Self::Udp { source_port, destination_port, checksum, payload } => {
                let length = (8 + payload.len()).try_into().expect("a datagram has less than 64 KiB");
                let (source_port, destination_port) = (*source_port, *destination_port);
                let header = UdpHeader { source_port, destination_port, length, checksum: 0 };
                ([header.to_bytes().as_slice(), payload].concat(), checksum.then_some(6))
            }
            Self::Icmp { kind, code, rest, body } => ([&[*kind, *code, 0, 0], rest.as_slice(), body].concat(), Some(2)),
            Self::Other { bytes, .. } => (bytes.clone(), None),
        };
        if let Some(at) = checksum_at {
            let check = sum(source, destination, self.protocol(v4), &bytes);
            // Zero in UDP means that there is none.
            let check = if check == 0 && matches!(self, Self::Udp { .. }) { u16::MAX } else { check };
            bytes[at..at + 2].copy_from_slice(&check.to_ne_bytes());
        }
        bytes
    }
}

/// The checksum, in the byte order of the frame, over the transport's bytes and the pseudo header (ICMP of IPv4 has none).
/// Zero over bytes that contain the right checksum.
fn sum(source: IpAddr, destination: IpAddr, protocol: u8, bytes: &[u8]) -> u16 {
    let mut words = Sum16BitWords::new().add_slice(bytes);
    let is_icmp4 = source.is_ipv4() && protocol == IpNumber::ICMP.0;
    if !is_icmp4 {
        for ip in [source, destination] {
            words = match ip {
                IpAddr::V4(v4) => words.add_slice(&v4.octets()),
                IpAddr::V6(v6) => words.add_slice(&v6.octets()),
            };
        }
        let length = u32::try_from(bytes.len()).expect("a packet has less than 64 KiB");
        words = words.add_2bytes([0, protocol]).add_slice(&length.to_be_bytes());
    }
    words.ones_complement()
}
