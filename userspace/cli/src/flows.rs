//! `weir flows`: the flow table, joined with the reply table, which knows whether the backend has answered.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use serde::Serialize;
use weir_abi as abi;
use weir_datapath::{FlowEntry, View};

use crate::args::{FlowsArgs, Scope};
use crate::exit::Answer;
use crate::index::{Filter, Index, Port, protocol_name};
use crate::output::{Kind, Output, Row, Tone};
use crate::time::{self, Now};

/// How far a flow is.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// The backend has not answered yet.
    New,
    /// The backend has answered.
    Replied,
    /// One side has closed it; the other may go on.
    Closing,
    /// Both sides have closed it, or one has reset it.
    Closed,
    /// Its backend is gone.
    Stale,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Replied => "replied",
            Self::Closing => "closing",
            Self::Closed => "closed",
            Self::Stale => "stale",
        }
    }
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FlowRow {
    protocol: String,
    client: String,
    frontend: String,
    /// Null if the slot of the backend has another owner by now.
    backend: Option<String>,
    state: State,
    node: String,
    /// What the backend sees in place of the client.
    snat: Option<String>,
    age_seconds: u32,
    idle_seconds: u32,
    namespace: String,
    service: String,
    #[serde(skip)]
    port: String,
}

impl Row for FlowRow {
    const KIND: Kind = Kind::FlowList;

    fn headers(wide: bool) -> Vec<&'static str> {
        let mut headers = vec!["PROTO", "CLIENT", "FRONTEND", "BACKEND", "STATE", "NODE", "SNAT", "AGE", "IDLE"];
        headers.extend(wide.then_some("SERVICE"));
        headers
    }

    fn cells(&self, wide: bool) -> Vec<String> {
        let mut cells = vec![
            self.protocol.clone(),
            self.client.clone(),
            self.frontend.clone(),
            self.backend.clone().unwrap_or_default(),
            self.state.name().to_owned(),
            self.node.clone(),
            self.snat.clone().unwrap_or_default(),
            time::age(self.age_seconds),
            time::age(self.idle_seconds),
        ];
        cells.extend(wide.then(|| format!("{}/{}:{}", self.namespace, self.service, self.port)));
        cells
    }

    fn name(&self) -> String {
        format!("flow/{}/{}/{}", self.protocol, self.client, self.frontend)
    }

    fn tone(&self) -> Tone {
        match self.state {
            State::New | State::Replied | State::Closing => Tone::Plain,
            State::Closed => Tone::Faded,
            State::Stale => Tone::Alert,
        }
    }
}

/// A packet as a backend sends it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct ReplyKey {
    from: SocketAddr,
    to: SocketAddr,
    protocol: u8,
}

/// The reply entries of both families.
#[derive(Debug, Default)]
struct Replies(HashMap<ReplyKey, abi::Reply>);

impl Replies {
    fn read(view: &View) -> Result<Self> {
        let v4 = view.replies4()?.into_iter().map(|(key, reply)| {
            let abi::FlowKey4 { src, dst, sport, dport, proto, pad: _ } = key;
            let ip = |word: abi::Be32| IpAddr::V4(word.get().into());
            (ReplyKey { from: socket(ip(src), sport), to: socket(ip(dst), dport), protocol: proto }, reply)
        });
        let v6 = view.replies6()?.into_iter().map(|(key, reply)| {
            let abi::FlowKey6 { src, dst, sport, dport, proto, pad: _ } = key;
            let ip = |word| abi::Addr { word }.ip();
            (ReplyKey { from: socket(ip(src), sport), to: socket(ip(dst), dport), protocol: proto }, reply)
        });
        Ok(Self(v4.chain(v6).collect()))
    }

    /// The entry that answers a flow, unless a newer flow of the same client and backend took its place.
    fn of(&self, flow: &FlowEntry, backend: &abi::Backend, node: abi::Addr) -> Option<&abi::Reply> {
        let client = SocketAddr::new(flow.client.ip(), flow.client_port);
        let to = other_source(flow, node).unwrap_or(client);
        let key = ReplyKey { from: socket(backend.addr.ip(), backend.port), to, protocol: flow.protocol };
        self.0.get(&key).filter(|reply| {
            (reply.client, reply.client_port.get()) == (flow.client, flow.client_port)
                && (reply.frontend, reply.frontend_port.get()) == (flow.frontend, flow.frontend_port)
        })
    }
}

const fn socket(ip: IpAddr, port: abi::Be16) -> SocketAddr {
    SocketAddr::new(ip, port.get())
}

/// Whom the backend of a flow sees in place of its client: the node, or the same address with another port.
fn other_source(entry: &FlowEntry, node: abi::Addr) -> Option<SocketAddr> {
    let abi::Flow { flags, snat_port, .. } = entry.flow;
    let ip = if flags & abi::FLOW_SNAT != 0 { node.ip() } else { entry.client.ip() };
    (snat_port.get() != 0).then(|| socket(ip, snat_port))
}

/// The address that SNAT puts in place of a flow's client's.
const fn source_of(config: &abi::Config, client: IpAddr, flags: u16) -> abi::Addr {
    match (client, flags & abi::FLOW_TUNNEL != 0) {
        (IpAddr::V4(_), false) => config.node4,
        (IpAddr::V6(_), false) => config.node6,
        (IpAddr::V4(_), true) => config.tunnel4.addr,
        (IpAddr::V6(_), true) => config.tunnel6.addr,
    }
}

