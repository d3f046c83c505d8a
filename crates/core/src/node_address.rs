//! Which of its addresses a node has connections to other nodes leave with. Open ones carry it, so that it is kept for as long as can be.

use std::net::IpAddr;

use weir_abi::Addr;

use crate::interfaces::Interface;
use crate::model::Family;

/// What the interfaces carry of a family: the address in use, wherever it is, or else the first one that leads out.
#[must_use]
pub fn carried(interfaces: &[Interface], family: Family, current: Addr) -> Option<IpAddr> {
    let all = interfaces.iter().flat_map(|interface| &interface.addresses);
    let out = interfaces.iter().filter(|interface| interface.default_route).flat_map(|interface| &interface.addresses);
    let is_current = |address: &&IpAddr| Addr::from(**address) == current;
    all.copied()
        .find(|address| is_current(&address))
        .or_else(|| out.copied().find(|address| Family::of(*address) == family))
}

/// The address of a family that connections are to leave with: the one in use for as long as the node has it, since open ones carry it, or the
/// first one. A node that has none for a moment keeps the one in use.
#[must_use]
pub fn source(node: &[IpAddr], family: Family, current: Addr) -> Addr {
    let known = node.iter().filter(|address| Family::of(**address) == family && !address.is_unspecified());
    let mut known = known.map(|address| Addr::from(*address)).peekable();
    let first = known.peek().copied().unwrap_or(current);
    known.find(|address| *address == current).unwrap_or(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses<const N: usize>(of: [&str; N]) -> [IpAddr; N] {
        of.map(|address| address.parse().unwrap())
    }

    #[test]
    fn open_connections_keep_the_nodes_address_for_as_long_as_it_has_that() {
        let [old, new, v6] = addresses(["192.0.2.1", "192.0.2.2", "2001:db8::1"]);
        let source = |node: &[IpAddr], current| source(node, Family::V4, current).ip();
        assert_eq!(source(&[old, new, v6], Addr::UNSET), old, "the first one");
        assert_eq!(source(&[new, old, v6], old.into()), old, "in whatever order they are named");
        assert_eq!(source(&[v6], old.into()), old, "also while there is none");
        assert_eq!(source(&[new, v6], old.into()), new, "it is gone");
    }

    #[test]
    fn where_nobody_names_an_address_the_one_in_use_counts_wherever_it_is_and_else_the_first_that_leads_out() {
        let [old, new, other] = addresses(["2001:db8::1", "2001:db8::2", "2001:db8::3"]);
        let interface = |addresses: &[IpAddr], default_route| Interface {
            addresses: addresses.to_vec(),
            default_route,
            ..Interface::default()
        };
        let all = [interface(&[other], false), interface(&[new, old], true)];
        assert_eq!(carried(&all, Family::V6, old.into()), Some(old));
        assert_eq!(carried(&all, Family::V6, other.into()), Some(other), "its default route is gone for a moment");
        assert_eq!(carried(&all, Family::V6, Addr::UNSET), Some(new));
        assert_eq!(carried(&all, Family::V4, Addr::UNSET), None);
    }
}
