//! Where one endpoint stands.

/// What the answers of an endpoint add up to.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Standing {
    /// It was never asked to the end.
    #[default]
    Untried,
    /// It works; failures in a row since its last answer.
    Passing {
        /// Always fewer than the check's `fall`.
        failures: u32,
    },
    /// It does not; answers in a row since its last failure.
    Failing {
        /// Always fewer than the check's `rise`.
        passes: u32,
    },
}

impl Standing {
    /// After one more answer, or none. The first one decides by itself: there is nothing yet that it could be an
    /// exception from.
    #[must_use]
    pub const fn after(self, passed: bool, rise: u32, fall: u32) -> Self {
        match (self, passed) {
            (Self::Untried | Self::Passing { .. }, true) => Self::Passing { failures: 0 },
            (Self::Untried | Self::Failing { .. }, false) => Self::Failing { passes: 0 },
            (Self::Passing { failures }, false) if failures + 1 >= fall => Self::Failing { passes: 0 },
            (Self::Passing { failures }, false) => Self::Passing { failures: failures + 1 },
            (Self::Failing { passes }, true) if passes + 1 >= rise => Self::Passing { failures: 0 },
            (Self::Failing { passes }, true) => Self::Failing { passes: passes + 1 },
        }
    }

    /// Whether it may get new connections.
    #[must_use]
    pub const fn passes(self) -> bool {
        match self {
            Self::Passing { .. } => true,
            Self::Untried | Self::Failing { .. } => false,
        }
    }

    /// Whether it was asked and does not work.
    #[must_use]
    pub const fn fails(self) -> bool {
        match self {
            Self::Failing { .. } => true,
            Self::Untried | Self::Passing { .. } => false,
        }
    }
}
