//! Keys of `source_ranges`, as the kernel has them and back.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use weir_abi as abi;
use weir_core::ops::SourceRange;

/// Bits in front of a client's address in a key of `source_ranges`: those of the service.
const SERVICE_BITS: u32 = 32;
/// Bits in front of an IPv4 address in a v4-mapped one.
const MAPPED_BITS: u32 = 96;

/// The key of `source_ranges`. Host bits are left out.
pub(crate) fn key(range: &SourceRange) -> abi::SourceRangeKey {
    let mapped = if range.net.addr().is_ipv4() { MAPPED_BITS } else { 0 };
    abi::SourceRangeKey {
        prefixlen: SERVICE_BITS + mapped + u32::from(range.net.prefix_len()),
        service: range.service,
        client: range.net.network().into(),
    }
}

/// The range of a key of `source_ranges`; `None` of one that no agent writes. v4-mapped networks are ones of IPv4.
pub(crate) fn range(key: &abi::SourceRangeKey) -> Option<SourceRange> {
    let bits = key.prefixlen.checked_sub(SERVICE_BITS)?;
    let (address, bits) = match (key.client.ip(), bits.checked_sub(MAPPED_BITS)) {
        (address @ IpAddr::V4(_), Some(bits)) => (address, bits),
        (IpAddr::V4(_) | IpAddr::V6(_), _) => (Ipv6Addr::from(key.client.octets()).into(), bits),
    };
    let net = IpNet::new(address, u8::try_from(bits).ok()?).ok()?;
    Some(SourceRange { service: key.service, net })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_source_range_comes_back_from_its_key() {
        for (net, prefixlen) in [
            ("0.0.0.0/0", 128),
            ("192.0.2.0/24", 152),
            ("192.0.2.1/32", 160),
            ("::/0", 32),
            ("2001:db8::/33", 65),
            ("2001:db8::1/128", 160),
        ] {
            let given = SourceRange { service: 7, net: net.parse().unwrap() };
            let key = key(&given);
            assert_eq!((key.prefixlen, key.service), (prefixlen, 7), "{net}");
            assert_eq!(range(&key), Some(given), "{net}");
        }
    }

    #[test]
    fn the_host_bits_of_a_range_do_not_reach_the_kernel() {
        let net = "192.0.2.129/24".parse().unwrap();
        assert_eq!(key(&SourceRange { service: 1, net }).client.ip(), Ipv4Addr::new(192, 0, 2, 0));
    }

    #[test]
    fn a_key_that_covers_no_whole_service_is_no_range() {
        let key = key(&SourceRange { service: 1, net: "::/0".parse().unwrap() });
        assert_eq!(range(&abi::SourceRangeKey { prefixlen: 31, ..key }), None);
        assert_eq!(range(&abi::SourceRangeKey { prefixlen: 161, ..key }), None);
    }
}
