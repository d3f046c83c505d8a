//! The filter in front of the frontends: derived from them, and kept by the store that writes them.

use weir_abi as abi;
use weir_core::ops::FrontendKey;

use crate::error::Result;
use crate::map::Mapped;

/// Words of the filter.
const WORDS: u32 = 1 << (abi::FILTER_BITS - abi::FILTER_WORD_BITS);

/// Bit of a destination, as `frontend_filter_hash` of `bpf/lib/service.h` computes it.
fn hash(key: &FrontendKey) -> u32 {
    let (last_word, port) = (abi::Addr::from(key.address).word[3], abi::Be16::new(key.port));
    let address = u64::from(last_word.raw());
    let packed = address << 32 | u64::from(port.raw()) << 16 | u64::from(key.protocol);
    let high = |word: u64, bits: u32| word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits);
    let part = high(address, abi::FILTER_BITS - abi::FILTER_NEAR_BITS) << abi::FILTER_NEAR_BITS;
    u32::try_from(part | high(packed, abi::FILTER_NEAR_BITS)).unwrap_or_default()
}

const fn place(hash: u32) -> (u32, u64) {
    (hash >> abi::FILTER_WORD_BITS, 1 << (hash & ((1 << abi::FILTER_WORD_BITS) - 1)))
}

/// Whether packets to a frontend have to get through. Of an address as such nobody asks on their way in: it may be the node's own,
/// and then be that of all its packets.
pub(crate) const fn concerns(frontend: &abi::Frontend) -> bool {
    frontend.kind != abi::KIND_ADDRESS
}

/// Lets packets to a frontend through. To be called before the frontend is written.
pub(crate) fn add(filter: &Mapped<abi::FilterWord>, key: &FrontendKey) -> Result<()> {
    let (slot, bit) = place(hash(key));
    let abi::FilterWord { bits } = filter.get(slot)?;
    if bits & bit == 0 {
        filter.set(slot, &abi::FilterWord { bits: bits | bit })?;
    }
    Ok(())
}

/// Makes the filter anew, so that only packets to these pass.
pub(crate) fn rebuild<'a>(
    filter: &Mapped<abi::FilterWord>,
    frontends: impl IntoIterator<Item = &'a FrontendKey>,
) -> Result<()> {
    let mut words = vec![0u64; WORDS as usize];
    for key in frontends {
        let (slot, bit) = place(hash(key));
        words[slot as usize] |= bit;
    }
    (0..WORDS).zip(words).try_for_each(|(slot, bits)| filter.set(slot, &abi::FilterWord { bits }))
}
