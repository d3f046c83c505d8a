//! Those who ask all the time: a client outside by node ports, and a pod of each node by the cluster IPs, in both families,
//! with short requests, datagrams, and connections that stay.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use weir_datapath::View;
use weir_testbed::address::{self, Pair};
use weir_testbed::connection::LongConnection;
use weir_testbed::{Netns, Pod, World};

use super::cluster::{Cluster, Talk};
use super::request::{self, Unanswered};
use crate::guard;

/// Time between two requests of one asker.
const HTTP_GAP: Duration = Duration::from_millis(50);
const UDP_GAP: Duration = Duration::from_millis(100);
const LINES_GAP: Duration = Duration::from_millis(100);
/// Patience with one exchange of a connection that stays: its packets may be lost a few times in a flood.
const PATIENCE: Duration = Duration::from_secs(10);

/// Who asks.
#[derive(Clone, Debug)]
enum Asker {
    Outside,
    Pod(Pod),
}

/// Who asks whom, and what.
#[derive(Clone, Debug)]
struct Place {
    asker: Asker,
    talk: Talk,
    /// The node that translates.
    node: u8,
    target: SocketAddr,
}

/// A request that failed.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Failure {
    pub(super) who: String,
    pub(super) what: &'static str,
    pub(super) target: SocketAddr,
    /// Seconds since the begin.
    pub(super) from: f64,
    pub(super) until: f64,
    pub(super) error: String,
    pub(super) endpoint: Endpoint,
}

/// A datagram without an answer, which was sent again.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Missed {
    #[serde(flatten)]
    pub(super) failure: Failure,
    /// Packets that the CPUs' queues had no room for until its answer was due.
    pub(super) queues_dropped: u64,
}

/// Whom a request was sent to.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Endpoint {
    /// Whoever has this address.
    At(IpAddr),
    /// The pod of this name, which had answered before over the same connection.
    Named(String),
    /// One that was not there any more when its flow was looked up.
    Gone,
    Unknown,
}

/// All askers. They end soon after its drop.
pub(super) struct Traffic {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    kept: Vec<Kept>,
}

#[derive(Debug)]
struct Shared {
    begin: Instant,
    stopped: AtomicBool,
    http: AtomicU64,
    udp: AtomicU64,
    failures: Mutex<Vec<Failure>>,
    lost: Mutex<Vec<Missed>>,
}

/// A connection that stays, and is made anew when it breaks.
struct Kept {
    place: Place,
    connection: Option<LongConnection>,
    /// Exchanges of those before.
    exchanges: u64,
}

/// Requests and exchanges so far.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Asked {
    pub(super) http: u64,
    pub(super) udp: u64,
    /// Exchanges over connections that stay.
    pub(super) lines: u64,
}

/// What came of all of it.
pub(super) struct Outcome {
    pub(super) asked: Asked,
    pub(super) failures: Vec<Failure>,
    /// Datagrams that were not answered, and sent again.
    pub(super) lost: Vec<Missed>,
}

