//! Gathers the facts. What cannot be found out is left open, and never a verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use weir_abi as abi;
use weir_core::ops::Dump;
use weir_datapath::{
    Attached, Error, PinDir, View, attached_programs, check_programs, missing_capabilities, program_name, size_option,
};

use super::fix::Site;
use super::mesh::AgentFacts;
use super::network::NetworkFacts;
use super::node::NodeFacts;
use super::proxies::{Foreign, Hidden, ProxyFacts, is_ours, others};
use super::tables::{Fill, MapFacts, TableFacts};
use crate::agent;
use crate::interfaces::{self, Interface};
use crate::leftovers::Leftovers;
use crate::links::parse;
use crate::mount::{MOUNTS, mounted_cgroup2};
use crate::time::Now;

/// Settings of the kernel that verdicts look at.
const SYSCTLS: [&str; 6] = [
    "net.ipv4.ip_forward",
    "net.ipv6.conf.all.forwarding",
    "net.core.bpf_jit_enable",
    "kernel.unprivileged_bpf_disabled",
    "net.netfilter.nf_conntrack_count",
    "net.netfilter.nf_conntrack_max",
];

/// All of them.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) node: NodeFacts,
    pub(crate) proxies: ProxyFacts,
    pub(crate) network: NetworkFacts,
    pub(crate) tables: TableFacts,
    pub(crate) agent: AgentFacts,
}

impl Facts {
    /// Looks around. With `load` the kernel is given the programs to judge.
    pub(crate) fn gather(pins: &PinDir, socket: &Path, site: &Site, load: bool) -> Result<Self> {
        let interfaces = interfaces::list()?;
        let links = pins.link_names().unwrap_or_default();
        let view = match View::open(pins.clone()) {
            Ok(view) => Some(Ok(view)),
            Err(Error::NotSetUp { .. }) => None,
            Err(error) => Some(Err(error.to_string())),
        };
        let opened = view.as_ref().and_then(|view| view.as_ref().ok());
        let config = opened.and_then(|view| view.config().ok());
        let (foreign, hidden) = foreign(&interfaces, &links);
        let dump = opened.and_then(|view| view.dump().ok()).unwrap_or_default();
        Ok(Self {
            node: node(pins, load),
            proxies: ProxyFacts {
                leftovers: Leftovers::find(),
                foreign,
                hidden,
                in_pod: site.is_pod(),
                beside: config.is_some_and(|config| config.flags & abi::CONFIG_BESIDE != 0),
            },
            network: NetworkFacts {
                reverse_path: reverse_path(&interfaces),
                not_forwarding: not_forwarding(&interfaces, has_v6()),
                interfaces,
                links: links.clone(),
            },
            tables: TableFacts {
                pin_dir: pins.root().to_owned(),
                ours: abi::ABI_VERSION,
                maps: view.map(|view| view.and_then(|view| maps(&view, &dump).map_err(|error| error.to_string()))),
                others: other_versions(pins),
                links: links.len(),
                local_ports: sysctl("net.ipv4.ip_local_port_range"),
            },
            agent: AgentFacts {
                agent: agent::ask(socket)?,
                weights: agent::weights(socket, None).ok(),
                configuration: agent::configuration(socket).ok(),
                frontends: dump.frontends.iter().map(|(key, _)| key.address).collect::<BTreeSet<_>>(),
            },
        })
    }
}

fn node(pins: &PinDir, load: bool) -> NodeFacts {
    let missing_capabilities = missing_capabilities();
    // Without the rights the answer would be about those.
    let programs =
        (load && missing_capabilities.is_empty()).then(|| check_programs().map_err(|error| error.to_string()));
    let sysctls = SYSCTLS.into_iter().filter_map(|name| Some((name.to_owned(), sysctl(name)?)));
    NodeFacts {
        release: sysctl("kernel.osrelease").unwrap_or_default().trim().to_owned(),
        btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
        programs,
        missing_capabilities,
        pin_dir: pins.root().to_owned(),
        bpffs: is_on_bpffs(pins.root()),
        cgroup2: fs::read_to_string(MOUNTS).ok().and_then(|mounts| mounted_cgroup2(&mounts)),
        sysctls: sysctls.collect(),
        v6: has_v6(),
        synchronised: synchronised(),
    }
}

/// A setting of the kernel by its name with dots; of an interface whose own name has dots by [`reverse_path`] alone.
fn sysctl(name: &str) -> Option<String> {
    fs::read_to_string(Path::new("/proc/sys").join(name.replace('.', "/"))).ok()
}

/// The directory, or what it would be made in.
fn is_on_bpffs(dir: &Path) -> bool {
    let existing = dir.ancestors().find(|dir| dir.is_dir());
    existing.and_then(|dir| statfs(dir).ok()).is_some_and(|found| found.filesystem_type() == BPF_FS_MAGIC)
}

