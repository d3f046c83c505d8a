//! The programs: what each hook makes of what was decided, and the pieces of datagrams.

use std::borrow::Cow;

use weir_abi as abi;
use weir_core::model::Family;

use crate::answer::{self, Cause};
use crate::cut;
use crate::edit::Edit;
use crate::packet::{Packet, Piece, TCP, UDP, ip_of, is_of_link, is_one_host, parse};
use crate::path::{Left, Translated};
use crate::{Again, HandOver, Hook, Model, Outcome, Place, Reason, Verdict};

/// Bytes of a tag (IEEE 802.1Q).
const TAG: u32 = 4;

/// Whether the reason is one of a packet that is answered in the service's name.
#[must_use]
pub const fn is_answered(reason: Reason) -> bool {
    reason >= abi::REASON_NO_ENDPOINTS && reason < abi::REASON_NO_LOCAL_ENDPOINTS
}

const fn is_dropped(reason: Reason) -> bool {
    reason >= abi::REASON_NO_LOCAL_ENDPOINTS
}

const fn is_untouched(reason: Reason) -> bool {
    reason < abi::REASON_TO_LOCAL
}

impl Outcome {
    fn untouched(reason: Reason, frame: &[u8]) -> Self {
        let verdict = if is_dropped(reason) { Verdict::Drop } else { Verdict::Pass };
        Self { verdict, ..Self::passed(reason, frame.to_vec()) }
    }

    /// By an interface, past the stack.
    const fn sent(reason: Reason, frame: Vec<u8>) -> Self {
        Self { reason, verdict: Verdict::Redirect, frame, hand_over: None, again: Vec::new() }
    }

    /// To the stack.
    fn passed(reason: Reason, frame: Vec<u8>) -> Self {
        Self { verdict: Verdict::Pass, ..Self::sent(reason, frame) }
    }
}

impl Model {
    /// What a program does with a frame. The tables change as the kernel's do.
    pub fn run(&mut self, frame: &[u8], place: &Place<'_>) -> Outcome {
        self.run_without(0, frame, place)
    }

    /// The same with what comes again: on its way in the kernel takes the outer tag off, which is no part of the frame's length then.
    pub fn run_again(&mut self, frame: &[u8], place: &Place<'_>) -> Outcome {
        let taken_off = if matches!(place.hook, Hook::NicIn | Hook::PodIn) { TAG } else { 0 };
        self.run_without(taken_off, frame, place)
    }

    /// With so many bytes of a tag that the kernel has taken off, if there is one.
    fn run_without(&mut self, tag: u32, frame: &[u8], place: &Place<'_>) -> Outcome {
        if place.hook == Hook::NicIn && !frame.starts_with(&place.network.mac(place.device)) {
            return Outcome::untouched(abi::REASON_OTHER_HOST, frame);
        }
        match parse(frame) {
            Err(reason) => Outcome::untouched(reason, frame),
            Ok((mut p, read)) => {
                p.frame -= if p.vlan { tag } else { 0 };
                match place.hook {
                    Hook::Xdp => self.run_xdp(frame, &mut p, read, place),
                    Hook::NicIn | Hook::NicOut | Hook::PodIn | Hook::PodOut => self.run_tc(frame, &mut p, read, place),
                }
            }
        }
    }

    fn run_xdp(&mut self, frame: &[u8], p: &mut Packet, read: Result<(), Reason>, place: &Place<'_>) -> Outcome {
        // Which pieces belong together, tc knows.
        if p.piece != Piece::Whole {
            return Outcome::untouched(abi::REASON_LEFT_TO_TC, frame);
        }
        match read.and_then(|()| self.ingress(p, true, place)) {
            Ok((reason, how)) => self.translated(frame, p, reason, &how, place),
            // To answer, a packet must be built.
            Err(reason) if is_answered(reason) => Outcome::untouched(abi::REASON_LEFT_TO_TC, frame),
            Err(reason) => Outcome::untouched(reason, frame),
        }
    }

