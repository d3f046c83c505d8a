//! What changes meanwhile: services, endpoints, pods, agents, and floods now and then. Each kind has its turn before any has
//! a second one, in an order that the seed decides.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::Result;
use k8s_openapi::api::core::v1::Service;
use serde::Serialize;
use weir_testbed::{Pod, ask, objects, wait};

use super::cluster::{self, Cluster, Talk};
use crate::flood::source;
use crate::guard::Stop;
use crate::service_file::external;

/// Services beside those that are asked, at most.
const EXTRAS: usize = 12;
/// Their port.
const PORT: u16 = 80;
/// External addresses of those among them that have some: so many, from this number on.
const FIRST_EXTERNAL: u32 = 20;
const EXTERNALS: u32 = 200;
/// SYNs of a flood.
const SYNS: u64 = 200_000;
/// How soon a new service must answer.
const SERVED: Duration = Duration::from_secs(10);
/// How long things stay as they are in between.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a pod that is to go gets no new connections, and an agent stays away.
const DRAIN: Duration = Duration::from_secs(2);
const AWAY: Duration = Duration::from_secs(1);

/// The node whose agent is restarted. That of the other one lives all the time: what it loses does not come back by a restart.
const RESTARTED: u8 = 1;

/// What can happen.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Action {
    NewService,
    DropService,
    Scale,
    Unready,
    ReplacePod,
    KillPod,
    TerminateAgent,
    KillAgent,
    Flood,
}

impl Action {
    const ALL: [Self; 9] = [
        Self::NewService,
        Self::DropService,
        Self::Scale,
        Self::Unready,
        Self::ReplacePod,
        Self::KillPod,
        Self::TerminateAgent,
        Self::KillAgent,
        Self::Flood,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::NewService => "services made",
            Self::DropService => "services removed",
            Self::Scale => "services scaled",
            Self::Unready => "pods unready for a while",
            Self::ReplacePod => "pods replaced",
            Self::KillPod => "pods killed without a FIN",
            Self::TerminateAgent => "agents restarted by SIGTERM",
            Self::KillAgent => "agents killed and started",
            Self::Flood => "floods",
        }
    }
}

/// A pod that is gone.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Gone {
    pub(super) pod: String,
    pub(super) addresses: [IpAddr; 2],
    /// Seconds since the begin: when it went, and when the API server knew.
    pub(super) at: f64,
    pub(super) told: f64,
    /// Without a word; else it had been taken out of its services before.
    pub(super) killed: bool,
}

/// Something that was done.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Happened {
    pub(super) what: &'static str,
    /// Seconds since the begin.
    pub(super) from: f64,
    pub(super) until: f64,
}

/// How often each kind happened.
pub(super) fn tally(happened: &[Happened]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    happened.iter().for_each(|one| *counts.entry(one.what).or_default() += 1);
    counts
}

/// See the module's description.
pub(super) struct Churn {
    random: fastrand::Rng,
    begin: Instant,
    bag: Vec<Action>,
    extras: BTreeMap<u32, Vec<Pod>>,
    /// Extras so far.
    made: u32,
    pub(super) gone: Vec<Gone>,
    pub(super) happened: Vec<Happened>,
    /// Services that did not answer in time.
    pub(super) late: Vec<String>,
}

impl Churn {
    pub(super) fn new(seed: u64, begin: Instant) -> Self {
        let (bag, extras, gone, happened, late) = Default::default();
        Self { random: fastrand::Rng::with_seed(seed), begin, bag, extras, made: 0, gone, happened, late }
    }

