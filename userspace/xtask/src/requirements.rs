//! What must be there before the demo or a benchmark makes nodes in network namespaces.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use weir_testbed::{ApiServer, bpffs, cgroup, process};

/// What is shown and measured.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) agent: PathBuf,
    pub(crate) cli: PathBuf,
}

impl Programs {
    /// Those that were built together with this one: they lie beside it.
    fn find() -> Result<Self> {
        let own = std::env::current_exe().context("cannot tell where this program lies")?;
        let find = |name: &str| {
            let path = own.with_file_name(name);
            ensure!(path.is_file(), "{} is missing: run `make build` first", path.display());
            Ok(path)
        };
        Ok(Self { agent: find("weir-agent")?, cli: find("weir")? })
    }
}

/// For nodes with agents. `verb` is make's.
///
/// # Errors
/// Names what is missing, and what to do about it.
pub(crate) fn nodes(verb: &str) -> Result<Programs> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "network namespaces and BPF programs are only for root: run `sudo make {verb}`"
    );
    let programs = Programs::find()?;
    bpffs::ensure_mounted().context("the agents pin their maps on bpffs")?;
    cgroup::root().context("the agents attach their socket hooks to a cgroup")?;
    Ok(programs)
}

/// For nodes of a Kubernetes cluster. As [`nodes`].
///
/// # Errors
/// As [`nodes`].
pub(crate) fn cluster(verb: &str) -> Result<Programs> {
    let programs = nodes(verb)?;
    if !ApiServer::require(verb) {
        bail!("the API server is missing: run `make bootstrap-bench`");
    }
    Ok(programs)
}

/// For a cluster in which real kube-proxy has its turns, in both of its modes. As [`nodes`].
///
/// # Errors
/// As [`nodes`].
pub(crate) fn beside_kube_proxy(verb: &str) -> Result<Programs> {
    let programs = cluster(verb)?;
    process::built("kube-proxy").context("Weir is compared with it")?;
    for program in ["iptables", "nft"] {
        process::installed(program).context("kube-proxy runs it")?;
    }
    Ok(programs)
}
