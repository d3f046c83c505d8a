//! `weir endpoints`: every endpoint of every service port, with the share of new flows that it gets from this node.

use std::collections::HashMap;

use anyhow::Result;
use serde::Serialize;
use weir_abi as abi;
use weir_datapath::View;

use crate::args::EndpointsArgs;
use crate::exit::Answer;
use crate::index::{Filter, Index, Port, protocol_name, selectable};
use crate::output::{Kind, Output, Row, Tone};
use crate::share::Share;
use crate::time::{self, Now};

/// Whether new flows go to an endpoint, and if not, why; the maps hold numbers of endpoints, not reasons for each.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// Some traffic class leads to it.
    Active,
    /// It ends, and keeps the flows that it has.
    Draining,
    /// Other nodes use it: topology hints or a traffic policy keep this one's flows away.
    Elsewhere,
    /// One of the two.
    Inactive,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Elsewhere => "elsewhere",
            Self::Inactive => "inactive",
        }
    }

    /// Of the endpoints that nothing leads to: `unused` of them, while `unusable` of the service's endpoints take new
    /// flows from nobody.
    const fn of_unused(unused: usize, unusable: usize) -> Self {
        match (unusable, unused > unusable) {
            (0, _) => Self::Elsewhere,
            (_, true) => Self::Inactive,
            (_, false) => Self::Draining,
        }
    }
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct EndpointRow {
    namespace: String,
    service: String,
    port: u16,
    port_name: String,
    protocol: String,
    address: String,
    target_port: u16,
    node: String,
    local: bool,
    host_network: bool,
    state: State,
    share: Shares,
    new_flows: u64,
    generation: u32,
    /// Seconds for which a client keeps this endpoint after its last new flow, whatever the shares; null: no affinity.
    affinity_seconds: Option<u32>,
    id: u32,
    #[serde(skip)]
    number: String,
    #[serde(skip)]
    socket: String,
}

/// Of this node's new flows, by traffic class.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shares {
    internal: Share,
    external: Share,
    short_circuit: Share,
}

impl Row for EndpointRow {
    const KIND: Kind = Kind::EndpointList;

    fn headers(wide: bool) -> Vec<&'static str> {
        let mut headers = vec![
            "NAMESPACE",
            "SERVICE",
            "PORT",
            "ADDRESS",
            "NODE",
            "LOCAL",
            "STATE",
            "SHARE%",
            "NEW-FLOWS",
            "GENERATION",
        ];
        if wide {
            headers.extend(["EXTERNAL%", "SHORT-CIRCUIT%", "AFFINITY", "PORT-NAME", "HOST-NETWORK", "ID"]);
        }
        headers
    }

    fn cells(&self, wide: bool) -> Vec<String> {
        let yes_no = |yes| if yes { "yes" } else { "no" }.to_owned();
        let mut cells = vec![
            self.namespace.clone(),
            self.service.clone(),
            self.number.clone(),
            self.socket.clone(),
            self.node.clone(),
            yes_no(self.local),
            self.state.name().to_owned(),
            self.share.internal.percent(),
            self.new_flows.to_string(),
            self.generation.to_string(),
        ];
        if wide {
            cells.extend([
                self.share.external.percent(),
                self.share.short_circuit.percent(),
                self.affinity_seconds.map(time::age).unwrap_or_default(),
                self.port_name.clone(),
                yes_no(self.host_network),
                self.id.to_string(),
            ]);
        }
        cells
    }

    fn name(&self) -> String {
        format!("endpoint/{}", self.socket)
    }

    fn tone(&self) -> Tone {
        match self.state {
            State::Active => Tone::Plain,
            State::Draining | State::Elsewhere | State::Inactive => Tone::Faded,
        }
    }
}

