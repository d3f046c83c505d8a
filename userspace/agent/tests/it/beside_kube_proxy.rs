//! The way from kube-proxy and back: both serve one node, each what is its own, and services move between them under
//! traffic.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use weir_abi as abi;
use weir_testbed::ask::PATIENCE;
use weir_testbed::{KubeProxy, Netns, Pod, address, wait};

use crate::harness::callers::Caller;
use crate::harness::clients::{any, fresh_port};
use crate::harness::echo::{Echo, Member, Talk, echo, ready, slice};
use crate::harness::traffic::{Client, Traffic};
use crate::harness::{self, Agent, Cluster, SOON, text};

const LABEL: &str = "service.kubernetes.io/service-proxy-name";
/// The name of our proxy.
const WEIR: &str = "weir";

/// From a changed label until the other proxy alone serves: Weir keeps what it gives away for 10 seconds.
const HANDED_OVER: Duration = Duration::from_secs(30);

/// How long a burst of connections lasts: long enough that it uses a few thousand ports.
const BURST: Duration = Duration::from_millis(800);

/// Two nodes with two pods each. Everybody enters at node 1, where both proxies are.
struct Beside {
    // It goes before the namespace that it lives in.
    kube_proxy: KubeProxy,
    cluster: Cluster,
}

impl Beside {
    /// The one that all tests of this file share; `None` has been explained.
    fn join(what: &str) -> Option<Arc<Self>> {
        static MEETING: Mutex<Weak<Beside>> = Mutex::new(Weak::new());
        if !harness::can_run(what) || !KubeProxy::require(what) {
            return None;
        }
        let mut meeting = MEETING.lock().unwrap_or_else(PoisonError::into_inner);
        let beside = meeting.upgrade().unwrap_or_else(|| {
            let made = Arc::new(Self::start());
            *meeting = Arc::downgrade(&made);
            made
        });
        Some(beside)
    }

    fn start() -> Self {
        let mut cluster = Cluster::without_agents(2, 2);
        // As kube-proxy chooses: near and far endpoints get their share under both.
        let options = [&format!("--service-proxy-name={WEIR}"), "--spread=random"];
        cluster.agents.push(Agent::start(&cluster.world, &cluster.api, 1, &options));
        let url = cluster.api.url_at(address::ROUTER_INSIDE.v4.into());
        let kube_proxy = KubeProxy::start(&cluster.api, &url, cluster.world.node(1)).unwrap();
        cluster.agents[0].await_ready(&cluster.world);
        Self { kube_proxy, cluster }
    }

    fn agent(&self) -> &Agent {
        &self.cluster.agents[0]
    }

    /// Pods that serve: one beside the clients, one on the other node.
    fn servers(&self) -> [Pod; 2] {
        [self.cluster.world.node(1).pod(2), self.cluster.world.node(2).pod(1)]
    }

    /// Who asks on node 1.
    fn callers(&self) -> [Caller; 3] {
        [Caller::Outside, Caller::Pod(self.cluster.world.node(1).pod(1)), Caller::Host(1)]
    }

    /// Where a caller finds a Service: outside at the node port, inside at the cluster IP. IPv4 first.
    fn targets(&self, caller: &Caller, served: &Echo, talk: Talk) -> [SocketAddr; 2] {
        match caller {
            Caller::Outside => served.node_ports(self.cluster.world.node(1), talk),
            Caller::Pod(_) | Caller::Host(_) => served.cluster_ips(talk),
        }
    }

    /// A Service with endpoints in these pods. Its slices get its labels.
    fn publish(&self, name: &str, proxy: Option<&str>, pods: &[Pod]) -> Echo {
        let mut service = echo(name, "NodePort");
        service.metadata.labels = labels(proxy);
        let made = Echo { service: self.cluster.objects.apply(&service).unwrap() };
        self.publish_slices(name, proxy, &ready(pods));
        made
    }

    fn publish_slices(&self, service: &str, proxy: Option<&str>, members: &[Member]) {
        for (suffix, v6) in [("v4", false), ("v6", true)] {
            let mut slice = slice(service, suffix, v6, members);
            slice.metadata.labels.as_mut().unwrap().extend(labels(proxy).unwrap_or_default());
            self.cluster.objects.apply(&slice).unwrap();
        }
    }

    /// Gives a Service to a proxy; none is kube-proxy.
    fn give(&self, served: &Echo, proxy: Option<&str>) {
        let mut service = echo(served.name(), "NodePort");
        service.metadata.labels = labels(proxy);
        self.cluster.objects.apply(&service).unwrap();
    }

