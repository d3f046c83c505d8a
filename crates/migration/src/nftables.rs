//! kube-proxy's table of nftables: what it serves, and how it goes. Read is what `nft -j list table` prints, written is what
//! `nft -f -` takes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use serde_json::Value;
use weir_core::model::Family;

use crate::served::{Frontend, Place, Served, protocol_number};

/// Its name, in both families.
pub const TABLE: &str = "kube-proxy";

/// The table that stays until the last connection has ended that kube-proxy has begun. Without a chain of type nat and a rule
/// that asks for connection tracking the kernel would stop to translate these.
pub const KEEPER: &str = "weir-migration";

/// Maps of frontends; the elements of those called `no-endpoint-…` are refused.
const MAPS: [&str; 4] = ["service-ips", "service-nodeports", "no-endpoint-services", "no-endpoint-nodeports"];

/// The text cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// It is not JSON.
    #[error("what nft prints is not JSON")]
    NotJson(#[from] serde_json::Error),
    /// It is, and not nft's.
    #[error("what nft prints has no list \"nftables\"")]
    NotNfts,
    /// An element of a map is none of kube-proxy's.
    #[error("element {element} of map {map} is none that this version knows")]
    Element {
        /// Name of the map.
        map: String,
        /// As it was printed.
        element: String,
    },
}

/// The name of a family in nft's language.
#[must_use]
pub const fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

/// Reads what kube-proxy serves from `nft -j list table FAMILY kube-proxy`.
///
/// # Errors
/// When it is something else.
pub fn served(family: Family, text: &str) -> Result<Served, Unreadable> {
    let document: Value = serde_json::from_str(text)?;
    let objects = document["nftables"].as_array().ok_or(Unreadable::NotNfts)?;
    let chains = Chains::new(objects);
    let mut served = Served::new();
    for map in objects.iter().filter_map(|object| object.get("map")) {
        let Some(name) = map["name"].as_str().filter(|name| MAPS.contains(name)) else { continue };
        for element in map["elem"].as_array().into_iter().flatten() {
            let unknown = || Unreadable::Element { map: name.to_owned(), element: element.to_string() };
            let frontend = frontend(family, &element[0]).ok_or_else(unknown)?;
            let endpoints = served.entry(frontend).or_default();
            endpoints.extend(targets(&element[1]).iter().flat_map(|chain| chains.endpoints(chain)));
        }
    }
    Ok(served)
}

/// `10.96.0.10 . tcp . 80`, or of node ports `tcp . 30080`, with or without a comment.
fn frontend(family: Family, key: &Value) -> Option<Frontend> {
    let key = key.pointer("/elem/val").unwrap_or(key);
    let parts = key["concat"].as_array()?;
    let (port, rest) = parts.split_last()?;
    let (protocol, place) = rest.split_last()?;
    let place = match place {
        [] => Place::Node(family),
        [address] => Place::Address(address.as_str()?.parse().ok()?),
        _ => return None,
    };
    let protocol =
        protocol.as_str().map(ToOwned::to_owned).or_else(|| protocol.as_u64().map(|number| number.to_string()));
    Some(Frontend { place, port: number(port)?, protocol: protocol_number(&protocol?)? })
}

fn number(value: &Value) -> Option<u16> {
    match value {
        Value::String(text) => text.parse().ok(),
        other => other.as_u64()?.try_into().ok(),
    }
}

/// Chains that a statement leads to, however deep they stand in it.
fn targets(value: &Value) -> Vec<&str> {
    let mut found = Vec::new();
    visit(value, &mut |name, value| {
        if matches!(name, "goto" | "jump") {
            found.extend(value["target"].as_str());
        }
    });
    found
}

