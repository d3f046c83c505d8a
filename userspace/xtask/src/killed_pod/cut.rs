//! Whom a pod's end cuts off: nobody can mend that.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use weir_testbed::paced::Failure;

/// A connection is answered so soon after it was made, at most, on a busy machine, of which most are within one: what was made earlier was over when
/// its pod was killed.
pub(super) const LIFE: Duration = Duration::from_millis(25);
/// A program knows of its connection so much after the kernel, at most.
const NOTICE: Duration = Duration::from_millis(50);
/// How [`weir_testbed::paced`] begins to tell of a connection that heard nothing more. A reset is not a killed pod's.
const SILENCE: &str = "nothing for ";

/// The end of a pod.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    /// From before its interface went down to after that.
    pub(super) when: RangeInclusive<Instant>,
    /// The client's ports whose connections were at the pod.
    pub(super) ports: BTreeSet<u16>,
}

impl Cut {
    /// Whether a connection failed for this: it was at the pod, was made shortly before its end, and heard nothing more.
    pub(super) fn excuses(&self, failure: &Failure) -> bool {
        let Failure { opened: _, port, connected, reason } = failure;
        let under_way = *self.when.start() - LIFE..=*self.when.end() + NOTICE;
        connected.is_some_and(|connected| under_way.contains(&connected))
            && self.ports.contains(port)
            && reason.starts_with(SILENCE)
    }
}

/// Connections that are at one of so many pods at once, at most: each as long as any.
pub(super) fn most_at_once(per_second: u32, pods: u8) -> f64 {
    (f64::from(per_second) * LIFE.as_secs_f64() / f64::from(pods)).ceil()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_at_the_pod_shortly_before_and_heard_nothing_more_is_excused() {
        let begun = Instant::now();
        let ended = begun + Duration::from_millis(10);
        let cut = Cut { when: begun..=ended, ports: BTreeSet::from([4711]) };
        let failure = |connected| Failure { opened: begun, port: 4711, connected, reason: "nothing for 3s".into() };
        let excused = |connected| cut.excuses(&failure(Some(connected)));
        assert!([begun - LIFE, begun, ended, ended + NOTICE].into_iter().all(excused));
        let moment = Duration::from_nanos(1);
        assert!(!excused(begun - LIFE - moment), "it was over before");
        assert!(!excused(ended + NOTICE + moment), "it was made at another pod");
        assert!(!cut.excuses(&failure(None)), "it never was there");
        assert!(!cut.excuses(&Failure { port: 4712, ..failure(Some(begun)) }), "it was at another pod");
        assert!(!cut.excuses(&Failure { reason: "Connection reset by peer".into(), ..failure(Some(begun)) }));
    }

    #[test]
    fn a_pod_has_its_part_of_what_is_made_while_one_lasts_and_one_at_least() {
        assert_eq!([most_at_once(1000, 6), most_at_once(10, 6)], [5.0, 1.0]);
    }
}