    /// All that clients connect to, with the protocol.
    fn frontends(&self, served: &Echo) -> Vec<(Talk, SocketAddr)> {
        let node = self.cluster.world.node(1);
        let both = |talk| served.cluster_ips(talk).into_iter().chain(served.node_ports(node, talk));
        Talk::ALL.into_iter().flat_map(|talk| both(talk).map(move |at| (talk, at))).collect()
    }

    /// Waits until kube-proxy has rules for all frontends of a Service, or for none. Returns the time that it took.
    fn await_kube_proxy(&self, served: &Echo, present: bool) -> Duration {
        let start = Instant::now();
        for (talk, at) in self.frontends(served) {
            let what =
                format!("{} at {talk:?} {at} {} kube-proxy", served.name(), if present { "in" } else { "out of" });
            let right = || self.kube_proxy.serves(talk.protocol(), at).unwrap() == present;
            wait::until(&what, SOON, right).unwrap_or_else(|e| panic!("{e}\n{}", self.kube_proxy.log()));
        }
        start.elapsed()
    }

    /// The same of Weir and its maps.
    fn await_weir(&self, served: &Echo, present: bool) -> Duration {
        let start = Instant::now();
        let view = self.agent().view();
        let wanted = self.frontends(served);
        let right = || {
            let held: Vec<_> = view.dump().unwrap().frontends.iter().map(|(key, _)| (key.address, key.port)).collect();
            let wrong = wanted.iter().find(|(_, at)| held.contains(&(at.ip(), at.port())) != present);
            wrong.map_or(Ok(()), |wrong| Err(format!("{wrong:?}")))
        };
        let what = format!("all of {} {} Weir's maps", served.name(), if present { "in" } else { "out of" });
        wait::until_some(&what, HANDED_OVER, right).unwrap_or_else(|e| panic!("{e}\n{}", self.agent().log()));
        start.elapsed()
    }

    /// New flows of a Service that Weir has given an endpoint to so far.
    fn new_flows(&self, served: &Echo) -> u64 {
        let view = self.agent().view();
        let names = view.dump().unwrap().service_names;
        let own = names.iter().filter(|(_, name)| text(&name.name) == served.name());
        let counters = own.map(|(id, _)| view.service_counters(*id).unwrap());
        counters.map(|counters| counters.local + counters.remote).sum()
    }

    /// Asks once each way, from everybody; all must be answered by one of these pods.
    fn assert_answered(&self, served: &Echo, pods: &[Pod]) {
        for caller in self.callers() {
            for talk in Talk::ALL {
                for target in self.targets(&caller, served, talk) {
                    let answer = self.cluster.run_as(&caller, || talk.ask(target, PATIENCE));
                    let what = format!("{caller} asked {} at {talk:?} {target}", served.name());
                    let answer = answer.unwrap_or_else(|e| panic!("{what}: {e}\n{}", self.agent().log()));
                    assert!(pods.iter().any(|pod| pod.name() == answer.name), "{what}: {answer:?}");
                }
            }
        }
    }

    /// Asserts that new connections are kube-proxy's: they do not move Weir's counters, and kube-proxy shows the node's
    /// address to every server of a client outside.
    fn assert_kube_proxys(&self, served: &Echo) {
        let before = self.new_flows(served);
        for _ in 0..4 {
            self.assert_answered(served, &self.servers());
            for target in self.targets(&Caller::Outside, served, Talk::Tcp) {
                let answer = self.cluster.run_as(&Caller::Outside, || Talk::Tcp.ask(target, PATIENCE)).unwrap();
                assert_ne!(answer.client.ip(), address::CLIENT.like(target.ip()), "{target}: {answer:?}");
            }
        }
        assert_eq!(self.new_flows(served), before, "Weir has served {}", served.name());
    }

    /// Adds the long connections of all callers.
    fn connect(&self, traffic: &mut Traffic, served: &Echo) {
        self.each_client(served, Talk::Tcp, |name, client, target| traffic.connection(name, client, target));
    }

