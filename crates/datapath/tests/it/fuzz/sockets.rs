//! Sockets of the host's processes and of a pod's against the model, by real system calls: the kernel runs these programs in no
//! other way. All endpoints' addresses are both namespaces' own, with servers behind them: where a socket was sent to, it arrives.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use arbitrary::Unstructured;
use socket2::{Domain, Socket, Type};
use weir_abi as abi;
use weir_core::model::Family;
use weir_core::ops::MapOp;
use weir_datapath::{HookedPods, MapStore};
use weir_model::{Called, Model, Refusal, Wish};
use weir_testbed::Netns;
use weir_testbed::address::{self, Pair};
use weir_testbed::cgroup::Cgroup;

use super::bench::BEGIN;
use super::places::{of, place};
use super::processes::{Process, Servers};
use super::step::WORLD_BYTES;
use super::world::{ENDPOINTS, TARGET, World, flags};
use super::{PLAYS, compare, kernel};
use crate::clock;
use crate::model::seed;
use crate::network::nic;
use crate::node::Node;
use crate::pins::unique_name;

/// How long random scenarios are played.
const TIME: Duration = Duration::from_secs(10);
const STEPS: usize = 16;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// A node with the socket hooks, with a process on the host and one in a pod.
struct Bed {
    processes: [Process; 2],
    node: Node,
    pod: Cgroup,
    _pod_netns: Netns,
    _hooked: Cgroup,
}

/// The number of a cgroup.
fn number(cgroup: &Cgroup) -> u64 {
    cgroup.path().metadata().unwrap().ino()
}

impl Bed {
    fn new(what: &str) -> Option<Self> {
        let mut node = Node::new(what)?;
        // What nobody serves fails at once.
        nic(0, 1).both().iter().for_each(|ip| node.netns.ip(&format!("route del default via {ip}")).unwrap());
        let hooked = Cgroup::create(&unique_name()).unwrap();
        node.datapath.attach_cgroup(hooked.path()).unwrap();
        let system = hooked.below("system").unwrap();
        let pod = hooked.below("kubepods/pod7").unwrap();
        let container = pod.below("main").unwrap();
        let groups = [vec![number(&hooked), number(&system)], [&hooked, &pod, &container].map(number).to_vec()];
        let pod_netns = Netns::create(&unique_name()).unwrap();
        let servers = [Servers::new(&node.netns, &address::node(1).both()), Servers::new(&pod_netns, &[])];
        let ([host_groups, pod_groups], [on_host, in_pod]) = (groups, servers);
        let processes = [
            Process::new(&node.netns, system, host_groups, on_host),
            Process::new(&pod_netns, container, pod_groups, in_pod),
        ];
        Some(Self { processes, node, pod, _pod_netns: pod_netns, _hooked: hooked })
    }
}

/// A scenario in play.
struct Play<'a> {
    bed: &'a mut Bed,
    world: World,
    model: Model,
    senders: [[UdpSocket; 2]; 2],
    log: Vec<String>,
}

type Outcome = Result<(), String>;

impl<'a> Play<'a> {
    fn new(bed: &'a mut Bed, rng: &mut fastrand::Rng) -> Self {
        kernel::reset(&mut bed.node);
        bed.processes.iter().for_each(|process| process.servers.forget());
        let mut bytes = [0; WORLD_BYTES];
        rng.fill(&mut bytes);
        let mut world = World::decode(&mut Unstructured::new(&bytes)).expect("no choice is empty");
        world.config.netns_cookie = bed.processes[0].netns;
        world.config.flags |= if rng.u8(..4) > 0 { abi::CONFIG_POD_SOCKETS } else { 0 };
        bed.node.datapath.configure(&world.config).unwrap();
        let model = Model::new(world.config, BEGIN, kernel::sizes(&bed.node));
        let senders = [bed.processes[0].senders(), bed.processes[1].senders()];
        let log = vec![format!("{world:?}")];
        let mut play = Self { bed, world, model, senders, log };
        let ops = play.world.ops();
        play.apply(&ops);
        play.hook(rng);
        play
    }

    fn apply(&mut self, ops: &[MapOp]) {
        self.bed.node.datapath.store().apply(ops).unwrap();
        self.model.apply(ops);
    }

