//! A real kube-apiserver on a real etcd, for a test, or for one after the other: RBAC on, no controllers, no kubelets.
//!
//! EndpointSlices and Nodes are written by the test itself, see [`crate::objects`]; or by controllers and kubelets that the
//! caller runs beside it, see [`Admission::Cluster`].

mod certificate;
mod lent;
mod programs;
mod store;
mod users;

use std::fs;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use serde_json::json;
use tempfile::TempDir;

use crate::address::Pair;
use crate::audit::Audit;
use crate::netns::{Entry, Netns};
use crate::objects::Objects;
use crate::process::{self, Process};
use crate::{Error, Result, address, loopback};
pub use lent::Lent;
use programs::{ETCD, Ports, SERVER, first_address};
pub use users::User;
use users::random_token;

/// How long etcd and the API server together may take to be ready, on a busy machine.
const READY_LIMIT: Duration = Duration::from_secs(120);

/// A name in the server's own certificate that does not depend on where it listens.
const CERTIFICATE_NAME: &str = "kubernetes.default.svc";

/// Where its certificate and key are, in its directory.
const CERTIFICATES: &str = "certificates";

/// What the API server expects around it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Admission {
    /// Nothing: pods need no service account, for nobody makes any.
    Alone,
    /// Controllers, which make service accounts, and kubelets, which it calls at their nodes' addresses.
    Cluster,
}

/// Where an API server listens.
#[derive(Clone, Copy, Debug)]
enum Place<'a> {
    /// On the loopback of the calling thread's namespace.
    Loopback,
    /// At all addresses of a namespace.
    Inside(&'a Netns),
    /// On loopback, too; what comes to this address is led there.
    Behind(Pair),
}

impl<'a> Place<'a> {
    fn of(netns: Option<&'a Netns>) -> Self {
        netns.map_or(Self::Loopback, Self::Inside)
    }

    const fn netns(self) -> Option<&'a Netns> {
        match self {
            Self::Inside(netns) => Some(netns),
            Self::Loopback | Self::Behind(_) => None,
        }
    }
}

/// A running (or stopped) API server with its data. Everything is ended and removed on drop.
#[derive(Debug)]
pub struct ApiServer {
    // Processes go before the directory that they write to.
    server: Option<Process>,
    etcd: Option<Process>,
    directory: TempDir,
    entry: Option<Entry>,
    ports: Ports,
    admission: Admission,
    advertised: IpAddr,
    cluster_ips: Vec<IpNet>,
    audit: Option<Audit>,
    tokens: [String; User::ALL.len()],
    kubeconfigs: AtomicU32,
}

impl ApiServer {
    /// True when the programs are installed. Otherwise says on stderr that `what` is skipped, and why, and returns false.
    #[must_use]
    pub fn require(what: &str) -> bool {
        let missing = process::built(SERVER).and_then(|_| process::installed(ETCD)).err();
        if let Some(error) = &missing {
            eprintln!("SKIPPED: {what}: {error}");
        }
        missing.is_none()
    }

    /// Starts etcd and the API server on ports of their own and waits until it is ready. Without a namespace it listens on
    /// loopback only; inside one it listens on all addresses, so that nodes reach it.
    ///
    /// # Errors
    /// When a program is missing or does not get ready; the error quotes its log.
    pub fn start(netns: Option<&Netns>) -> Result<Self> {
        Self::start_in(&std::env::temp_dir(), netns, Admission::Alone)
    }

    /// As [`ApiServer::start`], with cluster IPs of these ranges: one family, or both, of which the first is the default.
    ///
    /// # Errors
    /// As [`ApiServer::start`], and when there is no range.
    pub fn start_with(netns: Option<&Netns>, cluster_ips: &[IpNet]) -> Result<Self> {
        Self::create(&std::env::temp_dir(), Place::of(netns), Admission::Alone, cluster_ips, false)
    }

    /// As [`ApiServer::start`], with a log of who asked for what: [`ApiServer::audit`].
    ///
    /// # Errors
    /// As [`ApiServer::start`].
    pub fn start_audited(netns: Option<&Netns>) -> Result<Self> {
        Self::create(&std::env::temp_dir(), Place::of(netns), Admission::Alone, &address::cluster_ips(), true)
    }

    /// As [`ApiServer::start`], with other company, and with all files below the directory `parent`.
    ///
    /// # Errors
    /// As [`ApiServer::start`].
    pub fn start_in(parent: &Path, netns: Option<&Netns>, admission: Admission) -> Result<Self> {
        Self::create(parent, Place::of(netns), admission, &address::cluster_ips(), false)
    }

