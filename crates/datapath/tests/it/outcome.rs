//! What a program did with one packet: verdict, reason, and the packet that came out.

use weir_abi as abi;
use weir_datapath::Hook;
use weir_testbed::packet::{Packet, decode};
use weir_testbed::prog_run::Run;

/// A run, and by how much the hook's counters moved.
pub(crate) type Counted = (Run, Vec<(u32, abi::Counter)>);

/// What a program did with a packet.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) verdict: u32,
    /// The counter of the hook that moved.
    pub(crate) reason: u32,
    pub(crate) frame: Vec<u8>,
}

impl Outcome {
    /// What one run did, of which one counter knows.
    #[track_caller]
    pub(crate) fn of(hook: Hook, frame: &[u8], (run, mut moved): Counted) -> Self {
        // The namespace's own reports of multicast listeners pass the same hooks, when they please.
        if moved.len() > 1 {
            moved.retain(|(reason, _)| *reason != abi::REASON_NOT_TRANSPORT);
        }
        assert_eq!(moved.len(), 1, "one counter moves for weir_{hook}, not {moved:?}");
        let (reason, moved) = moved[0];
        let ours = (1, frame.len() as u64);
        if reason == abi::REASON_NOT_TRANSPORT {
            assert!((moved.packets, moved.bytes) >= ours, "{moved:?} beside a report, perhaps");
        } else {
            assert_eq!((moved.packets, moved.bytes), ours, "packets, bytes");
        }
        Self { verdict: run.retval, reason, frame: run.packet }
    }

    /// The packet that came out, all checksums verified.
    pub(crate) fn packet(&self) -> Packet {
        decode(&self.frame).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// Asserts all of it at once.
    #[track_caller]
    pub(crate) fn is(&self, verdict: u32, reason: u32, packet: &Packet) {
        assert_eq!((self.verdict, self.reason, &self.packet()), (verdict, reason, packet), "verdict, reason, packet");
    }

    /// Asserts that the packet was left as it came.
    #[track_caller]
    pub(crate) fn is_untouched(&self, verdict: u32, reason: u32, frame: &[u8]) {
        assert_eq!(
            (self.verdict, self.reason, self.frame.as_slice()),
            (verdict, reason, frame),
            "verdict, reason, frame"
        );
    }

    /// Asserts a verdict and a reason.
    #[track_caller]
    pub(crate) fn is_for(&self, verdict: u32, reason: u32) {
        assert_eq!((self.verdict, self.reason), (verdict, reason), "verdict, reason of {self:?}");
    }
}
