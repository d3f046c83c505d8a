//! The node's source ports as the programs know them: a ring of those that new flows may take, and where answers may arrive.

use weir_abi as abi;
use weir_core::source_ports::PortSet;

use crate::error::Result;
use crate::map::Mapped;
use crate::pins::PinDir;

/// Port numbers to an entry of `snat_next`.
const TO_NEXT: usize = 1 << abi::SNAT_NEXT_BITS;

/// The maps `snat_next` and `snat_ports`.
#[derive(Debug)]
pub(crate) struct SourcePorts {
    next: Mapped<abi::SnatNext>,
    arrivals: Mapped<abi::SnatPorts>,
}

impl SourcePorts {
    /// Opens them. `flags`: 0, or `BPF_F_RDONLY`.
    pub(crate) fn open(pins: &PinDir, flags: u32) -> Result<Self> {
        Ok(Self { next: pins.mapped("snat_next", flags)?, arrivals: pins.mapped("snat_ports", flags)? })
    }

    /// Lets new flows take these ports and no others. Answers to others that flows have still arrive.
    pub(crate) fn set(&self, usable: &PortSet) -> Result<()> {
        // Whoever takes a port must get its answers, so those come first; and who has left, last.
        for (slot, word) in (0..).zip(usable.words()) {
            let abi::SnatPorts { answers, left } = self.arrivals.get(slot)?;
            self.arrivals.set(slot, &abi::SnatPorts { answers: answers | word, left: left & !word })?;
        }
        for (slot, ports) in (0..).zip(usable.ring().as_chunks::<TO_NEXT>().0) {
            self.next.set(slot, &abi::SnatNext { port: *ports })?;
        }
        for (slot, word) in (0..).zip(usable.words()) {
            let abi::SnatPorts { answers, left: _ } = self.arrivals.get(slot)?;
            self.arrivals.set(slot, &abi::SnatPorts { answers, left: answers & !word })?;
        }
        Ok(())
    }

    /// The ports that new flows may take.
    pub(crate) fn usable(&self) -> Result<PortSet> {
        let mut usable = PortSet::default();
        for slot in 0..self.arrivals.len() {
            let abi::SnatPorts { answers, left } = self.arrivals.get(slot)?;
            let first = slot << abi::SNAT_WORD_BITS;
            let bits = (0..u64::BITS).filter(|bit| (answers & !left) >> bit & 1 != 0);
            usable.extend(bits.filter_map(|bit| u16::try_from(first + bit).ok()));
        }
        Ok(usable)
    }
}