    /// Lets one thing happen.
    ///
    /// # Errors
    /// When a part of the cluster fails, and at the stop sign.
    pub(super) fn step(&mut self, cluster: &mut Cluster, stop: &Stop) -> Result<()> {
        if self.bag.is_empty() {
            self.bag.extend(Action::ALL);
            self.random.shuffle(&mut self.bag);
        }
        let action = self.bag.pop().unwrap_or(Action::Scale);
        let from = self.now();
        match action {
            Action::NewService => self.new_service(cluster)?,
            Action::DropService => self.drop_service(cluster)?,
            Action::Scale => self.scale(cluster)?,
            Action::Unready => self.unready(cluster, stop)?,
            Action::ReplacePod => self.replace_pod(cluster, stop)?,
            Action::KillPod => self.kill_pod(cluster, stop)?,
            Action::TerminateAgent | Action::KillAgent => restart_agent(action, cluster, stop)?,
            Action::Flood => self.flood(cluster, stop)?,
        }
        self.happened.push(Happened { what: action.name(), from, until: self.now() });
        stop.sleep(PAUSE)
    }

    /// As it was before, but for other pods.
    ///
    /// # Errors
    /// When the API server refuses.
    pub(super) fn restore(&mut self, cluster: &mut Cluster) -> Result<()> {
        while !self.extras.is_empty() {
            self.drop_service(cluster)?;
        }
        cluster.members.iter_mut().for_each(|member| member.ready = true);
        cluster.publish()
    }

