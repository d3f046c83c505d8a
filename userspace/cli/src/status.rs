//! `weir status`: one line for each part. The kernel's part is read from the pins, the rest is asked of the agent.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use weir_abi as abi;
use weir_core::flow_pressure::TableUse;
use weir_core::ops::Dump;
use weir_core::stage::Stage;
use weir_datapath::{Error, MapUse, View};

use crate::agent::{self, Agent};
use crate::args::StatusArgs;
use crate::exit::Answer;
use crate::flows;
use crate::index::Index;
use crate::links::{Links, SOCKET_PROGRAMS, interface_name};
use crate::maps::{NEARLY_FULL, is_nearly_full};
use crate::migrate::StageFile;
use crate::output::{Kind, Output, Row, Tone};
use crate::time::Now;
use crate::watch;

/// How a part fares.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    Degraded,
}

impl State {
    const fn of(good: bool) -> Self {
        if good { Self::Ok } else { Self::Degraded }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
        }
    }
}

#[derive(Clone, Debug, Serialize)]
struct Subsystem {
    name: String,
    state: State,
    detail: String,
}

impl Subsystem {
    fn new(name: impl Into<String>, good: bool, detail: impl Into<String>) -> Self {
        Self { name: name.into(), state: State::of(good), detail: detail.into() }
    }
}

impl Row for Subsystem {
    const KIND: Kind = Kind::Status;

    fn headers(_wide: bool) -> Vec<&'static str> {
        vec!["SUBSYSTEM", "STATE", "DETAIL"]
    }

    fn cells(&self, _wide: bool) -> Vec<String> {
        vec![self.name.clone(), self.state.name().to_owned(), self.detail.clone()]
    }

    fn name(&self) -> String {
        format!("subsystem/{}", self.name)
    }

    fn tone(&self) -> Tone {
        match self.state {
            State::Ok => Tone::Good,
            State::Degraded => Tone::Alert,
        }
    }
}

#[derive(Debug, Serialize)]
struct Status<'a> {
    state: State,
    subsystems: &'a [Subsystem],
}

/// What there is to know, gathered before anything is judged.
#[derive(Debug)]
struct Facts {
    maps_dir: String,
    config: abi::Config,
    maps: Vec<MapUse>,
    dump: Dump,
    flows: BTreeMap<&'static str, usize>,
    uses: BTreeMap<&'static str, TableUse>,
    links: Links,
    agent: Agent,
    stage: Stage,
}

fn subsystems(facts: &Facts) -> Vec<Subsystem> {
    let Facts { maps_dir, config, maps, dump, flows, uses, links, agent, stage } = facts;
    let mut all = vec![maps_line(maps_dir, config, maps), links_line(links)];
    all.extend(table_lines(maps, dump));
    all.push(flows_line(flows, uses));
    all.extend(agent_lines(agent));
    all.extend(stage_line(*stage));
    all
}

fn maps_line(dir: &str, config: &abi::Config, maps: &[MapUse]) -> Subsystem {
    let pinned = format!("{} pinned in {dir}, ABI version {}", maps.len(), abi::ABI_VERSION);
    match config.abi_version {
        abi::ABI_VERSION => Subsystem::new("maps", true, pinned),
        0 => Subsystem::new("maps", false, format!("{pinned}; no agent has configured them yet")),
        other => Subsystem::new("maps", false, format!("{pinned}; their writer has ABI version {other}")),
    }
}

fn links_line(links: &Links) -> Subsystem {
    let summary = links.summary();
    if links.interfaces.is_empty() && links.socket == 0 {
        let nothing = "none pinned: services are not served, unless by tc filters of a kernel before 6.6";
        return Subsystem::new("links", false, nothing);
    }
    Subsystem::new("links", links.socket == 0 || links.socket == SOCKET_PROGRAMS, summary)
}

fn limit(maps: &[MapUse], name: &str) -> u32 {
    maps.iter().find(|map| map.name == name).map_or(0, |map| map.max_entries)
}

fn table_lines(maps: &[MapUse], dump: &Dump) -> Vec<Subsystem> {
    let backends = dump.backends.iter().filter(|(_, backend)| backend.flags & abi::BACKEND_USED != 0).count();
    let v4 = dump.frontends.iter().filter(|(key, _)| key.address.is_ipv4()).count();
    let line = |name: &str, used: &[(&str, usize)]| {
        let text = |(map, used): &(&str, usize)| format!("{used} of {} {}", limit(maps, map), map.replace('_', " "));
        let full = used.iter().any(|(map, used)| is_nearly_full(*used, limit(maps, map)));
        let mut detail = used.iter().map(text).collect::<Vec<_>>().join(", ");
        if full {
            detail.push_str(&format!("; over {NEARLY_FULL} % full, give the agent larger maps"));
        }
        Subsystem::new(name, !full, detail)
    };
    vec![
        line(
            "services",
            &[
                ("services", dump.services.len()),
                ("frontends4", v4),
                ("frontends6", dump.frontends.len() - v4),
                ("source_ranges", dump.source_ranges.len()),
            ],
        ),
        line("backends", &[("backends", backends), ("lines", dump.lines.len())]),
    ]
}

