//! Traffic that must not notice: streams of new connections and long connections, from every kind of client.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use weir_testbed::connection::LongConnection;
use weir_testbed::load::{Load, RunningLoad};
use weir_testbed::{Cgroup, Netns, wait};

/// New connections per second of each stream: enough that one is under way at any moment.
const RATE: u32 = 50;
/// Datagrams per second of each stream of them.
const DATAGRAMS: u32 = 20;
/// A connection that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two exchanges of a long connection.
const INTERVAL: Duration = Duration::from_millis(10);

/// Of each long connection, until traffic counts as going on.
const EXCHANGES: u64 = 40;

/// Of each stream, the same.
const ANSWERS: u64 = 20;

/// Where a stream comes from.
#[derive(Clone, Copy)]
pub(crate) enum Client<'a> {
    /// A pod, or somebody outside.
    Netns(&'a Netns),
    /// A process of the node.
    Host(&'a Netns, &'a Cgroup),
}

/// Streams under way. To be finished: dropping asserts nothing.
#[derive(Default)]
pub(crate) struct Traffic {
    streams: Vec<(String, RunningLoad)>,
    connections: Vec<(String, LongConnection)>,
}

impl Traffic {
    /// Adds a stream of new HTTP connections.
    pub(crate) fn stream(&mut self, name: &str, client: Client<'_>, target: SocketAddr) {
        let load =
            Load::http(target).concurrency(4).rate((RATE / wait::slowness()).max(1)).timeout(wait::patience(PATIENCE));
        let running = match client {
            Client::Netns(netns) => load.start(netns),
            // Threads that are started in the cgroup stay in it.
            Client::Host(netns, cgroup) => cgroup.enter(|| load.start(netns)).unwrap(),
        };
        self.streams.push((format!("{name} to {target}"), running.unwrap()));
    }

    /// Adds a stream of datagrams, each from a socket of its own.
    pub(crate) fn datagrams(&mut self, name: &str, client: Client<'_>, target: SocketAddr) {
        let load = Load::udp(target)
            .concurrency(1)
            .rate((DATAGRAMS / wait::slowness()).max(1))
            .timeout(wait::patience(PATIENCE));
        let running = match client {
            Client::Netns(netns) => load.start(netns),
            Client::Host(netns, cgroup) => cgroup.enter(|| load.start(netns)).unwrap(),
        };
        self.streams.push((format!("datagrams of {name} to {target}"), running.unwrap()));
    }

    /// Adds a long connection to an echo server.
    pub(crate) fn connection(&mut self, name: &str, client: Client<'_>, target: SocketAddr) {
        let open = |netns| LongConnection::open(netns, target, wait::patience(INTERVAL), wait::patience(PATIENCE));
        let connection = match client {
            Client::Netns(netns) => open(netns),
            Client::Host(netns, cgroup) => cgroup.enter(|| open(netns)).unwrap(),
        };
        self.connections.push((format!("{name} to {target}"), connection.unwrap()));
    }

    /// Waits until everything has gone on for a while from now.
    pub(crate) fn goes_on(&self) {
        // They all go on at the same time: the last one has often done it when the first one has.
        let goals: Vec<_> = self.connections.iter().map(|(_, one)| one.history().exchanges + EXCHANGES).collect();
        for ((name, connection), goal) in self.connections.iter().zip(goals) {
            let left = goal.saturating_sub(connection.history().exchanges);
            connection.await_exchanges(left, super::SOON).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }

    /// Waits until every stream has had some more answers.
    pub(crate) fn streams_go_on(&self) {
        let goals: Vec<_> = self.streams.iter().map(|(_, stream)| stream.answered() + ANSWERS).collect();
        for ((name, stream), goal) in self.streams.iter().zip(goals) {
            let what = format!("answers to {name}");
            wait::until(&what, super::SOON, || stream.answered() >= goal).unwrap();
        }
    }

    /// Ends everything; nothing of it may have failed. `what` has happened meanwhile.
    pub(crate) fn unharmed_by(self, what: &str) {
        let mut harm = Vec::new();
        let (mut answers, mut slowest) = (0, [Duration::ZERO; 2]);
        for (name, stream) in self.streams {
            let report = stream.stop().unwrap();
            answers += report.answered();
            slowest[0] = slowest[0].max(report.quantile(1.0));
            if report.failed() > 0 || report.answered() == 0 {
                let first = report.first_failed.map(|at| jiff::Timestamp::try_from(at).unwrap().to_string());
                let (answered, errors) = (report.answered(), report.errors);
                harm.push(format!("{name}: {answered} answers, failures {errors:?}, first of what was due {first:?}"));
            }
        }
        let mut exchanges = 0;
        for (name, connection) in self.connections {
            let history = connection.close();
            exchanges += history.exchanges;
            slowest[1] = slowest[1].max(history.slowest);
            harm.extend(history.error.map(|error| format!("{name}: {error} after {} exchanges", history.exchanges)));
        }
        assert!(harm.is_empty(), "{what}:\n{}", harm.join("\n"));
        let [connection, exchange] = slowest;
        println!(
            "{what}: {answers} new connections (the slowest took {connection:?}) and {exchanges} exchanges of long ones \
             ({exchange:?}), none failed"
        );
    }
}

/// A port on both of a node's addresses.
pub(crate) fn both(addresses: [IpAddr; 2], port: u16) -> [SocketAddr; 2] {
    addresses.map(|address| SocketAddr::new(address, port))
}
