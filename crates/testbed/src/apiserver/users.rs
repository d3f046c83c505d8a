//! Who may talk to the API server, and how it knows them.

use std::fs;

use super::{ApiServer, write_new};
use crate::{Error, Result};

/// Bytes of a random token.
const TOKEN_BYTES: usize = 16;

/// Who talks to the API server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum User {
    /// A member of `system:masters`: may do everything.
    Admin,
    /// `system:serviceaccount:kube-system:weir-agent`: may do what the test's roles allow, at first next to nothing.
    Agent,
    /// `system:kube-proxy`, which the API server's own roles let do what kube-proxy does.
    KubeProxy,
}

impl User {
    pub(super) const ALL: [Self; 3] = [Self::Admin, Self::Agent, Self::KubeProxy];

    /// The user name that roles are bound to.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Agent => "system:serviceaccount:kube-system:weir-agent",
            Self::KubeProxy => "system:kube-proxy",
        }
    }

    const fn groups(self) -> &'static str {
        match self {
            Self::Admin => "system:masters",
            Self::Agent => "system:serviceaccounts,system:serviceaccounts:kube-system",
            Self::KubeProxy => "system:authenticated",
        }
    }
}

impl ApiServer {
    /// Writes the file by which the server knows its users.
    pub(super) fn write_tokens(&self) -> Result<()> {
        let path = self.path("tokens.csv");
        let lines = User::ALL.iter().map(|user| {
            let (token, name, groups) = (self.token(*user), user.name(), user.groups());
            format!("{token},{name},{name},\"{groups}\"\n")
        });
        write_new(&path, 0o600, &lines.collect::<String>())
    }
}

/// A secret that nobody guesses.
pub(super) fn random_token() -> Result<String> {
    let mut bytes = [0; TOKEN_BYTES];
    let mut source = fs::File::open("/dev/urandom").map_err(Error::io("open /dev/urandom"))?;
    std::io::Read::read_exact(&mut source, &mut bytes).map_err(Error::io("read /dev/urandom"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
