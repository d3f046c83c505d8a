//! Programs on interfaces: attached where they are wanted, cleaned up after where they are not.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use anyhow::Result;
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use tracing::{debug, error, info, warn};
use weir_core::interfaces::{Attachment, Interface, LinkHeader, attachment, runs_xdp, stays, takes_redirects};
use weir_core::kernel_features::missing;
use weir_datapath::AttachOptions;

use super::{Settings, Writer};
use crate::host;

impl Writer {
    /// Attaches the socket hooks, or takes them away where they are not wanted.
    pub(super) fn attach_sockets(&mut self) -> Result<()> {
        match &self.settings.cgroup {
            Some(cgroup) => self.datapath.attach_cgroup(cgroup)?,
            None => self.datapath.detach_cgroup()?,
        }
        Ok(())
    }

    /// Attaches to interfaces that came, and cleans up after those that went. Not before the maps hold what is to be served: programs
    /// of another ABI version may be serving it there.
    pub(super) fn attach(&mut self) -> Result<()> {
        if self.interfaces.is_empty() || !(self.synced || self.adopted) {
            return Ok(());
        }
        let wanted = self.wanted()?;
        self.unattached.retain(|index, _| wanted.contains_key(index));
        if let Err(cause) = self.datapath.begin_switch() {
            error!(%cause, "flows are left behind in maps of the old size");
        }
        for (index, (name, kind)) in &wanted {
            if self.attached.get(index) == Some(&(name.clone(), *kind)) {
                continue;
            }
            let options = self.attach_options(*index);
            match self.datapath.attach_interface(*index, name, *kind, options) {
                Ok(()) => {
                    info!(interface = name, index, ?kind, "attached");
                    self.unattached.remove(index);
                    self.attached.insert(*index, (name.clone(), *kind));
                }
                // It went away meanwhile; the next listing will say so.
                Err(cause) if is_gone(*index, name) => debug!(interface = name, %cause, "not attached"),
                Err(cause) => {
                    let cause = cause.to_string();
                    if self.unattached.get(index) != Some(&cause) {
                        error!(interface = name, %cause, "not attached, its clients are not served; trying again");
                    }
                    self.unattached.insert(*index, cause);
                }
            }
        }
        self.detach_all_but(&wanted);
        self.update_shortcuts();
        if let Err(cause) = self.datapath.finish_switch() {
            error!(%cause, "flows were left behind in maps of the old size");
        }
        self.update_tunnels()?;
        if self.is_attached()
            && let Err(cause) = self.datapath.drop_others_former()
        {
            warn!(%cause, "programs that another ABI version has kept stay");
        }
        self.announce();
        let facts = host::kernel_facts(
            self.datapath.lacks_tcx(),
            self.settings.cgroup.is_some() || host::cgroup_root().is_some(),
            &self.families(),
        );
        self.complaints.lacking(&self.settings.plan.node, missing(&facts));
        self.publish();
        Ok(())
    }

    /// Whether our programs are wherever they are wanted.
    pub(super) fn is_attached(&self) -> bool {
        !self.attached.is_empty() && self.unattached.is_empty()
    }

    fn attach_options(&self, index: u32) -> AttachOptions {
        let Settings { attach, xdp_on_veth, .. } = self.settings;
        let Some(found) = self.interfaces.iter().find(|interface| interface.index == index) else {
            return AttachOptions { xdp: false, ..attach };
        };
        let driver = host::driver(&found.name);
        let queues = host::queues(&found.name);
        AttachOptions {
            xdp: attach.xdp && runs_xdp(found, driver.as_deref(), xdp_on_veth),
            headerless: found.header == LinkHeader::None,
            redirects: takes_redirects(found, driver.as_deref(), queues, host::cpus()),
            ..attach
        }
    }

