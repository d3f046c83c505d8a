//! What netlink tells of an interface's addresses.

use std::net::IpAddr;

use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope};

/// An address of an interface: its index, the address, and whether it is to last.
pub(super) type Carried = (u32, IpAddr, bool);

/// An address of global scope, but one that another machine has, too: the kernel sends nothing from there.
pub(super) fn carried(message: &AddressMessage) -> Option<Carried> {
    if message.header.scope != AddressScope::Universe || message.header.flags.contains(AddressHeaderFlags::Dadfailed) {
        return None;
    }
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(ip) => Some(*ip),
        _ => None,
    });
    // IPv6 has no separate local address.
    let ip = local.or_else(|| {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Address(ip) => Some(*ip),
            _ => None,
        })
    });
    Some((message.header.index, ip?, lasts(message.header.flags)))
}

/// Whether connections may count on an address: it is neither one that is changed every day for privacy (RFC 8981), which has the flag of IPv4's
/// secondary ones, nor on its way out, nor yet to be found free.
fn lasts(flags: AddressHeaderFlags) -> bool {
    let passes = AddressHeaderFlags::Secondary | AddressHeaderFlags::Deprecated | AddressHeaderFlags::Tentative;
    !flags.intersects(passes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(ip: &str, scope: AddressScope, flags: AddressHeaderFlags) -> Option<Carried> {
        let mut message = AddressMessage::default();
        (message.header.index, message.header.scope, message.header.flags) = (7, scope, flags);
        message.attributes = vec![AddressAttribute::Address(ip.parse().unwrap())];
        carried(&message)
    }

    #[test]
    fn addresses_that_pass_are_told_from_those_that_last() {
        let lasts = |flags| told("2001:db8::1", AddressScope::Universe, flags).map(|(.., lasts)| lasts);
        assert_eq!(lasts(AddressHeaderFlags::Permanent), Some(true));
        assert_eq!(lasts(AddressHeaderFlags::empty()), Some(true), "as routers name them");
        for passes in [AddressHeaderFlags::Secondary, AddressHeaderFlags::Deprecated, AddressHeaderFlags::Tentative] {
            assert_eq!(lasts(passes), Some(false), "{passes:?}");
        }
        assert_eq!(lasts(AddressHeaderFlags::Dadfailed | AddressHeaderFlags::Tentative), None, "somebody else's");
    }

    #[test]
    fn an_address_of_the_link_alone_is_none_of_the_nodes() {
        let told = |scope| told("2001:db8::1", scope, AddressHeaderFlags::Permanent);
        assert_eq!(told(AddressScope::Universe), Some((7, "2001:db8::1".parse().unwrap(), true)));
        assert_eq!((told(AddressScope::Link), told(AddressScope::Host)), (None, None));
    }
}
