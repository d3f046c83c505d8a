//! Open flows, from the flow tables.

use std::collections::HashMap;

use weir_abi::{Be16, FLOW_CLOSING, FLOW_ENDED, FLOW_GONE_ON, FLOW_OPENING, FLOW_SETTLED, Flow, OPENING_IDLE};
use weir_core::flow_pressure::IdleLimits;
use weir_signals::FailureKind;
use weir_signals::open_flows::{Balance, FlowTable, Open, OpenFlows};

use crate::build::{at, kind, value};

const LIMITS: IdleLimits = IdleLimits { udp: 20, tcp: 100, half_closed: 50 };
const TCP: u8 = 6;
const UDP: u8 = 17;

struct Table {
    tick: u32,
    flows: Result<Vec<(u8, Flow)>, std::io::ErrorKind>,
    balances: Vec<((u32, u32), Balance)>,
}

impl FlowTable for Table {
    type Error = std::io::Error;

    fn tick(&self) -> u32 {
        self.tick
    }

    fn limits(&self) -> Result<IdleLimits, std::io::Error> {
        Ok(LIMITS)
    }

    fn visit(&self, visit: &mut dyn FnMut(u8, &Flow)) -> Result<(), std::io::Error> {
        let flows = self.flows.as_ref().map_err(|kind| std::io::Error::from(*kind))?;
        flows.iter().for_each(|(protocol, flow)| visit(*protocol, flow));
        Ok(())
    }

    fn balances(&self, visit: &mut dyn FnMut((u32, u32), Balance)) -> Result<(), std::io::Error> {
        self.balances.iter().for_each(|(backend, balance)| visit(*backend, *balance));
        Ok(())
    }
}

fn flow(backend: u32, generation: u32, flags: u16, last_seen: u32) -> Flow {
    Flow { backend, generation, service: 1, flags, snat_port: Be16::new(0), created: 0, last_seen, bytes: 0, held: 0 }
}

fn open(tick: u32, flows: Vec<Flow>) -> HashMap<(u32, u32), u32> {
    open_of(TCP, tick, flows)
}

fn open_of(protocol: u8, tick: u32, flows: Vec<Flow>) -> HashMap<(u32, u32), u32> {
    let flows = flows.into_iter().map(|flow| (protocol, flow)).collect();
    let table = Table { tick, flows: Ok(flows), balances: Vec::new() };
    let open = value(&mut OpenFlows::new(table), at(0));
    open.into_iter().map(|(backend, open)| (backend, open.flows)).collect()
}

#[test]
fn flows_are_counted_by_backend_and_generation() {
    let flows = vec![flow(5, 1, 0, 1000), flow(5, 1, 0, 990), flow(5, 2, 0, 1000), flow(6, 1, 0, 1000)];
    assert_eq!(open(1000, flows), HashMap::from([((5, 1), 2), ((5, 2), 1), ((6, 1), 1)]));
}

#[test]
fn what_has_ended_or_was_idle_for_too_long_is_not_open() {
    assert_eq!(open(1000, vec![flow(5, 1, FLOW_CLOSING | FLOW_ENDED, 1000), flow(5, 1, 0, 899)]), HashMap::new());
    assert_eq!(open(1000, vec![flow(5, 1, 0, 900)]), HashMap::from([((5, 1), 1)]));
    assert_eq!(open(1000, vec![flow(5, 1, FLOW_CLOSING, 1000)]), HashMap::from([((5, 1), 1)]), "its backend may go on");
}

#[test]
fn a_connection_is_open_for_as_long_as_connections_may_be_silent_and_one_of_datagrams_as_these() {
    let silent = |protocol, flags, ticks| open_of(protocol, 1000, vec![flow(5, 1, flags, 1000 - ticks)]).len();
    for (protocol, flags, limit) in
        [(TCP, 0, LIMITS.tcp), (TCP, FLOW_CLOSING, LIMITS.half_closed), (UDP, 0, LIMITS.udp)]
    {
        assert_eq!([limit, limit + 1].map(|ticks| silent(protocol, flags, ticks)), [1, 0], "{protocol}, {flags}");
    }
    assert_eq!([OPENING_IDLE, OPENING_IDLE + 1].map(|ticks| silent(UDP, FLOW_OPENING, ticks)), [1, 0]);
}