    fn now(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    fn new_service(&mut self, cluster: &Cluster) -> Result<()> {
        if self.extras.len() >= EXTRAS {
            self.drop_service(cluster)?;
        }
        let number = self.made;
        self.made += 1;
        let pods = self.some_pods(cluster, 1);
        let service = extra(number);
        let made = cluster.objects.apply(&service)?;
        cluster::publish_endpoints(&cluster.objects, &extra_name(number), &pods)?;
        if let Some(addresses) = load_balancer(number) {
            cluster.objects.set_load_balancer(&service, &addresses)?;
        }
        self.extras.insert(number, pods);
        self.await_answer(cluster, &made);
        Ok(())
    }

    /// Notes a service that does not answer a pod in time.
    fn await_answer(&mut self, cluster: &Cluster, service: &Service) {
        let ips = service.spec.as_ref().and_then(|spec| spec.cluster_ips.as_ref());
        for target in ips.into_iter().flatten().filter_map(|ip| Some(SocketAddr::new(ip.parse().ok()?, PORT))) {
            let look = || ask::http_ask(target).map_err(|error| error.to_string());
            let what = format!("an answer at {target}");
            if let Err(error) = cluster.world.node(1).pod(1).netns().enter(|| wait::until_some(&what, SERVED, look)) {
                self.late.push(format!("{:.1} s: {error}", self.now()));
            }
        }
    }

    fn drop_service(&mut self, cluster: &Cluster) -> Result<()> {
        let numbers: Vec<u32> = self.extras.keys().copied().collect();
        let Some(number) = self.random.choice(numbers) else { return Ok(()) };
        self.extras.remove(&number);
        let name = extra_name(number);
        for v6 in [false, true] {
            let slice = objects::endpoint_slice(&name, cluster::suffix(v6), Talk::Http.port(), "TCP", &[]);
            cluster.objects.delete(&slice)?;
        }
        Ok(cluster.objects.delete(&extra(number))?)
    }

    fn scale(&mut self, cluster: &Cluster) -> Result<()> {
        let numbers: Vec<u32> = self.extras.keys().copied().collect();
        let Some(number) = self.random.choice(numbers) else { return self.new_service(cluster) };
        let pods = self.some_pods(cluster, 0);
        cluster::publish_endpoints(&cluster.objects, &extra_name(number), &pods)?;
        self.extras.insert(number, pods);
        Ok(())
    }

    fn unready(&mut self, cluster: &mut Cluster, stop: &Stop) -> Result<()> {
        let at = self.random.usize(..cluster.members.len());
        cluster.members[at].ready = false;
        cluster.publish()?;
        stop.sleep(DRAIN)?;
        cluster.members[at].ready = true;
        cluster.publish()
    }

    /// A rollout: first there is another pod, then this one gets no more connections, then it goes.
    fn replace_pod(&mut self, cluster: &mut Cluster, stop: &Stop) -> Result<()> {
        let at = self.random.usize(..cluster.members.len());
        let pod = cluster.members[at].pod.clone();
        cluster.enlist(cluster.world.add_pod(pod.node())?)?;
        cluster.members[at].ready = false;
        cluster.publish()?;
        self.leave(cluster, &pod)?;
        stop.sleep(DRAIN)?;
        cluster.members.remove(at);
        // From now on its connections may be reset.
        let removed = self.now();
        cluster.publish()?;
        self.note_gone(&pod, removed, false);
        stop.sleep(PAUSE)?;
        pod.delete()?;
        cluster.bury(&pod);
        Ok(())
    }

    /// It is gone at once, and the API server learns of it later.
    fn kill_pod(&mut self, cluster: &mut Cluster, stop: &Stop) -> Result<()> {
        let at = self.random.usize(..cluster.members.len());
        let (pod, killed) = (cluster.members[at].pod.clone(), self.now());
        pod.delete()?;
        stop.sleep(DRAIN)?;
        cluster.members.remove(at);
        cluster.publish()?;
        self.leave(cluster, &pod)?;
        self.note_gone(&pod, killed, true);
        cluster.bury(&pod);
        cluster.enlist(cluster.world.add_pod(pod.node())?)?;
        cluster.publish()
    }

    /// Takes a pod out of all services but `web`.
    fn leave(&mut self, cluster: &Cluster, pod: &Pod) -> Result<()> {
        for (number, pods) in &mut self.extras {
            let before = pods.len();
            pods.retain(|one| one.name() != pod.name());
            if pods.len() != before {
                cluster::publish_endpoints(&cluster.objects, &extra_name(*number), pods)?;
            }
        }
        Ok(())
    }

    fn note_gone(&mut self, pod: &Pod, at: f64, killed: bool) {
        let (addresses, told) = (pod.address().both(), self.now());
        self.gone.push(Gone { pod: pod.name(), addresses, at, told, killed });
    }

    fn flood(&mut self, cluster: &Cluster, stop: &Stop) -> Result<()> {
        let [v4, v6] = cluster.flooded();
        let target = if self.random.bool() { v4 } else { v6 };
        source::flood(cluster.world.router(), target, SYNS, self.random.u64(..), stop)?;
        Ok(())
    }

    /// Some of the pods that take connections.
    fn some_pods(&mut self, cluster: &Cluster, least: usize) -> Vec<Pod> {
        let ready = cluster.members.iter().filter(|member| member.ready);
        let mut pods: Vec<Pod> = ready.map(|member| member.pod.clone()).collect();
        self.random.shuffle(&mut pods);
        pods.truncate(self.random.usize(least..=pods.len()));
        pods
    }
}

fn restart_agent(action: Action, cluster: &mut Cluster, stop: &Stop) -> Result<()> {
    let agent = &mut cluster.agents[usize::from(RESTARTED) - 1];
    if action == Action::KillAgent {
        agent.kill()?;
    } else {
        agent.terminate()?;
    }
    stop.sleep(AWAY)?;
    agent.start(cluster.world.node(RESTARTED))
}

fn extra_name(number: u32) -> String {
    format!("extra-{number}")
}

/// Kinds of services take turns: plain, with session affinity, with a node port, with a load balancer.
fn extra(number: u32) -> Service {
    let mut service = objects::service(&extra_name(number), PORT, "TCP");
    let spec = service.spec.get_or_insert_default();
    match number % 4 {
        0 => {}
        1 => spec.session_affinity = Some("ClientIP".into()),
        2 => spec.type_ = Some("NodePort".into()),
        _ => {
            spec.type_ = Some("LoadBalancer".into());
            spec.load_balancer_source_ranges = Some(vec!["192.0.2.0/24".into(), "2001:db8::/32".into()]);
        }
    }
    service
}

/// The load balancer's addresses of a service that has one.
fn load_balancer(number: u32) -> Option<[IpAddr; 2]> {
    let place = u8::try_from(FIRST_EXTERNAL + number % EXTERNALS).ok()?;
    (number % 4 == 3).then(|| external(place))
}
