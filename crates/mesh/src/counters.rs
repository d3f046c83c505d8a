//! What was refused, and what was sent.

macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident = $label:literal, $words:literal;)+) => {
        /// Why a datagram was dropped. Nothing is answered and nothing is learnt from one that was.
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, thiserror::Error)]
        pub enum Refusal {
            $($(#[$doc])* #[error($words)] $name,)+
        }

        impl Refusal {
            /// Every reason, in the order of their numbers.
            pub const ALL: [Self; [$($label),+].len()] = [$(Self::$name),+];

            /// The value of a metric's label.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$name => $label,)+ }
            }
        }
    };
}

refusals! {
    /// Shorter than the smallest packet.
    Truncated = "truncated", "shorter than the smallest packet: cut on its way, or not from an agent";
    /// Longer than the largest packet.
    Oversized = "oversized", "longer than the largest packet: not from an agent";
    /// Does not begin like a packet of the mesh.
    Foreign = "foreign", "not a packet of the mesh: see who else sends to this port";
    /// From another release of the protocol.
    UnknownVersion = "unknown_version", "of an unknown version: finish the update of all agents";
    /// Neither probe nor reply.
    UnknownKind = "unknown_kind", "neither probe nor reply: not from an agent";
    /// For another node.
    Misdirected = "misdirected", "meant for another node: an address may have moved, or a packet was captured";
    /// No valid key made the tag.
    Forged = "forged", "no valid key signed it: compare the key files of both nodes";
    /// Sent too long ago or in the future.
    Skewed = "skewed", "its time is too far from this node's: compare the clocks of both nodes";
    /// Seen before.
    Replayed = "replayed", "seen before: it was captured and sent again, or duplicated by the network";
    /// Too far behind the newest packet, or from before the sender's restart.
    Outdated = "outdated", "older than what the replay window holds: dropped to be safe";
    /// Signed, but it makes no sense.
    Malformed = "malformed", "signed, but malformed: compare the versions of both agents";
    /// A number in it cannot be true.
    Lie = "lie", "a number in it cannot be true: see the signals of the sender";
    /// An answer to no probe that is still open.
    Unsolicited = "unsolicited", "answers no open probe: too late, or nobody asked";
    /// More senders than this node remembers.
    Crowded = "crowded", "more senders than the limit: see who holds the cluster's key";
    /// The sender asks for more than its budget.
    OverBudget = "over_budget", "asks for more than a peer's budget: compare the probe intervals of both agents";
}

/// Sums since the start.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Probes sent.
    pub probes_sent: u64,
    /// Replies sent.
    pub replies_sent: u64,
    /// Replies that answered an open probe.
    pub replies_received: u64,
    /// Probes that were not answered in time.
    pub probes_lost: u64,
    /// Bytes sent, IP and UDP headers included.
    pub bytes_sent: u64,
    /// Probes that were due but not within the peer's budget.
    pub probes_held_back: u64,
    /// Replies whose round-trip time could not be true: a clock was set meanwhile.
    pub clocks_moved: u64,
    /// Datagrams that the kernel did not take.
    pub unsent: u64,
    refused: [u64; Refusal::ALL.len()],
}

impl Counters {
    /// What became of packets, each with the value of a metric's label. Bytes are told by themselves, and refusals by their
    /// reason.
    #[must_use]
    pub const fn packets(&self) -> [(&'static str, u64); 7] {
        let &Self {
            probes_sent,
            replies_sent,
            replies_received,
            probes_lost,
            bytes_sent: _,
            probes_held_back,
            clocks_moved,
            unsent,
            refused: _,
        } = self;
        [
            ("probe", probes_sent),
            ("reply", replies_sent),
            ("answered", replies_received),
            ("lost", probes_lost),
            ("held_back", probes_held_back),
            ("unsent", unsent),
            ("clock_moved", clocks_moved),
        ]
    }

    /// How many datagrams were refused for one reason.
    #[must_use]
    pub const fn refused(&self, reason: Refusal) -> u64 {
        self.refused[reason as usize]
    }

    pub(crate) const fn refuse(&mut self, reason: Refusal) {
        self.refused[reason as usize] += 1;
    }
}