    fn each_client(&self, served: &Echo, talk: Talk, mut act: impl FnMut(&str, Client<'_>, SocketAddr)) {
        let node = self.cluster.world.node(1);
        for caller in self.callers() {
            let client = match &caller {
                Caller::Outside => Client::Netns(self.cluster.world.client()),
                Caller::Pod(pod) => Client::Netns(pod.netns()),
                Caller::Host(_) => Client::Host(node.netns(), &self.agent().cgroup),
            };
            for target in self.targets(&caller, served, talk) {
                act(&format!("{caller} of {}", served.name()), client, target);
            }
        }
    }
}

fn labels(proxy: Option<&str>) -> Option<BTreeMap<String, String>> {
    proxy.map(|proxy| [(LABEL.to_owned(), proxy.to_owned())].into())
}

#[test]
fn each_proxy_serves_its_own_services_alone() {
    let Some(beside) = Beside::join("services of two proxies") else { return };
    let pods = beside.servers();
    let theirs = beside.publish("theirs", None, &pods);
    let nobodys = beside.publish("nobodys", Some("another"), &pods);
    let ours = beside.publish("ours", Some(WEIR), &pods);
    beside.await_weir(&ours, true);
    beside.await_kube_proxy(&theirs, true);
    for served in [&ours, &nobodys] {
        for (talk, at) in beside.frontends(served) {
            assert!(
                !beside.kube_proxy.serves(talk.protocol(), at).unwrap(),
                "kube-proxy has {} at {at}",
                served.name()
            );
        }
    }
    let dump = beside.agent().view().dump().unwrap();
    for served in [&theirs, &nobodys] {
        assert!(dump.service_names.iter().all(|(_, name)| text(&name.name) != served.name()), "{}", served.name());
        let at = beside.frontends(served);
        let held = dump
            .frontends
            .iter()
            .find(|(key, _)| at.iter().any(|(_, at)| (key.address, key.port) == (at.ip(), at.port())));
        assert_eq!(held, None, "of {}", served.name());
    }
    beside.assert_answered(&ours, &pods);
    // Three callers, three protocols, two families.
    assert!(beside.new_flows(&ours) >= 18, "{} new flows", beside.new_flows(&ours));
    beside.assert_kube_proxys(&theirs);
}

#[test]
fn a_service_moves_to_weir_and_back_under_load_without_a_failed_request() {
    let Some(beside) = Beside::join("services that move between proxies") else { return };
    let pods = beside.servers();
    // Its controller copies a Service's labels to its slices, sooner or later. Slices made by hand stay as they are.
    let followed = beside.publish("followed", None, &pods);
    let unlabelled = beside.publish("unlabelled", None, &pods);
    let both = [&followed, &unlabelled];
    let give = |proxy| {
        both.iter().for_each(|served| beside.give(served, proxy));
        beside.publish_slices(followed.name(), proxy, &ready(&pods));
    };
    let mut traffic = Traffic::default();
    for served in both {
        beside.await_kube_proxy(served, true);
        beside.each_client(served, Talk::Http, |name, client, target| traffic.stream(name, client, target));
        beside.connect(&mut traffic, served);
    }
    traffic.goes_on();
    both.iter().for_each(|served| assert_eq!(beside.new_flows(served), 0, "{} is not Weir's yet", served.name()));

    let moved = Instant::now();
    give(Some(WEIR));
    let taken = both.map(|served| (beside.await_weir(served, true), moved.elapsed()).1);
    let left = both.map(|served| (beside.await_kube_proxy(served, false), moved.elapsed()).1);
    println!("from the label until Weir serves {taken:?}, until kube-proxy has let go {left:?}");
    for served in both {
        let seen = || if beside.new_flows(served) > 200 { Ok(()) } else { Err(beside.new_flows(served).to_string()) };
        wait::until_some(&format!("200 new flows of {} through Weir", served.name()), SOON, seen).unwrap();
        // These begin with Weir, and stay with it.
        beside.connect(&mut traffic, served);
    }
    traffic.goes_on();

    let moved = Instant::now();
    give(None);
    let taken = both.map(|served| (beside.await_kube_proxy(served, true), moved.elapsed()).1);
    let left = both.map(|served| (beside.await_weir(served, false), moved.elapsed()).1);
    println!("from the label's end until kube-proxy serves {taken:?}, until Weir has let go {left:?}");
    both.iter().for_each(|served| beside.assert_kube_proxys(served));
    traffic.goes_on();
    traffic.unharmed_by("services moved from kube-proxy to Weir and back");
}

/// Asks over HTTP from a port that can be used again at once: the server closes first, and the wait is its own.
fn ask_and_be_closed(port: u16, target: SocketAddr) -> io::Result<String> {
    let mut socket = Socket::new(Domain::for_address(target), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.bind(&any(target, port).into())?;
    socket.connect(&target.into())?;
    socket.write_all(b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Short connections one after another, from a few threads at once: how many were answered, and how the others failed.
/// The client closes first. Else the server would remember them, and its ports are what masquerading meets at random.
fn burst(client: &Netns, target: SocketAddr) -> (usize, Vec<String>) {
    let ask_for_a_while = || {
        let start = Instant::now();
        let answers = std::iter::from_fn(|| (start.elapsed() < BURST).then(|| Talk::Tcp.ask(target, PATIENCE)));
        answers.collect::<Vec<_>>()
    };
    let answers = client.enter(|| {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask_for_a_while)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        })
    });
    let (answered, failed): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    (answered.len(), failed.into_iter().filter_map(|answer| Some(answer.err()?.to_string())).collect())
}

#[test]
fn what_weir_remembers_of_a_service_does_not_get_in_the_way_of_the_next_proxy() {
    /// Client ports that are used again, each once.
    const PORTS: usize = 8;
    let Some(beside) = Beside::join("ports that are used again by the next proxy") else { return };
    // All flows from outside to one endpoint of the other node, which no other test has connections to: many ports are taken at it.
    let pods = [beside.cluster.world.node(2).pod(2)];
    let served = beside.publish("remembered", Some(WEIR), &pods);
    beside.await_weir(&served, true);
    let client = beside.cluster.world.client();
    let targets = beside.targets(&Caller::Outside, &served, Talk::Http);
    let ports: Vec<_> = (0..PORTS).map(|_| fresh_port()).collect();
    let again = |proxy: &str| {
        for target in targets {
            for port in &ports {
                let answer = client.enter(|| ask_and_be_closed(*port, target));
                assert!(answer.is_ok(), "{proxy} from port {port} at {target}: {answer:?}");
            }
        }
    };
    again("Weir");
    let busy_targets = beside.targets(&Caller::Outside, &served, Talk::Tcp);
    let weirs = busy_targets.map(|target| burst(client, target).0);

    beside.give(&served, None);
    beside.await_kube_proxy(&served, true);
    beside.await_weir(&served, false);
    again("kube-proxy");
    let bursts = busy_targets.map(|target| burst(client, target));
    println!("{weirs:?} connections through Weir, then {bursts:?} through kube-proxy");
    assert!(bursts.iter().all(|(answered, failures)| *answered > 0 && failures.is_empty()), "kube-proxy: {bursts:?}");
}

#[test]
fn a_datagram_that_kube_proxy_masquerades_from_a_port_of_a_flow_of_weirs_is_answered() {
    /// Flows of Weir's to one endpoint, and datagrams of kube-proxy's to it, which has one of 64,512 ports for each by lot: 15 meet on average.
    const FLOWS: usize = 2000;
    const DATAGRAMS: usize = 500;
    let Some(beside) = Beside::join("datagrams of two proxies to one endpoint") else { return };
    let pods = [beside.cluster.world.node(2).pod(2)];
    let (ours, theirs) = (beside.publish("two-ours", Some(WEIR), &pods), beside.publish("two-theirs", None, &pods));
    beside.await_weir(&ours, true);
    beside.await_kube_proxy(&theirs, true);
    let client = beside.cluster.world.client();
    let targets = |served| beside.targets(&Caller::Outside, served, Talk::Udp);
    for (ours, theirs) in targets(&ours).into_iter().zip(targets(&theirs)) {
        let ask = |target, times| {
            client.enter(|| (0..times).filter_map(|_| Talk::Udp.ask(target, PATIENCE).err()).collect::<Vec<_>>())
        };
        for (target, times) in [(ours, FLOWS), (theirs, DATAGRAMS)] {
            let failures = ask(target, times);
            assert!(failures.is_empty(), "{} of {times} to {target}: {:?}", failures.len(), failures[0]);
        }
    }
    let view = beside.agent().view();
    let (v4, v6) = (view.replies4().unwrap(), view.replies6().unwrap());
    let lent = |reply: &abi::Reply| reply.flags & abi::FLOW_LENT != 0;
    let v4 = v4.iter().filter(|(_, reply)| lent(reply)).count();
    let v6 = v6.iter().filter(|(_, reply)| lent(reply)).count();
    println!("{v4} and {v6} ports met");
    assert!(v4 > 0 && v6 > 0, "{v4} and {v6} ports met");
}
