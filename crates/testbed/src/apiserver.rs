//! A real kube-apiserver on a real etcd, for one test: RBAC on, no controllers, no kubelets.
//!
//! EndpointSlices and Nodes are written by the test itself, see [`crate::objects`]; or by controllers and kubelets that the
//! caller runs beside it, see [`Admission::Cluster`].

use std::fs;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use nix::sys::socket::SockaddrStorage;
use serde_json::json;
use tempfile::TempDir;

use crate::address::Pair;
use crate::audit::Audit;
use crate::netns::{Entry, Netns};
use crate::objects::Objects;
use crate::process::{self, Process};
use crate::{Error, Result, address};

/// How long etcd and the API server together may take to be ready, on a busy machine.
const READY_LIMIT: Duration = Duration::from_secs(120);

/// A name in the server's own certificate that does not depend on where it listens.
const CERTIFICATE_NAME: &str = "kubernetes.default.svc";

/// The two programs.
const ETCD: &str = "etcd";
const SERVER: &str = "kube-apiserver";

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
    const ALL: [Self; 3] = [Self::Admin, Self::Agent, Self::KubeProxy];

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

/// What the API server expects around it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Admission {
    /// Nothing: pods need no service account, for nobody makes any.
    Alone,
    /// Controllers, which make service accounts, and kubelets, which it calls at their nodes' addresses.
    Cluster,
}

/// TCP ports of the two programs.
#[derive(Clone, Copy, Debug)]
struct Ports {
    etcd: u16,
    etcd_peer: u16,
    server: u16,
}

impl Ports {
    fn free() -> Result<Self> {
        let [etcd, etcd_peer, server] = free_ports()?;
        Ok(Self { etcd, etcd_peer, server })
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

    /// Starts etcd and the API server on free ports and waits until it is ready. Without a namespace it listens on
    /// 127.0.0.1 only; inside one it listens on all addresses, so that nodes reach it.
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
        Self::create(&std::env::temp_dir(), netns, Admission::Alone, cluster_ips, false)
    }

    /// As [`ApiServer::start`], with a log of who asked for what: [`ApiServer::audit`].
    ///
    /// # Errors
    /// As [`ApiServer::start`].
    pub fn start_audited(netns: Option<&Netns>) -> Result<Self> {
        Self::create(&std::env::temp_dir(), netns, Admission::Alone, &address::cluster_ips(), true)
    }

    /// As [`ApiServer::start`], with other company, and with all files below the directory `parent`.
    ///
    /// # Errors
    /// As [`ApiServer::start`].
    pub fn start_in(parent: &Path, netns: Option<&Netns>, admission: Admission) -> Result<Self> {
        Self::create(parent, netns, admission, &address::cluster_ips(), false)
    }

    fn create(
        parent: &Path,
        netns: Option<&Netns>,
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
        let look = || Ok((Ports::free()?, first_address(default.addr())?));
        let (ports, advertised) = netns.map_or_else(look, |netns| netns.enter(look))?;
        let tokens = [random_token()?, random_token()?, random_token()?];
        let audit = audited.then(|| Audit::in_directory(directory.path())).transpose()?;
        let mut api = Self {
            server: None,
            etcd: None,
            directory,
            entry: netns.map(Netns::entry),
            ports,
            admission,
            advertised,
            cluster_ips: cluster_ips.to_vec(),
            audit,
            tokens,
            kubeconfigs: AtomicU32::new(0),
        };
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
        self.url_at(Ipv4Addr::LOCALHOST.into())
    }

    /// Its URL at another address of its namespace.
    #[must_use]
    pub fn url_at(&self, ip: IpAddr) -> String {
        format!("https://{}", SocketAddr::new(ip, self.port()))
    }