/// Whether an interface has a global address of IPv6: its scope, the fourth column, is 00.
fn has_v6() -> bool {
    let addresses = fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    addresses.lines().any(|line| line.split_whitespace().nth(3) == Some("00"))
}

/// As the kernel says, who learns it from whoever sets the clock (adjtimex(2)).
fn synchronised() -> Option<bool> {
    // SAFETY: timex is plain integers; all zeroes asks and sets nothing.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes into timex, which lives as long as the call.
    let state = unsafe { libc::adjtimex(&raw mut timex) };
    (state >= 0).then_some(state != libc::TIME_ERROR && timex.status & libc::STA_UNSYNC == 0)
}

/// The greater of the interface's own value and of everybody's holds (Documentation/networking/ip-sysctl.rst).
fn reverse_path(interfaces: &[Interface]) -> BTreeMap<String, u64> {
    let read = |name: &str| -> Option<u64> {
        let path = Path::new("/proc/sys/net/ipv4/conf").join(name).join("rp_filter");
        fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    let all = read("all").unwrap_or_default();
    interfaces.iter().filter_map(|one| Some((one.name.clone(), read(&one.name)?.max(all)))).collect()
}

/// Interfaces that forward nothing of a family where others do; of IPv6 where the node has it.
fn not_forwarding(interfaces: &[Interface], v6: bool) -> Vec<(String, &'static str)> {
    let is = |family: &str, name: &str, value: &str| {
        let path = Path::new("/proc/sys/net").join(family).join("conf").join(name).join("forwarding");
        fs::read_to_string(path).is_ok_and(|found| found.trim() == value)
    };
    let families = ["ipv4"].into_iter().chain(v6.then_some("ipv6")).filter(|family| !is(family, "all", "0"));
    let off = |family| interfaces.iter().filter(move |one| is(family, &one.name, "0")).map(move |one| (one, family));
    families.flat_map(off).map(|(one, family)| (one.name.clone(), family)).collect()
}

/// Programs at our interfaces that are not ours; and why some cannot be listed.
fn foreign(interfaces: &[Interface], links: &[String]) -> (Vec<Foreign>, Option<Hidden>) {
    let linked: BTreeSet<u32> = links.iter().filter_map(|link| parse(link).1).collect();
    let (mut found, mut hidden) = (Vec::new(), None);
    let mut filters = interfaces::filters(interfaces).unwrap_or_else(|why| {
        hidden = Some(Hidden::Failed(format!("{why:#}")));
        BTreeMap::new()
    });
    for interface in interfaces {
        let filters = filters.remove(&interface.index).unwrap_or_default();
        let filtered = filters.ingress.iter().chain(&filters.egress).any(|name| is_ours(name));
        if !filtered && !linked.contains(&interface.index) {
            continue;
        }
        let tcx = attached_programs(&interface.name).unwrap_or_else(|why| {
            hidden = Some(why.into());
            Attached::default()
        });
        let xdp = interface.xdp.map(|(_, program)| program_name(program)).transpose().unwrap_or_else(|why| {
            hidden = Some(why.into());
            None
        });
        // Filters run behind what has links.
        let lists =
            [Vec::from_iter(xdp), [tcx.ingress, filters.ingress].concat(), [tcx.egress, filters.egress].concat()];
        found.extend(lists.iter().flat_map(|names| others(&interface.name, names)));
    }
    (found, hidden)
}

fn other_versions(pins: &PinDir) -> Vec<PathBuf> {
    let entries = fs::read_dir(pins.root()).into_iter().flatten().filter_map(Result::ok);
    let is_maps = |dir: &PathBuf| dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with("maps-v"));
    let mut others: Vec<_> =
        entries.map(|entry| entry.path()).filter(is_maps).filter(|dir| *dir != pins.maps()).collect();
    others.sort();
    others
}

fn maps(view: &View, dump: &Dump) -> Result<MapFacts> {
    let maps = view.counters().maps()?;
    let v4 = dump.frontends.iter().filter(|(key, _)| key.address.is_ipv4()).count();
    let backends = dump.backends.iter().filter(|(_, backend)| backend.flags & abi::BACKEND_USED != 0).count();
    let fill = [
        ("services", dump.services.len()),
        ("backends", backends),
        ("lines", dump.lines.len()),
        ("frontends4", v4),
        ("frontends6", dump.frontends.len() - v4),
        ("source_ranges", dump.source_ranges.len()),
        ("node_names", dump.node_names.len()),
    ];
    let fill = fill.into_iter().map(|(map, used)| {
        let max = maps.iter().find(|known| known.name == map).map_or(0, |known| known.max_entries);
        Fill { map, used, max, option: size_option(map) }
    });
    Ok(MapFacts {
        abi_version: view.config()?.abi_version,
        fill: fill.collect(),
        // Those that begin are a flood's to fill.
        flows: view
            .flow_uses(Now::read()?.tick())?
            .into_iter()
            .filter(|(table, _)| table.starts_with("flows"))
            .collect(),
        source_ports: view.source_ports()?,
    })
}
