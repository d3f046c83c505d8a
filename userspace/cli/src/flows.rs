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
    flows.iter().filter(admitted).map(|entry| row(index, entry, replies, config, now)).collect()
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
mod tests {
    use super::*;
    use crate::args::Format;
    use crate::output::tests::plain;
    use crate::sample::{self, ip};

    fn flow(client: &str, frontend: &str, service: u32, backend: u32, generation: u32, flags: u16) -> FlowEntry {
        let (client, frontend): (SocketAddr, SocketAddr) = (client.parse().unwrap(), frontend.parse().unwrap());
        let snat_port = abi::Be16::new(if flags & abi::FLOW_SNAT != 0 { 40_001 } else { 0 });
        FlowEntry {
            client: client.ip().into(),
            client_port: client.port(),
            frontend: frontend.ip().into(),
            frontend_port: frontend.port(),
            protocol: 6,
            flow: abi::Flow {
                backend,
                generation,
                service,
                flags,
                snat_port,
                created: sample::tick(500),
                last_seen: sample::tick(60),
                bytes: 0,
                held: 0,
            },
        }
    }

    fn reply(entry: &FlowEntry, from: &str, to: &str, flags: u16) -> (ReplyKey, abi::Reply) {
        let key = ReplyKey { from: from.parse().unwrap(), to: to.parse().unwrap(), protocol: 6 };
        let reply = abi::Reply {
            frontend: entry.frontend,
            client: entry.client,
            frontend_port: abi::Be16::new(entry.frontend_port),
            client_port: abi::Be16::new(entry.client_port),
            flags,
            heard: 0,
            backend: entry.flow.backend,
            generation: entry.flow.generation,
            last_seen: sample::tick(2),
            asked: 0,
            bytes: 0,
            held: 0,
        };
        (key, reply)
    }

    fn shown(format: Format, filter: Option<&Filter>) -> String {
        let dump = sample::dump();
        let answered = flow("10.244.1.40:5000", "10.96.0.20:80", 1, 1, 3, 0);
        let snat = flow("198.51.100.9:4242", "192.168.0.11:30080", 1, 2, 3, abi::FLOW_SNAT);
        let v6 = flow("[fd00:244::77]:5001", "[fd00:96::20]:80", 2, 5, 3, abi::FLOW_CLOSING);
        let both = abi::FLOW_CLOSING | abi::FLOW_ENDED;
        let ended = flow("[fd00:244::77]:5005", "[fd00:96::20]:80", 2, 5, 3, both);
        let gone = flow("10.244.1.41:5002", "10.96.0.20:80", 1, 6, 3, 0);
        let retaken = flow("10.244.1.42:5003", "10.96.0.20:80", 1, 3, 1, 0);
        // The backend knows this client through another frontend by now.
        let other = flow("198.51.100.9:4242", "203.0.113.7:80", 1, 2, 3, 0);
        let unanswered = flow("10.244.1.43:5004", "10.96.0.20:80", 1, 3, 3, 0);
        let replies = Replies(HashMap::from([
            reply(&answered, "10.244.1.5:8080", "10.244.1.40:5000", abi::FLOW_REPLIED),
            reply(&other, "10.244.2.6:8080", "192.168.0.11:40001", abi::FLOW_SNAT | abi::FLOW_REPLIED),
        ]));
        let config = abi::Config { node4: ip("192.168.0.11").into(), ..abi::Config::PLAIN };
        let flows = [answered, snat, v6, ended, gone, retaken, unanswered];
        let rows = rows(&Index::new(&dump), filter, &flows, &replies, &config, sample::now());
        anstream::adapter::strip_str(&plain(format).list(&rows).unwrap()).to_string()
    }

    #[test]
    fn a_flow_whose_answers_do_not_come_by_goes_on_when_its_client_does() {
        let flags = [abi::FLOW_DIRECT, abi::FLOW_DIRECT | abi::FLOW_OPENING, abi::FLOW_SNAT];
        assert_eq!(flags.map(is_going_direct), [true, false, false]);
    }

