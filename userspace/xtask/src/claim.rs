//! What must hold of figures, and whether it does.

use std::fmt::{self, Write};
use std::process::ExitCode;

use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

/// One claim.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Claim {
    /// In words.
    pub(crate) text: String,
    /// What was measured: the worst case.
    pub(crate) seen: f64,
    pub(crate) bound: Bound,
}

/// What a figure must keep to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    /// Of two figures, the one that is nearer to breaking it.
    pub(crate) fn is_worse(self, one: f64, other: f64) -> bool {
        match self {
            Self::AtLeast(_) => one < other,
            Self::AtMost(_) => one > other,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, "at least {least:.2}"),
            Self::AtMost(most) => write!(f, "at most {most:.2}"),
        }
    }
}

impl Claim {
    pub(crate) fn holds(&self) -> bool {
        match self.bound {
            Bound::AtLeast(least) => self.seen >= least,
            Bound::AtMost(most) => self.seen <= most,
        }
    }
}

impl Serialize for Claim {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { text, seen, bound } = self;
        let mut fields = serializer.serialize_struct("Claim", 4)?;
        fields.serialize_field("claim", text)?;
        fields.serialize_field("seen", seen)?;
        fields.serialize_field("bound", bound)?;
        fields.serialize_field("holds", &self.holds())?;
        fields.end()
    }
}

/// Adds a table of claims to a text, if there are any.
///
/// # Errors
/// None of a string.
pub(crate) fn table(text: &mut String, claims: &[Claim]) -> fmt::Result {
    if claims.is_empty() {
        return Ok(());
    }
    text.push_str("\n| what must hold | | measured | |\n| --- | --- | --- | --- |\n");
    claims.iter().try_for_each(|claim| {
        let holds = if claim.holds() { "holds" } else { "**does not hold**" };
        writeln!(text, "| {} | {} | {:.2} | {holds} |", claim.text, claim.bound, claim.seen)
    })
}

/// What a program ends with: a claim that does not hold is a failure.
pub(crate) fn exit_code(claims: &[Claim]) -> ExitCode {
    if claims.iter().all(Claim::holds) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_says_what_was_wanted_what_was_seen_and_whether_that_will_do() {
        let claim = |text: &str, seen, bound| Claim { text: text.into(), seen, bound };
        let claims = [claim("speed", 0.97, Bound::AtLeast(0.97)), claim("cost", 0.51, Bound::AtMost(0.5))];
        assert_eq!(claims.each_ref().map(Claim::holds), [true, false]);
        let mut text = String::new();
        table(&mut text, &claims).unwrap();
        assert!(text.contains("| speed | at least 0.97 | 0.97 | holds |\n"), "{text}");
        assert!(text.ends_with("| cost | at most 0.50 | 0.51 | **does not hold** |\n"), "{text}");
    }

    #[test]
    fn a_written_claim_says_whether_it_holds() {
        let claim = Claim { text: "failed".into(), seen: 1.0, bound: Bound::AtMost(0.0) };
        let wanted = serde_json::json!({"claim": "failed", "seen": 1.0, "bound": {"at_most": 0.0}, "holds": false});
        assert_eq!(serde_json::to_value(&claim).unwrap(), wanted);
    }

    #[test]
    fn nothing_claimed_is_no_table() {
        let mut text = String::new();
        table(&mut text, &[]).unwrap();
        assert_eq!(text, "");
    }
}
