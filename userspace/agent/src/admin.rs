//! The admin socket: what `weir` on this node asks, and nobody else may.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use clap::Args;
use tokio_util::sync::CancellationToken;
use tracing::warn;
use weir_datapath::PinDir;
use weir_telemetry::admin::{AdminSocket, default_path};
use weir_telemetry::server::{ProbeCounters, Probes, health_router};

/// Where people on this node ask.
#[derive(Args, Clone, Debug)]
pub(crate) struct AdminOptions {
    /// Unix socket that `weir` asks; root and the agent's own user get answers. `none`: there is no such socket [default:
    /// /run/weir/agent.sock, for a pin directory of another NAME than weir /run/weir/NAME.sock]
    #[arg(long, env = "WEIR_ADMIN_SOCKET", value_name = "FILE|none")]
    admin_socket: Option<PathBuf>,
}

impl AdminOptions {
    fn path(&self, pins: &PinDir) -> Option<PathBuf> {
        match &self.admin_socket {
            Some(path) if path.as_os_str() == "none" => None,
            Some(path) => Some(path.clone()),
            None => Some(default_path(pins.root())),
        }
    }
}

/// Listens where the options say. Services are served without a socket as well, so it never keeps an agent from starting.
pub(crate) fn open(options: &AdminOptions, pins: &PinDir) -> Option<AdminSocket> {
    let socket = AdminSocket::bind(&options.path(pins)?);
    socket.inspect_err(|error| warn!("`weir weights`, `explain` and `status` cannot ask this agent: {error}")).ok()
}

/// Answers how the agent fares and what it decides, until `stop`. Questions from here are not among those that are counted
/// as probes.
pub(crate) async fn serve(
    socket: Option<AdminSocket>,
    probes: Arc<dyn Probes>,
    weights: Router,
    stop: CancellationToken,
) {
    if let Some(socket) = socket {
        socket.serve(health_router(probes, &ProbeCounters::default()).merge(weights), stop).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_where_the_option_says_else_where_the_pins_say() {
        let path = |option: Option<&str>, pins: &str| {
            let options = AdminOptions { admin_socket: option.map(PathBuf::from) };
            options.path(&PinDir::new(pins)).map(|path| path.display().to_string())
        };
        assert_eq!(path(None, "/sys/fs/bpf/weir").as_deref(), Some("/run/weir/agent.sock"));
        assert_eq!(path(None, "/sys/fs/bpf/two").as_deref(), Some("/run/weir/two.sock"));
        assert_eq!(path(Some("/a/b"), "/sys/fs/bpf/weir").as_deref(), Some("/a/b"));
        assert_eq!(path(Some("none"), "/sys/fs/bpf/weir"), None);
    }
}
