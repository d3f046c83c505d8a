//! Whether the kernel and the model agree: about a packet, and about all that they remember.

use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::hash::Hash;

use weir_abi as abi;
use weir_model::{Hook, Model, Outcome, Reply, Stage, Turn, Verdict, is_answered};
use weir_testbed::packet::{Transport, decode};

use super::kernel::{self, Ran, Reasons};
use super::tables::{self, Clocks};
use super::world::{BACKENDS, SERVICES};
use crate::node::{Node, TC_REDIRECT, TC_SHOT, TC_UNSPEC, XDP_DROP, XDP_PASS, XDP_REDIRECT, XDP_TX};

fn number(hook: Hook, verdict: Verdict) -> u32 {
    match (hook == Hook::Xdp, verdict) {
        (true, Verdict::Pass) => XDP_PASS,
        (true, Verdict::Drop) => XDP_DROP,
        (true, Verdict::SendBack) => XDP_TX,
        (true, Verdict::Redirect) => XDP_REDIRECT,
        (false, Verdict::Pass) => TC_UNSPEC,
        (false, Verdict::Drop) => TC_SHOT,
        (false, Verdict::SendBack | Verdict::Redirect) => TC_REDIRECT,
    }
}

/// Whether frames are the same, but for zeros of checksums, of which there are two.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    let zero = |pair: &[u8]| pair == [0, 0] || pair == [0xff, 0xff];
    a.len() == b.len() && a.chunks(2).zip(b.chunks(2)).all(|(a, b)| a == b || (zero(a) && zero(b)))
}

/// Whether the kernel forgets a card's sum of a frame: when it cuts it for an answer, in front of which an error's headers come
/// then, or in pieces, or others come again behind it. What nobody will see may have any.
pub(super) fn forgets_sum(frame: &[u8], model: &Outcome) -> bool {
    let added = match model.frame.get(12..24) {
        Some([8, 0, .., 1]) => 20 + 8,
        Some([0x86, 0xdd, _, _, _, _, _, _, 58, ..]) => 40 + 8,
        Some(_) | None => 0,
    };
    let is_told = matches!(model.reason, abi::REASON_TOO_BIG_TOLD | abi::REASON_TTL_TOLD);
    let is_answer = is_told || is_answered(model.reason);
    model.verdict == Verdict::Drop || !model.again.is_empty() || (is_answer && model.frame.len() < frame.len() + added)
}

/// What is wrong about the reasons why packets left, if anything.
pub(super) fn reasons(kernel: &Reasons, model: &Reasons) -> Result<(), String> {
    let names = |reasons: &Reasons| -> Vec<_> {
        reasons.iter().map(|(reason, packets)| (abi::names::reason_name(*reason as usize), *packets)).collect()
    };
    let wrong = || format!("the reason is {:?} in the kernel, {:?} in the model", names(kernel), names(model));
    if kernel == model { Ok(()) } else { Err(wrong()) }
}

