//! Agents on real sockets.

use std::collections::HashMap;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use weir_core::load::PeerReport;
use weir_mesh::{Config, KeyFile, Link, MAX_PACKET, Mesh, PeerState, Refusal, Socket, now};

use crate::world::{NEW, busy, millis, service};

/// An agent's thread. Ends when dropped.
struct Agent {
    link: Link,
    addresses: Vec<SocketAddr>,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Agent {
    /// Blocks its own thread for `busy` again and again, as an agent with much to do.
    fn start(name: &str, binds: &[&str], keys: &Path, busy: Duration) -> Self {
        let (mut file, ring) = KeyFile::open(keys).expect("keys");
        let config = Config { interval: millis(100), bytes_per_second: 10_000, ..Config::default() };
        let link = Link::new(Mesh::new(name, config.checked().expect("config"), ring, 1, now()));
        let binds: Vec<SocketAddr> = binds.iter().map(|bind| bind.parse().expect("an address")).collect();
        let (tell, told) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let (link, stop) = (link.clone(), Arc::clone(&stop));
            move || {
                let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
                runtime.block_on(async {
                    binds.iter().for_each(|bind| link.add(Socket::bind(*bind).expect("bound")));
                    tell.send(link.addresses()).expect("somebody waits");
                    tokio::select! {
                        failed = link.watch(&mut file) => panic!("{failed}"),
                        () = work(&link, &stop, busy) => {}
                    }
                });
            }
        });
        let addresses = told.recv().expect("bound");
        Self { link, addresses, stop, thread: Some(thread) }
    }

    fn knows(&self, name: &str, address: SocketAddr) {
        self.link.with(|mesh, _| mesh.set_peers([(name.into(), address)]));
    }

    fn peer(&self) -> PeerState {
        self.link.with(|mesh, now| mesh.peers(now)).remove(0)
    }

    fn report(&self) -> Option<PeerReport> {
        let mut reports = HashMap::new();
        self.link.with(|mesh, now| mesh.reports(now, &mut reports));
        reports.into_values().next()
    }

    fn answers(&self) -> u64 {
        self.link.with(|mesh, _| mesh.counters().replies_received)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("ended");
        }
    }
}

async fn work(link: &Link, stop: &AtomicBool, busy: Duration) {
    while !stop.load(Ordering::Relaxed) {
        link.hear();
        link.speak();
        // Not awaited on purpose: nothing else on this thread goes on meanwhile.
        thread::sleep(busy);
        tokio::time::sleep(millis(2)).await;
    }
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < end, "waited 20 s until {what}");
        thread::sleep(millis(5));
    }
}

fn key_file(folder: &Path, name: &str) -> std::path::PathBuf {
    let path = folder.join("keys");
    fs::write(&path, name).expect("written");
    path
}

fn two(bind: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let keys = key_file(folder.path(), NEW);
    let (one, two) = (Agent::start("one", &[bind], &keys, millis(0)), Agent::start("two", &[bind], &keys, millis(0)));
    one.knows("two", two.addresses[0]);
    two.knows("one", one.addresses[0]);
    let publish = |agent: &Agent, cpu, number| {
        agent.link.with(|mesh, now| mesh.publish(busy(cpu), [service(number)], now));
    };
    until("both have measured and heard each other", || {
        publish(&one, 0.2, 1);
        publish(&two, 0.8, 2);
        [&one, &two].iter().all(|agent| agent.answers() >= 8 && agent.report().is_some())
    });
    let report = one.report().expect("a report");
    assert_eq!((&*report.node, report.services.as_slice()), ("two", &[service(2)][..]));
    assert!(report.age < Duration::from_secs(2));
    for agent in [&one, &two] {
        let rtt = agent.peer().rtt.expect("measured");
        assert!(rtt > Duration::ZERO && rtt < millis(20), "{rtt:?}");
    }
}

#[test]
fn two_agents_measure_and_report_over_v4() {
    two("127.0.0.1:0");
}

#[test]
fn two_agents_measure_and_report_over_v6() {
    two("[::1]:0");
}

