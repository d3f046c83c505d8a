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

    /// Lets new flows take these ports and no others. Answers to others that flows have still arrive. The host may come to use those that are
    /// `shared`, too, as those which have left.
    pub(crate) fn set(&self, usable: &PortSet, shared: &PortSet) -> Result<()> {
        // Whoever takes a port must get its answers, so those come first; and who has left, last.
        for (slot, (word, shared)) in (0..).zip(usable.words().zip(shared.words())) {
            let abi::SnatPorts { answers, left } = self.arrivals.get(slot)?;
            let left = left & !word | word & shared;
            self.arrivals.set(slot, &abi::SnatPorts { answers: answers | word, left })?;
        }
        for (slot, ports) in (0..).zip(usable.ring().as_chunks::<TO_NEXT>().0) {
            self.next.set(slot, &abi::SnatNext { port: *ports })?;
        }
        for (slot, (word, shared)) in (0..).zip(usable.words().zip(shared.words())) {
            let abi::SnatPorts { answers, left: _ } = self.arrivals.get(slot)?;
            self.arrivals.set(slot, &abi::SnatPorts { answers, left: answers & !word | word & shared })?;
        }
        Ok(())
    }

    /// The ports that new flows may take.
    pub(crate) fn usable(&self) -> Result<PortSet> {
        let mut usable = PortSet::default();
        for slot in 0..self.next.len() {
            let abi::SnatNext { port: next } = self.next.get(slot)?;
            let numbers = (slot << abi::SNAT_NEXT_BITS..).map(u16::try_from);
            // 0 is none.
            let ports = numbers
                .zip(next)
                .filter_map(|(number, next)| number.ok().filter(|number| *number == next && next != 0));
            usable.extend(ports);
        }
        Ok(usable)
    }
}