/// Rows, and complaints about references that lead to no endpoint in use.
fn rows(
    index: &Index<'_>,
    filter: &Filter,
    new_flows: &HashMap<u32, u64>,
    now: Now,
) -> (Vec<EndpointRow>, Vec<String>) {
    let (mut rows, mut complaints) = (Vec::new(), Vec::new());
    let mut by_service = index.backends_by_service();
    for (id, port) in index.sorted_ports(filter) {
        let Some(service) = index.services.get(&id) else { continue };
        let spreads = index.spreads(service);
        let affinity = now.affinity(service);
        let selectable = selectable(&spreads);
        let mut backends = by_service.remove(&id).unwrap_or_default();
        backends.sort_by_key(|(_, backend)| (backend.addr.octets(), backend.port.get()));
        if spreads.iter().any(|spread| spread.lost != Share::NOTHING) {
            complaints.push(format!("{}: a reference of its lines leads nowhere", port.full_name()));
        }
        let strangers = selectable.iter().filter(|backend| index.backends.get(backend).is_none_or(|b| b.service != id));
        complaints.extend(
            strangers.map(|backend| format!("{}: its lines lead to backend {backend}, not its own", port.full_name())),
        );
        let unused = backends.iter().filter(|(backend, _)| !selectable.contains(backend)).count();
        let unusable = backends.len().saturating_sub(service.endpoints as usize);
        rows.extend(backends.into_iter().map(|(backend_id, backend)| {
            let share = |class: usize| spreads[class].backends.get(&backend_id).copied().unwrap_or_default();
            let shares = Shares {
                internal: share(abi::CLASS_INTERNAL),
                external: share(abi::CLASS_EXTERNAL),
                short_circuit: share(abi::CLASS_SHORT_CIRCUIT),
            };
            let active = selectable.contains(&backend_id);
            let state = if active { State::Active } else { State::of_unused(unused, unusable) };
            let flows = new_flows.get(&backend_id).copied().unwrap_or_default();
            row(port, index.node(backend.node), (backend_id, backend), state, shares, flows, affinity)
        }));
    }
    (rows, complaints)
}

fn row(
    port: &Port,
    node: &str,
    (id, backend): (u32, &abi::Backend),
    state: State,
    share: Shares,
    new_flows: u64,
    affinity_seconds: Option<u32>,
) -> EndpointRow {
    let abi::Backend { addr, port: target, proto, flags, generation, service: _, node: _ } = backend;
    EndpointRow {
        namespace: port.namespace.clone(),
        service: port.name.clone(),
        port: port.port,
        port_name: port.port_name.clone(),
        protocol: protocol_name(*proto),
        address: addr.ip().to_string(),
        target_port: target.get(),
        node: node.to_owned(),
        local: flags & abi::BACKEND_LOCAL != 0,
        host_network: flags & abi::BACKEND_HOST_NETWORK != 0,
        state,
        share,
        new_flows,
        generation: *generation,
        affinity_seconds,
        id,
        number: port.number(),
        socket: std::net::SocketAddr::new(addr.ip(), target.get()).to_string(),
    }
}

