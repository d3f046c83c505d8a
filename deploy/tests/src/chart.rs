//! The chart, by the real Helm.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use weir_testbed::process;
use weir_testbed::{Error, Result};

use crate::programs::{HELM, root, run};

/// The release that tests make, and its namespace.
pub const RELEASE: &str = "weir";
/// Where the release goes.
pub const NAMESPACE: &str = "kube-system";

/// Where the chart lies.
#[must_use]
pub fn directory() -> PathBuf {
    root().join("deploy/helm/weir")
}

/// Helm with directories of its own, so that no setting of the user's counts.
#[derive(Debug)]
pub struct Helm {
    program: PathBuf,
    home: TempDir,
    kubeconfig: Option<PathBuf>,
}

impl Helm {
    /// Helm as `deploy/dev/bootstrap.sh` builds it, without a cluster.
    ///
    /// # Errors
    /// When it was not built.
    pub fn find() -> Result<Self> {
        let home = tempfile::Builder::new().prefix("weir-helm-").tempdir();
        let home = home.map_err(|source| Error::Io { action: "make a directory for helm".to_owned(), source })?;
        Ok(Self { program: process::built(HELM)?, home, kubeconfig: None })
    }

    /// The same for a cluster.
    ///
    /// # Errors
    /// As [`Helm::find`].
    pub fn of_cluster(kubeconfig: &Path) -> Result<Self> {
        Ok(Self { kubeconfig: Some(kubeconfig.to_owned()), ..Self::find()? })
    }

    /// The objects that the chart makes of these values, written in YAML; without those of `helm test`.
    ///
    /// # Errors
    /// When the values are refused; the error quotes Helm.
    pub fn render(&self, values: &str) -> Result<String> {
        self.with_chart(&["template", "--skip-tests"], values)
    }

    /// The pods of `helm test`.
    ///
    /// # Errors
    /// As [`Helm::render`].
    pub fn render_tests(&self, values: &str) -> Result<String> {
        self.with_chart(&["template", "--show-only", "templates/tests/status.yaml"], values)
    }

    /// What is told after an installation with these values.
    ///
    /// # Errors
    /// As [`Helm::render`].
    pub fn notes(&self, values: &str) -> Result<String> {
        let all = self.with_chart(&["install", "--dry-run=client"], values)?;
        Ok(all.split_once("NOTES:\n").map_or_else(String::new, |(_, notes)| notes.trim_end().to_owned()))
    }

    /// What `helm lint --strict` says.
    ///
    /// # Errors
    /// When it complains.
    pub fn lint(&self, values: &str) -> Result<String> {
        let values = self.values(values)?;
        run(self.command().args(["lint", "--strict"]).arg(directory()).arg("--values").arg(values))
    }

    /// Installs the release into the cluster, or upgrades it to these values.
    ///
    /// # Errors
    /// When Helm or the API server refuses.
    pub fn upgrade(&self, values: &str) -> Result<String> {
        self.with_chart(&["upgrade", "--install"], values)
    }

    /// Removes the release.
    ///
    /// # Errors
    /// When Helm or the API server refuses.
    pub fn uninstall(&self) -> Result<String> {
        run(self.command().args(["uninstall", RELEASE, "--namespace", NAMESPACE]))
    }

    /// The objects that `helm install` makes of these words behind it, which name paths from the root of the tree.
    ///
    /// # Errors
    /// As [`Helm::render`].
    pub fn installed_by(&self, words: &[&str]) -> Result<String> {
        run(self.command().current_dir(root()).arg("template").args(words))
    }

    fn with_chart(&self, verb: &[&str], values: &str) -> Result<String> {
        let values = self.values(values)?;
        let mut command = self.command();
        command.args(verb).arg(RELEASE).arg(directory()).args(["--namespace", NAMESPACE]).arg("--values").arg(values);
        run(&mut command)
    }

    fn values(&self, text: &str) -> Result<PathBuf> {
        let path = self.home.path().join("values.yaml");
        fs::write(&path, text).map_err(|source| Error::Io { action: "write values".to_owned(), source })?;
        Ok(path)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        for name in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(name, self.home.path());
        }
        // No cluster of the user's is ever asked.
        let nowhere = self.home.path().join("no-kubeconfig");
        command.env("KUBECONFIG", self.kubeconfig.as_ref().unwrap_or(&nowhere));
        command
    }
}
