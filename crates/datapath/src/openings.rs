//! Tables of flows that begin: sets of a few entries, which the programs and we read and write as memory
//! (`bpf/lib/openings.h`).

use std::mem::{offset_of, size_of};
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};

use weir_abi as abi;

use crate::error::Result;
use crate::flow_key::{FlowKey, Kept, WORD, words};
use crate::map::Mapped;
use crate::view::RawEntry;

/// A table of flows that begin, or of what their answers must look like.
#[derive(Debug)]
pub(crate) struct Openings<K, V>(Mapped<abi::OpeningSet<K, V>>);

impl<K: FlowKey, V: Kept> Openings<K, V> {
    /// Maps a table of so many sets; the caller has checked its layout.
    ///
    /// # Errors
    /// When its memory cannot be mapped.
    pub(crate) fn new(name: &'static str, fd: &OwnedFd, sets: u32, writable: bool) -> Result<Self> {
        Mapped::new(name, fd, sets, writable).map(Self)
    }

    /// Shows all entries to `visit`.
    ///
    /// # Errors
    /// Never in practice; the slots exist.
    pub(crate) fn visit(&self, mut visit: impl FnMut(&K, &V)) -> Result<()> {
        for slot in 0..self.0.len() {
            if self.tags(slot)? == [abi::OPENING_FREE; abi::OPENING_WAYS] {
                continue;
            }
            let (tags, set) = self.read(slot)?;
            let all = tags.iter().zip(set.key.iter().zip(&set.value));
            all.filter(|(tag, _)| is_used(**tag)).for_each(|(_, (key, value))| visit(key, value));
        }
        Ok(())
    }

    /// Reads a set. The tag of an entry that has changed meanwhile, so that its key may be one's and its value another's, is [`abi::OPENING_BUSY`].
    fn read(&self, slot: u32) -> Result<([u32; abi::OPENING_WAYS], abi::OpeningSet<K, V>)> {
        let before = self.tags(slot)?;
        let set = self.0.get(slot)?;
        // What was read is read before the tags are once more.
        fence(Ordering::Acquire);
        let after = self.tags(slot)?;
        let tag = |way: usize| if before[way] == after[way] { before[way] } else { abi::OPENING_BUSY };
        Ok((std::array::from_fn(tag), set))
    }

    /// How many entries have lost their place soon after their last packet, since the table was made.
    ///
    /// # Errors
    /// Never in practice; the slots exist.
    pub(crate) fn displaced(&self) -> Result<u64> {
        let at = offset_of!(abi::OpeningHead, displaced) / WORD;
        let of = |slot| self.0.words(slot).map(|words| u64::from(words[at].load(Ordering::Relaxed)));
        (0..self.0.len()).map(of).sum()
    }

    /// Reads an entry.
    ///
    /// # Errors
    /// Never in practice; the slots exist.
    pub(crate) fn get(&self, key: &K, seed: u64) -> Result<Option<V>> {
        let (slot, tag) = self.place(key, seed);
        let (tags, set) = self.read(slot)?;
        let way = (0..abi::OPENING_WAYS).find(|way| tags[*way] == tag && set.key[*way] == *key);
        Ok(way.map(|way| set.value[way]))
    }

    /// Removes the entries for which `gone` says so, and which nobody replaces in that moment.
    ///
    /// # Errors
    /// Never in practice; the slots exist.
    pub(crate) fn remove(&self, gone: impl Fn(&K, &V) -> bool) -> Result<()> {
        for slot in 0..self.0.len() {
            let tags = self.tags(slot)?;
            for (way, tag) in tags.into_iter().enumerate().filter(|(_, tag)| is_used(*tag)) {
                let set = self.0.get(slot)?;
                if gone(&set.key[way], &set.value[way]) {
                    let word = &self.0.words(slot)?[way];
                    // Another tag: the place is another's by now.
                    let _ = word.compare_exchange(tag, abi::OPENING_FREE, Ordering::AcqRel, Ordering::Relaxed);
                }
            }
        }
        Ok(())
    }

    /// Writes an entry unless there is one with its key. Says whether it did: the set may be full, too.
    ///
    /// # Errors
    /// Never in practice; the slots exist.
    pub(crate) fn add(&self, key: &K, value: &V, seed: u64) -> Result<bool> {
        if self.get(key, seed)?.is_some() {
            return Ok(false);
        }
        let (slot, tag) = self.place(key, seed);
        let memory = self.0.words(slot)?;
        let take = |way: &usize| {
            let word = &memory[*way];
            word.compare_exchange(abi::OPENING_FREE, abi::OPENING_BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let Some(way) = (0..abi::OPENING_WAYS).find(take) else { return Ok(false) };
        let keys = offset_of!(abi::OpeningSet<K, V>, key) / WORD + way * (size_of::<K>() / WORD);
        let values = offset_of!(abi::OpeningSet<K, V>, value) / WORD + way * (size_of::<V>() / WORD);
        for (at, from) in [(keys, words(key)), (values, words(value))] {
            memory[at..].iter().zip(from).for_each(|(to, word)| to.store(*word, Ordering::Relaxed));
        }
        memory[way].store(tag, Ordering::Release);
        Ok(true)
    }

    /// The set that has the key, if one has it, and the key's tag there.
    fn place(&self, key: &K, seed: u64) -> (u32, u32) {
        let sets = self.0.len();
        let hash = abi::opening_hash(words(key), seed, abi::opening_step(sets));
        (abi::opening_set(hash, sets), tag_of(hash))
    }

    /// The tags of a set, which come first in it.
    fn tags(&self, slot: u32) -> Result<[u32; abi::OPENING_WAYS]> {
        let words = self.0.words(slot)?;
        Ok(std::array::from_fn(|way| words[way].load(Ordering::Acquire)))
    }
}

/// Entries as bytes, of a table by name, out of its sets as bytes.
pub(crate) fn raw(name: &str, sets: &[RawEntry]) -> Vec<RawEntry> {
    let key = if name.ends_with('4') { size_of::<abi::FlowKey4>() } else { size_of::<abi::FlowKey6>() };
    let mut entries = Vec::new();
    for (_, set) in sets {
        let (head, rest) = set.split_at(size_of::<abi::OpeningHead>());
        let (keys, values) = rest.split_at(key * abi::OPENING_WAYS);
        let tags = head.chunks_exact(WORD).map(|tag| u32::from_ne_bytes([tag[0], tag[1], tag[2], tag[3]]));
        let pairs = keys.chunks_exact(key).zip(values.chunks_exact(values.len() / abi::OPENING_WAYS));
        let used = tags.zip(pairs).filter(|(tag, _)| is_used(*tag));
        entries.extend(used.map(|(_, (key, value))| (key.to_vec(), value.to_vec())));
    }
    entries
}

const fn is_used(tag: u32) -> bool {
    tag != abi::OPENING_FREE && tag != abi::OPENING_BUSY
}

/// `opening_tag()`.
#[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
const fn tag_of(hash: u64) -> u32 {
    match hash as u32 {
        tag @ (abi::OPENING_FREE | abi::OPENING_BUSY) => tag + 2,
        tag => tag,
    }
}