    fn run_tc(&mut self, frame: &[u8], p: &mut Packet, read: Result<(), Reason>, place: &Place<'_>) -> Outcome {
        let inward = matches!(place.hook, Hook::NicIn | Hook::PodIn);
        let (mut frame, mut read) = (Cow::Borrowed(frame), read);
        if read == Err(abi::REASON_NOT_TRANSPORT)
            && place.hook == Hook::NicIn
            && let Some(opened) = self.unwrap(&frame, p)
        {
            *p = opened.packet;
            read = opened.frame.map(|inner| frame = Cow::Owned(inner));
        }
        let frame = &*frame;
        let mut outcome = self.translate_or_answer(frame, p, read, inward, place);
        let reason = outcome.reason;
        if matches!(reason, abi::REASON_FRAGMENT | abi::REASON_FRAGMENT_HELD) {
            outcome = Outcome::untouched(self.without_ports(frame, p, place, reason), frame);
        } else {
            let length = outcome.frame.len();
            outcome.again.extend(self.note_first(p, length, !inward, reason));
        }
        // Nobody has a cluster IP out there, and it may come back in a loop.
        let is_nobodys = self.is_in_service_network(p) || self.comes_round(p, place);
        if place.hook == Hook::NicOut && is_untouched(outcome.reason) && is_nobodys {
            outcome = Outcome::untouched(abi::REASON_NO_SERVICE, frame);
        }
        outcome
    }

    fn translate_or_answer(
        &mut self,
        frame: &[u8],
        p: &mut Packet,
        read: Result<(), Reason>,
        inward: bool,
        place: &Place<'_>,
    ) -> Outcome {
        if read == Err(abi::REASON_NOT_TRANSPORT) && p.is_whole_icmp() {
            return match self.icmp(frame, p, inward, place) {
                Ok(told) => {
                    let mut edit = Edit::of(frame);
                    told.write(&mut edit, p);
                    let verdict = if told.route.is_some() { Verdict::Redirect } else { Verdict::Pass };
                    Outcome { verdict, ..Outcome::sent(abi::REASON_ERROR_TOLD, edit.frame) }
                }
                Err(abi::REASON_NOT_TRANSPORT) if inward && self.is_echo(frame, p, place) => {
                    Outcome::sent(abi::REASON_ECHO, answer::echo(frame, p))
                }
                Err(reason) if inward => self.answered(frame, p, reason),
                Err(reason) => Outcome::untouched(reason, frame),
            };
        }
        match self.way_of(p, read, inward, place) {
            Ok((reason, how)) => {
                let outcome = self.translated(frame, p, reason, &how, place);
                self.straight_to_pod(p, &how, outcome, place)
            }
            Err(abi::REASON_NO_FRONTEND) if inward && let Some(outcome) = self.straight_from_pod(frame, p, place) => {
                outcome
            }
            Err(abi::REASON_TOO_BIG) if inward && let Some([front, rest]) = cut::cut(frame, p) => {
                let outcome = match self.ingress(p, place.hook == Hook::NicIn, place) {
                    Ok((reason, how)) => self.translated(&front, p, reason, &how, place),
                    Err(reason) => self.answered(&front, p, reason),
                };
                Outcome { again: vec![Again { device: place.device, frame: rest }], ..outcome }
            }
            Err(reason) if inward => self.answered(frame, p, reason),
            Err(reason) => Outcome::untouched(reason, frame),
        }
    }

    /// Answers a packet whose reason asks for it, unless it would be one error too many; others leave as they came.
    fn answered(&mut self, frame: &[u8], p: &Packet, reason: Reason) -> Outcome {
        let is_error = told_of(p, reason).is_some() || (is_answered(reason) && p.protocol == UDP);
        if is_error && !self.may_tell(reason == abi::REASON_TOO_BIG) {
            return Outcome { verdict: Verdict::Drop, ..Outcome::untouched(abi::REASON_UNTOLD, frame) };
        }
        answered(frame, p, reason)
    }

    fn way_of(&mut self, p: &mut Packet, read: Result<(), Reason>, inward: bool, place: &Place<'_>) -> Left {
        read?;
        if p.piece == Piece::Later {
            self.take_ports(p, !inward)?;
        }
        if inward { self.ingress(p, place.hook == Hook::NicIn, place) } else { self.egress(p) }
    }

