//! Numbers in network byte order, and the address of either family.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Network;

/// A 16-bit number in network byte order (a port).
#[repr(transparent)]
#[derive(Clone, Copy, Default, Eq, Hash, PartialEq)]
pub struct Be16(u16);

impl Be16 {
    /// From the machine's byte order.
    #[must_use]
    pub const fn new(host: u16) -> Self {
        Self(host.to_be())
    }

    /// In the machine's byte order.
    #[must_use]
    pub const fn get(self) -> u16 {
        u16::from_be(self.0)
    }

    /// The word as it lies in memory, for hashing like the kernel does.
    #[must_use]
    pub const fn raw(self) -> u16 {
        self.0
    }
}

impl fmt::Debug for Be16 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.get(), f)
    }
}

/// A 32-bit number in network byte order (an IPv4 address or a quarter of an IPv6 one).
#[repr(transparent)]
#[derive(Clone, Copy, Default, Eq, Hash, PartialEq)]
pub struct Be32(u32);

impl Be32 {
    /// From the machine's byte order.
    #[must_use]
    pub const fn new(host: u32) -> Self {
        Self(host.to_be())
    }

    /// In the machine's byte order.
    #[must_use]
    pub const fn get(self) -> u32 {
        u32::from_be(self.0)
    }

    /// The word as it lies in memory, for hashing like the kernel does.
    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Be32 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.get())
    }
}

/// An address of either family; IPv4 is v4-mapped (`::ffff:a.b.c.d`), so `word[3]` holds it.
#[repr(C)]
#[derive(Clone, Copy, Default, Eq, Hash, PartialEq)]
pub struct Addr {
    /// The address in network byte order.
    pub word: [Be32; 4],
}

impl Addr {
    /// No address at all (`::`).
    pub const UNSET: Self = Self { word: [Be32::new(0); 4] };

    /// Whether this is the unset address.
    #[must_use]
    pub fn is_unset(self) -> bool {
        self == Self::UNSET
    }

    /// The address as the standard library has it; v4-mapped ones come back as IPv4.
    #[must_use]
    pub fn ip(self) -> IpAddr {
        Ipv6Addr::from(self.octets()).to_canonical()
    }

    /// The 16 bytes in network order.
    #[must_use]
    pub fn octets(self) -> [u8; 16] {
        let mut out = [0; 16];
        for (chunk, word) in out.chunks_exact_mut(4).zip(self.word) {
            chunk.copy_from_slice(&word.get().to_be_bytes());
        }
        out
    }
}

impl From<IpAddr> for Addr {
    fn from(ip: IpAddr) -> Self {
        let v6 = match ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let n = u128::from(v6).to_be_bytes();
        let mut word = [Be32::default(); 4];
        for (word, chunk) in word.iter_mut().zip(n.chunks_exact(4)) {
            *word = Be32::new(u32::from_be_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]));
        }
        Self { word }
    }
}

impl From<Ipv4Addr> for Addr {
    fn from(ip: Ipv4Addr) -> Self {
        IpAddr::V4(ip).into()
    }
}

impl From<Ipv6Addr> for Addr {
    fn from(ip: Ipv6Addr) -> Self {
        IpAddr::V6(ip).into()
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.ip(), f)
    }
}

/// Bits before the IPv4 address in an IPv6 one that holds it.
const MAPPED_BITS: u8 = 96;

impl Network {
    /// No network: it holds `::` alone, which nothing is sent to. So a packet that meets the configuration half written
    /// is in no network too many.
    pub const UNSET: Self = Self { addr: Addr::UNSET, mask: Addr { word: [Be32::new(u32::MAX); 4] } };

    /// The addresses that share the first `prefix` bits of `address`; at most 32 bits of an IPv4 address, 128 of an
    /// IPv6 one, of a higher number all.
    #[must_use]
    pub fn new(address: IpAddr, prefix: u8) -> Self {
        let bits = if address.is_ipv4() { MAPPED_BITS + prefix.min(32) } else { prefix.min(128) };
        let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
        let addr = u128::from_be_bytes(Addr::from(address).octets()) & mask;
        Self { addr: Ipv6Addr::from(addr).into(), mask: Ipv6Addr::from(mask).into() }
    }

    /// How many bits the addresses share, as Kubernetes writes it: of an IPv4 network without those that map it.
    #[must_use]
    pub fn prefix(self) -> u8 {
        let bits: u32 = self.mask.word.iter().map(|word| word.get().count_ones()).sum();
        // At most 128.
        let bits = u8::try_from(bits).unwrap_or(u8::MAX);
        if self.addr.ip().is_ipv4() { bits.saturating_sub(MAPPED_BITS) } else { bits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_survive_the_way_into_the_abi_and_back() {
        for text in ["10.96.0.1", "fd00:10:96::1", "0.0.0.1", "::1"] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(Addr::from(ip).ip(), ip);
        }
    }

    #[test]
    fn networks_of_both_families_survive_the_way_into_the_abi_and_back() {
        for (text, prefix, mask) in [
            ("10.96.0.0", 16, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:0"),
            ("0.0.0.0", 0, "ffff:ffff:ffff:ffff:ffff:ffff::"),
            ("10.96.0.10", 32, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("fd00:10:96::", 112, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:0"),
            ("::", 0, "::"),
            ("fd00::1", 128, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ] {
            let network = Network::new(text.parse().unwrap(), prefix);
            assert_eq!((network.addr.ip(), network.prefix()), (text.parse().unwrap(), prefix), "{text}/{prefix}");
            assert_eq!(Ipv6Addr::from(network.mask.octets()), mask.parse::<Ipv6Addr>().unwrap(), "{text}/{prefix}");
        }
    }

    #[test]
    fn a_network_has_no_bits_beyond_its_prefix_and_no_more_prefix_than_its_family() {
        assert_eq!(Network::new("10.96.3.7".parse().unwrap(), 16), Network::new("10.96.0.0".parse().unwrap(), 16));
        assert_eq!(Network::new("10.96.3.7".parse().unwrap(), 99).prefix(), 32);
    }

    #[test]
    fn network_byte_order_is_what_lies_in_memory() {
        assert_eq!(Be16::new(0x1234).raw().to_ne_bytes(), [0x12, 0x34]);
        assert_eq!(Be32::new(0x0a00_0001).raw().to_ne_bytes(), [10, 0, 0, 1]);
    }
}
