//! Flows of datagrams that are over leave the tables of those that go on, where silent connections would lose their places to them.

use std::mem::offset_of;

use nix::time::{ClockId, clock_gettime};
use weir_abi as abi;
use weir_core::model::Protocol;
use weir_datapath::{IdleFlows, tick_clock};

use crate::ended::silent_since;
use crate::entries::{age, evict};
use crate::openings::{begins, flows};
use crate::talk::{Talk, each_way};

/// Takes out what is over. Returns how many entries that were.
fn take_out(talk: &Talk<'_>) -> usize {
    let tick = tick_clock().unwrap().at(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap().into());
    IdleFlows::open(talk.node.pin_dir()).unwrap().take_out(tick).unwrap()
}

/// Ticks after which a silent flow of datagrams is over, wherever in a tick the clock is.
fn idle(talk: &Talk<'_>) -> u32 {
    talk.node.view.config().unwrap().udp_idle + 2
}

/// Both sides have spoken twice.
fn goes_on(talk: &Talk<'_>) {
    talk.endpoint_goes_on();
    talk.client_goes_on();
    assert!(!begins(talk));
}

fn answers(talk: &Talk<'_>) -> usize {
    let port = talk.first.source_socket().port();
    let view = &talk.node.view;
    let v4 = view.replies4().unwrap().into_iter().map(|(_, reply)| reply);
    let all = v4.chain(view.replies6().unwrap().into_iter().map(|(_, reply)| reply));
    all.filter(|reply| reply.client_port.get() == port).count()
}

#[test]
fn a_flow_of_datagrams_is_taken_out_when_both_of_its_sides_are_silent() {
    each_way("flows of datagrams that are over", Protocol::Udp, |talk| {
        goes_on(talk);
        assert_eq!(take_out(talk), 0, "both have just spoken");
        age(talk.node, talk.flows(), offset_of!(abi::Flow, last_seen), idle(talk));
        assert_eq!((take_out(talk), begins(talk)), (0, false), "its endpoint speaks");
        talk.client_goes_on();
        age(talk.node, talk.replies(), offset_of!(abi::Reply, last_seen), idle(talk));
        assert_eq!((take_out(talk), begins(talk)), (0, false), "its client speaks");
        talk.endpoint_goes_on();
        silent_since(talk, idle(talk));
        assert_eq!((take_out(talk), flows(talk).len(), answers(talk)), (2, 0, 0));
        goes_on(&Talk::open_with(talk.node, talk.case, talk.way, talk.first.clone()));
        [talk.flows(), talk.replies()].iter().for_each(|table| evict(talk.node, table));
    });
}

#[test]
fn the_entry_of_answers_is_taken_out_where_its_flow_is_gone_and_not_where_that_begins_anew() {
    each_way("answers to datagrams whose flow was lost", Protocol::Udp, |talk| {
        goes_on(talk);
        silent_since(talk, idle(talk));
        evict(talk.node, talk.flows());
        let again = Talk::open_with(talk.node, talk.case, talk.way, talk.first.clone());
        take_out(talk);
        assert_eq!(answers(talk), 1, "what it had before is nobody's");
        again.endpoint_goes_on();
        evict(talk.node, talk.replies());

        let talk = Talk::open(talk.node, talk.case, talk.way);
        goes_on(&talk);
        silent_since(&talk, idle(&talk));
        evict(talk.node, talk.flows());
        assert_eq!((take_out(&talk), answers(&talk)), (1, 0));
    });
}

#[test]
fn a_connection_stays_however_long_it_is_silent() {
    each_way("connections that are silent", Protocol::Tcp, |talk| {
        talk.accept();
        talk.client_goes_on();
        silent_since(talk, idle(talk));
        assert_eq!((take_out(talk), begins(talk)), (0, false));
    });
}
