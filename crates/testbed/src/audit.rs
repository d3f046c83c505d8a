//! What an API server was asked, by its own audit log: who, for what, and whether it was allowed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::{Error, Result};

/// Who asked for what is enough, and once for each request: watches are told of when they begin.
const POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
";

/// The log of a server.
#[derive(Debug)]
pub struct Audit {
    policy: PathBuf,
    log: PathBuf,
}

/// A right, as roles have them.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Right {
    /// What is done: `list`.
    pub verb: String,
    /// The API group, empty for the core.
    pub group: String,
    /// The resource in the plural.
    pub resource: String,
}

/// What a user asked for.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Asked {
    /// Rights that it used.
    pub allowed: BTreeSet<Right>,
    /// Rights that it lacked.
    pub refused: BTreeSet<Right>,
}

#[derive(Deserialize)]
struct Entry {
    verb: String,
    user: Name,
    #[serde(rename = "objectRef")]
    object: Option<Object>,
    #[serde(default)]
    annotations: Annotations,
}

#[derive(Deserialize)]
struct Name {
    username: String,
}

#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    resource: String,
    #[serde(default, rename = "apiGroup")]
    group: String,
}

#[derive(Default, Deserialize)]
struct Annotations {
    #[serde(default, rename = "authorization.k8s.io/decision")]
    decision: String,
}

impl Audit {
    /// A log in this directory.
    pub(crate) fn in_directory(directory: &Path) -> Result<Self> {
        let (policy, log) = (directory.join("audit-policy.yaml"), directory.join("audit.log"));
        fs::write(&policy, POLICY).map_err(Error::file("write", &policy))?;
        Ok(Self { policy, log })
    }

    /// The server's options.
    pub(crate) fn options(&self) -> [String; 2] {
        let Self { policy, log } = self;
        [format!("--audit-policy-file={}", policy.display()), format!("--audit-log-path={}", log.display())]
    }

    /// What a user asked for so far; the last line may still be under way.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn asked_by(&self, user: &str) -> Result<Asked> {
        let text = fs::read_to_string(&self.log).map_err(Error::file("read", &self.log))?;
        let mut asked = Asked::default();
        for Entry { verb, user: Name { username }, object, annotations } in
            text.lines().filter_map(|line| serde_json::from_str(line).ok())
        {
            let Some(Object { resource, group }) = object.filter(|_| username == user) else { continue };
            let right = Right { verb, group, resource };
            match annotations.decision.as_str() {
                "allow" => asked.allowed.insert(right),
                _ => asked.refused.insert(right),
            };
        }
        Ok(asked)
    }
}