/// Runs the command.
pub(crate) fn run(view: &View, args: &EndpointsArgs, output: &Output) -> Result<Answer> {
    let dump = view.dump()?;
    let index = Index::new(&dump);
    let filter = Filter::new(&args.scope, args.service.as_deref());
    filter.require(&index)?;
    let flows = index.backends.keys().map(|id| Ok((*id, view.backend_counters(*id)?.flows))).collect::<Result<_>>()?;
    let (rows, complaints) = rows(&index, &filter, &flows, Now::read()?);
    for complaint in &complaints {
        eprintln!("weir: {complaint}: a bug, or another program writes to the maps; `weir map dump lines` shows them");
    }
    if rows.is_empty() && output.is_table() {
        eprintln!("{}", filter.nothing("endpoints"));
    }
    output.print(&output.list(&rows)?)?;
    Ok(if complaints.is_empty() { Answer::Yes } else { Answer::No })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Format;
    use crate::output::tests::plain;
    use crate::sample;

    fn shown(format: Format, namespace: Option<&str>, name: Option<&str>) -> String {
        let dump = sample::dump();
        let (rows, complaints) = rows(
            &Index::new(&dump),
            &sample::filter(namespace, name),
            &HashMap::from([(1, 90), (2, 4), (3, 6)]),
            sample::now(),
        );
        assert_eq!(complaints, Vec::<String>::new());
        anstream::adapter::strip_str(&plain(format).list(&rows).unwrap()).to_string()
    }

    #[test]
    fn endpoints_show_their_share_and_the_draining_one_has_none() {
        insta::assert_snapshot!(shown(Format::Table, Some("shop"), Some("web")), @r"
        NAMESPACE   SERVICE   PORT     ADDRESS              NODE     LOCAL   STATE      SHARE%   NEW-FLOWS   GENERATION
        shop        web       80/TCP   10.244.1.5:8080      edge-1   yes     active     90.0     90          3
        shop        web       80/TCP   10.244.1.9:8080      edge-1   yes     draining   0        0           3
        shop        web       80/TCP   10.244.2.6:8080      edge-2   no      active     5.0      4           3
        shop        web       80/TCP   10.244.2.7:8080      edge-2   no      active     5.0      6           3
        shop        web       80/TCP   [fd00:244::5]:8080   edge-2   no      active     100      0           3
        ");
    }

    #[test]
    fn wide_adds_the_shares_of_traffic_from_outside() {
        insta::assert_snapshot!(shown(Format::Wide, None, Some("shop/web")), @r"
        NAMESPACE   SERVICE   PORT     ADDRESS              NODE     LOCAL   STATE      SHARE%   NEW-FLOWS   GENERATION   EXTERNAL%   SHORT-CIRCUIT%   AFFINITY   PORT-NAME   HOST-NETWORK   ID
        shop        web       80/TCP   10.244.1.5:8080      edge-1   yes     active     90.0     90          3            100         90.0             3h         http        no             1
        shop        web       80/TCP   10.244.1.9:8080      edge-1   yes     draining   0        0           3            0           0                3h         http        no             4
        shop        web       80/TCP   10.244.2.6:8080      edge-2   no      active     5.0      4           3            0           5.0              3h         http        no             2
        shop        web       80/TCP   10.244.2.7:8080      edge-2   no      active     5.0      6           3            0           5.0              3h         http        no             3
        shop        web       80/TCP   [fd00:244::5]:8080   edge-2   no      active     100      0           3            100         100              <none>     http        no             5
        ");
    }

    #[test]
    fn json_has_shares_as_fractions() {
        let document: serde_json::Value = serde_json::from_str(&shown(Format::Json, Some("shop"), None)).unwrap();
        assert_eq!(document["kind"], "EndpointList");
        let items = document["items"].as_array().unwrap();
        let internal: Vec<f64> = items.iter().map(|item| item["share"]["internal"].as_f64().unwrap()).collect();
        let spilled = 6554.0 / 65_536.0;
        assert_eq!(internal, [1.0 - spilled, 0.0, spilled / 2.0, spilled / 2.0, 1.0]);
        assert_eq!(items[1]["state"], "draining");
    }

    #[test]
    fn a_service_without_endpoints_has_no_rows() {
        assert_eq!(shown(Format::Table, Some("default"), Some("dns")), "");
    }

    #[test]
    fn an_endpoint_that_only_other_nodes_use_is_elsewhere_not_draining() {
        assert_eq!(State::of_unused(2, 0), State::Elsewhere);
        assert_eq!(State::of_unused(2, 2), State::Draining);
        assert_eq!(State::of_unused(3, 1), State::Inactive);
    }

    #[test]
    fn a_reference_to_anothers_backend_is_not_hidden() {
        let mut dump = sample::dump();
        dump.services[1].1.tiers[0].remote = 2;
        let (_, complaints) = rows(&Index::new(&dump), &sample::filter(None, None), &HashMap::new(), sample::now());
        assert_eq!(complaints, ["shop/web:80/TCP: its lines lead to backend 2, not its own"]);
    }
}
