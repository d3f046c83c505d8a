//! Flows of IPv4 and of IPv6 in one body: keys of both have the same ends, and tables of the same kinds.

use std::hash::Hash;
use std::mem::{align_of, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use weir_abi as abi;
use weir_core::ops::FrontendKey;

use crate::map::Pod;

/// Of a word of a key or a value.
pub(crate) const WORD: usize = size_of::<u32>();

/// Both ends of a packet, and with its protocol the flow that it is of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Client {
    /// Who sends it.
    pub from: SocketAddr,
    /// Where it goes.
    pub to: SocketAddr,
    /// IP protocol number.
    pub protocol: u8,
}

impl Client {
    /// Where it goes, as the control plane names it.
    pub(crate) fn frontend(&self) -> FrontendKey {
        FrontendKey { address: self.to.ip(), port: self.to.port(), protocol: self.protocol }
    }
}

/// A key of a table of flows or of their answers.
pub(crate) trait FlowKey: Pod + Eq + Hash {
    /// Tables of flows: of those that go on, and of those that begin.
    const FLOWS: [&'static str; 2];
    /// Tables of what answers must look like, in the same order.
    const REPLIES: [&'static str; 2];

    /// What tables of flows have for it.
    type Flow: Kept + AsRef<abi::Flow>;

    /// Of a packet of this family.
    fn of(packet: &Client) -> Self;

    /// The ends of its packets.
    fn ends(&self) -> Client;
}

impl FlowKey for abi::FlowKey4 {
    const FLOWS: [&'static str; 2] = ["flows4", "openings4"];
    const REPLIES: [&'static str; 2] = ["replies4", "awaited4"];

    type Flow = abi::Flow;

    fn of(packet: &Client) -> Self {
        let Client { from, to, protocol } = *packet;
        let address = |ip: IpAddr| abi::Addr::from(ip).word[3];
        let (src, dst) = (address(from.ip()), address(to.ip()));
        let (sport, dport) = (abi::Be16::new(from.port()), abi::Be16::new(to.port()));
        Self { src, dst, sport, dport, proto: protocol, pad: [0; 3] }
    }

    #[inline]
    fn ends(&self) -> Client {
        let end = |word: abi::Be32, port: abi::Be16| SocketAddr::new(Ipv4Addr::from(word.get()).into(), port.get());
        Client { from: end(self.src, self.sport), to: end(self.dst, self.dport), protocol: self.proto }
    }
}

impl FlowKey for abi::FlowKey6 {
    const FLOWS: [&'static str; 2] = ["flows6", "openings6"];
    const REPLIES: [&'static str; 2] = ["replies6", "awaited6"];

    type Flow = abi::Flow6;

    fn of(packet: &Client) -> Self {
        let Client { from, to, protocol } = *packet;
        let address = |ip: IpAddr| abi::Addr::from(ip).word;
        let (src, dst) = (address(from.ip()), address(to.ip()));
        let (sport, dport) = (abi::Be16::new(from.port()), abi::Be16::new(to.port()));
        Self { src, dst, sport, dport, proto: protocol, pad: [0; 3] }
    }

    #[inline]
    fn ends(&self) -> Client {
        let address = |word| Ipv6Addr::from(abi::Addr { word }.octets());
        let end = |word, port: abi::Be16| SocketAddr::new(address(word).into(), port.get());
        Client { from: end(self.src, self.sport), to: end(self.dst, self.dport), protocol: self.proto }
    }
}

/// The words of a key or a value.
pub(crate) fn words<T: Pod>(value: &T) -> &[u32] {
    const { assert!(size_of::<T>().is_multiple_of(WORD) && align_of::<T>() >= align_of::<u32>()) };
    // SAFETY: Pod types have no padding, and this one is made of whole words.
    unsafe { std::slice::from_raw_parts((&raw const *value).cast(), size_of::<T>() / WORD) }
}

/// What a table has for a key: a flow, or what its answers must look like.
pub(crate) trait Kept: Pod {
    /// Its tables, those of what begins behind the others.
    fn tables<K: FlowKey>() -> [&'static str; 2];

    /// Of `enum flow_flags`.
    fn flags(&mut self) -> &mut u16;

    /// Whether any of these flags is set.
    fn has(mut self, flags: u16) -> bool {
        *self.flags() & flags != 0
    }

    /// The same as the tables of those that go on have it.
    fn gone_on(mut self) -> Self {
        *self.flags() &= !(abi::FLOW_OPENING | abi::FLOW_SETTLED);
        self
    }
}

impl Kept for abi::Flow {
    fn tables<K: FlowKey>() -> [&'static str; 2] {
        K::FLOWS
    }

    fn flags(&mut self) -> &mut u16 {
        &mut self.flags
    }
}

impl Kept for abi::Flow6 {
    fn tables<K: FlowKey>() -> [&'static str; 2] {
        K::FLOWS
    }

    fn flags(&mut self) -> &mut u16 {
        &mut self.flow.flags
    }
}

impl Kept for abi::Reply {
    fn tables<K: FlowKey>() -> [&'static str; 2] {
        K::REPLIES
    }

    fn flags(&mut self) -> &mut u16 {
        &mut self.flags
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn a_packet_comes_back_from_the_key_of_its_flow() {
        let packet =
            |from: &str, to: &str| Client { from: from.parse().unwrap(), to: to.parse().unwrap(), protocol: 17 };
        let v4 = packet("192.0.2.1:4711", "198.51.100.2:53");
        let key = abi::FlowKey4::of(&v4);
        assert_eq!((key.src.get(), key.dport.get(), key.ends()), (0xc000_0201, 53, v4));
        let v6 = packet("[2001:db8::1]:4711", "[2001:db8::2]:53");
        let key = abi::FlowKey6::of(&v6);
        assert_eq!((key.src[0].get(), key.dst[3].get(), key.ends()), (0x2001_0db8, 2, v6));
    }
}
