//! Clients that ask again only when they have been answered: a closed loop. They offer as much as they get.

use std::collections::VecDeque;

/// So many clients ask so often, all at once at the beginning; then nobody for a while, and all over again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crowd {
    /// How many they are.
    pub clients: f64,
    /// How often each of them asks; infinite: without an end.
    pub requests: f64,
    /// Seconds from the last answer until the next begin.
    pub pause: f64,
}

impl Crowd {
    /// The least mean time of their requests, in seconds, where `rate` of them can be done in a second: by Little's law,
    /// from how many wait. In the last round they get fewer and fewer.
    #[must_use]
    pub fn least_time(&self, rate: f64) -> f64 {
        self.clients / rate * (1.0 - 0.5 / self.requests)
    }
}

/// Requests that sums of parts of them may lack.
const ROUNDING: f64 = 1e-6;

/// The crowd at one node.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    crowd: Crowd,
    /// Clients who could ask.
    idle: f64,
    /// Requests that will still be asked.
    left: f64,
    /// Requests on their way, by the step in which they are answered, from the next one on.
    asked: VecDeque<f64>,
    /// Seconds since the last answer.
    quiet: f64,
}

impl Queue {
    /// Before the first request.
    pub(crate) fn new(crowd: Crowd) -> Self {
        let Crowd { clients, requests, pause: _ } = crowd;
        Self { crowd, idle: clients, left: clients * requests, asked: VecDeque::new(), quiet: 0.0 }
    }

    /// How many ask in a step of some seconds.
    pub(crate) fn ask(&mut self, seconds: f64) -> f64 {
        let Crowd { clients, requests, pause } = self.crowd;
        self.idle += self.asked.pop_front().unwrap_or(0.0);
        if self.left <= 0.0 && self.idle >= clients - ROUNDING {
            self.quiet += seconds;
            if self.quiet >= pause {
                (self.left, self.quiet) = (clients * requests, 0.0);
            }
        }
        let ask = self.idle.min(self.left);
        self.idle -= ask;
        self.left -= ask;
        ask
    }

    /// Some of those who asked will be answered after so many whole steps.
    pub(crate) fn waits(&mut self, requests: f64, steps: f64) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "steps of a few seconds")]
        let steps = steps as usize;
        if self.asked.len() <= steps {
            self.asked.resize(steps + 1, 0.0);
        }
        self.asked[steps] += requests;
    }
}