    #[test]
    fn a_flow_with_another_port_shows_it_with_its_clients_address() {
        let mut entry = flow("198.51.100.9:4242", "203.0.113.7:80", 1, 2, 3, 0);
        let source =
            |entry: &FlowEntry| other_source(entry, ip("192.168.0.11").into()).map(|source| source.to_string());
        assert_eq!(source(&entry), None);
        entry.flow.snat_port = abi::Be16::new(61_002);
        assert_eq!(source(&entry).as_deref(), Some("198.51.100.9:61002"));
        entry.flow.flags = abi::FLOW_SNAT;
        assert_eq!(source(&entry).as_deref(), Some("192.168.0.11:61002"));
    }

    #[test]
    fn what_leaves_by_a_tunnel_has_its_address_and_everything_else_the_nodes() {
        let tunnel = |addr: &str| abi::Tunnel { addr: ip(addr).into(), ifindex: 0, pad: 0 };
        let (node4, node6) = (ip("192.168.0.11").into(), ip("fd00::11").into());
        let (tunnel4, tunnel6) = (tunnel("10.42.0.0"), tunnel("fd42::"));
        let config = abi::Config { node4, node6, tunnel4, tunnel6, ..abi::Config::PLAIN };
        let seen = |client, flags| source_of(&config, ip(client), flags).ip().to_string();
        let clients = ["198.51.100.9", "2001:db8::9"];
        assert_eq!(clients.map(|client| seen(client, abi::FLOW_SNAT)), ["192.168.0.11", "fd00::11"]);
        let by_tunnel = abi::FLOW_SNAT | abi::FLOW_TUNNEL;
        assert_eq!(clients.map(|client| seen(client, by_tunnel)), ["10.42.0.0", "fd42::"]);
    }

    #[test]
    fn flows_show_their_state_from_both_tables() {
        insta::assert_snapshot!(shown(Format::Wide, None), @r"
        PROTO   CLIENT                FRONTEND             BACKEND              STATE     NODE     SNAT                 AGE     IDLE   SERVICE
        TCP     10.244.1.40:5000      10.96.0.20:80        10.244.1.5:8080      replied   edge-1   <none>               8m20s   2s     shop/web:80/TCP
        TCP     198.51.100.9:4242     192.168.0.11:30080   10.244.2.6:8080      new       edge-2   192.168.0.11:40001   8m20s   60s    shop/web:80/TCP
        TCP     [fd00:244::77]:5001   [fd00:96::20]:80     [fd00:244::5]:8080   closing   edge-2   <none>               8m20s   60s    shop/web:80/TCP
        TCP     [fd00:244::77]:5005   [fd00:96::20]:80     [fd00:244::5]:8080   closed    edge-2   <none>               8m20s   60s    shop/web:80/TCP
        TCP     10.244.1.41:5002      10.96.0.20:80        10.244.3.1:8080      stale     edge-2   <none>               8m20s   60s    shop/web:80/TCP
        TCP     10.244.1.42:5003      10.96.0.20:80        <none>               stale     <none>   <none>               8m20s   60s    shop/web:80/TCP
        TCP     10.244.1.43:5004      10.96.0.20:80        10.244.2.7:8080      new       edge-2   <none>               8m20s   60s    shop/web:80/TCP
        ");
    }

    #[test]
    fn a_service_narrows_the_list_to_its_flows_in_both_families() {
        let flows = shown(Format::Name, Some(&sample::filter(Some("shop"), Some("web"))));
        assert_eq!(flows.lines().count(), 7);
        assert_eq!(shown(Format::Name, Some(&sample::filter(Some("default"), Some("dns")))), "");
    }

    #[test]
    fn json_leaves_no_doubt_about_an_unknown_backend() {
        let document: serde_json::Value = serde_json::from_str(&shown(Format::Json, None)).unwrap();
        assert_eq!(document["items"][5]["backend"], serde_json::Value::Null);
        assert_eq!(document["items"][1]["snat"], "192.168.0.11:40001");
    }
}
