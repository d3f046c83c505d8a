//! Verdicts on the pins, their layout, how full the maps are, and the source ports.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use weir_core::flow_pressure::TableUse;
use weir_core::source_ports::{FEW, HostPorts, PortSet, UNPRIVILEGED, leaves_few, local_port_range};

use super::check::Check;
use super::fix::Fix;
use crate::maps::{NEARLY_FULL, is_nearly_full};

/// A map of a fixed number of entries that does not evict.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Fill {
    pub(crate) map: &'static str,
    pub(crate) used: usize,
    pub(crate) max: u32,
    /// The agent's option that sets it.
    pub(crate) option: Option<&'static str>,
}

/// What the maps of this version say.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MapFacts {
    /// As the agent wrote it; 0 if none did.
    pub(crate) abi_version: u32,
    pub(crate) fill: Vec<Fill>,
    /// Tables of flows that go on: these evict, which hurts where what they hold is open.
    pub(crate) flows: Vec<(&'static str, TableUse)>,
    /// Source ports that flows to other nodes may take.
    pub(crate) source_ports: PortSet,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TableFacts {
    pub(crate) pin_dir: PathBuf,
    /// The ABI version of this command.
    pub(crate) ours: u32,
    /// None where nothing is pinned, or why it cannot be read.
    pub(crate) maps: Option<Result<MapFacts, String>>,
    /// Directories of maps of other ABI versions.
    pub(crate) others: Vec<PathBuf>,
    /// Pinned links.
    pub(crate) links: usize,
    /// `net.ipv4.ip_local_port_range`, as it is written there.
    pub(crate) local_ports: Option<String>,
}

/// The verdicts.
pub(crate) fn checks(facts: &TableFacts) -> Vec<Check> {
    let mut checks = vec![pins(facts)];
    checks.extend(facts.others.iter().map(|dir| {
        let detail = format!("{}: maps of another version, which nobody uses any more", dir.display());
        Check::warn("pins", detail, format!("rm -r {}", dir.display()))
    }));
    if let Some(Ok(maps)) = &facts.maps {
        checks.push(links(facts));
        checks.extend(maps.fill.iter().filter_map(fill));
        checks.extend(maps.flows.iter().map(|(table, used)| flows(table, used)));
        checks.push(source_ports(facts, maps));
    }
    checks
}

fn pins(facts: &TableFacts) -> Check {
    let (what, dir) = ("pins", facts.pin_dir.display());
    match &facts.maps {
        None => Check::fail(what, format!("nothing in {dir}: no agent has run here"), Fix::Restart { running: false }),
        Some(Err(why)) => Check::fail(what, why.clone(), Fix::Restart { running: true }),
        Some(Ok(MapFacts { abi_version: 0, .. })) => {
            Check::fail(what, format!("maps in {dir} that no agent has configured"), Fix::Restart { running: true })
        }
        Some(Ok(MapFacts { abi_version, .. })) if *abi_version != facts.ours => {
            let detail = format!("their writer has ABI version {abi_version}, this command {}", facts.ours);
            Check::fail(what, detail, Fix::Restart { running: true })
        }
        Some(Ok(_)) => Check::ok(what, format!("maps of ABI version {} in {dir}", facts.ours)),
    }
}

fn links(facts: &TableFacts) -> Check {
    match facts.links {
        0 => {
            let lost = "none pinned: nothing is translated, unless by tc filters of a kernel before 6.6";
            Check::fail("attached", lost, Fix::Restart { running: true })
        }
        count => Check::ok("attached", format!("{count} links")),
    }
}

fn fill(fill: &Fill) -> Option<Check> {
    let Fill { map, used, max, option } = fill;
    let what = format!("map {map}");
    let detail = format!("{used} of {max}");
    let name = (*option)?;
    if !is_nearly_full(*used, *max) {
        return Some(Check::ok(what, detail));
    }
    let larger = Fix::Option { name, value: max.saturating_mul(2).to_string() };
    let full = format!("{detail}, over {NEARLY_FULL} %");
    Some(if *used >= *max as usize {
        Check::fail(what, format!("{full}: what is new is not served"), larger)
    } else {
        Check::warn(what, full, larger)
    })
}

fn flows(table: &str, used: &TableUse) -> Check {
    let what = format!("map {table}");
    let detail = format!("{} open flows of {}", used.open, used.capacity);
    if !used.is_short() {
        return Check::ok(what, detail);
    }
    let lost = format!("{detail}: soon connections that go on are forgotten");
    Check::warn(what, lost, Fix::Option { name: "--max-flows", value: used.capacity.saturating_mul(2).to_string() })
}

fn source_ports(facts: &TableFacts, maps: &MapFacts) -> Check {
    let what = "source ports";
    let range = facts.local_ports.as_deref().unwrap_or("unknown").split_whitespace().collect::<Vec<_>>().join("-");
    let detail = format!("{} for flows to other nodes; the host's own are {range}", maps.source_ports.len());
    let ephemeral = facts.local_ports.as_deref().and_then(local_port_range);
    let shared = ephemeral.clone().is_some_and(|mut ephemeral| ephemeral.any(|port| maps.source_ports.contains(port)));
    let fix = wider(ephemeral);
    match maps.source_ports.len() {
        0 => Check::fail(what, format!("{detail}: flows from outside to other nodes are dropped"), fix),
        1..FEW => Check::warn(what, format!("{detail}: so many flows to one endpoint at a time"), fix),
        _ if shared => {
            Check::warn(what, format!("{detail}, and some are both: a socket of the host may lose an answer"), fix)
        }
        _ => Check::ok(what, detail),
    }
}

/// What makes room where there are few source ports: if the host's own leave enough, it is the option that does not.
fn wider(ephemeral: Option<RangeInclusive<u16>>) -> Fix {
    let host = ephemeral.map(|ephemeral| HostPorts { ephemeral, used: PortSet::default() });
    if host.is_some_and(|host| !leaves_few(&UNPRIVILEGED, &host)) {
        let value = format!("{}-{}", UNPRIVILEGED.start(), UNPRIVILEGED.end());
        return Fix::Option { name: "--snat-ports", value };
    }
    "sysctl -w net.ipv4.ip_local_port_range='32768 60999'".into()
}

#[cfg(test)]
mod tests {
    use super::super::check::State;
    use super::super::check::tests::{find, verdict};
    use super::*;

    const fn flows(open: u32) -> TableUse {
        TableUse { open, over: 1000 - open, capacity: 1000 }
    }

    /// `source_ports`: how many, from 1024 on.
    fn facts(used: usize, source_ports: u16) -> TableFacts {
        let services = Fill { map: "services", used, max: 100, option: Some("--max-services") };
        TableFacts {
            pin_dir: "/sys/fs/bpf/weir".into(),
            ours: 4,
            maps: Some(Ok(MapFacts {
                abi_version: 4,
                fill: vec![services],
                flows: vec![("flows4", flows(899))],
                source_ports: (1024..1024 + source_ports).collect(),
            })),
            others: Vec::new(),
            links: 12,
            local_ports: Some("32768\t60999\n".to_owned()),
        }
    }

    #[test]
    fn pins_of_this_version_with_room_and_ports_are_fine() {
        let checks = checks(&facts(84, 28_000));
        assert_eq!(checks.len(), 5);
        assert!(checks.iter().all(|check| check.state == State::Ok), "{checks:#?}");
        assert!(find(&checks, "source ports").detail.ends_with("32768-60999"));
    }

    #[test]
    fn a_map_without_room_names_the_option() {
        let of = |used| checks(&facts(used, 28_000));
        assert_eq!(verdict(&of(85), "map services"), (State::Warn, "weir-agent --max-services 200"));
        assert_eq!(verdict(&of(100), "map services"), (State::Fail, "weir-agent --max-services 200"));
    }

    #[test]
    fn a_table_full_of_open_flows_names_the_option() {
        let mut facts = facts(0, 28_000);
        if let Some(Ok(maps)) = &mut facts.maps {
            maps.flows = vec![("flows6", flows(900))];
        }
        assert_eq!(verdict(&checks(&facts), "map flows6"), (State::Warn, "weir-agent --max-flows 2000"));
    }

    #[test]
    fn few_source_ports_are_told_and_none_is_a_failure() {
        let of = |ports| find(&checks(&facts(0, ports)), "source ports").state;
        assert_eq!([0, 1, 4095, 4096].map(of), [State::Fail, State::Warn, State::Warn, State::Ok]);
    }

    #[test]
    fn few_source_ports_are_the_options_where_the_hosts_own_leave_enough() {
        let of = |local: &str| checks(&TableFacts { local_ports: Some(local.to_owned()), ..facts(0, 100) });
        let option = "weir-agent --snat-ports 1024-65535";
        assert_eq!(verdict(&of("32768\t60999\n"), "source ports"), (State::Warn, option));
        let sysctl = "sysctl -w net.ipv4.ip_local_port_range='32768 60999'";
        assert_eq!(verdict(&of("2048\t65535\n"), "source ports"), (State::Warn, sysctl));
    }

    #[test]
    fn source_ports_that_the_host_hands_out_as_well_are_told() {
        let checks = checks(&TableFacts { local_ports: Some("1024\t65535\n".to_owned()), ..facts(0, 28_000) });
        let check = find(&checks, "source ports");
        assert_eq!(check.state, State::Warn);
        assert!(check.detail.contains("the host's own are 1024-65535, and some are both"), "{}", check.detail);
    }

    #[test]
    fn absent_unreadable_foreign_and_unconfigured_pins_are_failures() {
        let state = |maps| {
            let checks = checks(&TableFacts { maps, ..facts(0, 28_000) });
            find(&checks, "pins").state
        };
        let of_version = |abi_version| {
            Some(Ok(MapFacts {
                abi_version,
                fill: Vec::new(),
                flows: Vec::new(),
                source_ports: [1024].into_iter().collect(),
            }))
        };
        let all = [None, Some(Err("another layout".to_owned())), of_version(0), of_version(3), of_version(4)];
        assert_eq!(all.map(state), [State::Fail, State::Fail, State::Fail, State::Fail, State::Ok]);
    }

    #[test]
    fn what_other_versions_left_and_missing_links_have_their_fixes() {
        let others = vec!["/sys/fs/bpf/weir/maps-v3".into()];
        let checks = checks(&TableFacts { others, links: 0, ..facts(0, 28_000) });
        let left = checks.iter().find(|check| check.fix == Some("rm -r /sys/fs/bpf/weir/maps-v3".into()));
        assert_eq!(left.map(|check| check.state), Some(State::Warn));
        assert_eq!(find(&checks, "attached").state, State::Fail);
    }
}
