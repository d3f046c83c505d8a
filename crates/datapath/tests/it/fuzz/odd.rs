//! What scenarios vary beside what the first entries of the corpus had bytes for: these have none of it, as the byte that asks for it is zero there.

use super::places::{ODD_CLIENT, ODD_CLIENTS};
use super::step::{Piece, STEP_BYTES, Shape, Step, WORLD_BYTES};

/// What is odd in a scenario's world.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Odd(u8);

/// Distances of TCP's numbers: near, by what programs note of one (`HEARD_SHIFT`) more or less, as far as an end is believed and further, and around.
const NUMBERS: [u32; 12] =
    [0, 0, 0, 1, 1 << 17, 2 << 17, 256 << 17, 257 << 17, 258 << 17, 0x7fff << 17, u32::MAX, u32::MAX << 17];
/// Flags that are turned over: a SYN with FIN or RST, an end that is none, data without an acknowledgement.
const FLAGS: [u8; 5] = [Odd::FIN, Odd::SYN, Odd::RST, Odd::FIN | Odd::SYN, Odd::ACK];
/// Codes of errors: unreachable nets, hosts, ports and protocols, fragmentation needed, and what filters say.
const CODES: [u8; 8] = [0, 0, 1, 2, 3, 4, 10, 13];

impl Odd {
    pub(super) const FIN: u8 = 1;
    pub(super) const SYN: u8 = 2;
    pub(super) const RST: u8 = 4;
    pub(super) const ACK: u8 = 16;

    /// What the last byte of a world's says.
    pub(super) fn of(entry: &[u8]) -> Self {
        Self(entry.get(WORLD_BYTES - 1).copied().unwrap_or_default())
    }

    const fn has_numbers(self) -> bool {
        self.0 & 1 != 0
    }

    const fn has_flags(self) -> bool {
        self.0 & 2 != 0
    }

    const fn has_errors(self) -> bool {
        self.0 & 4 != 0
    }

    /// Endpoints that come back are elsewhere.
    pub(super) const fn moves_endpoints(self) -> bool {
        self.0 & 8 != 0
    }

    const fn has_headers(self) -> bool {
        self.0 & 16 != 0
    }

    const fn has_clients(self) -> bool {
        self.0 & 32 != 0
    }

    /// A step, with what its last bytes vary.
    pub(super) fn vary(self, mut step: Step, bytes: &[u8]) -> Step {
        let last = |from_end: usize| bytes.get(STEP_BYTES - from_end).copied().unwrap_or_default();
        if let Step::Client { client, .. } | Step::Echo { client, .. } = &mut step
            && self.has_clients()
            && last(5) < 64
        {
            *client = ODD_CLIENT + usize::from(last(5)) % ODD_CLIENTS;
        }
        match &mut step {
            Step::Client { shape, .. } | Step::Again { shape, .. } | Step::Answer { shape, .. } => {
                self.shape(shape, [last(4), last(3), last(2), last(1)]);
            }
            Step::Error { code, from, .. } if self.has_errors() => {
                *code = CODES[usize::from(last(1)) % CODES.len()];
                *from = usize::from(last(2) / 2) % 8;
            }
            Step::Error { .. }
            | Step::Insist { .. }
            | Step::Echo { .. }
            | Step::Replay { .. }
            | Step::Pass { .. }
            | Step::TurnOver { .. }
            | Step::Steer { .. }
            | Step::Frontend { .. }
            | Step::Flags(_)
            | Step::Ports(_)
            | Step::Evict(_) => {}
        }
        step
    }

    fn shape(self, shape: &mut Shape, [headers, flags, one, other]: [u8; 4]) {
        let number = |byte: u8| NUMBERS[usize::from(byte) % NUMBERS.len()];
        if self.has_numbers() {
            shape.numbers = (number(one), number(other));
        }
        if self.has_flags() && flags < 40 {
            shape.flags = FLAGS[usize::from(flags) % FLAGS.len()];
        }
        if self.has_headers() && headers < 128 {
            shape.tcp_options = usize::from(headers % 16 % 11);
            shape.is_authenticated = headers & 32 != 0;
            // A fragment that is all of its packet.
            if headers & 64 != 0 && shape.fragment.is_none() {
                shape.fragment = Some(Piece { offset: 0, more: false, id: 3 });
            }
        }
    }
}
