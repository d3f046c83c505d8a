//! Past the host's stack, with `CONFIG_HOST_BYPASS`: both ways or none, as connection tracking would take half of a connection for invalid.

use weir_abi as abi;

use crate::edit::Edit;
use crate::packet::{Packet, Piece, is_of_link};
use crate::path::Translated;
use crate::{Hook, Model, Outcome, Place, Route, Verdict};

impl Model {
    /// Whether packets of the pod behind a device, or from outside, may go past the host.
    fn may_bypass(&self, place: &Place<'_>) -> bool {
        let has_shortcut = match place.hook {
            Hook::NicIn => true,
            Hook::PodIn => self.shortcuts.contains_key(&place.device),
            Hook::Xdp | Hook::NicOut | Hook::PodOut => false,
        };
        self.has(abi::CONFIG_HOST_BYPASS) && has_shortcut
    }

    /// The way to an address, if it leads past the host. Whatever is in the way of that is left to the host.
    fn shortcut(&self, p: &mut Packet, to: abi::Addr, place: &Place<'_>) -> Option<Route> {
        if is_of_link(p.family, p.src) {
            return None;
        }
        place.route(p, to).ok().filter(|route| self.shortcuts.contains_key(&route.device))
    }

    /// A client's packet, translated, that may go straight to the pod.
    pub(crate) fn straight_to_pod(
        &self,
        p: &mut Packet,
        how: &Translated,
        outcome: Outcome,
        place: &Place<'_>,
    ) -> Outcome {
        let Translated::Destination { to, sport: _, is_pod: true } = *how else { return outcome };
        // One piece may be too long for the way, and the host may put all of them together.
        if !self.may_bypass(place) || outcome.reason != abi::REASON_TO_LOCAL || p.piece != Piece::Whole {
            return outcome;
        }
        match self.shortcut(p, to.addr, place) {
            Some(route) => self.take_shortcut(p, &route, outcome),
            None => outcome,
        }
    }

    /// A packet that is for no service, if it is a pod's answer which may go straight to the client.
    pub(crate) fn straight_from_pod(&mut self, frame: &[u8], p: &mut Packet, place: &Place<'_>) -> Option<Outcome> {
        if place.hook != Hook::PodIn || !self.may_bypass(place) {
            return None;
        }
        let (stage, reply) = self.answered_by(p).ok()?;
        let route = self.shortcut(p, p.dst, place)?;
        let (reason, how) = self.go_back(p, stage, &reply);
        Some(self.take_shortcut(p, &route, self.translated(frame, p, reason, &how, place)))
    }

    /// Sends a packet that is translated on. Of a pod that the kernel knows the address of the other end is reached at once.
    fn take_shortcut(&self, p: &Packet, route: &Route, outcome: Outcome) -> Outcome {
        let mut edit = Edit::of(&outcome.frame);
        edit.decrement_ttl(p);
        let is_peer = self.shortcuts.get(&route.device) == Some(&abi::SHORTCUT_PEER);
        if is_peer && route.neighbour.is_some() {
            edit.address_frame(route);
        }
        Outcome { verdict: Verdict::Redirect, frame: edit.frame, ..outcome }
    }
}
