//! A real API server with kubectl, without nodes: it takes manifests as any other does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use weir_testbed::apiserver::{ApiServer, User};
use weir_testbed::objects::Objects;
use weir_testbed::process;
use weir_testbed::{Error, Result};

use crate::programs::{KUBECTL, run};

/// The server, and the administrator's way to it.
pub struct Server {
    /// A client of the administrator's.
    pub objects: Objects,
    kubeconfig: PathBuf,
    directory: TempDir,
    /// The server.
    pub api: ApiServer,
}

impl Server {
    /// Starts it on loopback and waits until it is ready.
    ///
    /// # Errors
    /// As [`ApiServer::start`], and when kubectl was not built.
    pub fn start() -> Result<Self> {
        process::built(KUBECTL)?;
        let api = ApiServer::start(None)?;
        let kubeconfig = api.kubeconfig(User::Admin, &api.url())?;
        let directory = tempfile::Builder::new().prefix("weir-manifests-").tempdir();
        let directory =
            directory.map_err(|source| Error::Io { action: "make a directory for manifests".to_owned(), source })?;
        Ok(Self { objects: api.objects()?, kubeconfig, directory, api })
    }

    /// The administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Runs kubectl as the administrator.
    ///
    /// # Errors
    /// When it fails; the error quotes it.
    pub fn kubectl(&self, words: &[&str]) -> Result<String> {
        run(kubectl(&self.kubeconfig)?.args(words))
    }

    /// Applies a manifest, first only for the server's judgement. Unknown and repeated fields are errors.
    ///
    /// # Errors
    /// When the server refuses.
    pub fn apply(&self, manifest: &str) -> Result<String> {
        let path = self.directory.path().join("manifest.yaml");
        fs::write(&path, manifest).map_err(|source| Error::Io { action: "write a manifest".to_owned(), source })?;
        let path = path.display().to_string();
        self.kubectl(&["apply", "--validate=strict", "--dry-run=server", "--filename", &path])?;
        self.kubectl(&["apply", "--validate=strict", "--filename", &path])
    }
}

/// kubectl for a cluster.
///
/// # Errors
/// When it was not built.
pub fn kubectl(kubeconfig: &Path) -> Result<Command> {
    let mut command = Command::new(process::built(KUBECTL)?);
    command.env("KUBECONFIG", kubeconfig);
    // Else it keeps what servers told below $HOME.
    command.env("KUBECACHEDIR", kubeconfig.with_extension("cache"));
    Ok(command)
}
