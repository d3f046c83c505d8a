//! What is found on the node before a step: its rules, Weir's maps, processes and connections.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use weir_abi as abi;
use weir_core::model::Family;
use weir_core::stage::Stage;
use weir_datapath::{Error, FlowEntry, PinDir, View};
use weir_migration::compare::{Difference, hand_back, take_over};
use weir_migration::connections::going_on;
use weir_migration::ipvs::{At, Connection, by_server};
use weir_migration::plan::{Direction, Facts};
use weir_migration::served::{self, Ours};

use super::StageFile;
use super::rules::Rules;
use crate::time::Now;

/// Connections that the kernel tracks, of our network namespace.
const CONNTRACK: &str = "/proc/self/net/nf_conntrack";

/// What kube-proxy's process is called.
const KUBE_PROXY: &str = "kube-proxy";

/// A look at the node.
pub(super) struct Node {
    pub(super) facts: Facts,
    pub(super) rules: Rules,
}

/// What Weir's maps say.
#[derive(Default)]
struct Maps {
    /// `None`: nothing is pinned.
    view: Option<View>,
    beside: bool,
    ours: Ours,
    /// Addresses that serve node ports.
    node: BTreeSet<IpAddr>,
    open_flows: usize,
}

impl Node {
    pub(super) fn look(pins: &PinDir, file: &StageFile, direction: Direction) -> Result<Self> {
        let (rules, maps, stage) = (Rules::read()?, Maps::read(pins)?, file.read()?);
        let found = match direction {
            Direction::ToWeir => take_over(&rules.served, &maps.ours),
            Direction::ToKubeProxy => hand_back(&rules.served, &maps.ours),
        };
        let of_age = found.iter().filter(|difference| difference.is_of_age()).count();
        let mut differences: Vec<_> = found.iter().map(Difference::to_string).collect();
        if direction == Direction::ToKubeProxy {
            differences.extend(rules.unfinished().into_iter().map(unfinished));
        }
        let carried = maps.not_ours(rules.ipvs.carried()?)?;
        let theirs =
            read_if_there(CONNTRACK)?.map(|table| going_on(&table, &maps.ours, |to| maps.node.contains(&to.ip())));
        let facts = Facts {
            agent_runs: agent_runs(pins)?,
            pinned: maps.view.is_some(),
            left: pins.exists()?,
            stage,
            in_force: maps.view.is_some() && maps.beside == (stage != Stage::Alone),
            modes: rules.modes(),
            kube_proxies: kube_proxies()?,
            of_age,
            differences,
            frontends: maps.ours.len(),
            lacks_all: !rules.served.is_empty() && !rules.served.keys().any(|one| maps.ours.contains_key(one)),
            has_keeper: rules.has_keeper(),
            theirs,
            carried: carried.len(),
            carried_at: by_server(&carried),
            ours: maps.open_flows,
        };
        Ok(Self { facts, rules })
    }
}

impl Maps {
    fn read(pins: &PinDir) -> Result<Self> {
        let view = match View::open(pins.clone()) {
            Ok(view) => view,
            Err(Error::NotSetUp { .. }) => return Ok(Self::default()),
            Err(cause) => return Err(cause.into()),
        };
        let dump = view.dump()?;
        let at_node = dump.frontends.iter().filter(|(_, frontend)| frontend.kind == abi::KIND_NODE_PORT);
        let uses = view.flow_uses(Now::read()?.tick())?;
        Ok(Self {
            beside: view.config()?.flags & abi::CONFIG_BESIDE != 0,
            ours: served::ours(&dump),
            node: at_node.map(|(key, _)| key.address).collect(),
            open_flows: uses.values().map(|used| used.open as usize).sum(),
            view: Some(view),
        })
    }

    /// Those connections of which Weir has no flow. One that has come again from the same port is Weir's, and IPVS keeps the
    /// old one alive as long as answers come.
    fn not_ours(&self, mut connections: Vec<Connection>) -> Result<Vec<Connection>> {
        let Some(view) = self.view.as_ref().filter(|_| !connections.is_empty()) else { return Ok(connections) };
        let (limits, tick) = (view.idle_limits()?, Now::read()?.tick());
        let open = view.flows()?.into_iter().filter(|entry| limits.is_open(entry.protocol, &entry.flow, tick));
        let ours: HashSet<_> = open
            .map(|FlowEntry { client, client_port, frontend, frontend_port, protocol, flow: _ }| Connection {
                client: SocketAddr::new(client.ip(), client_port),
                at: At { socket: SocketAddr::new(frontend.ip(), frontend_port), protocol },
            })
            .collect();
        connections.retain(|one| !ours.contains(one));
        Ok(connections)
    }
}

/// Whoever writes to the maps holds the directory.
fn agent_runs(pins: &PinDir) -> Result<bool> {
    if !pins.exists()? {
        return Ok(false);
    }
    match pins.lock() {
        Ok(_) => Ok(false),
        Err(Error::Locked { .. }) => Ok(true),
        Err(cause) => Err(cause.into()),
    }
}

/// What is said of a family whose rules are not all there.
fn unfinished(family: Family) -> String {
    format!("kube-proxy has not written all its rules of IPv{} yet", family.number())
}

pub(super) fn read_if_there(path: &str) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(cause).with_context(|| format!("cannot read {path}")),
    }
}

/// Processes called kube-proxy in our network namespace. Those that end meanwhile are none.
fn kube_proxies() -> Result<Vec<u32>> {
    let network = |process: &str| fs::read_link(format!("/proc/{process}/ns/net"));
    let own = network("self").context("cannot tell our network namespace")?;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("cannot list processes")? {
        let name = entry.context("cannot list processes")?.file_name();
        let Some((name, process)) = name.to_str().and_then(|name| Some((name, name.parse().ok()?))) else { continue };
        let is_called_so =
            fs::read_to_string(format!("/proc/{name}/comm")).is_ok_and(|comm| comm.trim_end() == KUBE_PROXY);
        if is_called_so && network(name).is_ok_and(|network| network == own) {
            found.push(process);
        }
    }
    found.sort_unstable();
    Ok(found)
}
