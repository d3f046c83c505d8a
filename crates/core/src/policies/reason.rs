//! Why shares are what they are, in words and numbers for `weir explain`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// One step of a decision.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// The service has no endpoint on this node.
    NoLocalEndpoint,
    /// The node can take it all.
    Local {
        /// Utilisation with all of it.
        demand: f64,
        /// Utilisation up to which flows stay.
        target: f64,
    },
    /// Nothing is known of this node's own load: shares stay as they were.
    OwnLoadUnknown,
    /// More is offered than the node takes at its target.
    Excess {
        /// New flows per second from clients of this node.
        offered: f64,
        /// New flows per second of them that the node takes.
        room: f64,
        /// Utilisation that one new flow per second costs.
        cost: f64,
        /// Utilisation that is not the service's.
        background: f64,
        /// Correction by what was measured since, in shares.
        trim: f64,
    },
    /// Flows piled up before the step of the load was known. The node takes fewer until they are done.
    Waiting {
        /// New flows per second that they take the place of.
        flows: f64,
    },
    /// A node takes part of the excess.
    Takes {
        /// The node.
        node: Arc<str>,
        /// New flows per second that it gets.
        flows: f64,
        /// New flows per second that it could take.
        headroom: f64,
        /// How far it is.
        rtt: Option<Duration>,
    },
    /// A node's report is old: it gets no more than before.
    Frozen {
        /// The node.
        node: Arc<str>,
        /// How old.
        age: Duration,
    },
    /// A node gets nothing.
    Ineligible {
        /// The node.
        node: Arc<str>,
        /// Why.
        cause: Ineligible,
    },
    /// No other node can take anything: all stays.
    NoHeadroom,
    /// The share may not move faster, or not further.
    Limited {
        /// Where it was going.
        wanted: f64,
        /// Where it is.
        spill: f64,
    },
    /// The node is below its thresholds, or another one is the best.
    Best {
        /// The node that gets all.
        node: Arc<str>,
        /// Its score.
        score: f64,
    },
    /// Grades, candidates or counts decided.
    Ranked {
        /// What was ranked by.
        by: &'static str,
        /// How many endpoints get flows.
        chosen: usize,
        /// Of how many.
        of: usize,
    },
    /// An endpoint is new and gets less.
    Ramp {
        /// How many are new.
        endpoints: usize,
    },
    /// Endpoints failed and get nothing for a while.
    Ejected {
        /// How many.
        endpoints: usize,
    },
}

/// Why a node gets nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ineligible {
    /// It never told anything.
    Silent,
    /// What it told is this old.
    Old(Duration),
    /// What it told cannot be true, or lacks what is needed to judge it.
    Unusable,
    /// It is farther than the service's owner wants.
    Far,
    /// It is at its own target.
    Full,
}

impl fmt::Display for Ineligible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent => f.write_str("it tells nothing of its load"),
            Self::Old(age) => write!(f, "its last report is {:.1} s old", age.as_secs_f64()),
            Self::Unusable => f.write_str("its report cannot be true or lacks its CPU"),
            Self::Far => f.write_str("it is farther than weir.dev/max-rtt"),
            Self::Full => f.write_str("it has no headroom"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLocalEndpoint => f.write_str("no usable endpoint on this node: all flows leave"),
            Self::Local { demand, target } => write!(
                f,
                "all flows stay: they bring the node to {:.0} %, its target is {:.0} %",
                demand * 100.0,
                target * 100.0
            ),
            Self::OwnLoadUnknown => f.write_str("this node's own load is unknown: shares stay as they are"),
            Self::Excess { offered, room, cost, background, trim } => write!(
                f,
                "{offered:.1} flows/s are offered and the node takes {room:.1}: each costs {:.3} % on top of {:.0} %; \
                 corrected by {:+.1} points",
                cost * 100.0,
                background * 100.0,
                trim * 100.0
            ),
            Self::Waiting { flows } => {
                write!(f, "{flows:.1} flows/s less than else, for those that wait since the load rose")
            }
            Self::Takes { node, flows, headroom, rtt } => {
                write!(f, "{node} takes {flows:.1} flows/s of the {headroom:.1} that it could")?;
                match rtt {
                    Some(rtt) => write!(f, ", {:.1} ms away", rtt.as_secs_f64() * 1000.0),
                    None => f.write_str(", how far away is unknown"),
                }
            }
            Self::Frozen { node, age } => {
                write!(f, "{node} gets no more than before: its report is {:.1} s old", age.as_secs_f64())
            }
            Self::Ineligible { node, cause } => write!(f, "{node} gets nothing: {cause}"),
            Self::NoHeadroom => f.write_str("no other node has headroom: all flows stay"),
            Self::Limited { wanted, spill } => {
                write!(f, "spill is {:.1} % on its way to {:.1} %", spill * 100.0, wanted * 100.0)
            }
            Self::Best { node, score } => write!(f, "{node} gets all, with a score of {score:.2}"),
            Self::Ranked { by, chosen, of } => write!(f, "{chosen} of {of} endpoints get flows, by {by}"),
            Self::Ramp { endpoints } => write!(f, "{endpoints} endpoints are new and get less"),
            Self::Ejected { endpoints } => write!(f, "{endpoints} endpoints failed and get nothing for now"),
        }
    }
}