    fn create(
        parent: &Path,
        place: Place<'_>,
        admission: Admission,
        cluster_ips: &[IpNet],
        audited: bool,
    ) -> Result<Self> {
        let default = cluster_ips.first().ok_or_else(|| Error::Invalid("no range of cluster IPs".into()))?;
        let directory = tempfile::Builder::new()
            .prefix("weir-apiserver-")
            .tempdir_in(parent)
            .map_err(Error::io("create a directory for the API server"))?;
        // The server insists on one family for its own address and the default range.
        let look = || first_address(default.addr());
        let advertised = match place {
            Place::Loopback => look()?,
            Place::Inside(netns) => netns.enter(look)?,
            Place::Behind(entrance) => entrance.like(default.addr()),
        };
        let tokens = [random_token()?, random_token()?, random_token()?];
        let audit = audited.then(|| Audit::in_directory(directory.path())).transpose()?;
        let mut api = Self {
            server: None,
            etcd: None,
            directory,
            entry: place.netns().map(Netns::entry),
            ports: Ports::new()?,
            admission,
            advertised,
            cluster_ips: cluster_ips.to_vec(),
            audit,
            tokens,
            kubeconfigs: AtomicU32::new(0),
        };
        certificate::write(&api.path(CERTIFICATES), advertised, cluster_ips)?;
        api.write_tokens()?;
        api.start_again()?;
        Ok(api)
    }

    /// Ends the API server as a crash would; etcd and with it all objects stay.
    ///
    /// # Errors
    /// When it cannot be ended.
    pub fn stop(&mut self) -> Result<()> {
        self.server.take().map_or(Ok(()), |server| server.kill().map(drop))
    }

    /// Starts it again on the same port with the same objects, and waits until it is ready. Does nothing while it runs.
    ///
    /// # Errors
    /// As [`ApiServer::start`].
    pub fn start_again(&mut self) -> Result<()> {
        if self.etcd.is_none() {
            self.etcd = Some(self.launch(self.etcd_command()?, ETCD)?);
        }
        if self.server.is_none() {
            self.server = Some(self.launch(self.server_command()?, SERVER)?);
        }
        self.await_ready()
    }

    /// The port that it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.ports.server
    }

    /// Its URL on the loopback of its namespace.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_at(loopback::address().into())
    }

    /// Its URL at another address of its namespace.
    #[must_use]
    pub fn url_at(&self, ip: IpAddr) -> String {
        format!("https://{}", SocketAddr::new(ip, self.port()))
    }

    /// The file with the certificate that clients trust.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.path(CERTIFICATES).join(certificate::CERTIFICATE)
    }

    /// The file with the key of the certificate, which also signs the tokens of service accounts: the controller manager needs it, too.
    #[must_use]
    pub fn service_account_key(&self) -> PathBuf {
        self.path(CERTIFICATES).join(certificate::KEY)
    }

    /// The bearer token of a user.
    #[must_use]
    pub fn token(&self, user: User) -> &str {
        let [admin, agent, kube_proxy] = &self.tokens;
        match user {
            User::Admin => admin,
            User::Agent => agent,
            User::KubeProxy => kube_proxy,
        }
    }

    /// Writes a kubeconfig file with which a user reaches the server at `server_url`. The file lives as long as `self`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn kubeconfig(&self, user: User, server_url: &str) -> Result<PathBuf> {
        let number = self.kubeconfigs.fetch_add(1, Ordering::Relaxed);
        let path = self.path(&format!("kubeconfig-{number}.yaml"));
        let content = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {
                "server": server_url,
                "certificate-authority": self.certificate(),
                "tls-server-name": CERTIFICATE_NAME,
            }}],
            "users": [{"name": "user", "user": {"token": self.token(user)}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
            "current-context": "test",
        });
        // JSON is YAML.
        fs::write(&path, content.to_string()).map_err(Error::file("write", &path))?;
        Ok(path)
    }

    /// What the server was asked, if it was started with [`ApiServer::start_audited`].
    #[must_use]
    pub fn audit(&self) -> Option<&Audit> {
        self.audit.as_ref()
    }

    /// A client for the admin, that talks from inside the server's namespace.
    ///
    /// # Errors
    /// When the client cannot be made.
    pub fn objects(&self) -> Result<Objects> {
        Objects::connect(&self.kubeconfig(User::Admin, &self.url())?, self.entry.clone())
    }

    fn await_ready(&mut self) -> Result<()> {
        let objects = self.objects()?;
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            self.fail_if_ended()?;
            let Err(unready) = objects.check_ready() else { return Ok(()) };
            if Instant::now() > deadline {
                let detail = format!("; seen last: {unready}");
                return Err(Error::Timeout { what: "the API server's readiness".into(), limit: READY_LIMIT, detail });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn fail_if_ended(&mut self) -> Result<()> {
        for (name, process) in [(ETCD, &mut self.etcd), (SERVER, &mut self.server)] {
            let Some(running) = process else { continue };
            if let Some(status) = running.exit_status()? {
                let message = running.log_tail();
                *process = None;
                return Err(Error::Command { command: name.into(), status: status.to_string(), message });
            }
        }
        Ok(())
    }

    fn launch(&self, mut command: Command, name: &str) -> Result<Process> {
        if let Some(entry) = &self.entry {
            entry.attach(&mut command);
        }
        Process::start(command, name, &self.path(&format!("{name}.log")))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// Writes a file that is not there yet, for those whom its mode names.
fn write_new(path: &Path, mode: u32, content: &str) -> Result<()> {
    let file = fs::File::options().write(true).create_new(true).mode(mode).open(path);
    file.and_then(|mut file| file.write_all(content.as_bytes())).map_err(Error::file("write", path))
}