    /// A packet of ours as it leaves.
    pub(crate) fn translated(
        &self,
        frame: &[u8],
        p: &Packet,
        reason: Reason,
        how: &Translated,
        place: &Place<'_>,
    ) -> Outcome {
        let mut edit = Edit::of(frame);
        edit.translate(p, how);
        let mut outcome = Outcome::passed(reason, Vec::new());
        match how {
            Translated::Destination { is_pod: true, .. } if place.is_xdp() && self.has(abi::CONFIG_HOST_BYPASS) => {
                outcome.hand_over = Some(HandOver::ToPod);
            }
            // It may be a frontend itself: tc must not look again.
            Translated::Destination { .. } if place.is_xdp() => outcome.hand_over = Some(HandOver::Done),
            Translated::Destination { .. } | Translated::Source { .. } => {}
            Translated::Both { route, .. } | Translated::Wrapped { route, .. } if place.is_xdp() => {
                edit.address_frame(route);
                outcome.verdict = if route.device == place.device { Verdict::SendBack } else { Verdict::Redirect };
            }
            Translated::Both { .. } | Translated::Wrapped { .. } => outcome.verdict = Verdict::Redirect,
        }
        outcome.frame = edit.frame;
        outcome
    }

    /// Whether a packet is an echo request to an address of services that neither the host nor another node has.
    fn is_echo(&self, frame: &[u8], p: &Packet, place: &Place<'_>) -> bool {
        let asks = match p.family {
            Family::V4 => frame.get(p.l4..p.l4 + 2) == Some(&[8, 0]),
            Family::V6 => frame.get(p.l4..p.l4 + 2) == Some(&[128, 0]),
        };
        self.has(abi::CONFIG_ECHO)
            && asks
            && frame.len() >= p.l4 + 8
            && is_one_host(p.family, p.src)
            && !is_of_link(p.family, p.src)
            && self.control.rest_of(p.family, p.dst).is_some()
            && !self.other_nodes.contains(&p.dst)
            && place.network.route(ip_of(p.family, p.dst)).is_some()
    }

    fn is_in_service_network(&self, p: &Packet) -> bool {
        let networks = self.config.service_network.iter().take(self.config.service_networks as usize);
        let word = |addr: abi::Addr| u128::from_be_bytes(addr.octets());
        networks.into_iter().any(|net| (word(p.dst) ^ word(net.addr)) & word(net.mask) == 0)
    }

    /// Whether a packet to an address of services leaves where it came in: whoever sent it here would do so again. Nodes say
    /// themselves what their ports are.
    fn comes_round(&self, p: &Packet, place: &Place<'_>) -> bool {
        place.came_by == place.device
            && !self.has(abi::CONFIG_BESIDE)
            && matches!(self.control.rest_of(p.family, p.dst), Some(abi::KIND_ADDRESS | abi::KIND_UNUSED_PORT))
            && !self.other_nodes.contains(&p.dst)
    }

    /// The node's own address of a family.
    pub(crate) const fn node(&self, family: Family) -> abi::Addr {
        match family {
            Family::V4 => self.config.node4,
            Family::V6 => self.config.node6,
        }
    }

    pub(crate) const fn has(&self, flag: u32) -> bool {
        self.config.flags & flag != 0
    }
}

/// The ICMP error that tells a packet's sender why it is dropped, if one does, and the reason then. Nobody is told what became of an error
/// or of a later piece (RFC 1122, 3.2.2), but by IPv6 how big those may be (RFC 4443, 2.4).
fn told_of(p: &Packet, reason: Reason) -> Option<(Cause, Reason)> {
    let later = p.piece == Piece::Later;
    let told = match reason {
        abi::REASON_TOO_BIG if p.family == Family::V6 || !later => {
            (Cause::TooBig { mtu: p.mtu }, abi::REASON_TOO_BIG_TOLD)
        }
        abi::REASON_TTL_EXCEEDED if !later => (Cause::TimeExceeded, abi::REASON_TTL_TOLD),
        _ => return None,
    };
    (!p.is_whole_icmp()).then_some(told)
}

/// Answers a packet whose reason asks for it; others leave as they came.
fn answered(frame: &[u8], p: &Packet, reason: Reason) -> Outcome {
    if let Some((cause, told)) = told_of(p, reason) {
        let error = answer::error(frame, p, cause);
        return error.map_or_else(|| Outcome::untouched(reason, frame), |error| Outcome::sent(told, error));
    }
    if !is_answered(reason) {
        return Outcome::untouched(reason, frame);
    }
    match p.protocol {
        TCP => Outcome::sent(reason, answer::reset(frame, p)),
        UDP => match answer::error(frame, p, Cause::PortUnreachable) {
            Some(told) => Outcome::sent(reason, told),
            None => Outcome::untouched(abi::REASON_REWRITE_FAILED, frame),
        },
        // SCTP's ABORT would need a CRC32c: its client hears nothing.
        _ => Outcome { verdict: Verdict::Drop, ..Outcome::untouched(reason, frame) },
    }
}
