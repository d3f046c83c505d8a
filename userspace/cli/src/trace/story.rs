//! What a trace says: the document, and the same in words.

use std::fmt::Write as _;

use serde::Serialize;
use weir_abi as abi;
use weir_abi::names::kind_name;
use weir_core::ops::FrontendKey;
use weir_datapath::{Action, Hook};

use super::packet::Summary;
use crate::index::Index;
use crate::share::{Share, spill};

/// One program's part.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Step {
    pub(crate) hook: String,
    pub(crate) verdict: &'static str,
    pub(crate) reason: &'static str,
    /// What becomes of the packet.
    pub(crate) action: &'static str,
    /// Whether the program at the interface is the one that was tried; null where no link tells, or frames have no Ethernet header.
    pub(crate) as_attached: Option<bool>,
    /// The packet afterwards.
    pub(crate) packet: Option<Summary>,
}

/// The service that the packet is for.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServicePart {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) port: String,
    pub(crate) port_name: String,
    /// Of the address that the client uses.
    pub(crate) kind: &'static str,
    /// Internal, external or short-circuit.
    pub(crate) class: &'static str,
    /// All of its addresses.
    pub(crate) frontends: Vec<String>,
}

/// The endpoint that gets it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BackendPart {
    pub(crate) address: String,
    pub(crate) node: String,
    pub(crate) local: bool,
    /// Of the new flows of this class.
    pub(crate) share: f64,
    /// Whether it sees the node's address in place of the client's.
    pub(crate) sees_node: bool,
    /// The port that it sees in place of the client's, if it does.
    pub(crate) sees_port: Option<u16>,
}

/// The whole answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Trace {
    pub(crate) interface: String,
    pub(crate) packet: Option<Summary>,
    pub(crate) steps: Vec<Step>,
    pub(crate) service: Option<ServicePart>,
    pub(crate) backend: Option<BackendPart>,
    pub(crate) because: Vec<String>,
}

/// What was seen, before it is put into words.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// The client's flow before the packet.
    pub(crate) known: Option<abi::Flow>,
    /// What session affinity kept for it.
    pub(crate) kept: Option<abi::Affinity>,
    /// The flow afterwards.
    pub(crate) flow: Option<abi::Flow>,
}

/// Traffic class of a frontend's packets; `traffic_class_of` of `bpf/lib/service.h`.
pub(crate) fn class_of(kind: u32, hook: Hook) -> (usize, &'static str) {
    match (kind, hook) {
        (abi::KIND_CLUSTER_IP, _) => (abi::CLASS_INTERNAL, "internal"),
        (_, Hook::Xdp | Hook::NicIn | Hook::NicOut) => (abi::CLASS_EXTERNAL, "external"),
        (_, Hook::PodIn | Hook::PodOut) => (abi::CLASS_SHORT_CIRCUIT, "short-circuit"),
    }
}

/// What becomes of a packet, in words.
pub(crate) const fn action_name(hook: Hook, action: Action) -> &'static str {
    match (action, hook) {
        (Action::Pass, Hook::Xdp) => "goes on to tc",
        (Action::Pass, Hook::NicIn | Hook::PodIn) => "goes on to the host's stack",
        (Action::Pass, Hook::NicOut | Hook::PodOut) => "leaves by this interface",
        (Action::Drop, _) => "ends here",
        (Action::Send, _) => "leaves past the host's stack",
        (Action::Unknown(_), _) => "gets a verdict that this version does not know",
    }
}

/// The service of a slot, asked for at a frontend.
pub(crate) fn service_part(index: &Index<'_>, slot: u32, kind: u32, hook: Hook) -> Option<ServicePart> {
    let port = index.ports.get(&slot)?;
    let frontend = |(key, kind): &(FrontendKey, u32)| {
        format!("{} ({})", std::net::SocketAddr::new(key.address, key.port), kind_name(*kind))
    };
    let all = index.frontends.get(&slot).into_iter().flatten();
    Some(ServicePart {
        namespace: port.namespace.clone(),
        name: port.name.clone(),
        port: port.number(),
        port_name: port.port_name.clone(),
        kind: kind_name(kind),
        class: class_of(kind, hook).1,
        frontends: all.filter(|(key, _)| key.port != 0).map(frontend).collect(),
    })
}

