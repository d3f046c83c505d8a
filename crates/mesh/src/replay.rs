//! The replay window of one sender: which of its newest packets were seen (the ring of RFC 6479, tied to an epoch).

use crate::counters::Refusal;

const WORDS: usize = 17;

/// Where a packet stands among those of its sender.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Order {
    /// After all that were seen: what it tells is news.
    Newest,
    /// Overtaken on its way.
    Late,
}

/// What was seen of one sender.
#[derive(Clone, Debug)]
pub struct Window {
    epoch: u64,
    highest: u64,
    seen: [u64; WORDS],
}

impl Window {
    /// How far a packet may be behind the newest one. A sender's packets to all peers count, hundreds per second.
    pub const LENGTH: u64 = (WORDS as u64 - 1) * 64;

    /// A window whose first packet is this one.
    #[must_use]
    pub fn new(epoch: u64, sequence: u64) -> Self {
        let mut window = Self { epoch, highest: sequence, seen: [0; WORDS] };
        window.mark(sequence);
        window
    }

    /// Takes a packet once.
    ///
    /// # Errors
    /// [`Refusal::Replayed`] if it was taken before; [`Refusal::Outdated`] if that is no longer known, or if it is from
    /// before the sender's restart. The window stays as it is.
    pub fn admit(&mut self, epoch: u64, sequence: u64) -> Result<Order, Refusal> {
        if epoch < self.epoch {
            return Err(Refusal::Outdated);
        }
        if epoch > self.epoch {
            *self = Self::new(epoch, sequence);
            return Ok(Order::Newest);
        }
        if sequence > self.highest {
            self.advance(sequence);
            self.mark(sequence);
            return Ok(Order::Newest);
        }
        if self.highest - sequence >= Self::LENGTH {
            return Err(Refusal::Outdated);
        }
        if self.mark(sequence) { Ok(Order::Late) } else { Err(Refusal::Replayed) }
    }

    /// Clears the words between the old end and the new one. The spare word keeps the oldest full ones apart from them.
    fn advance(&mut self, sequence: u64) {
        let (old, new) = (self.highest / 64, sequence / 64);
        for word in old + 1..=new.min(old + WORDS as u64) {
            self.seen[Self::slot(word)] = 0;
        }
        self.highest = sequence;
    }

    /// False if it was marked before.
    fn mark(&mut self, sequence: u64) -> bool {
        let word = &mut self.seen[Self::slot(sequence / 64)];
        let bit = 1 << (sequence % 64);
        let first = *word & bit == 0;
        *word |= bit;
        first
    }

    #[expect(clippy::cast_possible_truncation, reason = "less than WORDS")]
    const fn slot(word: u64) -> usize {
        (word % WORDS as u64) as usize
    }
}
