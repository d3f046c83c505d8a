//! What the names of the pinned links say: which program is attached where.

use std::collections::BTreeMap;

use nix::net::if_::if_indextoname;

/// Programs of the socket hooks: attached all or not at all.
pub(crate) const SOCKET_PROGRAMS: usize = 8;

/// The links that are pinned.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Links {
    /// Names of interfaces by hook, sorted.
    pub(crate) interfaces: BTreeMap<String, Vec<String>>,
    /// Programs on a cgroup.
    pub(crate) socket: usize,
}

impl Links {
    /// Of the pins' names, with a way to name an interface.
    pub(crate) fn new(pins: &[String], interface: impl Fn(u32) -> String) -> Self {
        let mut links = Self::default();
        for pin in pins {
            match parse(pin) {
                (hook, Some(index)) => links.interfaces.entry(hook.to_owned()).or_default().push(interface(index)),
                (_, None) => links.socket += 1,
            }
        }
        links.interfaces.values_mut().for_each(|names| names.sort());
        links
    }

    /// `nic_in: eth0; xdp: eth0; socket: 8 programs`.
    pub(crate) fn summary(&self) -> String {
        let mut parts: Vec<_> =
            self.interfaces.iter().map(|(hook, names)| format!("{hook}: {}", names.join(","))).collect();
        if self.socket > 0 {
            parts.push(format!("socket: {} of {SOCKET_PROGRAMS} programs", self.socket));
        }
        parts.join("; ")
    }
}

/// Hook and interface of a link by its pin's name; links to a cgroup have no interface.
pub(crate) fn parse(pin: &str) -> (&str, Option<u32>) {
    match pin.rsplit_once('-').map(|(hook, index)| (hook, index.parse())) {
        Some((hook, Ok(index))) => (hook, Some(index)),
        Some((_, Err(_))) | None => (pin, None),
    }
}

/// Name of an interface of this network namespace; its number if it is of another one, or gone.
pub(crate) fn interface_name(index: u32) -> String {
    if_indextoname(index).map_or_else(|_| format!("#{index}"), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_told_by_hook_with_the_names_of_interfaces() {
        let pins = ["connect4", "connect6", "nic_in-3", "nic_in-2", "nic_out-2", "xdp-2"].map(str::to_owned);
        let links = Links::new(&pins, |index| format!("eth{index}"));
        assert_eq!(links.summary(), "nic_in: eth2,eth3; nic_out: eth2; xdp: eth2; socket: 2 of 8 programs");
    }
}