fn rows(
    index: &Index<'_>,
    filter: Option<&Filter>,
    flows: &[FlowEntry],
    replies: &Replies,
    config: &abi::Config,
    now: Now,
) -> Vec<FlowRow> {
    let admitted = |entry: &&FlowEntry| {
        filter.is_none_or(|filter| index.ports.get(&entry.flow.service).is_some_and(|port| filter.admits(port)))
    };
    flows
        .iter()
        .filter(|entry| !is_hosts(entry))
        .filter(admitted)
        .map(|entry| row(index, entry, replies, config, now))
        .collect()
}

/// Whether it is no client's, but what the host has asked from a frontend's port.
const fn is_hosts(entry: &FlowEntry) -> bool {
    entry.flow.flags & abi::FLOW_OWN != 0
}

/// Whether a flow goes on whose answers do not come by here.
const fn is_going_direct(flags: u16) -> bool {
    flags & (abi::FLOW_DIRECT | abi::FLOW_OPENING) == abi::FLOW_DIRECT
}

/// A flow with what other tables have of it.
struct Joined<'a> {
    flags: u16,
    /// The one that it began with, as long as nobody else has its slot.
    backend: Option<&'a abi::Backend>,
    is_live: bool,
    /// What SNAT puts in place of the client's address.
    node_address: abi::Addr,
    reply: Option<&'a abi::Reply>,
}

impl<'a> Joined<'a> {
    fn new(index: &Index<'a>, entry: &FlowEntry, replies: &'a Replies, config: &abi::Config) -> Self {
        let abi::Flow { backend: id, generation, flags, .. } = entry.flow;
        let live = index.backends.get(&id).copied().filter(|backend| backend.generation == generation);
        // A slot keeps its address until its next owner comes, with a generation one higher.
        let gone = || index.vacant.get(&id).copied().filter(|slot| slot.generation == generation.wrapping_add(1));
        let backend = live.or_else(gone);
        let node_address = source_of(config, entry.client.ip(), flags);
        let reply = backend.and_then(|backend| replies.of(entry, backend, node_address));
        Self { flags, backend, is_live: live.is_some(), node_address, reply }
    }

    fn state(&self) -> State {
        let answers = self.reply.map_or(0, |reply| reply.flags);
        if !self.is_live {
            State::Stale
        } else if self.flags & abi::FLOW_ENDED != 0 {
            State::Closed
        } else if (self.flags | answers) & abi::FLOW_CLOSING != 0 {
            State::Closing
        } else if answers & abi::FLOW_REPLIED != 0 || is_going_direct(self.flags) {
            State::Replied
        } else {
            State::New
        }
    }
}

fn row(index: &Index<'_>, entry: &FlowEntry, replies: &Replies, config: &abi::Config, now: Now) -> FlowRow {
    let FlowEntry { client, client_port, frontend, frontend_port, protocol, flow } = entry;
    let abi::Flow { service, created, last_seen, .. } = flow;
    let joined = Joined::new(index, entry, replies, config);
    let Joined { flags: _, backend, is_live: _, node_address, reply } = joined;
    let port: Option<&Port> = index.ports.get(service);
    let last_packet = reply.map_or(*last_seen, |reply| reply.last_seen.max(*last_seen));
    FlowRow {
        protocol: protocol_name(*protocol),
        client: SocketAddr::new(client.ip(), *client_port).to_string(),
        frontend: SocketAddr::new(frontend.ip(), *frontend_port).to_string(),
        backend: backend.map(|backend| socket(backend.addr.ip(), backend.port).to_string()),
        state: joined.state(),
        node: backend.map_or_else(String::new, |backend| index.node(backend.node).to_owned()),
        snat: other_source(entry, node_address).map(|source| source.to_string()),
        age_seconds: now.seconds_since_tick(*created),
        idle_seconds: now.seconds_since_tick(last_packet),
        namespace: port.map_or_else(String::new, |port| port.namespace.clone()),
        service: port.map_or_else(|| format!("#{service}"), |port| port.name.clone()),
        port: port.map_or_else(String::new, Port::number),
    }
}

/// Runs the command once: the answer as text.
pub(crate) fn frame(view: &View, args: &FlowsArgs, output: &Output) -> Result<String> {
    let dump = view.dump()?;
    let index = Index::new(&dump);
    let scope = Scope { namespace: args.namespace.clone(), all_namespaces: false };
    let filter = args.service.as_deref().map(|name| Filter::new(&scope, Some(name)));
    if let Some(filter) = &filter {
        filter.require(&index)?;
    }
    let config = view.config()?;
    let rows = rows(&index, filter.as_ref(), &view.flows()?, &Replies::read(view)?, &config, Now::read()?);
    output.list(&rows)
}

/// How many flows there are in each state, for `status`.
pub(crate) fn states(view: &View, index: &Index<'_>) -> Result<BTreeMap<&'static str, usize>> {
    let (config, replies) = (view.config()?, Replies::read(view)?);
    let mut states = BTreeMap::new();
    view.visit_flow_entries(|entry| {
        if is_hosts(entry) {
            return;
        }
        let state = Joined::new(index, entry, &replies, &config).state();
        *states.entry(state.name()).or_default() += 1;
    })?;
    Ok(states)
}

/// Runs the command.
pub(crate) fn run(view: &View, args: &FlowsArgs, output: &Output) -> Result<Answer> {
    let text = frame(view, args, output)?;
    if text.is_empty() && output.is_table() {
        eprintln!("no flows");
    }
    output.print(&text)?;
    Ok(Answer::Yes)
}

#[cfg(test)]
mod tests;
