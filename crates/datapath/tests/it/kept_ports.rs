//! A client's port has the same source port of the node's from one connection to the next: the endpoint, which remembers the last one
//! for a minute, takes the next one from there.

use weir_abi as abi;
use weir_core::model::Protocol;
use weir_datapath::Hook;
use weir_testbed::address::CLIENT;

use crate::case::{CLUSTER_IP, Case, PORT, cases};
use crate::entries::evict;
use crate::node::{Device, Node};
use crate::rehearsal::rehearse;
use crate::source_ports::{Forwarded, node, usable};
use crate::turns::pass;

/// A connection from a port of the client's, from its beginning to its end. Returns its source port.
fn connect(node: &Node, case: Case, from: u16) -> u16 {
    let flow = Forwarded::open_from(node, case, from);
    flow.go_on(node);
    flow.end(node);
    flow.port()
}

#[test]
fn a_clients_next_connection_from_a_port_has_the_last_ones_source_port_whoevers_turn_it_is() {
    let Some(node) = node("source ports that are kept", 50_000..50_064) else { return };
    for case in cases(Protocol::Tcp) {
        let clients: Vec<u16> = (0..8).map(|_| node.client_port()).collect();
        let first: Vec<u16> = clients.iter().map(|client| connect(&node, case, *client)).collect();
        for _ in 0..3 {
            connect(&node, case, node.client_port());
            let again: Vec<u16> = clients.iter().rev().map(|client| connect(&node, case, *client)).collect();
            assert!(again.iter().rev().eq(&first), "{case:?}: {first:?}, then {again:?}");
        }
    }
}

#[test]
fn the_flow_at_a_port_that_was_kept_goes_on_as_any_other() {
    let Some(node) = node("a flow at a source port that was kept", 50_000..50_008) else { return };
    for case in cases(Protocol::Tcp) {
        let client = node.client_port();
        let port = connect(&node, case, client);
        let flow = Forwarded::open_from(&node, case, client);
        assert_eq!(flow.port(), port, "{case:?}");
        flow.assert_goes_on(&node);
    }
}

#[test]
fn others_have_a_port_that_was_kept_when_its_endpoint_has_forgotten_the_last_connection() {
    for case in cases(Protocol::Tcp) {
        let Some(node) = node("whose a kept source port is", 50_000..50_003) else { return };
        let client = node.client_port();
        let other = || connect(&node, case, node.client_port());
        assert_eq!([connect(&node, case, client), connect(&node, case, client)], [50_000; 2], "{case:?}");
        let turns: Vec<u16> = (0..5).map(|_| other()).collect();
        assert_eq!(turns, [50_001, 50_002, 50_001, 50_002, 50_001], "{case:?}");
        let remembered = (node.view.config().unwrap().tcp_linger + 1) * abi::TIME_WAIT_LINGERS;
        pass(&node, case, remembered + 1);
        assert_eq!([other(), other()], [50_002, 50_000], "{case:?}");
        // Who has it now is remembered there.
        assert_eq!(connect(&node, case, client), 50_001, "{case:?}");
    }
}

#[test]
fn a_connection_that_begins_at_a_port_that_was_kept_loses_it_to_nobodys_turn_and_is_no_flood() {
    for case in cases(Protocol::Tcp) {
        let Some(node) = node("connections that begin at kept source ports", 50_000..50_008) else { return };
        let clients: Vec<u16> = (0..8).map(|_| node.client_port()).collect();
        let connect_all = || clients.iter().map(|client| connect(&node, case, *client)).collect::<Vec<_>>();
        assert_eq!(connect_all(), connect_all(), "{case:?}");
        let (last, others) = clients.split_last().unwrap();
        let begun: Vec<_> = others.iter().map(|client| Forwarded::open_from(&node, case, *client)).collect();
        // The only one that has ended.
        assert_eq!(connect(&node, case, node.client_port()), 50_007, "{case:?}");
        // In a flood the SYN of a client without a port would have to come again.
        assert_eq!(connect(&node, case, *last), 50_007, "{case:?}");
        for flow in &begun {
            flow.go_on(&node);
            flow.assert_goes_on(&node);
        }
    }
}

#[test]
fn who_begins_at_a_long_run_of_kept_ports_gets_a_free_one_behind_it() {
    for case in cases(Protocol::Tcp) {
        let Some(node) = node("a run of kept source ports", 50_000..50_080) else { return };
        let clients: Vec<u16> = (0..40).map(|_| node.client_port()).collect();
        let connect_all = || clients.iter().map(|client| connect(&node, case, *client)).collect::<Vec<_>>();
        connect_all();
        let others = (0..40).map(|_| connect(&node, case, node.client_port()));
        assert_eq!(others.last(), Some(50_079), "{case:?}");
        let remembered = (node.view.config().unwrap().tcp_linger + 1) * abi::TIME_WAIT_LINGERS;
        pass(&node, case, remembered + 1);
        assert_eq!(connect_all(), (50_000..50_040).collect::<Vec<_>>(), "{case:?}");
        assert_eq!(connect(&node, case, node.client_port()), 50_040, "{case:?}");
        assert_eq!(connect_all(), (50_000..50_040).collect::<Vec<_>>(), "they have theirs still: {case:?}");
    }
}

#[test]
fn a_rehearsal_shows_the_port_that_was_kept() {
    let Some(node) = node("a rehearsal of a connection with a kept source port", 50_000..50_064) else { return };
    for case in cases(Protocol::Tcp) {
        let client = node.client_port();
        connect(&node, case, client);
        let sent = case.first(case.at(CLIENT, client), case.at(CLUSTER_IP, PORT));
        let (shown, _) = rehearse(&node, case, Hook::NicIn, Device::Eth0, &sent);
        assert_eq!(shown.frame, node.send(Hook::NicIn, Device::Eth0, &sent).frame, "{case:?}");
    }
}

#[test]
fn a_port_that_the_host_has_come_to_use_is_not_kept() {
    for case in cases(Protocol::Tcp) {
        let Some(node) = node("a kept source port that the host uses", 50_000..50_003) else { return };
        let client = node.client_port();
        assert_eq!(connect(&node, case, client), 50_000);
        usable(&node, 50_001..50_003);
        assert_eq!([connect(&node, case, client), connect(&node, case, client)], [50_001; 2], "{case:?}");
    }
}

#[test]
fn a_connection_that_no_table_knows_any_more_has_its_source_port_again() {
    for case in cases(Protocol::Tcp) {
        let Some(node) = node("source ports of connections that were evicted", 50_000..50_064) else { return };
        let flows: Vec<_> = (0..8).map(|_| Forwarded::open_from(&node, case, node.client_port())).collect();
        flows.iter().for_each(|flow| flow.go_on(&node));
        for map in ["flows4", "flows6", "replies4", "replies6"] {
            evict(&node, map);
        }
        flows.iter().rev().for_each(|flow| flow.assert_goes_on(&node));
    }
}
