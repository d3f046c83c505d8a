//! The control plane: API server, controllers and scheduler, in the namespace of the world's router.

use std::path::{Path, PathBuf};

use anyhow::Result;
use weir_testbed::apiserver::User;
use weir_testbed::objects::Objects;
use weir_testbed::{Admission, ApiServer, Process, World, address};

use super::programs::Programs;

/// The running control plane. Ended on drop.
#[derive(Debug)]
pub(super) struct ControlPlane {
    _scheduler: Process,
    _controllers: Process,
    kubeconfig: PathBuf,
    agent_kubeconfig: PathBuf,
    api: ApiServer,
}

impl ControlPlane {
    /// Starts all three with their files in `directory`; the API server is ready on return.
    ///
    /// # Errors
    /// When one cannot be started.
    pub(super) fn start(world: &World, programs: &Programs, directory: &Path) -> Result<Self> {
        let api = ApiServer::start_in(directory, Some(world.router()), Admission::Cluster)?;
        let url = api.url_at(address::ROUTER_INSIDE.v4.into());
        let kubeconfig = api.kubeconfig(User::Admin, &url)?;
        let agent_kubeconfig = api.kubeconfig(User::Agent, &url)?;
        let start = |name: &str, more: &[String]| {
            let mut command = world.router().command(programs.built(name));
            command.arg(format!("--kubeconfig={}", kubeconfig.display()));
            command.args(["--leader-elect=false", "--bind-address=127.0.0.1"]).args(more);
            Process::start(command, name, &directory.join(format!("{name}.log")))
        };
        let controllers = start(
            "kube-controller-manager",
            &[
                format!("--service-account-private-key-file={}", api.service_account_key().display()),
                format!("--root-ca-file={}", api.certificate().display()),
                "--use-service-account-credentials".into(),
            ],
        )?;
        let scheduler = start("kube-scheduler", &[])?;
        Ok(Self { _scheduler: scheduler, _controllers: controllers, kubeconfig, agent_kubeconfig, api })
    }

    /// A kubeconfig for the administrator, by way of the router's address.
    pub(super) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A kubeconfig for weir-agent, whose rights are only those that it is given.
    pub(super) fn agent_kubeconfig(&self) -> &Path {
        &self.agent_kubeconfig
    }

    /// The port of the API server.
    pub(super) fn port(&self) -> u16 {
        self.api.port()
    }

    /// A client for the administrator.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(super) fn objects(&self) -> Result<Objects> {
        Ok(self.api.objects()?)
    }
}
