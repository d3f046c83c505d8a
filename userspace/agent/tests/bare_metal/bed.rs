//! Both machines and clients on one wire. The clients' routes to the service's addresses are edge-1's.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use weir_testbed::load::{Load, Report, RunningLoad};
use weir_testbed::serve::{self, Server};
use weir_testbed::{Cgroup, Netns, World, wait};

use crate::edge::{Directory, Edge};
use crate::{SOON, block};

/// For how long nothing may fail.
const WATCHED: Duration = Duration::from_secs(1);
/// Requests in a second, in each family.
const RATE: u32 = 50;
/// What clients use.
const SERVICE: [&str; 2] = ["198.51.100.1", "2001:db8:2::1"];

/// See the module's description.
pub(crate) struct Bed {
    pub(crate) edges: [Edge; 2],
    client: Netns,
    _switch: Netns,
    _directory: Directory,
}

impl Bed {
    pub(crate) fn start() -> Self {
        World::sweep().unwrap();
        Cgroup::sweep().unwrap();
        let directory = Directory::ensure();
        // As worlds call theirs, so that what a killed test leaves is swept.
        let prefix = format!("w{}-0-", std::process::id());
        let [switch, client] = ["switch", "client"].map(|name| Netns::create(&format!("{prefix}{name}")).unwrap());
        switch.ip("link add br0 type bridge forward_delay 0 mcast_snooping 0\nlink set br0 up").unwrap();
        let edges = ["edge-1", "edge-2"].map(|name| Edge::start(&format!("{prefix}node-"), name));
        for (number, netns) in [(1, &client), (11, &edges[0].netns), (12, &edges[1].netns)] {
            let name = netns.name();
            switch
                .ip(&format!(
                    "link add port{number} type veth peer name eth0 netns {name}\nlink set port{number} master br0 up"
                ))
                .unwrap();
            netns
                .ip(&format!(
                    "addr add 192.0.2.{number}/24 dev eth0\naddr add 2001:db8:1::{number}/64 dev eth0 nodad\n\
                     link set eth0 up"
                ))
                .unwrap();
        }
        let [v4, v6] = SERVICE;
        client.ip(&format!("route add {v4}/32 via 192.0.2.11\nroute add {v6}/128 via 2001:db8:1::11")).unwrap();
        Self { edges, client, _switch: switch, _directory: directory }
    }

    /// The page until both agents serve.
    pub(crate) fn set_up(&mut self) {
        self.edges[0].run(block("key"));
        let [key, other] = [0, 1].map(|edge: usize| self.edges[edge].path("/etc/weir/mesh.key"));
        fs::copy(key, other).unwrap();
        for edge in &mut self.edges {
            edge.write(block("file"));
            edge.run(block("forwarding"));
            edge.start_agent();
        }
        for edge in &self.edges {
            edge.await_readiness(200, "");
        }
    }

    /// A web server on one of the machines.
    pub(crate) fn serve(&self, edge: usize, name: &str, port: u16) -> Server {
        serve::http(&self.edges[edge].netns, name, port).unwrap()
    }

    pub(crate) fn clients(&self) -> Clients {
        let ask = |address: &str| {
            let service = SocketAddr::new(address.parse().unwrap(), 80);
            Load::http(service).concurrency(4).rate(RATE).start(&self.client).unwrap()
        };
        Clients(SERVICE.map(ask))
    }
}

/// Clients of IPv4 and of IPv6, each of which asks all the time, over a new connection.
pub(crate) struct Clients([RunningLoad; 2]);

impl Clients {
    fn take(&mut self) -> [Report; 2] {
        self.0.each_mut().map(|load| load.take().unwrap())
    }

    /// What they see from now on: in both families answers, and nothing but answers.
    pub(crate) fn watch(&mut self) -> [Report; 2] {
        drop(self.take());
        thread::sleep(WATCHED);
        let reports = self.take();
        assert!(reports.iter().all(|report| report.answered() > 0 && report.failed() == 0), "{reports:?}");
        reports
    }

    /// Waits until one of the servers has answered both families, without a failure from now on.
    pub(crate) fn await_answers_of(&mut self, server: &str) {
        drop(self.take());
        let mut seen = [BTreeSet::new(), BTreeSet::new()];
        let look = || {
            for (seen, report) in seen.iter_mut().zip(self.take()) {
                assert_eq!(report.failed(), 0, "{:?}", report.errors);
                seen.extend(report.answers.into_keys());
            }
            if seen.iter().all(|seen| seen.contains(server)) { Ok(()) } else { Err(format!("{seen:?}")) }
        };
        wait::until_some(&format!("answers of {server}"), SOON, look).unwrap();
    }
}

/// Asserts that one of the servers gave all answers, in both families.
pub(crate) fn assert_all_of(reports: &[Report; 2], server: &str) {
    for report in reports {
        assert_eq!(report.share(server), 1.0, "{:?}", report.answers);
    }
}