impl Traffic {
    /// Starts all of it.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub(super) fn start(cluster: &Cluster, begin: Instant) -> Result<Self> {
        let shared = Arc::new(Shared {
            begin,
            stopped: AtomicBool::new(false),
            http: AtomicU64::new(0),
            udp: AtomicU64::new(0),
            failures: Mutex::default(),
            lost: Mutex::default(),
        });
        let mut traffic = Self { shared, threads: Vec::new(), kept: Vec::new() };
        for place in places(cluster)? {
            match place.talk {
                Talk::Lines => traffic.kept.push(Kept { place, connection: None, exchanges: 0 }),
                Talk::Http | Talk::Udp => {
                    let (shared, asker) = (Arc::clone(&traffic.shared), place.asker.clone());
                    let thread = asker.netns(&cluster.world).spawn("asker", move || shared.ask(&place))?;
                    traffic.threads.push(thread);
                }
            }
        }
        traffic.look_after(&cluster.world);
        Ok(traffic)
    }

    /// Notes which connections that stay have broken, and makes them anew.
    pub(super) fn look_after(&mut self, world: &World) {
        let Self { shared, threads: _, kept } = self;
        kept.iter_mut().for_each(|one| one.look_after(shared, world));
    }

    pub(super) fn asked(&self) -> Asked {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let lines = self.kept.iter().map(Kept::exchanges).sum();
        Asked { http: load(&self.shared.http), udp: load(&self.shared.udp), lines }
    }

    /// Ends all of it.
    pub(super) fn stop(mut self, world: &World) -> Outcome {
        self.look_after(world);
        self.shared.stopped.store(true, Ordering::Relaxed);
        for thread in std::mem::take(&mut self.threads) {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        let (failures, lost) = (locked(&self.shared.failures).clone(), locked(&self.shared.lost).clone());
        Outcome { asked: self.asked(), failures, lost }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    /// An asker's thread.
    fn ask(&self, place: &Place) {
        let gap = if place.talk == Talk::Udp { UDP_GAP } else { HTTP_GAP };
        while !self.stopped.load(Ordering::Relaxed) {
            let from = Instant::now();
            let lost = |at, why: &Unanswered, queues_dropped| {
                let failure = self.failure(place, at, why.error.to_string(), place.endpoint_of(why.port));
                locked(&self.lost).push(Missed { failure, queues_dropped });
            };
            let (result, count) = match place.talk {
                Talk::Udp => (request::udp(place.target, lost), &self.udp),
                Talk::Http | Talk::Lines => (request::http(place.target), &self.http),
            };
            count.fetch_add(1, Ordering::Relaxed);
            if let Err(Unanswered { port, error }) = result {
                let at = [from, Instant::now()];
                self.note(place, at, error.to_string(), place.endpoint_of(port));
            }
            thread::sleep(gap.saturating_sub(from.elapsed()));
        }
    }

    fn note(&self, place: &Place, at: [Instant; 2], error: String, endpoint: Endpoint) {
        locked(&self.failures).push(self.failure(place, at, error, endpoint));
    }

    fn failure(&self, place: &Place, at: [Instant; 2], error: String, endpoint: Endpoint) -> Failure {
        let Place { asker, talk, node: _, target } = place;
        let [from, until] = at.map(|at| (at - self.begin).as_secs_f64());
        let (who, what, target) = (asker.name(), talk.name(), *target);
        Failure { who, what, target, from, until, error, endpoint }
    }
}

fn locked<T>(all: &Mutex<Vec<T>>) -> MutexGuard<'_, Vec<T>> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kept {
    fn look_after(&mut self, shared: &Shared, world: &World) {
        let broken = self.connection.take_if(|connection| connection.history().error.is_some());
        let from = Instant::now();
        if let Some(history) = broken.map(LongConnection::close) {
            self.exchanges += history.exchanges;
            let (error, at) = (history.error.unwrap_or_default(), history.ended.unwrap_or([from; 2]));
            shared.note(&self.place, at, error, Endpoint::Named(history.answer.name));
        }
        if self.connection.is_none() {
            let Place { asker, target, .. } = &self.place;
            match LongConnection::open(asker.netns(world), *target, LINES_GAP, PATIENCE) {
                Ok(connection) => self.connection = Some(connection),
                Err(error) => {
                    shared.note(&self.place, [from, Instant::now()], error.to_string(), Endpoint::Unknown);
                }
            }
        }
    }

    fn exchanges(&self) -> u64 {
        self.exchanges + self.connection.as_ref().map_or(0, |connection| connection.history().exchanges)
    }
}

impl Asker {
    fn netns<'a>(&'a self, world: &'a World) -> &'a Netns {
        match self {
            Self::Outside => world.client(),
            Self::Pod(pod) => pod.netns(),
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Outside => "the client outside".into(),
            Self::Pod(pod) => pod.name(),
        }
    }

    fn address(&self) -> Pair {
        match self {
            Self::Outside => address::CLIENT,
            Self::Pod(pod) => pod.address(),
        }
    }
}

impl Place {
    /// Where the node's maps have sent what came from this port of the asker.
    fn endpoint_of(&self, port: u16) -> Endpoint {
        let client = self.asker.address().like(self.target.ip());
        let find = || {
            let view = View::open(guard::pin_dir(self.node)).ok()?;
            let is_it = |flow: &weir_datapath::FlowEntry| {
                (flow.client.ip(), flow.client_port) == (client, port)
                    && (flow.frontend.ip(), flow.frontend_port) == (self.target.ip(), self.target.port())
            };
            let flow = view.flows().ok()?.into_iter().find(is_it)?.flow;
            let slot = |(slot, _): &(u32, _)| *slot == flow.backend;
            let (_, backend) = view.dump().ok()?.backends.into_iter().find(slot)?;
            let same = backend.generation == flow.generation;
            Some(if same { Endpoint::At(backend.addr.ip()) } else { Endpoint::Gone })
        };
        find().unwrap_or(Endpoint::Unknown)
    }
}

/// Everybody's, in both families.
fn places(cluster: &Cluster) -> Result<Vec<Place>> {
    let mut places = Vec::new();
    let ips = cluster.cluster_ips()?;
    for talk in Talk::ALL {
        for node in cluster.world.nodes() {
            let number = node.number();
            let outside = cluster.node_port(number, talk);
            places.extend(outside.map(|target| Place { asker: Asker::Outside, talk, node: number, target }));
            let targets = ips.map(|ip| SocketAddr::new(ip, talk.port()));
            places.extend(targets.map(|target| Place { asker: Asker::Pod(node.pod(1)), talk, node: number, target }));
        }
    }
    Ok(places)
}
