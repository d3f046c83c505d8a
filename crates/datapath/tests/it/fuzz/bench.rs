//! Plays a scenario: each packet to the kernel and to the model, which must agree about it, and in the end about all tables.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Debug;
use std::time::{Duration, Instant};

use weir_abi as abi;
use weir_core::model::Family;
use weir_datapath::MapStore;
use weir_model::{Again, Hook, Key, Model, Now, Outcome, Place, Stage, Verdict, ends_of};
use weir_testbed::address;

use super::kernel::Reasons;
use super::places::{client, client_port, teller, wrapper};
use super::routes::Devices;
use super::step::{Scenario, Segment, Shape, Step};
use super::world::World;
use super::{compare, frame, kernel};
use crate::clock;
use crate::node::{ETH0_MAC, Node, TUNNEL_IP};

/// Within this time no SYN is one that comes again, but after [`Step::Pass`]. Later kernel and model may differ about when.
const FAST: Duration = Duration::from_millis(80);

/// The model's time when a scenario begins.
pub(super) const BEGIN: Now = Now { ticks: 100_000, delay: 2_000_000 };

/// A packet that went in, and what came out.
#[derive(Clone, Debug)]
struct Passed {
    key: Key,
    input: Vec<u8>,
    output: Vec<u8>,
}

/// How a scenario ended.
#[derive(Debug)]
pub(super) enum End {
    /// As it should.
    Whole,
    /// The clocks moved too far meanwhile: it says nothing.
    Late,
    /// Kernel and model differ.
    Differs(String),
}

/// A scenario in play.
pub(super) struct Bench<'a> {
    node: &'a mut Node,
    devices: Devices,
    world: World,
    model: Model,
    begin: Instant,
    /// Units of delay that were let pass.
    let_pass: u32,
    /// Those that were sent to a backend.
    forward: Vec<Passed>,
    /// All that were translated.
    passed: Vec<Passed>,
    /// What was reached.
    pub(super) reached: BTreeSet<(u32, u32)>,
    /// What happened, for people.
    pub(super) log: Vec<String>,
}

impl<'a> Bench<'a> {
    /// Plays a scenario on a node that forgets everything else.
    pub(super) fn play(node: &'a mut Node, devices: Devices, scenario: &Scenario) -> (Self, End) {
        kernel::reset(node);
        let world = scenario.world.clone();
        // It is not a card of the node's, and node 4 is behind it.
        let config = world.config_with_tunnel(devices.eth[2]);
        let mut model = Model::new(config, BEGIN, kernel::sizes(node));
        node.datapath.configure(&config).unwrap();
        node.datapath.set_source_ports(&world.ports).unwrap();
        model.set_source_ports(&world.ports);
        let nodes = world.other_nodes();
        node.datapath.set_other_nodes(&nodes).unwrap();
        model.other_nodes = nodes.into_iter().map(abi::Addr::from).collect();
        let shortcuts = world.shortcuts(&devices);
        let in_kernel = shortcuts.iter().map(|(device, kind)| (*device, abi::Shortcut { kind: *kind, bridge: 0 }));
        node.datapath.set_shortcuts(&in_kernel.collect()).unwrap();
        model.shortcuts = shortcuts;
        let ops = world.ops();
        node.datapath.store().apply(&ops).unwrap();
        model.apply(&ops);
        let (forward, passed) = (Vec::new(), Vec::new());
        let log = vec![format!("{world:?}")];
        let (begin, let_pass, reached) = (Instant::now(), 0, BTreeSet::new());
        let mut bench = Self { node, devices, world, model, begin, let_pass, forward, passed, reached, log };
        let result = bench.play_steps(&scenario.steps);
        (bench, result)
    }