/// The endpoint of a flow.
pub(crate) fn backend_part(index: &Index<'_>, flow: &abi::Flow, class: usize) -> Option<BackendPart> {
    let backend = index.backends.get(&flow.backend)?;
    let share = index.services.get(&flow.service).map(|service| index.spreads(service)[class].backends.clone());
    let share = share.and_then(|shares| shares.get(&flow.backend).copied()).unwrap_or(Share::NOTHING);
    Some(BackendPart {
        address: std::net::SocketAddr::new(backend.addr.ip(), backend.port.get()).to_string(),
        node: index.node(backend.node).to_owned(),
        local: backend.flags & abi::BACKEND_LOCAL != 0,
        share: share.fraction(),
        sees_node: flow.flags & abi::FLOW_SNAT != 0,
        sees_port: Some(flow.snat_port.get()).filter(|port| *port != 0),
    })
}

/// Why this endpoint and no other. `told` is what the agent says of how its shares came about.
pub(crate) fn because(index: &Index<'_>, seen: &Seen, class: (usize, &str), told: &[String]) -> Vec<String> {
    let Some(flow) = seen.flow else { return Vec::new() };
    if seen.known.is_some_and(|known| (known.backend, known.generation) == (flow.backend, flow.generation)) {
        return vec!["it belongs to a flow that exists, and flows keep their endpoint".to_owned()];
    }
    let Some(service) = index.services.get(&flow.service) else { return Vec::new() };
    let mut because = Vec::new();
    if seen.known.is_some() {
        because.push("the flow that existed is over, or its endpoint is gone: this is a new one".to_owned());
    }
    if seen.kept.is_some_and(|kept| (kept.backend, kept.generation) == (flow.backend, flow.generation)) {
        because.push("session affinity: the client's latest flow went there".to_owned());
        return because;
    }
    let (number, name) = class;
    let left = spill(&service.tiers[number]).unwrap_or(Share::NOTHING).percent();
    let share = index.spreads(service)[number].backends.get(&flow.backend).copied().unwrap_or(Share::NOTHING);
    because.push(format!("of new {name} flows {left} % leave the node, and {} % go to this endpoint", share.percent()));
    because.extend(draw(service.flags).filter(|_| share != Share::ALL).map(str::to_owned));
    because.extend(told.iter().cloned());
    because
}

/// Why a service's packet gets no endpoint, where the service itself says so.
pub(crate) fn refused(index: &Index<'_>, slot: u32, reason: u32) -> Option<String> {
    match reason {
        abi::REASON_SOURCE_RANGE => {
            let ranges = index.source_ranges.get(&slot).into_iter().flatten().map(ToString::to_string);
            let ranges = ranges.collect::<Vec<_>>().join(", ");
            Some(format!("its load balancer addresses admit clients of {ranges} alone"))
        }
        abi::REASON_NO_LOCAL_ENDPOINTS => {
            Some("its traffic policy or topology hints allow no endpoint from this node, though it has some".to_owned())
        }
        abi::REASON_NO_ENDPOINTS => Some("it has no usable endpoint anywhere".to_owned()),
        _ => None,
    }
}

/// How one of several endpoints is drawn.
fn draw(flags: u32) -> impl Iterator<Item = &'static str> {
    let fewest = "of two endpoints that are drawn the one with fewer open flows gets it";
    let table = "Maglev's table: every node draws the same for this client";
    let hash = "which of them it is, a hash of addresses and ports draws";
    let least_conn = (flags & abi::SERVICE_LEAST_CONN != 0).then_some(fewest);
    let maglev = flags & abi::SERVICE_MAGLEV != 0;
    least_conn.into_iter().chain([if maglev { table } else { hash }])
}

