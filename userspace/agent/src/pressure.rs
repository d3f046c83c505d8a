//! Counts the open flows of each table, and the clients with session affinity, for metrics, and tells of a table that has no room for more. All of the flow tables is
//! read for that; flows of datagrams that are over are taken out, and the filter in front of the tables is made anew.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};
use weir_abi as abi;
use weir_core::flow_pressure::{Alarm, TableUse};
use weir_datapath::{GoingFilter, IdleFlows, PinDir, View};
use weir_kube_watch::events::{Events, Regarding};
use weir_telemetry::catalogue;
use weir_telemetry::metrics::Metrics;

use crate::host;

/// How often, and at the least: it is for people, and for graphs.
const INTERVAL: Duration = Duration::from_secs(30);
const LONGEST: Duration = Duration::from_secs(300);
/// That of a kernel with 300 jiffies a second.
const SHORTEST_TICK: Duration = Duration::from_millis(853);
const _: () = assert!(
    LONGEST.as_millis() / SHORTEST_TICK.as_millis() <= abi::IDLE_TAKEN_OUT as u128,
    "programs count on flows that are over being taken out within so many ticks"
);
/// Before the first time: when it starts the agent has better to do.
const FIRST: Duration = Duration::from_secs(2);
/// Most of a core that counting may take, a twentieth of a percent.
const EFFORT: f64 = 0.0005;