    /// The agent names the pod, or does not.
    fn hook(&mut self, rng: &mut fastrand::Rng) {
        let addresses = [None, Some(address::pod(1, 1)), Some(address::pod(1, 7))];
        let mut address =
            |family| rng.choice(addresses).flatten().map_or(abi::Addr::UNSET, |pair: Pair| of(family, pair).into());
        let entry = abi::HookedPod { addr4: address(Family::V4), addr6: address(Family::V6) };
        let pods: BTreeMap<_, _> = (rng.u8(..5) > 0).then_some((number(&self.bed.pod), entry)).into_iter().collect();
        self.log.push(format!("hooked: {pods:?}"));
        HookedPods::open(self.bed.node.datapath.pins()).unwrap().replace(&pods).unwrap();
        self.model.hooked_pods = pods.into_iter().collect();
    }

    fn step(&mut self, rng: &mut fastrand::Rng) -> Outcome {
        let service = rng.usize(..self.world.services.len());
        match rng.u8(..16) {
            0..=9 => {
                let served = &self.world.services[service];
                let to = served.destinations()[if rng.bool() { 0 } else { rng.usize(..9) }];
                let protocol = if [TCP, UDP].contains(&served.protocol) { served.protocol } else { UDP };
                let to = if rng.bool() { to } else { mapped(to) };
                let process = rng.usize(..2);
                if protocol == UDP && rng.bool() {
                    self.sends(process, to)
                } else {
                    self.connects(process, protocol, to)
                }
            }
            10 | 11 => self.changes(
                "an endpoint goes or comes",
                |world, rng| world.services[service].turn_over(rng.usize(..ENDPOINTS), rng.bool()),
                rng,
            ),
            12 => {
                self.changes("weights change", |world, rng| world.services[service].steer(rng.u8(..), rng.u16(..)), rng)
            }
            13 => self.changes(
                "a frontend goes or comes",
                |world, rng| vec![world.services[service].frontend_op(rng.usize(..5), rng.bool())],
                rng,
            ),
            14 => {
                let mut bytes = [0; 16];
                rng.fill(&mut bytes);
                let pods = if rng.bool() { abi::CONFIG_POD_SOCKETS } else { 0 };
                self.model.config.flags = flags(&mut Unstructured::new(&bytes)).unwrap() | pods;
                self.log.push(format!("flags: {:#x}", self.model.config.flags));
                self.bed.node.datapath.configure(&self.model.config).unwrap();
                self.hook(rng);
                Ok(())
            }
            _ => {
                let ticks = rng.u32(1..15);
                self.log.push(format!("{ticks} ticks pass"));
                kernel::age(&self.bed.node, ticks, 0);
                self.model.now.ticks += ticks;
                Ok(())
            }
        }
    }

    fn changes(
        &mut self,
        what: &str,
        change: impl FnOnce(&mut World, &mut fastrand::Rng) -> Vec<MapOp>,
        rng: &mut fastrand::Rng,
    ) -> Outcome {
        let ops = change(&mut self.world, rng);
        self.log.push(format!("{what}: {ops:?}"));
        self.apply(&ops);
        Ok(())
    }

    /// Does something about a socket of which the hooks' counters must tell what the model says.
    fn counted<T>(&self, work: impl FnOnce() -> T) -> (T, Vec<(u32, u64)>) {
        let hook = abi::HOOK_SOCKET as usize;
        let before = kernel::counted(&self.bed.node, hook);
        let done = work();
        let after = kernel::counted(&self.bed.node, hook);
        let moved = (0..).zip(before.iter().zip(&after)).map(|(reason, (before, after))| (reason, after - before));
        (done, moved.filter(|(_, count)| *count > 0).collect())
    }

    /// A socket that is connected, heard of where it was sent to, and asks for its peer.
    fn connects(&mut self, process: usize, protocol: u8, to: SocketAddr) -> Outcome {
        let kind = if protocol == TCP { Type::STREAM } else { Type::DGRAM };
        let process = &self.bed.processes[process];
        let socket = process.ask(move || Socket::new(Domain::for_address(to), kind, None).unwrap());
        let ours = process.known(&socket, protocol);
        let connect = move || {
            let result = socket.connect(&to.into());
            (socket, result)
        };
        let before = kernel::flows_of_backends(&self.bed.node);
        let ((socket, result), moved) = self.counted(|| process.ask(connect));
        let drawn = kernel::drawn_since(&self.bed.node, &before);
        let called = self.model.call(&ours, Wish::Connect, to, &drawn);
        self.log.push(format!("{ours:?} connects to {to}: {called:?}, {result:?}"));
        let Some(there) = arrives(called, &moved, &result)? else { return Ok(()) };
        let seen = if protocol == TCP {
            process.servers.accepts(there)?
        } else {
            socket.send(b"connected").map_err(|error| error.to_string())?;
            process.servers.hears(there)?
        };
        let from = canonical(socket.local_addr().unwrap().as_socket().unwrap());
        if seen != from {
            return Err(format!("{there} hears of {seen}, not of {from}"));
        }
        let (peer, moved) = self.counted(|| socket.peer_addr().unwrap().as_socket().unwrap());
        is_shown(self.model.shown(&ours, there), &moved, peer)
    }

