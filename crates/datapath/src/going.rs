//! The filter in front of the tables of what goes on (`bpf/lib/going.h`): programs note what they write there, and here is found out
//! what is gone.

use std::mem::offset_of;
use std::sync::atomic::{Ordering, fence};

use weir_abi as abi;

use crate::error::Result;
use crate::flow_key::{FlowKey, WORD, words};
use crate::map::{Mapped, Table};
use crate::pins::{PinDir, READ_ONLY};

const _: () = assert!(cfg!(target_endian = "little"), "the lower half of a programs' word comes first");
/// Slots of a word as we see it, half of one of the programs'.
const SLOTS: u32 = u32::BITS / 2;
/// Every slot of a word as [`abi::GOING_NONE`].
const ALL_NONE: u32 = u32::MAX / abi::GOING_MASK * abi::GOING_NONE;
/// Every slot of a word as [`abi::GOING_ASKED`].
const ALL_ASKED: u32 = u32::MAX / abi::GOING_MASK * abi::GOING_ASKED;

/// The filter, and what it stands in front of.
#[derive(Debug)]
pub struct GoingFilter {
    filter: Mapped<abi::GoingFilter>,
    flows4: Table<abi::FlowKey4, abi::Flow>,
    flows6: Table<abi::FlowKey6, abi::Flow6>,
    replies4: Table<abi::FlowKey4, abi::Reply>,
    replies6: Table<abi::FlowKey6, abi::Reply>,
}

impl GoingFilter {
    /// Opens the pinned maps.
    ///
    /// # Errors
    /// No pin there, no right to open it, or another layout.
    pub fn open(pins: &PinDir) -> Result<Self> {
        Ok(Self {
            filter: pins.mapped("going_filter", 0)?,
            flows4: pins.table("flows4", READ_ONLY)?,
            flows6: pins.table("flows6", READ_ONLY)?,
            replies4: pins.table("replies4", READ_ONLY)?,
            replies6: pins.table("replies6", READ_ONLY)?,
        })
    }

    /// Forgets all of the pinned filter, as entries were written of which nobody has told it: look-ups are made until it is made anew. What is
    /// found out in that moment does not count.
    ///
    /// # Errors
    /// As [`GoingFilter::open`].
    pub(crate) fn forget(pins: &PinDir) -> Result<()> {
        let filter: Mapped<abi::GoingFilter> = pins.mapped("going_filter", 0)?;
        filter.words(0)?.iter().for_each(|word| word.store(0, Ordering::Release));
        Ok(())
    }

    /// Has all look-ups made, as so much goes on that the filter would tell of few keys that they are not there.
    ///
    /// # Errors
    /// Never in practice; the slot exists.
    pub fn give_up(&self) -> Result<()> {
        self.filter.set_word(0, offset_of!(abi::GoingFilter, asked), 0)
    }

    /// Finds out in which slots nothing is, and has the programs ask if that is so of most. They may write meanwhile: a slot is asked for
    /// before the tables are read, and an answer counts only if nobody has noted an entry there since.
    ///
    /// # Errors
    /// When a table cannot be read; until the next time all look-ups are made then.
    pub fn rebuild(&self) -> Result<()> {
        let (head, slots) = self.filter.words(0)?.split_at(offset_of!(abi::GoingFilter, slots) / WORD);
        slots.iter().for_each(|word| word.store(ALL_ASKED, Ordering::Relaxed));
        // A table is read when everybody sees that its slots were asked for.
        fence(Ordering::SeqCst);
        let mut taken = vec![0_u32; slots.len()];
        let mut take = |slot: u32| taken[(slot / SLOTS) as usize] |= abi::GOING_MASK << (slot % SLOTS * 2);
        self.flows4.visit(|key, _| take(slot_of(key)))?;
        self.flows6.visit(|key, _| take(slot_of(key)))?;
        self.replies4.visit(|key, _| take(slot_of(key)))?;
        self.replies6.visit(|key, _| take(slot_of(key)))?;
        for (word, taken) in slots.iter().zip(&taken) {
            let _ = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |now| Some(answered(now, *taken)));
        }
        let many: u32 = taken.iter().map(|word| word.count_ones() / abi::GOING_MASK.count_ones()).sum();
        head[0].store(u32::from(many <= abi::GOING_MOST), Ordering::Release);
        Ok(())
    }

    /// Whether it is worth while to read the tables for it: with so many flows that go on, each of which takes two slots.
    #[must_use]
    pub const fn is_worth_while(flows: u64) -> bool {
        2 * flows <= abi::GOING_MOST as u64
    }
}

/// A word once the tables are read: what was asked for and is not among the taken slots is empty. What is taken is so whoever has asked:
/// another one who looks at the same time may have found less.
const fn answered(now: u32, taken: u32) -> u32 {
    const { assert!(ALL_NONE == ALL_ASKED >> 1 && abi::GOING_MAY_BE == 0) };
    let asked = now & ALL_ASKED;
    let empty = asked & !taken;
    (now & !asked & !taken) | empty >> 1
}

/// `going_slot()` of `bpf/lib/going.h`.
fn slot_of(key: &impl FlowKey) -> u32 {
    let hash = abi::opening_hash(words(key), 0, 1 << (u32::BITS - abi::GOING_BITS));
    u32::try_from(hash >> (u64::BITS - abi::GOING_BITS)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A word whose slots are these, the first one lowest; the others are empty.
    fn word(slots: [u32; 4]) -> u32 {
        let of = |(number, slot): (u32, u32)| slot << (2 * number);
        let first: u32 = (0..).zip(slots).map(of).sum();
        (ALL_NONE & !0xff) | first
    }

    #[test]
    fn a_slot_is_empty_if_nothing_was_found_there_and_nobody_has_noted_anything_since() {
        let [may_be, none, asked] = [abi::GOING_MAY_BE, abi::GOING_NONE, abi::GOING_ASKED];
        let taken = word([0, 0, abi::GOING_MASK, abi::GOING_MASK]) & 0xff;
        assert_eq!(answered(word([asked, may_be, asked, may_be]), taken), word([none, may_be, may_be, may_be]));
        assert_eq!(answered(ALL_ASKED, 0), ALL_NONE);
        assert_eq!(answered(ALL_ASKED, u32::MAX), 0);
        assert_eq!(answered(ALL_NONE, u32::MAX), 0);
    }
}
