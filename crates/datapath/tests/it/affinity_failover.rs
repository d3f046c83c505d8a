//! SYNs that come again without an answer, of clients that keep a backend.

use std::collections::BTreeSet;

use weir_core::model::{Protocol, Service};
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT};

use crate::case::cases;
use crate::failover::{SECOND, again, open};
use crate::node::{Device, Node, web};
use crate::talk::{NIC_IN, NIC_OUT, Talk, Way, wait};

#[test]
fn a_client_with_affinity_keeps_the_backend_that_it_has_for_a_syn_may_be_lost_on_its_way() {
    let Some(mut node) = Node::new("affinity of SYNs that come again") else { return };
    node.serve(Service { affinity: Some(600), ..web() }, &[(1, 1), (1, 2)]);
    for case in cases(Protocol::Tcp) {
        let way = Way { client: CLIENT, endpoint: (1, 1), to: NIC_IN, back: NIC_OUT };
        let silent = open(&node, case, way);
        assert_ne!(again(&silent).seen.destination, silent.seen.destination);
        for _ in 0..8 {
            assert_eq!(open(&node, case, way).seen.destination, silent.seen.destination);
        }
    }
}

/// It may be dead, too, and have been left before the endpoint that is silent now.
#[test]
fn a_syn_that_comes_again_and_again_is_not_drawn_back_to_the_endpoint_that_its_client_keeps() {
    let Some(mut node) = Node::new("affinity of SYNs that come again and again") else { return };
    let endpoints = [(1, 1), (1, 2), (1, 3)];
    node.serve(Service { affinity: Some(600), ..web() }, &endpoints);
    let way = Way { client: CLIENT, endpoint: endpoints[0], to: NIC_IN, back: NIC_OUT };
    for case in cases(Protocol::Tcp) {
        let keeps = open(&node, case, way);
        keeps.accept();
        keeps.client_goes_on();
        let kept = keeps.seen.destination;
        // Of so many connections all go back there with a chance of less than one in a million million.
        let silent: Vec<_> = (0..40).map(|_| open(&node, case, way)).collect();
        let again = |silent: &[Talk<'_>]| {
            wait(&node, case, SECOND);
            let sent = silent.iter().map(|talk| node.send(Hook::NicIn, Device::Eth0, &talk.first).packet().destination);
            sent.collect::<Vec<_>>()
        };
        assert!(silent.iter().all(|talk| talk.seen.destination == kept));
        let second = again(&silent);
        assert!(!second.contains(&kept));
        let third: BTreeSet<_> = again(&silent).into_iter().collect();
        let all: BTreeSet<_> = endpoints.iter().map(|(node, pod)| case.ip(address::pod(*node, *pod))).collect();
        assert_eq!(third, all, "{case:?}");
    }
}
