//! The filter in front of what goes on: the agent makes it, and programs note what they write meanwhile.

use weir_abi as abi;
use weir_core::model::Protocol;
use weir_core::ops::Capacity;
use weir_datapath::GoingFilter;

use crate::entries::evict;
use crate::node::Node;
use crate::openings::begins;
use crate::pins::SMALL;
use crate::talk::{Talk, each_way};

/// What the agent does now and then. Returns how many slots are taken then.
fn rebuild(node: &Node) -> u32 {
    GoingFilter::open(node.datapath.pins()).unwrap().rebuild().unwrap();
    let (asked, taken) = filter(node);
    assert!(asked);
    taken
}

/// Whether programs ask the filter, and how many slots it does not take for empty.
fn filter(node: &Node) -> (bool, u32) {
    let all = node.view.raw("going_filter").unwrap().unwrap();
    let (head, slots) = all[0].1.split_at(size_of::<u64>());
    let none =
        |byte: &u8| (0..4).filter(|slot| u32::from(byte >> (2 * slot)) & abi::GOING_MASK == abi::GOING_NONE).count();
    let empty: usize = slots.iter().map(none).sum();
    (head[0] != 0, (1 << abi::GOING_BITS) - u32::try_from(empty).unwrap())
}

#[test]
fn nobody_asks_before_it_was_made() {
    let Some(node) = Node::new("a new node") else { return };
    assert_eq!(filter(&node), (false, 1 << abi::GOING_BITS));
    assert_eq!(rebuild(&node), 0);
}

/// Its endpoint has answered.
fn answer(talk: &Talk<'_>, protocol: Protocol) {
    if protocol == Protocol::Tcp { talk.accept() } else { talk.endpoint_goes_on() }
}

#[test]
fn what_goes_on_is_found_whether_it_began_before_the_filter_was_made_or_after() {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        each_way("flows that are in the tables", protocol, |talk| {
            let before = rebuild(talk.node);
            answer(talk, protocol);
            talk.client_goes_on();
            assert!(!begins(talk));
            assert_eq!(rebuild(talk.node), before + 2, "the flow and its answers");
            talk.client_goes_on();
            talk.endpoint_goes_on();
            assert!(!begins(talk), "it was found where it is");
        });
        each_way("flows that get there later", protocol, |talk| {
            let before = rebuild(talk.node);
            answer(talk, protocol);
            assert_eq!(filter(talk.node), (true, before), "it begins");
            talk.client_goes_on();
            assert!(!begins(talk));
            assert_eq!(filter(talk.node), (true, before + 2));
            talk.client_goes_on();
            talk.endpoint_goes_on();
            assert!(!begins(talk), "it was found where it is");
        });
    }
}

#[test]
fn with_many_flows_everything_is_looked_up_again() {
    let Some(node) = Node::new("many flows that go on") else { return };
    rebuild(&node);
    GoingFilter::open(node.datapath.pins()).unwrap().give_up().unwrap();
    assert!(!filter(&node).0);
    let most = u64::from(abi::GOING_MOST);
    assert!(GoingFilter::is_worth_while(most / 2) && !GoingFilter::is_worth_while(most / 2 + 1));
}

#[test]
fn of_tables_of_another_size_the_filter_says_nothing() {
    let Some(node) = Node::new("other tables") else { return };
    rebuild(&node);
    let node = node.resized(Capacity { flows: 2 * SMALL.flows, ..SMALL });
    assert_eq!(filter(&node), (false, 1 << abi::GOING_BITS), "whoever made it in between knew less");
}

#[test]
fn what_is_gone_is_forgotten_when_it_is_made_anew() {
    each_way("flows that were forgotten", Protocol::Tcp, |talk| {
        talk.accept();
        talk.client_goes_on();
        let before = rebuild(talk.node);
        assert!(before >= 2);
        ["flows4", "flows6", "replies4", "replies6"].iter().for_each(|table| evict(talk.node, table));
        assert_eq!(filter(talk.node), (true, before), "nobody tells of what a table forgets");
        assert_eq!(rebuild(talk.node), 0);
    });
}
