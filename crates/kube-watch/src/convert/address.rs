//! Addresses and ranges as Kubernetes writes them.
//!
//! Old objects may hold numbers with leading zeros, which today's API server refuses. kube-proxy reads them as decimal
//! (`ParseIPSloppy`, `ParseCIDRSloppy`), so they mean the same here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Bits before the IPv4 address in an IPv6 one that holds it.
const MAPPED_BITS: u8 = 96;

/// Reads an address; IPv4 in the clothes of IPv6 becomes IPv4, as Go has it.
pub(super) fn parse_address(text: &str) -> Option<IpAddr> {
    as_written(text).map(|ip| ip.to_canonical())
}

/// Reads a range `ADDRESS/BITS`, and clears the bits of the address that are not part of it. A bare address is none.
pub(crate) fn parse_range(text: &str) -> Option<IpNet> {
    let (address, bits) = text.split_once('/')?;
    let range = IpNet::new(as_written(address)?, decimal(bits)?).ok()?.trunc();
    Some(match range {
        IpNet::V4(_) => range,
        IpNet::V6(v6) => unmapped(v6).map_or(range, IpNet::V4),
    })
}

/// The range of IPv4 addresses that a range of IPv6 ones stands for.
fn unmapped(range: Ipv6Net) -> Option<Ipv4Net> {
    let bits = range.prefix_len().checked_sub(MAPPED_BITS)?;
    Ipv4Net::new(range.network().to_ipv4_mapped()?, bits).ok()
}

fn as_written(text: &str) -> Option<IpAddr> {
    if let Ok(ip) = text.parse() {
        return Some(ip);
    }
    let Some((before, last)) = text.rsplit_once(':') else {
        return dotted(text).map(IpAddr::V4);
    };
    // The last part of an IPv6 address may be an IPv4 one.
    let v4 = dotted(last)?;
    format!("{before}:{v4}").parse::<Ipv6Addr>().ok().map(IpAddr::V6)
}

fn dotted(text: &str) -> Option<Ipv4Addr> {
    let mut parts = text.split('.').map(decimal);
    let octets = [parts.next()??, parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then(|| Ipv4Addr::from(octets))
}

/// Digits only: Rust's own parser takes a plus sign, too.
fn decimal(text: &str) -> Option<u8> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(value: Option<impl ToString>) -> String {
        value.map_or_else(|| "none".to_owned(), |value| value.to_string())
    }

    #[test]
    fn addresses_may_have_leading_zeros_which_are_decimal() {
        for (text, expected) in [
            ("10.0.0.1", "10.0.0.1"),
            ("010.000.010.08", "10.0.10.8"),
            ("::ffff:010.0.0.1", "10.0.0.1"),
            ("64:ff9b::010.0.0.1", "64:ff9b::a00:1"),
            ("fd00::0010", "fd00::10"),
            ("10.0.0", "none"),
            ("10.0.0.1.1", "none"),
            ("10.0.0.256", "none"),
            ("10.0.0.+1", "none"),
            ("10.0..1", "none"),
            ("", "none"),
        ] {
            assert_eq!(shown(parse_address(text)), expected, "{text}");
        }
    }

    #[test]
    fn ranges_lose_the_bits_of_a_host_and_the_clothes_of_ipv6() {
        for (text, expected) in [
            ("192.0.2.0/24", "192.0.2.0/24"),
            ("192.0.2.77/24", "192.0.2.0/24"),
            ("010.0.0.0/08", "10.0.0.0/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("2001:db8::1/32", "2001:db8::/32"),
            ("::ffff:192.0.2.77/120", "192.0.2.0/24"),
            ("::ffff:192.0.2.77/64", "::/64"),
        ] {
            assert_eq!(shown(parse_range(text)), expected, "{text}");
        }
    }

    #[test]
    fn a_range_needs_an_address_and_as_many_bits_as_fit() {
        for text in ["192.0.2.1", "192.0.2.0/33", "2001:db8::/129", "192.0.2.0/", "192.0.2.0/+8", "/24", "all", ""] {
            assert_eq!(parse_range(text), None, "{text}");
        }
    }
}
