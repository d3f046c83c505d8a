//! How far a node is on its way from another proxy to this one, or back: whose Services its agent serves. See
//! docs/adr/0036-migration-of-a-node.md.

use std::fmt;
use std::str::FromStr;

use crate::model::Proxy;

/// Directory of the file that says it, on the node. It outlives the agent and a restart of the machine.
pub const DIRECTORY: &str = "/var/lib/weir";

/// Name of the file: the word of a [`Stage`]. Without the file it is [`Stage::Usual`].
pub const FILE: &str = "stage";

/// A stage.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum Stage {
    /// Services are told apart by their label alone.
    #[default]
    Usual,
    /// Services without the label are served, too, and connections that began elsewhere are left to the proxy before.
    TakeOver,
    /// As before, and nothing is left of the proxy before.
    Alone,
    /// No new flows; those that began here go on.
    Drain,
}

impl Stage {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Usual, Self::TakeOver, Self::Alone, Self::Drain];

    /// The word in the file.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Usual => "usual",
            Self::TakeOver => "take-over",
            Self::Alone => "alone",
            Self::Drain => "drain",
        }
    }

    /// Whether clients find a Service here.
    #[must_use]
    pub const fn serves(self, proxy: Proxy) -> bool {
        match (self, proxy) {
            (Self::Usual | Self::TakeOver | Self::Alone, Proxy::Ours)
            | (Self::TakeOver | Self::Alone, Proxy::Unlabelled) => true,
            (Self::Drain, _) | (Self::Usual, Proxy::Unlabelled) | (_, Proxy::Other) => false,
        }
    }

    /// Whether another proxy may have connections here: `CONFIG_BESIDE`. `named`: by its options the agent serves labelled
    /// Services alone.
    #[must_use]
    pub const fn is_beside(self, named: bool) -> bool {
        match self {
            Self::Usual => named,
            Self::TakeOver | Self::Drain => true,
            Self::Alone => false,
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The file holds no word of a [`Stage`].
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0:?} is no stage: it is usual, take-over, alone or drain")]
pub struct UnknownStage(String);

impl FromStr for Stage {
    type Err = UnknownStage;

    /// White space around the word does not count; nothing is [`Stage::Usual`].
    fn from_str(text: &str) -> Result<Self, UnknownStage> {
        let word = text.trim();
        let named = || Self::ALL.into_iter().find(|stage| stage.word() == word);
        if word.is_empty() { Ok(Self::Usual) } else { named().ok_or_else(|| UnknownStage(word.to_owned())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_served_by_its_label_and_by_the_stage() {
        let served = |stage: Stage| [Proxy::Ours, Proxy::Unlabelled, Proxy::Other].map(|proxy| stage.serves(proxy));
        assert_eq!(
            Stage::ALL.map(served),
            [[true, false, false], [true, true, false], [true, true, false], [false, false, false]]
        );
    }

    #[test]
    fn connections_of_another_proxy_are_expected_by_the_options_until_the_node_is_moved() {
        let beside = |stage: Stage| [false, true].map(|named| stage.is_beside(named));
        assert_eq!(Stage::ALL.map(beside), [[false, true], [true, true], [false, false], [true, true]]);
    }

    #[test]
    fn the_word_in_the_file_is_read_as_it_is_written() {
        for stage in Stage::ALL {
            assert_eq!(format!("{stage}\n").parse(), Ok(stage));
        }
        assert_eq!("".parse(), Ok(Stage::Usual));
        assert_eq!("drained".parse::<Stage>(), Err(UnknownStage("drained".to_owned())));
    }
}