    /// What to attach to, by index.
    fn wanted(&self) -> Result<BTreeMap<u32, (String, Attachment)>> {
        let node = self.node_addresses();
        // Clients of node ports at further addresses are behind the interfaces that carry those.
        let served = [node.as_slice(), &self.settings.plan.node_port_addresses].concat();
        // What an agent before has attached stays before the first sync, and gets the same programs on the same maps as all others: a client
        // may ask by one interface and be answered by another.
        let before = if self.synced { BTreeMap::new() } else { self.datapath.attachments()? };
        let decide = |i: &Interface| {
            let addresses = if leads_to_pods(i, &self.interfaces) { &node } else { &served };
            let patterns = &self.settings.patterns;
            let kind = before
                .get(&i.index)
                .copied()
                .or_else(|| stays(i, self.attached.get(&i.index)?.1, patterns))
                .or_else(|| attachment(i, addresses, patterns))?;
            Some((i.index, (i.name.clone(), kind)))
        };
        Ok(self.interfaces.iter().filter_map(decide).collect())
    }

    /// What is attached and not wanted is left alone before the first sync: who knows what is still to come.
    fn detach_all_but(&mut self, wanted: &BTreeMap<u32, (String, Attachment)>) {
        let present: BTreeSet<u32> = self.interfaces.iter().map(|interface| interface.index).collect();
        let pinned = self.datapath.attached_interfaces().unwrap_or_default();
        let known: BTreeSet<u32> = self.attached.keys().copied().chain(pinned).collect();
        // Of filters that an agent with other options has left there is no pin.
        let unsure =
            if self.synced && !mem::replace(&mut self.swept, true) { present.clone() } else { BTreeSet::new() };
        for index in &known | &unsure {
            if wanted.contains_key(&index) || (present.contains(&index) && !self.synced) {
                continue;
            }
            // Filters of an earlier agent are known by the interface's name alone.
            let listed = self.interfaces.iter().find(|interface| interface.index == index);
            let before = self.attached.remove(&index).map(|(name, _)| name);
            let name = listed.map(|interface| interface.name.clone()).or(before).unwrap_or_default();
            if known.contains(&index) {
                info!(interface = name, index, "detached");
            }
            if let Err(cause) = self.datapath.detach_interface(index, &name) {
                warn!(interface = name, %cause, "cannot clean up after the interface");
            }
        }
    }
}

/// Whether no interface has this index and this name any more.
fn is_gone(index: u32, name: &str) -> bool {
    match if_nametoindex(name) {
        Ok(now) => now != index,
        // Whoever cannot ask, for want of a file descriptor, does not know.
        Err(errno) => errno == Errno::ENODEV,
    }
}

/// The host's end of a pod's interface, the bridge of pods and a tunnel to other nodes' may carry an address that serves node ports,
/// but no client from outside comes this way.
fn leads_to_pods(interface: &Interface, all: &[Interface]) -> bool {
    let mut ports = all.iter().filter(|port| port.master == Some(interface.index));
    interface.peer_elsewhere
        || interface.is_tunnel()
        || (interface.kind == "bridge" && ports.all(|port| port.peer_elsewhere))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(index: u32, kind: &str, master: Option<u32>, peer_elsewhere: bool) -> Interface {
        Interface { index, kind: kind.to_owned(), master, peer_elsewhere, ..Interface::default() }
    }

    #[test]
    fn an_interface_is_gone_if_another_one_has_its_name_or_none() {
        // Of every namespace.
        assert_eq!(
            [(1, "lo"), (2, "lo"), (1, "no-such-one")].map(|(index, name)| is_gone(index, name)),
            [false, true, true]
        );
    }

    #[test]
    fn a_bridge_leads_to_pods_if_nothing_else_is_on_it() {
        let bridge = interface(1, "bridge", None, false);
        let (pod, nic) = (interface(2, "veth", Some(1), true), interface(3, "", Some(1), false));
        assert!(leads_to_pods(&bridge, std::slice::from_ref(&bridge)));
        assert!(leads_to_pods(&bridge, &[bridge.clone(), pod.clone()]));
        assert!(!leads_to_pods(&bridge, &[bridge.clone(), pod, nic]));
    }

    #[test]
    fn a_card_leads_outside_and_the_hosts_end_of_a_pod_to_the_pod() {
        let (pod, nic) = (interface(2, "veth", None, true), interface(3, "", None, false));
        assert_eq!([&pod, &nic].map(|i| leads_to_pods(i, &[pod.clone(), nic.clone()])), [true, false]);
    }
}