/// Shows each member of each object within a value.
fn visit<'a>(value: &'a Value, show: &mut impl FnMut(&'a str, &'a Value)) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| visit(item, show)),
        Value::Object(members) => {
            for (name, member) in members {
                show(name, member);
                visit(member, show);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Endpoints of a translation: one, or a map of numbers to endpoints of which one is drawn.
fn destinations(dnat: &Value) -> Vec<SocketAddr> {
    let socket =
        |address: &Value, port: &Value| Some(SocketAddr::new(address.as_str()?.parse::<IpAddr>().ok()?, number(port)?));
    let mut found: Vec<_> = socket(&dnat["addr"], &dnat["port"]).into_iter().collect();
    visit(&dnat["addr"], &mut |name, value| {
        if name == "concat" {
            found.extend(socket(&value[0], &value[1]));
        }
    });
    found
}

/// Where the rules of each chain lead.
struct Chains<'a>(BTreeMap<&'a str, (Vec<&'a str>, Vec<SocketAddr>)>);

impl<'a> Chains<'a> {
    fn new(objects: &'a [Value]) -> Self {
        let mut chains: BTreeMap<_, (Vec<_>, Vec<_>)> = BTreeMap::new();
        for rule in objects.iter().filter_map(|object| object.get("rule")) {
            let Some(chain) = rule["chain"].as_str() else { continue };
            let (leads, endpoints) = chains.entry(chain).or_default();
            leads.extend(targets(&rule["expr"]));
            visit(&rule["expr"], &mut |name, value| {
                if name == "dnat" {
                    endpoints.extend(destinations(value));
                }
            });
        }
        Self(chains)
    }

    /// Endpoints that a chain leads to.
    fn endpoints(&self, chain: &str) -> BTreeSet<SocketAddr> {
        let (mut open, mut seen, mut found) = (vec![chain], BTreeSet::new(), BTreeSet::new());
        while let Some(chain) = open.pop() {
            if let Some((leads, endpoints)) = self.0.get(chain).filter(|_| seen.insert(chain)) {
                found.extend(endpoints);
                open.extend(leads);
            }
        }
        found
    }
}

/// What takes the table away and leaves [`KEEPER`] in its place, in one transaction: no packet meets a moment without.
#[must_use]
pub fn removal(family: Family) -> String {
    let family = family_name(family);
    format!(
        "add table {family} {KEEPER}\n\
         add chain {family} {KEEPER} postrouting {{ type nat hook postrouting priority srcnat; }}\n\
         flush chain {family} {KEEPER} postrouting\n\
         add rule {family} {KEEPER} postrouting ct state established accept\n\
         delete table {family} {TABLE}\n"
    )
}

/// What takes [`KEEPER`] away.
#[must_use]
pub fn keeper_removal(family: Family) -> String {
    format!("delete table {} {KEEPER}\n", family_name(family))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As nft 1.0.6 prints what kube-proxy 1.36 and those before it write, shortened.
    const LISTED: &str = r#"{"nftables": [
        {"metainfo": {"version": "1.0.6", "json_schema_version": 1}},
        {"table": {"family": "ip", "name": "kube-proxy", "handle": 1}},
        {"map": {"family": "ip", "name": "service-ips", "table": "kube-proxy", "map": "verdict", "elem": [
            [{"elem": {"val": {"concat": ["10.96.0.20", "tcp", 80]}, "comment": "shop/web:http"}}, {"goto": {"target": "service-A"}}],
            [{"concat": ["203.0.113.7", "tcp", 80]}, {"goto": {"target": "external-A"}}]
        ]}},
        {"map": {"family": "ip", "name": "service-nodeports", "table": "kube-proxy", "map": "verdict", "elem": [
            [{"concat": ["udp", 30053]}, {"goto": {"target": "external-A"}}],
            [{"concat": ["tcp", 30080]}, {"goto": {"target": "service-B"}}]
        ]}},
        {"map": {"family": "ip", "name": "no-endpoint-services", "table": "kube-proxy", "map": "verdict", "elem": [
            [{"concat": ["10.96.0.30", 6, 80]}, {"goto": {"target": "reject-chain"}}]
        ]}},
        {"map": {"family": "ip", "name": "no-endpoint-nodeports", "table": "kube-proxy", "map": "verdict"}},
        {"map": {"family": "ip", "name": "firewall-ips", "table": "kube-proxy", "map": "verdict", "elem": [
            [{"concat": ["203.0.113.7", "tcp", 80]}, {"goto": {"target": "firewall-A"}}]
        ]}},
        {"rule": {"family": "ip", "chain": "external-A", "expr": [{"jump": {"target": "mark-for-masquerade"}}]}},
        {"rule": {"family": "ip", "chain": "external-A", "expr": [{"goto": {"target": "service-A"}}]}},
        {"rule": {"family": "ip", "chain": "service-A", "expr": [{"vmap": {"key": {"numgen": {"mode": "random", "mod": 2, "offset": 0}},
            "data": {"set": [[0, {"goto": {"target": "endpoint-1"}}], [1, {"goto": {"target": "endpoint-2"}}]]}}}]}},
        {"rule": {"family": "ip", "chain": "service-B", "expr": [{"match": {"op": "==", "left": {"meta": {"key": "l4proto"}}, "right": "tcp"}},
            {"dnat": {"family": "ip", "addr": {"map": {"key": {"numgen": {"mode": "random", "mod": 2, "offset": 0}},
                "data": {"set": [[0, {"concat": ["10.244.1.5", 8080]}], [1, {"concat": ["10.244.2.6", 8080]}]]}}}}}]}},
        {"rule": {"family": "ip", "chain": "endpoint-1", "expr": [
            {"match": {"op": "==", "left": {"meta": {"key": "l4proto"}}, "right": "tcp"}}, {"dnat": {"addr": "10.244.1.5", "port": 8080}}]}},
        {"rule": {"family": "ip", "chain": "endpoint-2", "expr": [{"dnat": {"addr": "10.244.2.6", "port": 8080}}]}},
        {"rule": {"family": "ip", "chain": "reject-chain", "expr": [{"reject": null}]}}
    ]}"#;

    #[test]
    fn what_it_serves_is_read_from_map_to_chain_to_chain() {
        let address = |text: &str| Place::Address(text.parse().unwrap());
        let both: BTreeSet<SocketAddr> =
            ["10.244.1.5:8080", "10.244.2.6:8080"].map(|text| text.parse().unwrap()).into();
        let expected = Served::from([
            (Frontend { place: address("10.96.0.20"), port: 80, protocol: 6 }, both.clone()),
            (Frontend { place: address("203.0.113.7"), port: 80, protocol: 6 }, both.clone()),
            (Frontend { place: Place::Node(Family::V4), port: 30_053, protocol: 17 }, both.clone()),
            (Frontend { place: Place::Node(Family::V4), port: 30_080, protocol: 6 }, both),
            (Frontend { place: address("10.96.0.30"), port: 80, protocol: 6 }, BTreeSet::new()),
        ]);
        assert_eq!(served(Family::V4, LISTED).unwrap(), expected);
    }

    #[test]
    fn an_element_of_another_form_is_refused_rather_than_overlooked() {
        let other = LISTED.replace("10.96.0.30", "10.96.0.0/24");
        let refused = served(Family::V4, &other).unwrap_err().to_string();
        assert!(refused.contains("no-endpoint-services") && refused.contains("10.96.0.0/24"), "{refused}");
        assert!(matches!(served(Family::V4, "{}"), Err(Unreadable::NotNfts)));
        assert!(matches!(served(Family::V4, "nft"), Err(Unreadable::NotJson(_))));
    }

    #[test]
    fn the_keeper_comes_in_the_transaction_in_which_the_table_goes() {
        let script = removal(Family::V6);
        assert!(
            script.contains("add rule ip6 weir-migration") && script.ends_with("delete table ip6 kube-proxy\n"),
            "{script}"
        );
    }
}