/// Entries by table.
type Uses = BTreeMap<&'static str, TableUse>;
/// Entries of flows that begin that others have displaced since the table was made, by table.
type Displaced = BTreeMap<&'static str, u64>;

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct PerState {
    map: &'static str,
    state: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct State {
    state: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct PerMap {
    map: &'static str,
}

/// What was counted at once.
#[derive(Debug)]
struct Counts {
    flows: Uses,
    affinities: TableUse,
    displaced: Displaced,
}

impl Counts {
    fn read(view: &View, flows: Uses, tick: u32) -> weir_datapath::Result<Self> {
        Ok(Self { flows, affinities: view.affinity_use(tick)?, displaced: view.displaced_openings()? })
    }

    /// Each table and how full it is.
    fn tables(&self) -> impl Iterator<Item = (&'static str, TableUse)> {
        let flows = self.flows.iter().map(|(table, used)| (*table, *used));
        flows.chain([(AFFINITIES, self.affinities)])
    }
}

/// The table of session affinity.
const AFFINITIES: &str = "affinities";

/// Entries of the tables as they were counted last.
#[derive(Clone, Debug)]
pub(crate) struct PressureMetrics {
    entries: Family<PerState, Gauge>,
    affinities: Family<State, Gauge>,
    evictions: Family<PerMap, Counter>,
    /// Evictions of which `evictions` knows, by table.
    counted: Displaced,
}

impl PressureMetrics {
    /// Without a count, registered.
    pub(crate) fn register(metrics: &mut Metrics) -> Self {
        let new = Self {
            entries: Family::default(),
            affinities: Family::default(),
            evictions: Family::default(),
            counted: Displaced::new(),
        };
        catalogue::FLOW_ENTRIES.register(metrics, new.entries.clone());
        catalogue::AFFINITY_ENTRIES.register(metrics, new.affinities.clone());
        catalogue::OPENING_EVICTIONS.register(metrics, new.evictions.clone());
        new
    }

    /// Counts those since the last time; a table that was made anew begins at zero.
    fn count(&mut self, displaced: &Displaced) {
        for (map, now) in displaced {
            let before = self.counted.get(map).copied().unwrap_or_default();
            self.evictions.get_or_create(&PerMap { map }).inc_by(now.checked_sub(before).unwrap_or(*now));
        }
        self.counted.clone_from(displaced);
    }

    fn set(&mut self, counts: &Counts) {
        for (map, used) in &counts.flows {
            for (state, count) in by_state(*used) {
                self.entries.get_or_create(&PerState { map, state }).set(count);
            }
        }
        for (state, count) in by_state(counts.affinities) {
            self.affinities.get_or_create(&State { state }).set(count);
        }
        self.count(&counts.displaced);
    }
}

fn by_state(TableUse { open, over, capacity: _ }: TableUse) -> [(&'static str, i64); 2] {
    [("open", open.into()), ("over", over.into())]
}

/// What is read, and what is done to it.
#[derive(Debug)]
struct Tables {
    view: View,
    idle: IdleFlows,
    going: GoingFilter,
}

impl Tables {
    fn open(pins: &PinDir) -> weir_datapath::Result<Self> {
        Ok(Self { view: View::open(pins.clone())?, idle: IdleFlows::open(pins)?, going: GoingFilter::open(pins)? })
    }

    /// Takes out what is over, and counts the rest.
    fn look(&self) -> weir_datapath::Result<Counts> {
        let tick = weir_datapath::tick_clock().map_or(0, |clock| clock.at(host::uptime()));
        match self.idle.take_out(tick) {
            Ok(entries) => debug!(entries, "flows of datagrams that are over were taken out"),
            Err(cause) => debug!(%cause, "flows of datagrams that are over may stay"),
        }
        let flows = self.view.flow_uses(tick);
        if let Err(cause) = follow(&self.going, flows.as_ref().ok()) {
            debug!(%cause, "what goes on is looked up without a filter");
        }
        Counts::read(&self.view, flows?, tick)
    }
}

/// Counts until it is stopped.
#[derive(Debug)]
pub(crate) struct PressureWatch {
    tables: Tables,
    metrics: PressureMetrics,
    alarm: Alarm,
    events: Events,
    node: String,
}

impl PressureWatch {
    /// Complaints go to the log, and to `events` about `node`.
    ///
    /// # Errors
    /// When a map cannot be opened.
    pub(crate) fn open(
        pins: &PinDir,
        metrics: PressureMetrics,
        events: Events,
        node: &str,
    ) -> weir_datapath::Result<Self> {
        let tables = Tables::open(pins)?;
        Ok(Self { tables, metrics, alarm: Alarm::default(), events, node: node.to_owned() })
    }

    /// Works until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let Self { mut tables, mut metrics, mut alarm, events, node } = self;
        let work = async {
            let mut pause = FIRST;
            loop {
                tokio::time::sleep(pause).await;
                let counted = tokio::task::spawn_blocking(move || {
                    let begin = Instant::now();
                    let counts = tables.look();
                    (tables, counts, begin.elapsed())
                });
                let Ok((back, counts, took)) = counted.await else { return };
                tables = back;
                match counts {
                    Ok(counts) => {
                        metrics.set(&counts);
                        let due = counts.tables().filter(|(table, used)| alarm.is_due(table, *used, Instant::now()));
                        due.for_each(|(table, used)| complain(&events, &node, table, used));
                    }
                    Err(cause) => debug!(%cause, "the tables' entries were not counted"),
                }
                pause = took.div_f64(EFFORT).clamp(INTERVAL, LONGEST);
            }
        };
        stop.run_until_cancelled(work).await;
    }
}

/// Makes the filter of what goes on anew, unless so much does that it is of no use, or nobody knows how much.
fn follow(going: &GoingFilter, uses: Option<&Uses>) -> weir_datapath::Result<()> {
    match uses.map(entries_that_go_on) {
        Some(entries) if GoingFilter::is_worth_while(entries) => going.rebuild(),
        Some(_) | None => going.give_up(),
    }
}

/// Entries of both families' flows that go on, those that are over included.
fn entries_that_go_on(uses: &Uses) -> u64 {
    let of = |table| uses.get(table).map_or(0, |TableUse { open, over, .. }| u64::from(open + over));
    of("flows4") + of("flows6")
}

fn complain(events: &Events, node: &str, table: &'static str, used: TableUse) {
    let TableUse { open, over: _, capacity } = used;
    let cause = cause_of(table);
    warn!(table, open, capacity, "the table is full of {cause}");
    let note = format!("table {table} is full, {open} of {capacity} entries are {cause}");
    events.warn(Regarding::node(node), "FlowTablePressure", note);
}

/// What a table is full of, what comes of it, and what to do.
fn cause_of(table: &str) -> &'static str {
    if table.starts_with("openings") {
        "flows that begin, as in a flood: the oldest are forgotten, and begin anew when their client comes again; \
         see --max-openings"
    } else if table == AFFINITIES {
        "clients that keep their endpoint by session affinity: those whose last new flow was longest ago may get another one; give \
         the agent a larger --max-affinities"
    } else {
        "open flows: those that are used least are forgotten, and their connections may break; give the agent a larger \
         --max-flows"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts() -> Counts {
        Counts {
            flows: Uses::from([("flows4", TableUse { open: 7, over: 3, capacity: 16 })]),
            affinities: TableUse { open: 15, over: 1, capacity: 16 },
            displaced: Displaced::new(),
        }
    }

    #[test]
    fn entries_are_a_gauge_by_table_and_state() {
        let mut metrics = Metrics::new();
        PressureMetrics::register(&mut metrics).set(&counts());
        let text = metrics.encode().unwrap();
        for line in [
            r#"weir_flow_entries{map="flows4",state="open"} 7"#,
            r#"weir_flow_entries{map="flows4",state="over"} 3"#,
            r#"weir_affinity_entries{state="open"} 15"#,
            r#"weir_affinity_entries{state="over"} 1"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
    }

    #[test]
    fn a_table_of_affinity_that_is_short_of_room_is_told_of_as_flow_tables_are() {
        let (counts, mut alarm) = (counts(), Alarm::default());
        let due = counts.tables().filter(|(table, used)| alarm.is_due(table, *used, Instant::now()));
        assert_eq!(due.collect::<Vec<_>>(), [(AFFINITIES, counts.affinities)]);
        assert!(cause_of(AFFINITIES).ends_with("--max-affinities"));
    }

    #[test]
    fn what_goes_on_is_in_the_tables_of_both_families_and_not_in_those_of_what_begins() {
        let some = |open, over| TableUse { open, over, capacity: 16 };
        let uses = [("flows4", some(1, 2)), ("flows6", some(4, 8)), ("openings4", some(16, 0))];
        assert_eq!(entries_that_go_on(&Uses::from(uses)), 15);
    }

    #[test]
    fn evictions_are_counted_on_from_the_last_look_and_from_zero_where_a_table_was_made_anew() {
        let mut metrics = Metrics::new();
        let mut pressure = PressureMetrics::register(&mut metrics);
        for (seen, told) in [(5, 5), (7, 7), (7, 7), (2, 9)] {
            pressure.count(&Displaced::from([("openings4", seen)]));
            let text = metrics.encode().unwrap();
            let line = format!(r#"weir_opening_evictions_total{{map="openings4"}} {told}"#);
            assert!(text.lines().any(|found| found == line), "{text}");
        }
    }
}
