//! How often the API server is bothered: thousands of nodes may see the same mistake.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::{Notice, Regarding};

/// The same notice is given again after this long, so that one is there while the mistake is: the server forgets
/// events after an hour.
const REPEAT: Duration = Duration::from_secs(600);
/// One notice about an object in this time …
const PAUSE: Duration = Duration::from_secs(5);
/// … after as many as this at once.
const BURST: u32 = 25;
/// Below this size nothing is forgotten: looking through the memory costs more than it.
const SMALL: usize = 1024;

/// What becomes of a notice.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    /// It is given.
    New,
    /// It was given not long ago.
    Repeated,
    /// There were too many others about its object.
    TooOften,
}

/// The notices that were given.
#[derive(Debug)]
pub(super) struct Throttle {
    /// When each was given.
    given: HashMap<Notice, Instant>,
    /// When the bucket of each object will be full again: a bucket is this one number.
    full_at: HashMap<Regarding, Instant>,
    /// Size at which both are cleared of what is over.
    tidy_at: usize,
}

impl Default for Throttle {
    fn default() -> Self {
        Self { given: HashMap::new(), full_at: HashMap::new(), tidy_at: SMALL }
    }
}

impl Throttle {
    /// Decides about a notice and remembers it if it is to be given.
    pub(super) fn admit(&mut self, notice: &Notice, now: Instant) -> Verdict {
        if self.given.get(notice).is_some_and(|at| now.duration_since(*at) < REPEAT) {
            return Verdict::Repeated;
        }
        let full_at = self.full_at.get(&notice.object).copied().unwrap_or(now).max(now);
        if full_at.duration_since(now) > PAUSE * (BURST - 1) {
            return Verdict::TooOften;
        }
        self.tidy(now);
        self.full_at.insert(notice.object.clone(), full_at + PAUSE);
        self.given.insert(notice.clone(), now);
        Verdict::New
    }

    fn tidy(&mut self, now: Instant) {
        if self.given.len() < self.tidy_at {
            return;
        }
        self.given.retain(|_, at| now.duration_since(*at) < REPEAT);
        self.full_at.retain(|_, full_at| *full_at > now);
        self.tidy_at = (self.given.len() * 2).max(SMALL);
    }
}

#[cfg(test)]
mod tests {
    use weir_core::model::ObjectName;

    use super::super::Severity;
    use super::*;

    fn warning(service: &str, note: impl std::fmt::Display) -> Notice {
        let object = Regarding::service(ObjectName::new("shop", service));
        Notice { severity: Severity::Warning, object, reason: "InvalidService", note: note.to_string() }
    }

    #[test]
    fn a_warning_is_given_once_in_ten_minutes() {
        let (mut throttle, start) = (Throttle::default(), Instant::now());
        let same = warning("web", "bad");
        assert_eq!(throttle.admit(&same, start), Verdict::New);
        assert_eq!(throttle.admit(&same, start + Duration::from_secs(599)), Verdict::Repeated);
        assert_eq!(throttle.admit(&same, start + Duration::from_secs(600)), Verdict::New);
    }

    #[test]
    fn another_object_note_or_reason_is_another_warning() {
        let (mut throttle, start) = (Throttle::default(), Instant::now());
        assert_eq!(throttle.admit(&warning("web", "bad"), start), Verdict::New);
        assert_eq!(throttle.admit(&warning("web", "worse"), start), Verdict::New);
        assert_eq!(throttle.admit(&warning("dns", "bad"), start), Verdict::New);
        let other = Notice { reason: "AddressTaken", ..warning("web", "bad") };
        assert_eq!(throttle.admit(&other, start), Verdict::New);
        let milder = Notice { severity: Severity::Normal, ..warning("web", "bad") };
        assert_eq!(throttle.admit(&milder, start), Verdict::New);
    }

    #[test]
    fn an_object_has_a_burst_of_25_then_one_warning_in_5_seconds() {
        let (mut throttle, start) = (Throttle::default(), Instant::now());
        let mut note = 0;
        let mut admitted = |object: &str, at: Instant| {
            let mut count = 0;
            loop {
                note += 1;
                match throttle.admit(&warning(object, note), at) {
                    Verdict::New => count += 1,
                    Verdict::Repeated => panic!("each note is a new one"),
                    Verdict::TooOften => return count,
                }
            }
        };
        assert_eq!(admitted("web", start), 25);
        assert_eq!(admitted("dns", start), 25, "another object has its own");
        assert_eq!(admitted("web", start + Duration::from_secs(4)), 0);
        assert_eq!(admitted("web", start + Duration::from_secs(5)), 1);
        assert_eq!(admitted("web", start + Duration::from_secs(3600)), 25, "no more than that is ever saved up");
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let (mut throttle, start) = (Throttle::default(), Instant::now());
        for number in 0..SMALL {
            assert_eq!(throttle.admit(&warning(&number.to_string(), "bad"), start), Verdict::New);
        }
        assert_eq!(throttle.admit(&warning("one more", "bad"), start + REPEAT), Verdict::New);
        assert_eq!((throttle.given.len(), throttle.full_at.len()), (1, 1));
    }
}