    /// A datagram of a socket that is not connected, and the answer to it.
    fn sends(&mut self, process: usize, to: SocketAddr) -> Outcome {
        let (sender, process) = (&self.senders[process][usize::from(to.is_ipv6())], &self.bed.processes[process]);
        let ours = process.known(sender, UDP);
        let (result, moved) = self.counted(|| sender.send_to(b"question", to).map(drop));
        let called = self.model.call(&ours, Wish::Send, to, &[]);
        self.log.push(format!("{ours:?} sends to {to}: {called:?}, {result:?}"));
        let Some(there) = arrives(called, &moved, &result)? else { return Ok(()) };
        let from = process.servers.hears(there)?;
        process.servers.udp[&there].send_to(b"answer", from).map_err(|error| error.to_string())?;
        let (answer, moved) = self.counted(|| sender.recv_from(&mut [0; 16]));
        is_shown(self.model.shown(&ours, there), &moved, answer.map_err(|error| error.to_string())?.1)
    }
}

fn canonical(at: SocketAddr) -> SocketAddr {
    SocketAddr::new(at.ip().to_canonical(), at.port())
}

/// The same address, as a socket of IPv6 may be given it.
fn mapped(at: SocketAddr) -> SocketAddr {
    match at.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), at.port()),
        IpAddr::V6(_) => at,
    }
}

fn is_counted(called: Called, moved: &[(u32, u64)]) -> Outcome {
    let expected: Vec<_> = called.reason.into_iter().map(|reason| (reason, 1)).collect();
    if moved == expected { Ok(()) } else { Err(format!("{moved:?} are counted, not {expected:?}")) }
}

/// Where a call led to, if there is a server.
fn arrives(called: Called, moved: &[(u32, u64)], result: &io::Result<()>) -> Result<Option<SocketAddr>, String> {
    is_counted(called, moved)?;
    let is_served = |at: SocketAddr| {
        let family = Family::of(at.ip());
        at.port() == TARGET && (0..ENDPOINTS).any(|number| place(family, number).0 == at.ip())
    };
    let error = result.as_ref().err().and_then(io::Error::raw_os_error);
    match (called.result, error) {
        (Err(Refusal::Refused), Some(libc::ECONNREFUSED)) | (Err(Refusal::Unreachable), Some(libc::EHOSTUNREACH)) => {
            Ok(None)
        }
        (Ok(there), None) if is_served(there) => Ok(Some(there)),
        // What becomes of it is the kernel's own business.
        (Ok(there), _) if !is_served(there) => Ok(None),
        (expected, _) => Err(format!("{expected:?} in the model, {result:?} in the kernel")),
    }
}

fn is_shown(called: Called, moved: &[(u32, u64)], seen: SocketAddr) -> Outcome {
    is_counted(called, moved)?;
    if called.result == Ok(canonical(seen)) { Ok(()) } else { Err(format!("{seen} is shown, not {called:?}")) }
}

/// Plays one scenario. What happened, and how the two differ, if they do.
fn play(bed: &mut Bed, seed: u64) -> Outcome {
    for _ in 0..PLAYS {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut play = Play::new(bed, &mut rng);
        let tick = clock::tick();
        let done = (0..STEPS).try_for_each(|_| play.step(&mut rng));
        let done = done.and_then(|()| compare::tables(&play.bed.node, &play.model, tick));
        if clock::tick() == tick {
            return done.map_err(|how| format!("{}\n{how}", play.log.join("\n")));
        }
    }
    panic!("the machine is too slow to play a scenario of {STEPS} steps");
}

#[test]
fn the_kernel_does_to_random_sockets_what_the_model_of_their_hooks_does() {
    let what = "sockets against their model";
    if !clock::require_shown(what) {
        return;
    }
    let Some(mut bed) = Bed::new(what) else { return };
    let (seed, begin) = (seed(), Instant::now());
    let mut number = 0;
    while begin.elapsed() < TIME {
        play(&mut bed, seed.wrapping_add(number)).unwrap_or_else(|how| panic!("scenario {number}: {how}"));
        number += 1;
    }
    eprintln!("{number} scenarios in {} s", TIME.as_secs());
}
