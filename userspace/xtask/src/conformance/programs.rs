//! The programs that the cluster consists of.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use weir_testbed::process;

use super::Options;

/// Those that `deploy/dev/bootstrap.sh conformance` builds.
const BUILT: [&str; 11] = [
    "agnhost",
    "coredns",
    "e2e.test",
    "ginkgo",
    "helm",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
    "regression-issue-74839",
];

/// The archive that `make image` makes, below the root of the tree.
const IMAGE: &str = "target/image/weir.tar";

/// Where the programs are. All of them exist but the image.
#[derive(Clone, Debug)]
pub(super) struct Programs {
    cache: PathBuf,
    agent: PathBuf,
    cli: PathBuf,
    image: PathBuf,
}

impl Programs {
    /// Looks for them.
    ///
    /// # Errors
    /// When one is missing.
    pub(super) fn find(options: &Options) -> Result<Self> {
        let own = std::env::current_exe().context("cannot tell where this program lies")?;
        let agent = options.agent.clone().unwrap_or_else(|| own.with_file_name("weir-agent"));
        let agent = std::path::absolute(&agent).with_context(|| format!("cannot tell where {} is", agent.display()))?;
        let image = std::path::absolute(IMAGE).context("cannot tell where the image lies")?;
        let programs = Self { cache: process::cache(), agent, cli: own.with_file_name("weir"), image };
        if !programs.agent.is_file() {
            bail!("{} is missing: run `make build` first", programs.agent.display());
        }
        let missing =
            BUILT.iter().map(|name| programs.built(name)).chain([programs.base_layer()]).find(|p| !p.is_file());
        if let Some(path) = missing {
            bail!("{} is missing: run `deploy/dev/bootstrap.sh conformance`", path.display());
        }
        Ok(programs)
    }

    /// One of those that are built once.
    pub(super) fn built(&self, name: &str) -> PathBuf {
        self.cache.join("bin").join(name)
    }

    /// Their version, such as `v1.36.3`.
    ///
    /// # Errors
    /// When kubelet does not tell.
    pub(super) fn kubernetes(&self) -> Result<String> {
        let output = Command::new(self.built("kubelet")).arg("--version").output().context("cannot run kubelet")?;
        let text = String::from_utf8_lossy(&output.stdout);
        text.split_whitespace().last().map(str::to_owned).context("kubelet --version printed nothing")
    }

    /// The file system that all images share, as an archive.
    pub(super) fn base_layer(&self) -> PathBuf {
        self.images().join("base.tar")
    }

    /// The directory for layers and archives of images.
    pub(super) fn images(&self) -> PathBuf {
        self.cache.join("images")
    }

    /// The agent under test.
    pub(super) fn agent(&self) -> &Path {
        &self.agent
    }

    /// The archive of the image that the chart installs.
    ///
    /// # Errors
    /// When it is missing.
    pub(super) fn image(&self) -> Result<&Path> {
        ensure!(self.image.is_file(), "{} is missing: run `make image` first", self.image.display());
        Ok(&self.image)
    }

    /// `weir` as it is in images: the one that `make static` has built.
    ///
    /// # Errors
    /// When it is missing.
    pub(super) fn static_cli(&self) -> Result<PathBuf> {
        let path = Path::new("target").join(format!("{}-unknown-linux-musl/release/weir", std::env::consts::ARCH));
        ensure!(path.is_file(), "{} is missing: run `make image` first", path.display());
        Ok(path)
    }

    /// The command line that looks into its maps.
    pub(super) fn cli(&self) -> &Path {
        &self.cli
    }
}
