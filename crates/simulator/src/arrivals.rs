//! Who asks how much, when. Loads are parts of what a node can do: 1 is its capacity.

use std::f64::consts::TAU;

use crate::crowd::Crowd;

/// What happens to the load of some nodes; the others stay at rest. All times are in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    /// From one moment on more, until the end: one hot node, many, or all of them.
    Step {
        /// When.
        at: f64,
        /// The load after it.
        to: f64,
    },
    /// More and more, then all at once back at rest.
    Ramp {
        /// When it begins.
        from: f64,
        /// When it is at its peak and ends.
        until: f64,
        /// The load at the peak.
        to: f64,
    },
    /// Up and down as days do, each node at another time of its day.
    Diurnal {
        /// How long a day is.
        day: f64,
        /// The load at its peak; at its low it is the rest.
        peak: f64,
    },
    /// Within a second at its peak, and half as much above rest after each half-life.
    FlashCrowd {
        /// When.
        at: f64,
        /// The load at the peak.
        peak: f64,
        /// The half-life.
        half_life: f64,
    },
    /// They die, and are back later. Their clients go away with them.
    NodeLoss {
        /// When.
        at: f64,
        /// When they are back.
        back: f64,
    },
    /// Besides what they have at rest, clients that wait for their answers: these ask as fast as they are served.
    Crowd(Crowd),
}

impl Pattern {
    /// The load that clients of a node offer it, if it has `rest` at rest and is one of those that the pattern is for.
    /// `phase`, 0 to 1, is where its day begins.
    #[must_use]
    pub fn load(&self, now: f64, rest: f64, phase: f64) -> f64 {
        match *self {
            Self::Step { at, to } => {
                if now >= at {
                    to
                } else {
                    rest
                }
            }
            Self::Ramp { from, until, to } => {
                if (from..until).contains(&now) {
                    rest + (to - rest) * (now - from) / (until - from)
                } else {
                    rest
                }
            }
            Self::Diurnal { day, peak } => rest + (peak - rest) * (1.0 - (TAU * (now / day + phase)).cos()) / 2.0,
            Self::FlashCrowd { at, peak, half_life } => {
                let since = now - at;
                let height = if since < 1.0 { since.max(0.0) } else { (-(since - 1.0) / half_life).exp2() };
                rest + (peak - rest) * height
            }
            Self::NodeLoss { .. } => {
                if self.alive(now) {
                    rest
                } else {
                    0.0
                }
            }
            Self::Crowd(_) => rest,
        }
    }

    /// Whether those nodes are there.
    #[must_use]
    pub fn alive(&self, now: f64) -> bool {
        match *self {
            Self::NodeLoss { at, back } => !(at..back).contains(&now),
            Self::Step { .. } | Self::Ramp { .. } | Self::Diurnal { .. } | Self::FlashCrowd { .. } | Self::Crowd(_) => {
                true
            }
        }
    }
}