    fn play_steps(&mut self, steps: &[Step]) -> End {
        let tick = clock::tick();
        self.model.kernel_tick = tick;
        let play = |bench: &mut Self| {
            for step in steps {
                bench.log.push(format!("{step:?}"));
                bench.step(step)?;
            }
            compare::tables(bench.node, &bench.model, tick)
        };
        let end = play(self).map_or_else(End::Differs, |()| End::Whole);
        let is_late = clock::tick() != tick || (matches!(end, End::Differs(_)) && self.begin.elapsed() > FAST);
        if is_late { End::Late } else { end }
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Client { service, to, client: number, port, segment, hook, shape } => {
                let served = &self.world.services[service % self.world.services.len()];
                let from = std::net::SocketAddr::new(client(served.family, *number), client_port(*number, *port));
                let key = frame::key(served.protocol, from, served.destinations()[*to]);
                self.client_sends(&key, *segment, *hook, shape)
            }
            Step::Again { of, segment, hook, shape } => match recent(&self.forward, *of) {
                Some(passed) => self.client_sends(&passed.key, *segment, *hook, shape),
                None => Ok(()),
            },
            Step::Insist { of, times } => {
                let Some(passed) = recent(&self.forward, *of) else { return Ok(()) };
                for _ in 0..*times {
                    self.change(&Step::Pass { ticks: 1, delay: 1_000_000 });
                    self.client_sends(&passed.key, Segment::Syn, None, &Shape::default())?;
                }
                Ok(())
            }
            Step::Answer { of, segment, hook, shape } => match recent(&self.forward, *of) {
                Some(passed) => self.backend_sends(&passed, *segment, *hook, shape),
                None => Ok(()),
            },
            Step::Error { of, about_output, kind, code, from, cut, hook, shape } => match recent(&self.passed, *of) {
                Some(passed) => {
                    let about = if *about_output { &passed.output } else { &passed.input };
                    self.error(about, *from, (*kind, *code), *cut, *hook, shape)
                }
                None => Ok(()),
            },
            Step::Replay { of, hook } => match recent(&self.passed, *of) {
                Some(passed) => {
                    let mut frame = passed.output;
                    // Most arrive, as by another node that has them for its own.
                    if of % 4 != 3 && matches!(hook, Hook::Xdp | Hook::NicIn) {
                        frame[..6].copy_from_slice(&ETH0_MAC.0);
                    }
                    self.send(*hook, &frame)
                }
                None => Ok(()),
            },
            Step::Echo { service, to, client: number, code, hook, shape } => {
                let served = &self.world.services[service % self.world.services.len()];
                let (from, to) = (client(served.family, *number), served.destinations()[*to].ip());
                let kind = if served.family == Family::V4 { 8 } else { 128 };
                self.send(*hook, &frame::icmp(from, to, (kind, *code), b"ping", shape))
            }
            other => {
                self.change(other);
                Ok(())
            }
        }
    }

    /// What is no packet.
    fn change(&mut self, step: &Step) {
        let count = self.world.services.len();
        let ops = match step {
            Step::TurnOver { service, endpoint } => {
                let moves = self.world.odd.moves_endpoints();
                self.world.services[service % count].turn_over(*endpoint, moves)
            }
            Step::Steer { service, weight, spill } => self.world.services[service % count].steer(*weight, *spill),
            Step::Frontend { service, number, there } => {
                vec![self.world.services[service % count].frontend_op(*number, *there)]
            }
            Step::Flags(flags) => {
                // An agent never changes its mind about these.
                let kept = abi::CONFIG_SETTLE | abi::CONFIG_HOST_BYPASS;
                self.model.config.flags = *flags | self.model.config.flags & kept;
                self.node.datapath.configure(&self.model.config).unwrap();
                return;
            }
            Step::Ports(ports) => {
                self.model.set_source_ports(ports);
                self.node.datapath.set_source_ports(ports).unwrap();
                return;
            }
            Step::Pass { ticks, delay } => {
                self.model.now.ticks = self.model.now.ticks.wrapping_add(*ticks);
                self.let_pass = self.let_pass.wrapping_add(*delay);
                self.model.calm();
                kernel::age(self.node, *ticks, *delay);
                return;
            }
            Step::Evict(which) => {
                kernel::FLOWS[*which].iter().for_each(|name| kernel::clear(self.node, name));
                let stage = if which % 2 == 0 { Stage::Going } else { Stage::Opening };
                match which {
                    0 | 1 => self.model.tables.flows.clear(stage),
                    _ => self.model.tables.replies.clear(stage),
                }
                return;
            }
            Step::Client { .. }
            | Step::Again { .. }
            | Step::Insist { .. }
            | Step::Answer { .. }
            | Step::Error { .. }
            | Step::Echo { .. }
            | Step::Replay { .. } => {
                return;
            }
        };
        self.node.datapath.store().apply(&ops).unwrap();
        self.model.apply(&ops);
    }

    fn client_sends(&mut self, key: &Key, segment: Segment, hook: Option<Hook>, shape: &Shape) -> Result<(), String> {
        let from = frame::socket(key.family, key.from).ip();
        let is_pod = address::pod_ips().iter().any(|net| net.contains(&from));
        let usual = match (is_pod, segment) {
            (true, _) => Hook::PodIn,
            // Both have to come to the same end.
            (false, _) if key.from.port.is_multiple_of(2) => Hook::Xdp,
            (false, _) => Hook::NicIn,
        };
        for shape in shape.with_early() {
            let mut frame = frame::packet(key, segment, &shape);
            if let Some((node, endpoint)) = shape.wrapped {
                let (from, to) = wrapper(key.family, node, endpoint);
                frame = frame::wrap(&frame, from, to);
            }
            self.send(hook.unwrap_or(usual), &frame)?;
        }
        Ok(())
    }

    fn backend_sends(
        &mut self,
        passed: &Passed,
        segment: Segment,
        hook: Option<Hook>,
        shape: &Shape,
    ) -> Result<(), String> {
        let Some((sent, _)) = ends_of(&passed.output) else { return Ok(()) };
        let key = sent.turned();
        let to = frame::socket(key.family, key.to).ip();
        let is = |pair: address::Pair| pair.like(to) == to;
        let usual = if is(address::node(1)) || is(TUNNEL_IP) {
            if key.to.port.is_multiple_of(2) { Hook::Xdp } else { Hook::NicIn }
        } else if address::pod_ips().iter().any(|net| net.contains(&to)) {
            Hook::PodOut
        } else {
            Hook::NicOut
        };
        shape
            .with_early()
            .iter()
            .try_for_each(|shape| self.send(hook.unwrap_or(usual), &frame::packet(&key, segment, shape)))
    }

    fn error(
        &mut self,
        about: &[u8],
        from: usize,
        kind: (u8, u8),
        cut: usize,
        hook: Hook,
        shape: &Shape,
    ) -> Result<(), String> {
        let Some((key, l3)) = ends_of(about) else { return Ok(()) };
        let to = frame::socket(key.family, key.from).ip();
        let quoted = &about[l3..about.len().saturating_sub(cut).clamp(l3, l3 + 500)];
        self.send(hook, &frame::icmp(teller(key.family, from), to, kind, quoted, shape))
    }

    /// Gives a frame to a hook. What XDP passes up meets tc next.
    fn send(&mut self, hook: Hook, frame: &[u8]) -> Result<(), String> {
        let Some(passed) = self.run(hook, frame)? else { return Ok(()) };
        if hook == Hook::Xdp { self.run(Hook::NicIn, &passed).map(drop) } else { Ok(()) }
    }

    /// Returns the frame if it goes up to tc.
    fn run(&mut self, hook: Hook, frame: &[u8]) -> Result<Option<Vec<u8>>, String> {
        let device = match hook {
            Hook::Xdp | Hook::NicIn | Hook::NicOut => self.devices.eth[0],
            Hook::PodIn | Hook::PodOut => self.devices.pod,
        };
        let elapsed = u32::try_from(self.begin.elapsed().as_nanos() >> abi::DELAY_SHIFT).unwrap();
        self.model.now.delay = BEGIN.delay.wrapping_add(self.let_pass).wrapping_add(elapsed);
        let before = kernel::flows_of_backends(self.node);
        // Half of what leaves is said to be on its way back.
        let came_by = if frame.len().is_multiple_of(2) { device } else { 0 };
        // As far as can be told without what is drawn: a frame that is cut is seen whole without a card's sum alone.
        let place = Place { hook, device, came_by, network: &self.devices, drawn: &[] };
        let is_summed = !compare::forgets_sum(frame, &self.model.clone().run(frame, &place));
        let Some(ran) = kernel::run(self.node, &place, frame, is_summed) else { return Ok(None) };
        let drawn = kernel::drawn_since(self.node, &before);
        let outcome = self.model.run(frame, &Place { drawn: &drawn, ..place });
        let reasons = reasons_of(&mut self.model, &outcome, &place, self.devices.pod);
        let name = weir_abi::names::reason_name(outcome.reason as usize);
        let out = ran.left.as_ref().map(|left| format!(", verdict {} {}", left.verdict, compare::hex(&left.frame)));
        let draw = if drawn.is_empty() { String::new() } else { format!(", new flow of backends {drawn:?}") };
        self.log.push(format!("  {hook:?} {}\n    {name}{}{draw}", compare::hex(frame), out.unwrap_or_default()));
        compare::reasons(&ran.reasons, &reasons)?;
        self.reached.insert((u32::try_from(kernel::program(hook).1).unwrap(), outcome.reason));
        compare::packets(hook, frame, &ran, &outcome)?;
        let Some(left) = ran.left else { return Ok(None) };
        let is_ours = (abi::REASON_TO_LOCAL..abi::REASON_NO_ENDPOINTS).contains(&outcome.reason);
        if let (true, Some((key, _))) = (is_ours, ends_of(frame)) {
            let passed = Passed { key, input: frame.to_vec(), output: left.frame.clone() };
            if !matches!(outcome.reason, abi::REASON_BACK | abi::REASON_ERROR_TOLD) {
                self.forward.push(passed.clone());
            }
            self.passed.push(passed);
        }
        let goes_up = outcome.verdict == Verdict::Pass && outcome.hand_over.is_none();
        Ok(goes_up.then_some(left.frame))
    }
}

/// The model's reasons for a frame and for what has come again with it, by the hook of the device that it came by: those that this hook counts, as the kernel
/// was asked for no others.
fn reasons_of(model: &mut Model, outcome: &Outcome, place: &Place<'_>, pod: u32) -> Reasons {
    let mut reasons = Reasons::from([(outcome.reason, 1)]);
    let mut again = VecDeque::from(outcome.again.clone());
    let out = matches!(place.hook, Hook::NicOut | Hook::PodOut);
    while let Some(Again { device, frame }) = again.pop_front() {
        let is_pod = device == pod;
        let hook = match (is_pod, out) {
            (false, false) => Hook::NicIn,
            (false, true) => Hook::NicOut,
            (true, false) => Hook::PodIn,
            (true, true) => Hook::PodOut,
        };
        let next = model.run_again(&frame, &Place { hook, device, ..*place });
        if hook == place.hook {
            *reasons.entry(next.reason).or_default() += 1;
        }
        again.extend(next.again);
    }
    kernel::without_reports(reasons)
}

/// One of the latest packets, the last one first.
fn recent(all: &[Passed], back: usize) -> Option<Passed> {
    let last = all.len().checked_sub(1)?;
    all.get(last - back.min(last)).cloned()
}
