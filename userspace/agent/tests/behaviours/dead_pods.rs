//! Endpoints that are dead without a word, before anybody has told of it, and what they cost their clients.

use std::time::{Duration, Instant};

use weir_testbed::Pod;
use weir_testbed::ask::PATIENCE;

use crate::harness::echo::{Talk, echo, ready};
use crate::harness::{self, Cluster};

/// A client sends a SYN again after a second without an answer (RFC 6298).
const AGAIN: Duration = Duration::from_millis(900);
/// And after two more: whoever waits for so long has come upon the dead one twice.
const TWICE: Duration = Duration::from_millis(2500);
/// Connections, of which some come upon the dead endpoint: half of them, until it is ejected.
const MOST: usize = 40;

#[test]
fn a_client_whose_syn_nobody_answers_gets_in_with_its_next_one_at_another_endpoint() {
    if !harness::can_run("pods that are dead without a word") {
        return;
    }
    let cluster = Cluster::start(2, 2, &[]);
    let first = cluster.world.node(1);
    let on: Vec<(&str, Vec<Pod>)> = vec![("here", first.pods()), ("elsewhere", cluster.world.node(2).pods())];
    for (name, pods) in on {
        let served = cluster.serve_echo(&echo(name, "NodePort"), &ready(&pods));
        pods[1].netns().ip("link set eth0 down").unwrap();
        for target in served.node_ports(first, Talk::Tcp) {
            let ask = || {
                let begin = Instant::now();
                let answer = cluster.world.client().enter(|| Talk::Tcp.ask(target, PATIENCE)).unwrap();
                assert_eq!(answer.name, pods[0].name(), "{name}, {target}");
                begin.elapsed()
            };
            let mut times = (0..MOST).map(|_| ask());
            let late = times.find(|time| *time > AGAIN);
            assert!(late.is_some_and(|time| time < TWICE), "{name}, {target}: {late:?}");
        }
        pods[1].netns().ip("link set eth0 up").unwrap();
    }
}
