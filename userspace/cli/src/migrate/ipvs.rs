//! kube-proxy's virtual servers of IPVS on this node, the device that carries their addresses, and its sets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::ifaddrs::getifaddrs;
use weir_migration::ipvs::{self, Connection, Marks, Servers, Sets};
use weir_migration::served::Served;

use super::node::read_if_there;
use super::rules::{run, write};
use crate::interfaces;

/// The kernel's own lists, of our network namespace.
const SERVERS: &str = "/proc/self/net/ip_vs";
const CONNECTIONS: &str = "/proc/self/net/ip_vs_conn";
/// Is there when the kernel knows sets.
const SETS_OF_KERNEL: &str = "/sys/module/ip_set";

const IPSET: &str = "ipset";
const IPVSADM: &str = "ipvsadm";

/// How long the kernel may hold sets after the rules that used them went, and between two tries.
const RELEASE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Ipvs {
    marks: Marks,
    /// kube-proxy's alone.
    servers: Servers,
    has_device: bool,
}

impl Ipvs {
    /// Reads it.
    pub(crate) fn read() -> Result<Self> {
        let mut addresses = addresses()?;
        let device = addresses.remove(ipvs::DEVICE);
        let has_device = device.is_some();
        let node = addresses.into_values().flatten().filter(|ip| !ip.is_loopback()).collect();
        let marks = Marks { device: device.unwrap_or_default(), node, sets: sets()? };
        let servers = match read_if_there(SERVERS)? {
            Some(text) => marks.own(ipvs::servers(&text)?),
            None => Servers::new(),
        };
        Ok(Self { marks, servers, has_device })
    }

    /// What kube-proxy serves by it.
    pub(super) fn served(&self) -> Served {
        self.marks.served(&self.servers)
    }

    /// Whether there is any of it, but sets that rules of others use.
    pub(super) fn is_there(&self, used: &BTreeSet<&str>) -> bool {
        !self.servers.is_empty() || self.has_device || self.own_sets(used).next().is_some()
    }

    /// How many virtual servers there are, whether the device is there, how many sets.
    pub(crate) fn counts(&self) -> (usize, bool, usize) {
        (self.servers.len(), self.has_device, self.own_sets(&BTreeSet::new()).count())
    }

    /// Connections that it carries.
    pub(super) fn carried(&self) -> Result<Vec<Connection>> {
        match read_if_there(CONNECTIONS)?.filter(|_| !self.servers.is_empty()) {
            Some(text) => Ok(ipvs::carried(&text, &self.servers, &self.marks)?),
            None => Ok(Vec::new()),
        }
    }

    fn own_sets(&self, used: &BTreeSet<&str>) -> impl Iterator<Item = &str> {
        let names = self.marks.sets.iter().flat_map(Sets::names);
        names.map(String::as_str).filter(|name| !used.contains(name))
    }

    /// Removes virtual servers, then the device: its addresses tell which servers are kube-proxy's.
    pub(super) fn remove_servers(&self) -> Result<()> {
        if self.marks.sets.is_none() {
            bail!("{IPSET} is not installed, without which kube-proxy's sets cannot be told and removed: install it");
        }
        if !self.servers.is_empty() {
            write(IPVSADM, &["--restore"], &ipvs::removal(&self.servers))?;
        }
        if self.has_device { interfaces::delete(ipvs::DEVICE) } else { Ok(()) }
    }

    /// Removes the sets that no rule uses any more. The kernel lets go of them a little later than of the rules.
    pub(super) fn remove_sets(&self, used: &BTreeSet<&str>) -> Result<()> {
        let start = Instant::now();
        for name in self.own_sets(used) {
            while let Err(error) = run(IPSET, &["destroy", name], None) {
                if !error.to_string().contains("in use") || start.elapsed() >= RELEASE {
                    return Err(error);
                }
                sleep(PAUSE);
            }
        }
        Ok(())
    }
}

/// kube-proxy's sets; `None` if the kernel may have some, and there is no program to list them.
fn sets() -> Result<Option<Sets>> {
    if !Path::new(SETS_OF_KERNEL).exists() {
        return Ok(Some(Sets::default()));
    }
    Ok(run(IPSET, &["save"], None)?.map(|text| Sets::parse(&text)))
}

/// Addresses by interface. Those without an address are there, too: each has one of its link.
fn addresses() -> Result<BTreeMap<String, BTreeSet<IpAddr>>> {
    let mut found: BTreeMap<String, BTreeSet<IpAddr>> = BTreeMap::new();
    for one in getifaddrs().context("cannot list the node's addresses")? {
        let Some(address) = one.address else { continue };
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        let v6 = address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip()));
        found.entry(one.interface_name).or_default().extend(v4.or(v6));
    }
    Ok(found)
}