/// Flow tables evict what was not used for long: full is no fault, unless it is of open flows.
fn flows_line(flows: &BTreeMap<&'static str, usize>, uses: &BTreeMap<&'static str, TableUse>) -> Subsystem {
    let states: Vec<_> = flows.iter().map(|(state, count)| format!("{count} {state}")).collect();
    let states = if states.is_empty() { String::new() } else { format!(": {}", states.join(", ")) };
    let total: usize = flows.values().sum();
    // Of those that begin, too: they are among the states.
    let room: u64 = uses.values().map(|used| u64::from(used.capacity)).sum();
    let short = uses.iter().find(|(table, used)| table.starts_with("flows") && used.is_short());
    let warning = short.map_or_else(String::new, |(table, used)| {
        format!("; {} % of {table} are open flows, give the agent a larger --max-flows", used.per_cent())
    });
    Subsystem::new("flows", short.is_none(), format!("{total} of {room}{states}{warning}"))
}

fn agent_lines(agent: &Agent) -> Vec<Subsystem> {
    match agent {
        Agent::Silent(why) => {
            let detail = format!("not running: traffic is served as last programmed, changes are not ({why})");
            vec![Subsystem::new("agent", false, detail)]
        }
        Agent::Running { healthy, components } => {
            let detail = if *healthy { "running, healthy" } else { "running, not healthy" };
            let component = |part: &agent::Component| {
                let fallback = if part.ready { "ready" } else { "not ready" };
                let detail = part.reason.clone().unwrap_or_else(|| fallback.to_owned());
                Subsystem::new(format!("agent/{}", part.name), part.ready, detail)
            };
            let own = Subsystem::new("agent", *healthy, detail);
            std::iter::once(own).chain(components.iter().map(component)).collect()
        }
    }
}

/// Of a node whose migration was begun.
fn stage_line(stage: Stage) -> Option<Subsystem> {
    let detail = match stage {
        Stage::Usual => return None,
        Stage::TakeOver => "Weir serves beside kube-proxy's connections; `weir migrate` says what comes next",
        Stage::Alone => "Weir serves alone, labelled Services and others",
        Stage::Drain => "Weir takes no new flows; `weir migrate --rollback` says what comes next",
    };
    Some(Subsystem::new("migration", true, detail))
}

fn brief(subsystems: &[Subsystem]) -> String {
    let degraded: Vec<_> = subsystems.iter().filter(|s| s.state == State::Degraded).map(|s| s.name.as_str()).collect();
    if degraded.is_empty() { "ok\n".to_owned() } else { format!("degraded: {}\n", degraded.join(", ")) }
}

fn look(view: &View, args: &StatusArgs, socket: &Path) -> Result<Vec<Subsystem>> {
    let dump = view.dump()?;
    let flows = flows::states(view, &Index::new(&dump))?;
    let facts = Facts {
        maps_dir: view.pins().maps().display().to_string(),
        config: view.config()?,
        maps: view.counters().maps()?,
        flows,
        uses: view.flow_uses(Now::read()?.tick())?,
        links: Links::new(&view.pins().link_names()?, interface_name),
        agent: agent::ask(socket)?,
        stage: StageFile::in_dir(&args.state.state_dir).read()?,
        dump,
    };
    Ok(subsystems(&facts))
}

fn is_good(subsystems: &[Subsystem]) -> bool {
    subsystems.iter().all(|subsystem| subsystem.state == State::Ok)
}

/// Whether time may mend it: an agent that starts has pinned nothing yet.
fn may_get_better(seen: &Result<Vec<Subsystem>>) -> bool {
    match seen {
        Ok(subsystems) => !is_good(subsystems),
        Err(error) => matches!(error.downcast_ref(), Some(Error::NotSetUp { .. })),
    }
}