#[test]
fn an_agent_with_both_families_uses_the_one_of_the_peers_address() {
    let folder = tempfile::tempdir().expect("a folder");
    let keys = key_file(folder.path(), NEW);
    let one = Agent::start("one", &["127.0.0.1:0", "[::1]:0"], &keys, millis(0));
    let two = Agent::start("two", &["127.0.0.1:0", "[::1]:0"], &keys, millis(0));
    for address in &two.addresses {
        one.knows("two", *address);
        until("it answers", || one.peer().address == *address && one.peer().rtt.is_some());
    }
}

#[test]
fn an_agent_that_is_busy_for_50_ms_at_a_time_does_not_look_far() {
    let folder = tempfile::tempdir().expect("a folder");
    let keys = key_file(folder.path(), NEW);
    let quick = Agent::start("quick", &["127.0.0.1:0"], &keys, millis(0));
    let slow = Agent::start("slow", &["127.0.0.1:0"], &keys, millis(50));
    quick.knows("slow", slow.addresses[0]);
    slow.knows("quick", quick.addresses[0]);
    let held = std::cell::Cell::new(Duration::ZERO);
    until("probes were held for long and all of the last measurements are new", || {
        held.set(held.get().max(quick.peer().held));
        held.get() > millis(25) && quick.answers() > 16 && slow.answers() > 16
    });
    // Without the kernel's stamps and the holding time it were 25 ms in the mean.
    assert!(quick.peer().rtt < Some(millis(10)), "{:?}", quick.peer());
    assert!(slow.peer().rtt < Some(millis(10)), "{:?}", slow.peer());
}

#[test]
fn what_strangers_send_is_dropped_and_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let agent = Agent::start("one", &["127.0.0.1:0"], &key_file(folder.path(), NEW), millis(0));
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("bound");
    for length in [0, 10, 500, MAX_PACKET + 1, 9000] {
        stranger.send_to(&vec![0; length], agent.addresses[0]).expect("sent");
    }
    let refused = |reason| agent.link.with(|mesh, _| mesh.counters().refused(reason));
    until("all were looked at", || {
        refused(Refusal::Truncated) == 2 && refused(Refusal::Foreign) == 1 && refused(Refusal::Oversized) == 2
    });
    stranger.set_nonblocking(true).expect("set");
    assert!(stranger.recv(&mut [0; 10]).is_err(), "nothing is answered");
}

#[test]
fn a_key_file_that_changes_is_read_while_the_agent_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let keys = key_file(folder.path(), NEW);
    let one = Agent::start("one", &["127.0.0.1:0"], &keys, millis(0));
    fs::write(&keys, crate::world::OLD).expect("written");
    let two = Agent::start("two", &["127.0.0.1:0"], &keys, millis(0));
    one.knows("two", two.addresses[0]);
    until("they have a key in common", || one.peer().rtt.is_some());
}

#[test]
fn a_key_file_that_changes_is_read_in_a_flood() {
    let folder = tempfile::tempdir().expect("a folder");
    let keys = key_file(folder.path(), NEW);
    // It hears so seldom by itself that the buffer is full each time.
    let one = Agent::start("one", &["127.0.0.1:0"], &keys, millis(50));
    let to = one.addresses[0];
    let over = Arc::new(AtomicBool::new(false));
    let floods: Vec<_> = (0..2)
        .map(|_| {
            thread::spawn({
                let over = Arc::clone(&over);
                move || {
                    let stranger = UdpSocket::bind("127.0.0.1:0").expect("bound");
                    while !over.load(Ordering::Relaxed) {
                        // A full buffer is what is wanted.
                        let _ = stranger.send_to(&[], to);
                    }
                }
            })
        })
        .collect();
    until("it is flooded", || one.link.with(|mesh, _| mesh.counters().refused(Refusal::Truncated)) > 10_000);
    fs::write(&keys, crate::world::OLD).expect("written");
    let two = Agent::start("two", &["127.0.0.1:0"], &keys, millis(0));
    one.knows("two", two.addresses[0]);
    until("they have a key in common", || two.link.with(|mesh, _| mesh.counters().replies_sent) > 0);
    over.store(true, Ordering::Relaxed);
    floods.into_iter().for_each(|flood| flood.join().expect("ended"));
}