#[test]
fn what_nobody_has_answered_is_open_for_as_long_as_clients_ask_for_it() {
    let asked = |ticks| flow(5, 1, FLOW_OPENING, 1000 - ticks);
    assert_eq!(open(1000, vec![asked(OPENING_IDLE), asked(OPENING_IDLE + 1)]), HashMap::from([((5, 1), 1)]));
}

#[test]
fn what_has_settled_where_it_began_is_open_as_if_it_had_moved() {
    let silent = |ticks: u32| flow(5, 1, FLOW_OPENING | FLOW_SETTLED, 1000 - ticks);
    assert_eq!(open(1000, vec![silent(100), silent(101)]), HashMap::from([((5, 1), 1)]));
}

#[test]
fn ticks_wrap_and_run_on_while_the_table_is_read() {
    assert_eq!(open(5, vec![flow(5, 1, 0, u32::MAX - 10)]), HashMap::from([((5, 1), 1)]));
    assert_eq!(open(1000, vec![flow(5, 1, 0, 1001)]), HashMap::from([((5, 1), 1)]));
}

#[test]
fn a_table_that_cannot_be_read_is_missing() {
    let table = Table { tick: 0, flows: Err(std::io::ErrorKind::PermissionDenied), balances: Vec::new() };
    assert_eq!(kind(&mut OpenFlows::new(table), at(0)), FailureKind::Missing);
}

#[test]
fn between_two_counts_the_balance_of_connections_says_what_has_changed() {
    let flows = vec![(TCP, flow(5, 1, FLOW_GONE_ON, 1000)), (TCP, flow(5, 1, FLOW_GONE_ON, 1000))];
    let balances =
        [((5, 1), 40), ((6, 3), u32::MAX)].map(|(backend, going)| (backend, Balance { all: 9, going, with_failed: 9 }));
    let table = Table { tick: 1000, flows: Ok(flows), balances: balances.into() };
    let open = value(&mut OpenFlows::new(table), at(0));
    let five = open[&(5, 1)];
    let all = |open: Open, all| open.at(Balance { all, ..Balance::default() }).all;
    let going = |open: Open, going| open.at(Balance { going, ..Balance::default() }).going;
    assert_eq!([40, 47, 39, 38, 30].map(|balance| going(five, balance)), [2, 9, 1, 0, 0]);
    assert_eq!([9, 19, 8, 7, 1].map(|balance| all(five, balance)), [2, 12, 1, 0, 0]);
    assert_eq!(going(open[&(6, 3)], 4), 5, "it wraps");
    assert_eq!(going(Open::default(), 3), 3, "an endpoint that came since");
}

#[test]
fn of_connections_those_alone_go_on_whose_clients_did_and_of_datagrams_all() {
    let [begins, goes_on] = [FLOW_OPENING, FLOW_GONE_ON].map(|flags| flow(5, 1, flags, 1000));
    let flows = vec![(TCP, begins), (TCP, goes_on), (UDP, begins), (UDP, goes_on)];
    let table = Table { tick: 1000, flows: Ok(flows), balances: Vec::new() };
    let open = value(&mut OpenFlows::new(table), at(0))[&(5, 1)];
    assert_eq!((open.flows, open.going), (4, 3));
}

#[test]
fn the_base_is_the_balance_with_what_failed_without_an_open_flow() {
    let open = |with_failed| Open { flows: 7, going: 1, balance: Balance { all: 1, going: 0, with_failed } };
    assert_eq!(open(9).base(), 2);
    assert_eq!(open(2).base(), u32::MAX - 4, "it wraps");
}
