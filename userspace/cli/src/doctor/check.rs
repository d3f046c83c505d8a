//! A verdict, and how it is shown.

use serde::Serialize;

use super::fix::{Fix, Site};
use crate::output::{Kind, Row, Tone};

/// How bad it is.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// As it should be.
    Ok,
    /// Weir works, but not as well as it could, or not for long.
    Warn,
    /// Something is not served.
    Fail,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// A verdict.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Check {
    pub(crate) state: State,
    pub(crate) what: String,
    pub(crate) detail: String,
    /// None if it is ok.
    pub(crate) fix: Option<Fix>,
}

impl Check {
    /// As it should be.
    pub(crate) fn ok(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { state: State::Ok, what: what.into(), detail: detail.into(), fix: None }
    }

    /// Not as good as it could be.
    pub(crate) fn warn(what: impl Into<String>, detail: impl Into<String>, fix: impl Into<Fix>) -> Self {
        Self { state: State::Warn, what: what.into(), detail: detail.into(), fix: Some(fix.into()) }
    }

    /// In the way of what Weir does.
    pub(crate) fn fail(what: impl Into<String>, detail: impl Into<String>, fix: impl Into<Fix>) -> Self {
        Self { state: State::Fail, what: what.into(), detail: detail.into(), fix: Some(fix.into()) }
    }

    /// As it is shown to somebody at this place.
    pub(crate) fn shown(self, site: &Site) -> Line {
        let Self { state, what, detail, fix } = self;
        Line { state, what, detail, fix: fix.map(|fix| fix.command(site)) }
    }
}

/// One line.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub(crate) struct Line {
    pub(crate) state: State,
    what: String,
    detail: String,
    /// A command, unless it is ok.
    fix: Option<String>,
}

impl Row for Line {
    const KIND: Kind = Kind::Diagnosis;

    fn headers(_wide: bool) -> Vec<&'static str> {
        vec!["STATE", "CHECK", "DETAIL", "FIX"]
    }

    fn cells(&self, _wide: bool) -> Vec<String> {
        let Self { state, what, detail, fix } = self;
        // An empty cell would read <none>: what is ok needs nothing.
        let fix = fix.clone().unwrap_or_else(|| "-".to_owned());
        vec![state.name().to_owned(), what.clone(), detail.clone(), fix]
    }

    fn name(&self) -> String {
        format!("check/{}", self.what)
    }

    fn tone(&self) -> Tone {
        match self.state {
            State::Ok => Tone::Good,
            State::Warn | State::Fail => Tone::Alert,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The check of a name.
    #[track_caller]
    pub(crate) fn find<'a>(checks: &'a [Check], what: &str) -> &'a Check {
        checks.iter().find(|check| check.what == what).unwrap_or_else(|| panic!("no {what} in {checks:#?}"))
    }

    /// What is shown of a check on the node.
    #[derive(Debug)]
    pub(crate) struct Verdict(pub(crate) State, String);

    impl PartialEq<(State, &str)> for Verdict {
        fn eq(&self, (state, fix): &(State, &str)) -> bool {
            self.0 == *state && self.1 == *fix
        }
    }

    /// State and fix of the check of a name.
    #[track_caller]
    pub(crate) fn verdict(checks: &[Check], what: &str) -> Verdict {
        let check = find(checks, what);
        Verdict(check.state, check.fix.as_ref().map(|fix| fix.command(&Site::Node)).unwrap_or_default())
    }

    #[test]
    fn the_worst_state_is_the_greatest() {
        assert_eq!([State::Warn, State::Fail, State::Ok].into_iter().max(), Some(State::Fail));
    }
}