/// The answer for people.
pub(crate) fn words(trace: &Trace) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = tell(trace, &mut text);
    text
}

fn tell(trace: &Trace, text: &mut String) -> std::fmt::Result {
    let Trace { interface, packet, steps, service, backend, because } = trace;
    let what = packet.as_ref().map(ToString::to_string).unwrap_or_default();
    writeln!(text, "{what}, at {interface}")?;
    let mut before = packet.as_ref();
    for step in steps {
        let Step { hook, verdict, reason, action, as_attached, packet } = step;
        writeln!(text, "  {hook}: {verdict} ({reason}), {action}")?;
        if *as_attached == Some(false) {
            writeln!(text, "    tried with this command's program: another version of it is attached")?;
        }
        if packet.as_ref() != before
            && let Some(after) = packet
        {
            writeln!(text, "    {after}")?;
        }
        before = packet.as_ref();
    }
    if let Some(ServicePart { namespace, name, port, port_name, kind, class, frontends }) = service {
        let port_name = if port_name.is_empty() { String::new() } else { format!(" {port_name}") };
        writeln!(text, "  service {namespace}/{name} {port}{port_name}, by its {kind}: {class} traffic")?;
        writeln!(text, "    at {}", frontends.join(", "))?;
    }
    if let Some(BackendPart { address, node, local, share: _, sees_node, sees_port }) = backend {
        let node = match (local, node.is_empty()) {
            (true, _) => "this node".to_owned(),
            (false, true) => "an unknown node".to_owned(),
            (false, false) => node.clone(),
        };
        let sees = if *sees_node { "this node's address" } else { "the client's address" };
        let port = sees_port.map(|port| format!(", and port {port}")).unwrap_or_default();
        writeln!(text, "  endpoint {address} on {node}; it sees {sees}{port}")?;
    }
    because.iter().try_for_each(|why| writeln!(text, "    because {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn flow(backend: u32, flags: u16) -> abi::Flow {
        let snat_port = abi::Be16::new(if flags & abi::FLOW_SNAT != 0 { 50_000 } else { 0 });
        abi::Flow { backend, generation: 3, service: 1, flags, snat_port, created: 0, last_seen: 0, bytes: 0, held: 0 }
    }

    fn packet(destination: &str, kind: &str) -> Summary {
        let (protocol, source) = ("TCP".to_owned(), "198.51.100.9:40000".to_owned());
        Summary { protocol, source, destination: destination.to_owned(), kind: kind.to_owned() }
    }

    fn step(hook: &str, reason: u32, action: &'static str, packet: Option<Summary>) -> Step {
        let (verdict, reason) = (abi::names::verdict_name(reason as usize), abi::names::reason_name(reason as usize));
        Step { hook: hook.to_owned(), verdict, reason, action, as_attached: Some(true), packet }
    }

    #[test]
    fn the_story_has_every_hook_the_service_the_endpoint_and_why() {
        let dump = sample::dump();
        let index = Index::new(&dump);
        let (kind, hook) = (abi::KIND_CLUSTER_IP, Hook::NicIn);
        let class = class_of(kind, hook);
        let seen = Seen { flow: Some(flow(2, abi::FLOW_SNAT)), ..Seen::default() };
        let told = ["edge-2 takes 30.0 flows/s of the 75.0 that it could, 0.8 ms away".to_owned()];
        let (asked, after) = (packet("10.96.0.20:80", "SYN"), packet("10.244.2.6:8080", "SYN"));
        let after = Summary { source: "192.168.0.11:50000".to_owned(), ..after };
        let trace = Trace {
            interface: "eth0".to_owned(),
            packet: Some(asked.clone()),
            steps: vec![
                step("xdp", abi::REASON_LEFT_TO_TC, action_name(Hook::Xdp, Action::Pass), Some(asked)),
                step("nic_in", abi::REASON_TO_REMOTE, action_name(hook, Action::Send), Some(after)),
            ],
            service: service_part(&index, 1, kind, hook),
            backend: backend_part(&index, &seen.flow.unwrap(), class.0),
            because: because(&index, &seen, class, &told),
        };
        insta::assert_snapshot!(words(&trace), @r"
        TCP 198.51.100.9:40000 > 10.96.0.20:80, SYN, at eth0
          xdp: untouched (left_to_tc), goes on to tc
          nic_in: translated (to_remote), leaves past the host's stack
            TCP 192.168.0.11:50000 > 10.244.2.6:8080, SYN
          service shop/web 80/TCP http, by its ClusterIP: internal traffic
            at 10.96.0.20:80 (ClusterIP), 192.168.0.11:30080 (NodePort), 203.0.113.7:80 (LoadBalancer)
          endpoint 10.244.2.6:8080 on edge-2; it sees this node's address, and port 50000
            because of new internal flows 10.0 % leave the node, and 5.0 % go to this endpoint
            because which of them it is, a hash of addresses and ports draws
            because edge-2 takes 30.0 flows/s of the 75.0 that it could, 0.8 ms away
        ");
        let document = serde_json::to_value(&trace).unwrap();
        assert_eq!(document["steps"][1]["reason"], "to_remote");
        assert_eq!(
            (&document["backend"]["seesNode"], &document["backend"]["seesPort"], &document["service"]["class"]),
            (&true.into(), &50_000.into(), &"internal".into())
        );
    }

    #[test]
    fn what_a_client_has_comes_before_a_draw() {
        let dump = sample::dump();
        let index = Index::new(&dump);
        let class = (abi::CLASS_INTERNAL, "internal");
        let why = |seen: Seen| because(&index, &seen, class, &[]).join("; ");
        let (flow, kept) = (flow(2, 0), abi::Affinity { backend: 2, generation: 3, last_seen: 0 });
        let seen = Seen { flow: Some(flow), ..Seen::default() };
        assert!(why(Seen { known: Some(flow), ..seen }).contains("flows keep their endpoint"));
        assert!(why(Seen { kept: Some(kept), ..seen }).contains("session affinity"));
        // The endpoint's slot has another owner by now.
        let gone = abi::Affinity { generation: 2, ..kept };
        assert!(why(Seen { kept: Some(gone), ..seen }).contains("a hash of addresses"));
        let moved = abi::Flow { backend: 1, ..flow };
        assert!(why(Seen { known: Some(moved), ..seen }).contains("this is a new one"));
        assert_eq!(why(Seen::default()), "", "a packet that is refused has no endpoint");
    }

    #[test]
    fn a_refusal_that_the_service_asks_for_is_told_with_what_it_asks_for() {
        let dump = sample::dump();
        let index = Index::new(&dump);
        let why = |reason| refused(&index, 1, reason);
        assert!(why(abi::REASON_SOURCE_RANGE).unwrap().contains("clients of 192.0.2.7/32, 198.51.100.0/24 alone"));
        assert!(why(abi::REASON_NO_LOCAL_ENDPOINTS).unwrap().contains("traffic policy"));
        assert!(why(abi::REASON_NO_ENDPOINTS).unwrap().contains("no usable endpoint"));
        assert_eq!(why(abi::REASON_TO_LOCAL), None);
    }

    #[test]
    fn who_is_inside_uses_external_addresses_by_short_circuit() {
        let class = |kind, hook| class_of(kind, hook).1;
        assert_eq!(class(abi::KIND_CLUSTER_IP, Hook::PodIn), "internal");
        assert_eq!(class(abi::KIND_NODE_PORT, Hook::PodIn), "short-circuit");
        assert_eq!(class(abi::KIND_LOAD_BALANCER, Hook::Xdp), "external");
    }
}
