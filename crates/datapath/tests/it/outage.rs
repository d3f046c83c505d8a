//! What is left when endpoints have said nothing for a while: who comes later begins anew, and blames nobody for what was long ago.

use weir_abi as abi;
use weir_core::model::Protocol;
use weir_testbed::address::CLIENT;

use crate::case::cases;
use crate::ended::silent_since;
use crate::failover::{RETRIES, again, open};
use crate::node::{Node, web};
use crate::talk::{NIC_IN, NIC_OUT, Way};

const WAY: Way = Way { client: CLIENT, endpoint: (1, 1), to: NIC_IN, back: NIC_OUT };
/// Ticks in which neither a SYN nor its answer comes again, however often: a minute.
const MINUTE: u32 = 64;

#[test]
fn a_syn_long_after_those_that_nobody_answered_is_another_connections() {
    let Some(mut node) = Node::new("ports that are used again after an outage") else { return };
    node.serve(web(), &[(1, 1), (1, 2), (1, 3)]);
    for case in cases(Protocol::Tcp) {
        for retries in 0..=RETRIES {
            let mut talk = open(&node, case, WAY);
            (0..retries).for_each(|_| talk = again(&talk));
            let (slot, before) = (talk.flow().backend, talk.counters());
            silent_since(&talk, MINUTE + 1);
            let next = again(&talk);
            assert_eq!(next.flow().flags & abi::FLOW_RETRIES, 0, "after {retries}");
            let after = node.view.backend_counters(slot).unwrap();
            assert_eq!(after.unanswered, before.unanswered, "nobody waits for the one before");
            next.accept();
            next.client_goes_on();
        }
    }
}

#[test]
fn a_syn_that_comes_again_half_a_minute_after_the_last_one_is_the_same_connections() {
    let Some(mut node) = Node::new("SYNs of a client that waits for long") else { return };
    node.serve(web(), &[(1, 1), (1, 2)]);
    for case in cases(Protocol::Tcp) {
        let talk = open(&node, case, WAY);
        silent_since(&talk, MINUTE / 2);
        assert_eq!(again(&talk).flow().flags & abi::FLOW_RETRIES, abi::FLOW_RETRY);
    }
}
