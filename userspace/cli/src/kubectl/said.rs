//! How kubectl ends, and how that is told from how the program in the pod does.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::ExitStatus;

use anyhow::{Context, Result};
use thiserror::Error;

use super::pods::Place;

/// What kubectl says, before the number, where it got to the program in the pod and that ended with another code than 0. When
/// kubectl itself fails it ends with 1, which from the pod would be an answer.
const ENDED: &str = "command terminated with exit code ";

/// kubectl did not get to the program in the pod. What it says of that stands above.
#[derive(Debug, Error)]
pub(crate) enum NotReached {
    /// The account may not find the pods.
    #[error(
        "kubectl may not list the agents' pods, see above: it takes `list` on `pods` in {0}; see --agent-namespace"
    )]
    List(String),
    /// The account may not run programs in pods.
    #[error(
        "kubectl may not run weir in pod {namespace}/{pod}, see above: it takes `get` on `pods` and `create` on `pods/exec` in \
         {namespace}"
    )]
    Exec {
        /// The pod's namespace.
        namespace: String,
        /// Its name.
        pod: String,
    },
    /// Something else: a node that is away, no way to the API server.
    #[error(
        "kubectl cannot run weir in pod {namespace}/{pod}, see above; `kubectl -n {namespace} get pod {pod} -o wide` shows \
         where that is"
    )]
    Failed {
        /// The pod's namespace.
        namespace: String,
        /// Its name.
        pod: String,
    },
}

impl NotReached {
    /// The exit code.
    pub(crate) const fn code(&self) -> u8 {
        match self {
            Self::List(_) | Self::Exec { .. } => 3,
            Self::Failed { .. } => 2,
        }
    }
}

/// What kubectl said, as far as it tells its own failures from those of the program in the pod.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Said {
    /// How the program in the pod ended, if it did.
    ended: Option<u8>,
    /// Whether the API server has refused something.
    pub(super) refused: bool,
}

impl Said {
    /// Takes a line in. False if it is for nobody but us: the exit code says the same.
    fn hear(&mut self, line: &str) -> bool {
        if let Some(code) = line.strip_prefix(ENDED).and_then(|code| code.trim().parse().ok()) {
            self.ended = Some(code);
            return false;
        }
        self.refused |= line.contains("(Forbidden)") || line.contains(" is forbidden: ");
        true
    }

    /// Hears to the end, and passes on what is for people as it comes.
    pub(super) fn pass_on(from: impl Read) -> Result<Self> {
        let (mut said, mut from, mut line) = (Self::default(), BufReader::new(from), Vec::new());
        while from.read_until(b'\n', &mut line).context("cannot read what kubectl says")? > 0 {
            if said.hear(&String::from_utf8_lossy(&line)) {
                // Nobody may listen; the answer counts.
                let _ = io::stderr().write_all(&line);
            }
            line.clear();
        }
        Ok(said)
    }

    /// The exit code of the program in the pod.
    pub(super) fn exit_code(self, kubectl: ExitStatus, place: &Place) -> Result<u8, NotReached> {
        let Place { namespace, pod, .. } = place.clone();
        match self {
            _ if kubectl.success() => Ok(0),
            Self { ended: Some(code), .. } => Ok(code),
            Self { ended: None, refused: true } => Err(NotReached::Exec { namespace, pod }),
            Self { ended: None, refused: false } => Err(NotReached::Failed { namespace, pod }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_program_in_the_pod_ends_with_is_told_from_what_kubectl_fails_at() {
        let hear = |lines: &[&str]| {
            let mut said = Said::default();
            let passed: Vec<_> = lines.iter().filter(|line| said.hear(line)).copied().collect();
            (said, passed.len())
        };
        assert_eq!(
            hear(&["no pinned maps\n", "command terminated with exit code 4\n"]),
            (Said { ended: Some(4), refused: false }, 1)
        );
        let forbidden =
            "Error from server (Forbidden): pods \"weir-x\" is forbidden: User \"joe\" cannot create resource";
        assert_eq!(hear(&[forbidden]), (Said { ended: None, refused: true }, 1));
        assert_eq!(hear(&["error: unable to upgrade connection\n"]), (Said::default(), 1));
    }
}