/// What is wrong about a packet, if anything.
pub(super) fn packets(hook: Hook, frame: &[u8], kernel: &Ran, model: &Outcome) -> Result<(), String> {
    let Some(kernel) = &kernel.left else {
        let wrong = || format!("the card's sum is none of what comes out: {} in the model", hex(&model.frame));
        return if forgets_sum(frame, model) { Ok(()) } else { Err(wrong()) };
    };
    let expected = (number(hook, model.verdict), model.hand_over);
    let found = (kernel.verdict, kernel.hand_over);
    if found != expected {
        return Err(format!("verdict and hand-over are {found:?} in the kernel, {expected:?} in the model"));
    }
    if model.verdict == Verdict::Drop {
        return Ok(());
    }
    if !is_same(&kernel.frame, &model.frame) {
        return Err(format!(
            "out comes\n  {}\nin the kernel,\n  {}\nin the model",
            hex(&kernel.frame),
            hex(&model.frame)
        ));
    }
    // The model is no judge of itself: what was a good frame is one afterwards.
    match decode(&kernel.frame) {
        Err(error) if is_good(frame) => Err(format!("{error} in {}, which was {}", hex(&kernel.frame), hex(frame))),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Whether a frame is as it should be, and what it wraps, which is what may come out.
fn is_good(frame: &[u8]) -> bool {
    match decode(frame).map(|packet| packet.transport) {
        Ok(Transport::Other { protocol: 4, bytes }) => decode(&behind_link(0x0800, &bytes)).is_ok(),
        Ok(Transport::Other { protocol: 41, bytes }) => decode(&behind_link(0x86dd, &bytes)).is_ok(),
        Ok(_) => true,
        Err(_) => false,
    }
}

fn behind_link(kind: u16, packet: &[u8]) -> Vec<u8> {
    [&[0; 12], &kind.to_be_bytes()[..], packet].concat()
}

/// As much of a frame as tells what it is.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().take(120).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn differences<K: Eq + Hash + Debug, V: PartialEq + Debug>(
    what: &str,
    kernel: &HashMap<K, V>,
    model: &HashMap<K, V>,
    into: &mut String,
) {
    for (key, value) in kernel {
        if model.get(key) != Some(value) {
            let _ = writeln!(into, "{what} {key:?}:\n  kernel {value:?}\n  model  {:?}", model.get(key));
        }
    }
    for (key, value) in model.iter().filter(|(key, _)| !kernel.contains_key(key)) {
        let _ = writeln!(into, "{what} {key:?}:\n  kernel None\n  model  {value:?}");
    }
}

/// What is wrong about the tables, if anything.
pub(super) fn tables(node: &Node, model: &Model, tick: u32) -> Result<(), String> {
    let clocks = Clocks { kernel: tick, model: model.now };
    let mut wrong = String::new();
    let ours = &model.tables;
    for stage in [Stage::Going, Stage::Opening] {
        let what = format!("flow {stage:?}");
        differences(&what, &tables::flows(node, stage, clocks), ours.flows.entries(stage), &mut wrong);
        let known = ours.replies.entries(stage).iter();
        let known = known.map(|(key, reply)| (*key, Reply { asked: reply.asked.map(|_| 0), ..*reply })).collect();
        differences(&format!("reply {stage:?}"), &tables::replies(node, stage, clocks), &known, &mut wrong);
    }
    let lost = [("lost", kernel::lost(node))].into();
    differences("counter", &lost, &[("lost", ours.lost)].into(), &mut wrong);
    differences("affinity", &tables::affinities(node, clocks), &ours.affinities, &mut wrong);
    let sockets = node.view.sockets().unwrap().into_iter().collect();
    differences("socket", &sockets, &ours.sockets, &mut wrong);
    differences("fragment", &tables::fragments(node, clocks), &ours.fragments, &mut wrong);
    let held = ours.held.iter().map(|(place, piece)| (*place, piece.clone())).collect();
    differences("held piece", &tables::held(node, clocks), &held, &mut wrong);
    let mut turns = ours.turns.clone();
    turns.retain(|_, turn| *turn != Turn::default());
    differences("source port", &tables::turns(node, clocks), &turns, &mut wrong);
    let backends = (0..BACKENDS).map(|slot| {
        // How long answers took is the clock's matter.
        (slot, abi::BackendCounters { delay: 0, ..node.view.backend_counters(slot).unwrap() })
    });
    let none = abi::BackendCounters::default();
    let known = (0..BACKENDS).map(|slot| (slot, ours.backend_counters.get(&slot).copied().unwrap_or(none)));
    differences("counters of backend", &backends.collect(), &known.collect(), &mut wrong);
    let none = abi::ServiceCounters::default();
    let services = (0..SERVICES).map(|slot| (slot, node.view.service_counters(slot).unwrap()));
    let known = (0..SERVICES).map(|slot| (slot, ours.service_counters.get(&slot).copied().unwrap_or(none)));
    differences("counters of service", &services.collect(), &known.collect(), &mut wrong);
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}