/// Runs the command. `open` opens the maps, each time anew: an agent that starts with other sizes replaces them.
pub(crate) fn run(
    open: impl Fn() -> weir_datapath::Result<View>,
    args: &StatusArgs,
    socket: &Path,
    output: &Output,
) -> Result<Answer> {
    let patience = Duration::from_secs(args.wait.into());
    let subsystems = watch::wait(patience, may_get_better, || look(&open()?, args, socket))?;
    let good = is_good(&subsystems);
    let text = if args.brief && output.is_table() {
        brief(&subsystems)
    } else {
        let status = Status { state: State::of(good), subsystems: &subsystems };
        output.rows(&subsystems, Subsystem::KIND, &status)?
    };
    output.print(&text)?;
    Ok(if good { Answer::Yes } else { Answer::No })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Component;
    use crate::args::Format;
    use crate::output::tests::plain;
    use crate::sample;

    fn facts(agent: Agent) -> Facts {
        let map = |name, max_entries| MapUse { name, kind: "hash", max_entries, key_size: 4, value_size: 8 };
        let pins = ["nic_in-2", "nic_out-2", "connect4", "connect6"].map(str::to_owned);
        Facts {
            maps_dir: "/sys/fs/bpf/weir/maps-v3".to_owned(),
            config: sample::config(),
            maps: vec![
                map("services", 100),
                map("frontends4", 5),
                map("frontends6", 100),
                map("source_ranges", 100),
                map("backends", 100),
                map("lines", 100),
            ],
            dump: sample::dump(),
            flows: BTreeMap::from([("new", 1), ("replied", 1999)]),
            uses: BTreeMap::from([
                ("flows4", TableUse { open: 899, over: 101, capacity: 1000 }),
                ("flows6", TableUse { open: 100, over: 0, capacity: 1000 }),
                ("openings4", TableUse { open: 0, over: 900, capacity: 1200 }),
            ]),
            links: Links::new(&pins, |index| format!("eth{index}")),
            agent,
            stage: Stage::TakeOver,
        }
    }

    #[test]
    fn each_part_has_a_line_and_what_is_wrong_says_what_it_means() {
        let subsystems = subsystems(&facts(Agent::Silent("127.0.0.1:10256: connection refused".to_owned())));
        insta::assert_snapshot!(anstream::adapter::strip_str(&plain(Format::Table).list(&subsystems).unwrap()), @r"
        SUBSYSTEM   STATE      DETAIL
        maps        ok         6 pinned in /sys/fs/bpf/weir/maps-v3, ABI version 13
        links       degraded   nic_in: eth2; nic_out: eth2; socket: 2 of 8 programs
        services    degraded   3 of 100 services, 5 of 5 frontends4, 1 of 100 frontends6, 2 of 100 source ranges; over 85 % full, give the agent larger maps
        backends    ok         5 of 100 backends, 1 of 100 lines
        flows       ok         2000 of 3200: 1 new, 1999 replied
        agent       degraded   not running: traffic is served as last programmed, changes are not (127.0.0.1:10256: connection refused)
        migration   ok         Weir serves beside kube-proxy's connections; `weir migrate` says what comes next
        ");
        assert_eq!(brief(&subsystems), "degraded: links, services, agent\n");
    }

    #[test]
    fn the_agents_parts_are_lines_of_their_own() {
        let reason = Some("no contact for 20 s".to_owned());
        let components = vec![
            Component { name: "api-server".to_owned(), ready: false, reason },
            Component { name: "maps".to_owned(), ready: true, reason: Some("1 port is not served".to_owned()) },
            Component { name: "interfaces".to_owned(), ready: true, reason: None },
        ];
        let lines = agent_lines(&Agent::Running { healthy: true, components });
        let shown: Vec<_> = lines.iter().map(|line| (line.name.as_str(), line.state, line.detail.as_str())).collect();
        let expected = [
            ("agent", State::Ok, "running, healthy"),
            ("agent/api-server", State::Degraded, "no contact for 20 s"),
            ("agent/maps", State::Ok, "1 port is not served"),
            ("agent/interfaces", State::Ok, "ready"),
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn maps_that_nobody_configured_are_not_ok() {
        let mut config = facts(Agent::Silent(String::new())).config;
        config.abi_version = 0;
        assert_eq!(maps_line("/x", &config, &[]).state, State::Degraded);
    }

    #[test]
    fn a_table_full_of_open_flows_is_not_ok_and_one_full_of_others_is() {
        let facts = facts(Agent::Silent(String::new()));
        let line = |table, open| {
            let uses = BTreeMap::from([(table, TableUse { open, over: 1000 - open, capacity: 1000 })]);
            let line = flows_line(&facts.flows, &uses);
            (line.state, line.detail.split_once("; ").map(|(_, warning)| warning.to_owned()))
        };
        assert_eq!(line("flows6", 899), (State::Ok, None));
        // A flood: what it is made of is forgotten, as it should be.
        assert_eq!(line("openings6", 1000), (State::Ok, None));
        let warning = "90 % of flows6 are open flows, give the agent a larger --max-flows";
        assert_eq!(line("flows6", 900), (State::Degraded, Some(warning.to_owned())));
    }

    #[test]
    fn brief_of_a_healthy_node_is_one_word() {
        assert_eq!(brief(&[Subsystem::new("maps", true, "")]), "ok\n");
    }
}