    /// The file with the certificate that clients trust.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.path("certificates/apiserver.crt")
    }

    /// The file with the key that signs the tokens of service accounts: the controller manager needs it, too.
    #[must_use]
    pub fn service_account_key(&self) -> PathBuf {
        // It makes this key for its own certificate before it reads it for service accounts.
        self.path("certificates/apiserver.key")
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
        let kubeconfig = self.kubeconfig(User::Admin, &self.url())?;
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            self.fail_if_ended()?;
            // It writes its certificate when it first starts: who reads it too early gets none, or half of it.
            let objects = Objects::connect(&kubeconfig, self.entry.clone());
            let Err(unready) = objects.and_then(|objects| objects.check_ready()) else { return Ok(()) };
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

    fn etcd_command(&self) -> Result<Command> {
        let Ports { etcd, etcd_peer, server: _ } = self.ports;
        let (client, peer) = (format!("http://127.0.0.1:{etcd}"), format!("http://127.0.0.1:{etcd_peer}"));
        let mut command = Command::new(process::installed(ETCD)?);
        command.arg("--data-dir").arg(self.path("etcd"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("default={peer}"), "--logger", "zap", "--log-level", "warn"]);
        // The data dies with the test.
        command.arg("--unsafe-no-fsync");
        Ok(command)
    }

    fn server_command(&self) -> Result<Command> {
        let certificates = self.path("certificates");
        let key = self.service_account_key();
        let bind = if self.entry.is_some() { "::" } else { "127.0.0.1" };
        let services = self.cluster_ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let mut command = Command::new(process::built(SERVER)?);
        command.arg(format!("--etcd-servers=http://127.0.0.1:{}", self.ports.etcd));
        command.args([format!("--bind-address={bind}"), format!("--secure-port={}", self.ports.server)]);
        command.args([format!("--advertise-address={}", self.advertised)]);
        command.arg(format!("--service-cluster-ip-range={services}"));
        command.arg(format!("--cert-dir={}", certificates.display()));
        command.arg(format!("--token-auth-file={}", self.path("tokens.csv").display()));
        command.arg(format!("--service-account-key-file={}", key.display()));
        command.arg(format!("--service-account-signing-key-file={}", key.display()));
        command.args(["--authorization-mode=RBAC", "--service-account-issuer=https://kubernetes.default.svc"]);
        command.args(["--allow-privileged=true", "--profiling=false"]);
        command.args(self.audit.iter().flat_map(Audit::options));
        command.arg(match self.admission {
            // No controller makes the default service accounts that this plug-in would wait for.
            Admission::Alone => "--disable-admission-plugins=ServiceAccount",
            Admission::Cluster => "--kubelet-preferred-address-types=InternalIP",
        });
        Ok(command)
    }

    fn write_tokens(&self) -> Result<()> {
        let path = self.path("tokens.csv");
        let lines = User::ALL.iter().map(|user| {
            let (token, name, groups) = (self.token(*user), user.name(), user.groups());
            format!("{token},{name},{name},\"{groups}\"\n")
        });
        let content: String = lines.collect();
        let mut options = fs::File::options();
        options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(content.as_bytes()))
            .map_err(Error::file("write", &path))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// TCP ports that are free on the loopback of the calling thread's namespace.
pub(crate) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let listen = |_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let ports = || {
        // All are held at once: otherwise the same one might come twice.
        let held = (0..N).map(listen).collect::<std::io::Result<Vec<_>>>()?;
        let mut ports = [0; N];
        for (port, listener) in ports.iter_mut().zip(&held) {
            *port = listener.local_addr()?.port();
        }
        Ok(ports)
    };
    ports().map_err(Error::io("find free ports"))
}

/// The address that the service `default/kubernetes` gets: the calling thread's namespace's first one of the family of
/// `like` that others can reach.
fn first_address(like: IpAddr) -> Result<IpAddr> {
    /// Nobody's; valid and unused where a namespace has only loopback.
    const NOWHERE: Pair = Pair { v4: Ipv4Addr::new(192, 0, 2, 1), v6: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1) };
    let interfaces = nix::ifaddrs::getifaddrs().map_err(Error::nix("list addresses"))?;
    let of_family = |address: SockaddrStorage| match like {
        IpAddr::V4(_) => address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip())),
        IpAddr::V6(_) => address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())),
    };
    let is_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let mut addresses = interfaces.filter_map(|interface| of_family(interface.address?));
    Ok(addresses.find(|ip| !ip.is_loopback() && !is_local(ip)).unwrap_or_else(|| NOWHERE.like(like)))
}

fn random_token() -> Result<String> {
    let mut bytes = [0; TOKEN_BYTES];
    let mut source = fs::File::open("/dev/urandom").map_err(Error::io("open /dev/urandom"))?;
    std::io::Read::read_exact(&mut source, &mut bytes).map_err(Error::io("read /dev/urandom"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
