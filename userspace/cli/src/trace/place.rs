//! Where a client's packets meet the programs: an interface, and the hooks there in their order.

use clap::ValueEnum;
use thiserror::Error;
use weir_datapath::Hook;

use crate::interfaces::{Interface, Way};
use crate::links::parse;

/// A hook, as people name it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum HookArg {
    /// XDP on the node's interface
    Xdp,
    /// tc, from outside into the node
    NicIn,
    /// tc, out of the node: answers of endpoints here
    NicOut,
    /// tc, from a pod
    PodIn,
    /// tc, to a pod: answers
    PodOut,
}

impl From<HookArg> for Hook {
    fn from(hook: HookArg) -> Self {
        match hook {
            HookArg::Xdp => Self::Xdp,
            HookArg::NicIn => Self::NicIn,
            HookArg::NicOut => Self::NicOut,
            HookArg::PodIn => Self::PodIn,
            HookArg::PodOut => Self::PodOut,
        }
    }
}

/// Why no place was found.
#[derive(Debug, Eq, Error, PartialEq)]
pub(crate) enum NoPlace {
    #[error("there is no interface {0} in this network namespace; see `ip link`")]
    NoInterface(String),
    #[error(
        "{0} is this node's own address: its processes' connections are translated by the socket hooks, which the kernel \
         cannot try out; `weir explain SERVICE` says where they go, --hook has the packet tried all the same"
    )]
    OwnAddress(String),
    #[error(
        "no program of Weir is attached where {0} would come from; say --interface and --hook, and see `weir status`"
    )]
    NoPrograms(String),
}

/// An interface and the hooks that a packet there passes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Place {
    pub(crate) interface: Interface,
    pub(crate) hooks: Vec<Hook>,
}

/// What is known before a place is chosen.
#[derive(Debug)]
pub(crate) struct Known<'a> {
    /// The client, for messages.
    pub(crate) client: &'a str,
    /// Where it is.
    pub(crate) way: Way,
    /// All interfaces.
    pub(crate) interfaces: &'a [Interface],
    /// Names of the pinned links.
    pub(crate) links: &'a [String],
}

impl Known<'_> {
    fn has(&self, hook: &str, index: u32) -> bool {
        self.links.iter().any(|link| parse(link) == (hook, Some(index)))
    }

    fn is_hooked(&self, interface: &&Interface) -> bool {
        self.has("pod_in", interface.index) || self.has("nic_in", interface.index)
    }

    /// The interface that leads to the client, a port of it, or the first one with a program for clients outside.
    fn interface(&self) -> Option<&Interface> {
        let Way::Behind(index) = self.way else { return self.first_outside() };
        let itself = self.interfaces.iter().find(|interface| interface.index == index);
        let port = || self.interfaces.iter().find(|one| one.master == Some(index) && self.is_hooked(one));
        itself.filter(|interface| self.is_hooked(interface)).or_else(port).or_else(|| self.first_outside())
    }

    fn first_outside(&self) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| self.has("nic_in", interface.index))
    }

    fn hooks_of(&self, interface: &Interface) -> Vec<Hook> {
        if self.has("pod_in", interface.index) {
            return vec![Hook::PodIn];
        }
        // tc filters of kernels before 6.6 are no links: XDP is one always.
        if self.has("xdp", interface.index) { vec![Hook::Xdp, Hook::NicIn] } else { vec![Hook::NicIn] }
    }
}

/// Chooses the place: what people said, and for the rest where the client's packets come from.
pub(crate) fn choose(known: &Known<'_>, interface: Option<&str>, hook: Option<Hook>) -> Result<Place, NoPlace> {
    if known.way == Way::Here && hook.is_none() && interface.is_none() {
        return Err(NoPlace::OwnAddress(known.client.to_owned()));
    }
    let found = match interface {
        Some(name) => {
            let named = known.interfaces.iter().find(|one| one.name == name);
            named.ok_or_else(|| NoPlace::NoInterface(name.to_owned()))?
        }
        None => known.interface().ok_or_else(|| NoPlace::NoPrograms(known.client.to_owned()))?,
    };
    let hooks = hook.map_or_else(|| known.hooks_of(found), |hook| vec![hook]);
    Ok(Place { interface: found.clone(), hooks })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interfaces() -> Vec<Interface> {
        let one =
            |index, name: &str, master| Interface { index, name: name.to_owned(), master, ..Interface::default() };
        vec![
            one(1, "lo", None),
            one(2, "eth0", None),
            one(3, "cni0", None),
            one(4, "veth1", Some(3)),
            one(5, "pod2", None),
        ]
    }

    fn chosen(way: Way, interface: Option<&str>, hook: Option<Hook>) -> Result<(String, Vec<Hook>), NoPlace> {
        let links =
            ["connect4", "nic_in-2", "nic_out-2", "xdp-2", "pod_in-4", "pod_out-4", "pod_in-5"].map(str::to_owned);
        let known = Known { client: "192.0.2.7", way, interfaces: &interfaces(), links: &links };
        choose(&known, interface, hook).map(|place| (place.interface.name, place.hooks))
    }

    fn place(name: &str, hooks: &[Hook]) -> Result<(String, Vec<Hook>), NoPlace> {
        Ok((name.to_owned(), hooks.to_vec()))
    }

    #[test]
    fn a_client_is_met_where_its_packets_come_from() {
        assert_eq!(chosen(Way::Behind(2), None, None), place("eth0", &[Hook::Xdp, Hook::NicIn]));
        assert_eq!(chosen(Way::Behind(5), None, None), place("pod2", &[Hook::PodIn]));
        assert_eq!(chosen(Way::Behind(3), None, None), place("veth1", &[Hook::PodIn]), "a port of the bridge");
        assert_eq!(chosen(Way::Nowhere, None, None), place("eth0", &[Hook::Xdp, Hook::NicIn]));
    }

    #[test]
    fn what_people_say_comes_first() {
        assert_eq!(chosen(Way::Behind(2), Some("pod2"), None), place("pod2", &[Hook::PodIn]));
        assert_eq!(chosen(Way::Behind(2), None, Some(Hook::NicOut)), place("eth0", &[Hook::NicOut]));
        assert_eq!(chosen(Way::Here, None, Some(Hook::NicIn)), place("eth0", &[Hook::NicIn]));
    }

    #[test]
    fn the_nodes_own_processes_pass_no_hook_that_can_be_tried() {
        assert_eq!(chosen(Way::Here, None, None), Err(NoPlace::OwnAddress("192.0.2.7".to_owned())));
        assert_eq!(chosen(Way::Nowhere, Some("eth7"), None), Err(NoPlace::NoInterface("eth7".to_owned())));
        let known = Known { client: "192.0.2.7", way: Way::Nowhere, interfaces: &interfaces(), links: &[] };
        assert_eq!(choose(&known, None, None), Err(NoPlace::NoPrograms("192.0.2.7".to_owned())));
    }
}
