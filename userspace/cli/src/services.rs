//! `weir services`: one row for each service port and family.

use std::collections::HashMap;

use anyhow::Result;
use serde::Serialize;
use weir_abi as abi;
use weir_abi::names::kind_name;
use weir_datapath::View;

use crate::args::ServicesArgs;
use crate::exit::Answer;
use crate::index::{Filter, Index, Port, protocol_name, selectable};
use crate::output::{Kind, NONE, Output, Row, Tone, joined};
use crate::share::{self, Share};
use crate::time::{self, Now};

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ServiceRow {
    namespace: String,
    name: String,
    port: u16,
    port_name: String,
    protocol: String,
    family: &'static str,
    types: Vec<&'static str>,
    /// Of all frontends but the node ports and the unused ports.
    addresses: Vec<String>,
    node_port: Option<u16>,
    endpoints: Endpoints,
    /// Share of new flows to the cluster IP that leaves the node; null if there is nothing to select from.
    spill: Option<Share>,
    new_flows: NewFlows,
    age_seconds: u32,
    /// Seconds for which a client keeps its endpoint after its last new flow; null: no affinity.
    affinity_seconds: Option<u32>,
    /// Clients that load balancer addresses admit; null: all.
    source_ranges: Option<Vec<String>>,
    id: u32,
    tiers: [TierRow; abi::CLASS_COUNT],
    #[serde(skip)]
    number: String,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Endpoints {
    /// On this node, and new flows may go there.
    local: usize,
    /// Usable from somewhere in the cluster.
    all: u32,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct NewFlows {
    local: u64,
    remote: u64,
    rejected: u64,
    dropped: u64,
}

#[derive(Clone, Debug, Serialize)]
struct TierRow {
    class: &'static str,
    spill: u32,
    local: String,
    remote: String,
}

impl Row for ServiceRow {
    const KIND: Kind = Kind::ServiceList;

    fn headers(wide: bool) -> Vec<&'static str> {
        let mut headers = vec![
            "NAMESPACE",
            "NAME",
            "PORT",
            "TYPE",
            "ADDRESSES",
            "ENDPOINTS",
            "SPILL",
            "NEW-LOCAL",
            "NEW-REMOTE",
            "REJECTED",
            "AGE",
        ];
        if wide {
            headers.extend(["FAMILY", "PORT-NAME", "NODE-PORT", "AFFINITY", "SOURCE-RANGES", "DROPPED", "ID"]);
            headers.extend(["INTERNAL", "EXTERNAL", "SHORT-CIRCUIT"]);
        }
        headers
    }

    fn cells(&self, wide: bool) -> Vec<String> {
        let mut cells = vec![
            self.namespace.clone(),
            self.name.clone(),
            self.number.clone(),
            joined(&self.types),
            joined(&self.addresses),
            format!("{}/{}", self.endpoints.local, self.endpoints.all),
            self.spill.map(|spill| spill.percent() + "%").unwrap_or_default(),
            self.new_flows.local.to_string(),
            self.new_flows.remote.to_string(),
            self.new_flows.rejected.to_string(),
            time::age(self.age_seconds),
        ];
        if wide {
            cells.extend([
                self.family.to_owned(),
                self.port_name.clone(),
                self.node_port.map(|port| port.to_string()).unwrap_or_default(),
                self.affinity_seconds.map(time::age).unwrap_or_default(),
                self.source_ranges.as_deref().map(ranges).unwrap_or_default(),
                self.new_flows.dropped.to_string(),
                self.id.to_string(),
            ]);
            let or_none = |text: &String| if text.is_empty() { NONE.to_owned() } else { text.clone() };
            let tier = |tier: &TierRow| format!("{},{},{}", tier.spill, or_none(&tier.local), or_none(&tier.remote));
            cells.extend(self.tiers.iter().map(tier));
        }
        cells
    }

    fn name(&self) -> String {
        format!("service/{}/{}", self.namespace, self.name)
    }

    fn tone(&self) -> Tone {
        if self.endpoints.all == 0 { Tone::Alert } else { Tone::Plain }
    }
}

/// A service that has ranges and none in its family admits nobody.
fn ranges(ranges: &[String]) -> String {
    if ranges.is_empty() { "nobody".to_owned() } else { joined(ranges) }
}

/// A reference of a tier: `backend:7`, `line:3`, or nothing.
pub(crate) fn reference(reference: u32) -> String {
    match (reference, reference & abi::REF_LINE) {
        (0, _) => String::new(),
        (backend, 0) => format!("backend:{backend}"),
        (line, _) => format!("line:{}", line & !abi::REF_LINE),
    }
}

/// Names of the traffic classes.
pub(crate) const CLASSES: [&str; abi::CLASS_COUNT] = ["internal", "external", "shortCircuit"];

fn rows(
    index: &Index<'_>,
    filter: &Filter,
    counters: &HashMap<u32, abi::ServiceCounters>,
    now: Now,
) -> Vec<ServiceRow> {
    let local = |spreads: &[share::Spread]| {
        let flags = selectable(spreads).into_iter().filter_map(|id| index.backends.get(&id)).map(|b| b.flags);
        flags.filter(|flags| flags & abi::BACKEND_LOCAL != 0).count()
    };
    let source_ranges =
        |id| -> Vec<String> { index.source_ranges.get(&id).into_iter().flatten().map(ToString::to_string).collect() };
    let row = |(id, port): (u32, &Port)| {
        let service = index.services.get(&id)?;
        let mut frontends = index.frontends.get(&id).cloned().unwrap_or_default();
        // Nothing to connect to: these are about addresses as such.
        frontends.retain(|(_, kind)| !matches!(*kind, abi::KIND_UNUSED_PORT | abi::KIND_ADDRESS));
        let none = abi::ServiceCounters::default();
        let abi::ServiceCounters { local: to_local, remote, rejected, dropped, .. } =
            *counters.get(&id).unwrap_or(&none);
        let mut kinds: Vec<u32> = frontends.iter().map(|(_, kind)| *kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let (node_ports, others): (Vec<_>, Vec<_>) =
            frontends.iter().copied().partition(|(_, kind)| *kind == abi::KIND_NODE_PORT);
        let mut others: Vec<_> = others.into_iter().map(|(key, kind)| (kind, key.address)).collect();
        others.sort_unstable();
        let tier = |(class, tiers): (usize, &abi::Tiers)| TierRow {
            class: CLASSES[class],
            spill: tiers.spill,
            local: reference(tiers.local),
            remote: reference(tiers.remote),
        };
        let [internal, external, short_circuit] = &service.tiers;
        Some(ServiceRow {
            namespace: port.namespace.clone(),
            name: port.name.clone(),
            port: port.port,
            port_name: port.port_name.clone(),
            protocol: protocol_name(port.protocol),
            family: port.family_name(),
            types: kinds.into_iter().map(kind_name).collect(),
            addresses: others.into_iter().map(|(_, address)| address.to_string()).collect(),
            node_port: node_ports.first().map(|(key, _)| key.port),
            endpoints: Endpoints { local: local(&index.spreads(service)), all: service.endpoints },
            spill: share::spill(internal),
            new_flows: NewFlows { local: to_local, remote, rejected, dropped },
            age_seconds: now.seconds_since(port.created),
            affinity_seconds: now.affinity(service),
            source_ranges: (service.flags & abi::SERVICE_SOURCE_RANGES != 0).then(|| source_ranges(id)),
            id,
            tiers: [(0, internal), (1, external), (2, short_circuit)].map(tier),
            number: port.number(),
        })
    };
    index.sorted_ports(filter).into_iter().filter_map(row).collect()
}

/// Runs the command.
pub(crate) fn run(view: &View, args: &ServicesArgs, output: &Output) -> Result<Answer> {
    let dump = view.dump()?;
    let index = Index::new(&dump);
    let filter = Filter::new(&args.scope, args.name.as_deref());
    filter.require(&index)?;
    let counters = index.services.keys().map(|id| Ok((*id, view.service_counters(*id)?))).collect::<Result<_>>()?;
    let rows = rows(&index, &filter, &counters, Now::read()?);
    if rows.is_empty() && output.is_table() {
        eprintln!("{}", filter.nothing("services"));
    }
    output.print(&output.list(&rows)?)?;
    Ok(Answer::Yes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Format;
    use crate::output::tests::plain;
    use crate::sample;

    fn shown(format: Format, namespace: Option<&str>) -> String {
        let dump = sample::dump();
        let index = Index::new(&dump);
        let counters = HashMap::from([(
            1,
            abi::ServiceCounters { local: 90, remote: 10, rejected: 2, dropped: 1, ..Default::default() },
        )]);
        let rows = rows(&index, &sample::filter(namespace, None), &counters, sample::now());
        anstream::adapter::strip_str(&plain(format).list(&rows).unwrap()).to_string()
    }

    #[test]
    fn services_are_listed_as_kubectl_would() {
        insta::assert_snapshot!(shown(Format::Table, None), @r"
        NAMESPACE   NAME   PORT     TYPE                              ADDRESSES                ENDPOINTS   SPILL    NEW-LOCAL   NEW-REMOTE   REJECTED   AGE
        default     dns    53/UDP   ClusterIP                         10.96.0.10               0/0         <none>   0           0            0          3m20s
        shop        web    80/TCP   ClusterIP,NodePort,LoadBalancer   10.96.0.20,203.0.113.7   1/3         10.0%    90          10           2          3m20s
        shop        web    80/TCP   ClusterIP                         fd00:96::20              0/1         100%     0           0            0          3m20s
        ");
    }

    #[test]
    fn wide_adds_slots_and_tiers() {
        insta::assert_snapshot!(shown(Format::Wide, Some("shop")), @r"
        NAMESPACE   NAME   PORT     TYPE                              ADDRESSES                ENDPOINTS   SPILL   NEW-LOCAL   NEW-REMOTE   REJECTED   AGE     FAMILY   PORT-NAME   NODE-PORT   AFFINITY   SOURCE-RANGES                  DROPPED   ID   INTERNAL                 EXTERNAL                 SHORT-CIRCUIT
        shop        web    80/TCP   ClusterIP,NodePort,LoadBalancer   10.96.0.20,203.0.113.7   1/3         10.0%   90          10           2          3m20s   IPv4     http        30080       3h         192.0.2.7/32,198.51.100.0/24   1         1    6554,backend:1,line:4    0,backend:1,<none>       6554,backend:1,line:4
        shop        web    80/TCP   ClusterIP                         fd00:96::20              0/1         100%    0           0            0          3m20s   IPv6     http        <none>      <none>     <none>                         0         2    65535,<none>,backend:5   65535,<none>,backend:5   65535,<none>,backend:5
        ");
    }

    #[test]
    fn json_says_the_same_with_numbers() {
        insta::assert_snapshot!(shown(Format::Json, Some("default")), @r#"
        {
          "apiVersion": "weir.dev/v1alpha1",
          "kind": "ServiceList",
          "items": [
            {
              "namespace": "default",
              "name": "dns",
              "port": 53,
              "portName": "",
              "protocol": "UDP",
              "family": "IPv4",
              "types": [
                "ClusterIP"
              ],
              "addresses": [
                "10.96.0.10"
              ],
              "nodePort": null,
              "endpoints": {
                "local": 0,
                "all": 0
              },
              "spill": null,
              "newFlows": {
                "local": 0,
                "remote": 0,
                "rejected": 0,
                "dropped": 0
              },
              "ageSeconds": 200,
              "affinitySeconds": null,
              "sourceRanges": null,
              "id": 3,
              "tiers": [
                {
                  "class": "internal",
                  "spill": 0,
                  "local": "",
                  "remote": ""
                },
                {
                  "class": "external",
                  "spill": 0,
                  "local": "",
                  "remote": ""
                },
                {
                  "class": "shortCircuit",
                  "spill": 0,
                  "local": "",
                  "remote": ""
                }
              ]
            }
          ]
        }
        "#);
    }

    #[test]
    fn names_are_those_of_services_not_of_ports() {
        assert_eq!(shown(Format::Name, None), "service/default/dns\nservice/shop/web\n");
    }

    #[test]
    fn a_name_that_is_not_there_is_an_error_that_says_how_to_go_on() {
        let dump = sample::dump();
        let error = sample::filter(Some("shop"), Some("nope")).require(&Index::new(&dump)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no service shop/nope in the maps of this node; `weir services -A` lists all of them"
        );
    }
}
