//! Tests that are not run, since this machine cannot pass them with any proxy.

use anyhow::{Context, Result};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use regex::Regex;

/// Some tests, and why they are not run.
struct Exclusion {
    /// Found in their names.
    pattern: &'static str,
    reason: &'static str,
    /// Whether it holds on this machine.
    applies: fn() -> bool,
}

const EXCLUSIONS: [Exclusion; 2] = [
    Exclusion {
        pattern: r"\[Feature:SCTPConnectivity\]",
        reason: "this kernel has no SCTP sockets",
        applies: || !sctp_works(),
    },
    Exclusion {
        // It asks for the name of 8.8.8.8 before it changes anything.
        pattern: "should forward PTR records lookup to upstream nameserver",
        reason: "the cluster has no way to the internet",
        applies: || true,
    },
];

/// The exclusions that hold on this machine.
#[derive(Debug)]
pub(super) struct Exclusions(Vec<(Regex, &'static str)>);

impl Exclusions {
    /// Looks what holds here.
    ///
    /// # Errors
    /// Never, as long as the patterns are right.
    pub(super) fn of_this_machine() -> Result<Self> {
        let holding = EXCLUSIONS.iter().filter(|exclusion| (exclusion.applies)());
        let compiled = holding.map(|Exclusion { pattern, reason, applies: _ }| {
            Ok((Regex::new(pattern).with_context(|| format!("wrong pattern {pattern}"))?, *reason))
        });
        Ok(Self(compiled.collect::<Result<_>>()?))
    }

    /// Patterns for ginkgo.
    pub(super) fn patterns(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(pattern, _)| pattern.as_str())
    }

    /// Why the test of this name is not run; `None` of one that is.
    pub(super) fn reason(&self, name: &str) -> Option<&'static str> {
        self.0.iter().find(|(pattern, _)| pattern.is_match(name)).map(|(_, reason)| *reason)
    }
}

/// Whether this kernel has SCTP sockets.
fn sctp_works() -> bool {
    socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), SockProtocol::Sctp).is_ok()
}

/// True of the reasons that are given here.
pub(super) fn is_reason(text: &str) -> bool {
    EXCLUSIONS.iter().any(|exclusion| exclusion.reason == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excluded_test_has_a_reason_and_all_others_have_none() {
        let exclusions = Exclusions::of_this_machine().unwrap();
        let name = "[sig-network] DNS configMap should forward PTR records lookup to upstream nameserver [Slow]";
        assert!(exclusions.reason(name).is_some_and(is_reason));
        assert_eq!(exclusions.reason("[sig-network] DNS should provide DNS for services"), None);
    }
}
