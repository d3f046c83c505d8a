//! The queue of a delay link: frames in order, each with the time at which it comes out.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Frames in flight in one direction. More are dropped, as a full NIC ring does.
const CAPACITY: usize = 4096;

/// A frame, as long as the sender's MTU allows.
type Frame = Box<[u8]>;

/// One direction of a link.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    queue: VecDeque<(Instant, Frame)>,
    dropped: u64,
}

impl Frames {
    /// Takes a frame that comes out at `now + delay`, but never before the frame ahead of it.
    pub(crate) fn push(&mut self, frame: &[u8], now: Instant, delay: Duration) {
        if self.queue.len() >= CAPACITY {
            self.dropped += 1;
            return;
        }
        let due = self.queue.back().map_or(now + delay, |(ahead, _)| (*ahead).max(now + delay));
        self.queue.push_back((due, frame.into()));
    }

    /// The next frame that is due at `now`.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Frame> {
        if self.next_due()? > now {
            return None;
        }
        self.queue.pop_front().map(|(_, frame)| frame)
    }

    /// When the next frame comes out.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.queue.front().map(|(due, _)| *due)
    }

    /// Frames lost because the queue was full.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_frame_comes_out_after_its_delay_and_not_before() {
        let (mut frames, now) = (Frames::default(), Instant::now());
        frames.push(b"a", now, 5 * MS);
        assert_eq!(frames.pop_due(now + 4 * MS), None);
        assert_eq!(frames.pop_due(now + 5 * MS).as_deref(), Some(b"a".as_slice()));
    }

    #[test]
    fn a_shorter_delay_never_lets_a_frame_overtake() {
        let (mut frames, now) = (Frames::default(), Instant::now());
        frames.push(b"slow", now, 10 * MS);
        frames.push(b"fast", now, MS);
        assert_eq!(frames.pop_due(now + 9 * MS), None);
        assert_eq!(frames.pop_due(now + 10 * MS).as_deref(), Some(b"slow".as_slice()));
        assert_eq!(frames.pop_due(now + 10 * MS).as_deref(), Some(b"fast".as_slice()));
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let (mut frames, now) = (Frames::default(), Instant::now());
        for _ in 0..=CAPACITY {
            frames.push(b"x", now, MS);
        }
        assert_eq!(frames.dropped(), 1);
    }
}
