//! A real kube-proxy on a node, in mode nftables, iptables or ipvs: what Weir replaces, stands beside, and is compared with.

use std::fs;
use std::net::{IpAddr, SocketAddr, SocketAddrV4};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::json;
use tempfile::TempDir;

use crate::apiserver::User;
use crate::netns::Entry;
use crate::process::{self, Process};
use crate::{ApiServer, Error, Node, Result, address, ip, loopback, wait};

/// The programs: kube-proxy runs one of the others for each change of its rules.
const KUBE_PROXY: &str = "kube-proxy";
const NFT: &str = "nft";
const IPTABLES: [&str; 2] = ["iptables", "ip6tables"];

/// What it needs in mode ipvs, besides iptables.
const IPVS: [&str; 2] = ["ipset", "ipvsadm"];
const IPVS_OF_KERNEL: &str = "/proc/net/ip_vs";
const IPVS_MODULE: &str = "ip_vs";

/// The Debian packages of them.
const NFT_PACKAGE: &str = "nftables";
const IPTABLES_PACKAGE: &str = "iptables";

/// Its table of nftables, one in each family.
const TABLE: &str = "kube-proxy";
const FAMILIES: [&str; 2] = ["ip", "ip6"];

/// The last rule of its first chain of iptables: the others are there, too, then.
const LAST_RULE: &str = "-j KUBE-NODEPORTS";
/// In mode ipvs a rule of the last chain that it fills.
const LAST_RULE_OF_IPVS: &str = "-A KUBE-FORWARD";

/// After which IPVS forgets connections of which one side has closed, and datagrams.
const IPVS_TIMEOUT: &str = "5s";

/// As kube-proxy has it unless told.
const SYNC_PERIOD: Duration = Duration::from_secs(30);

/// How long the first rules may take on a busy machine.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// How kube-proxy makes its rules.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// Tables of nftables, with maps.
    Nftables,
    /// Chains of iptables, the default of Kubernetes for years.
    Iptables,
    /// Virtual servers of IPVS, with some chains of iptables. What nobody uses is forgotten soon.
    Ipvs,
}

impl Mode {
    /// As in kube-proxy's configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
        }
    }
}

/// kube-proxy on one node. On drop it is killed and its rules are removed.
#[derive(Debug)]
pub struct KubeProxy {
    mode: Mode,
    // Taken on drop: its rules go after it.
    process: Option<Process>,
    entry: Entry,
    /// The node's own addresses, which serve node ports.
    node: address::Pair,
    directory: TempDir,
}

impl KubeProxy {
    /// True when the programs for nftables are installed. Otherwise says on stderr that `what` is skipped, and why, and returns
    /// false.
    #[must_use]
    pub fn require(what: &str) -> bool {
        let missing = process::built(KUBE_PROXY)
            .and_then(|_| process::installed(NFT))
            .and_then(|_| process::installed(IPTABLES[0]))
            .err();
        if let Some(error) = &missing {
            eprintln!("SKIPPED: {what}: {error}");
        }
        missing.is_none()
    }

    /// True when mode ipvs runs here. Otherwise says so, as [`KubeProxy::require`] does. Has the kernel load its module.
    #[must_use]
    pub fn require_ipvs(what: &str) -> bool {
        if let Some(error) = IPVS.iter().find_map(|program| process::installed(program).err()) {
            eprintln!("SKIPPED: {what}: {error}");
            return false;
        }
        // It fails where IPVS is built in, and where there is none.
        let _ = Command::new("modprobe").arg(IPVS_MODULE).output();
        let known = Path::new(IPVS_OF_KERNEL).exists();
        if !known {
            eprintln!("SKIPPED: {what}: this kernel has no IPVS; `deploy/dev/vm.sh` runs it on one that has");
        }
        known
    }

    /// Starts it in mode nftables on a node that the API server knows with its addresses, and waits for its first rules. `server_url` is
    /// where the node reaches the API server. Its ports for health and metrics are its own: another proxy may
    /// have the usual ones.
    ///
    /// # Errors
    /// When a program is missing, or no rules come in time; the error quotes its log.
    pub fn start(api: &ApiServer, server_url: &str, node: &Node) -> Result<Self> {
        Self::start_in(Mode::Nftables, api, server_url, node)
    }

    /// As [`KubeProxy::start`], in any mode.
    ///
    /// # Errors
    /// As [`KubeProxy::start`].
    pub fn start_in(mode: Mode, api: &ApiServer, server_url: &str, node: &Node) -> Result<Self> {
        Self::start_within(READY_LIMIT, SYNC_PERIOD, mode, api, server_url, node)
    }

    /// As [`KubeProxy::start_in`], with more patience with its first rules: thousands of services take minutes. Changes are in its rules at
    /// once; `sync_period` is how often it looks at rules that nothing has changed.
    ///
    /// # Errors
    /// As [`KubeProxy::start`].
    pub fn start_within(
        limit: Duration,
        sync_period: Duration,
        mode: Mode,
        api: &ApiServer,
        server_url: &str,
        node: &Node,
    ) -> Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("weir-kube-proxy-")
            .tempdir()
            .map_err(Error::io("create a directory for kube-proxy"))?;
        let [healthz, metrics] = loopback::ports()?.map(|port| SocketAddrV4::new(loopback::address(), port));
        let periods = json!({"syncPeriod": format!("{}s", sync_period.as_secs())});
        let config = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": mode.name(),
            "hostnameOverride": node.name(),
            "bindAddress": node.address().v4,
            "clientConnection": {"kubeconfig": api.kubeconfig(User::KubeProxy, server_url)?},
            "clusterCIDR": address::pod_ips().map(|prefix: IpNet| prefix.to_string()).join(","),
            "healthzBindAddress": healthz,
            "metricsBindAddress": metrics,
            // The limits of the whole machine need CAP_SYS_RESOURCE.
            "conntrack": {"maxPerCore": 0},
            "iptables": periods,
            "nftables": periods,
            "ipvs": {"tcpFinTimeout": IPVS_TIMEOUT, "udpTimeout": IPVS_TIMEOUT},
            "oomScoreAdj": 0,
        });
        let path = directory.path().join("config.yaml");
        // JSON is YAML.
        fs::write(&path, config.to_string()).map_err(Error::file("write", &path))?;
        let mut command = node.netns().command(process::built(KUBE_PROXY)?);
        command.arg(format!("--config={}", path.display()));
        let started = Process::start(command, KUBE_PROXY, &directory.path().join("kube-proxy.log"))?;
        let (entry, node) = (node.netns().entry(), node.address());
        let mut proxy = Self { mode, process: Some(started), entry, node, directory };
        proxy.await_rules(limit)?;
        Ok(proxy)
    }

    /// Whether it has a rule of nftables for connections to an address and port; of the node's own addresses the port is
    /// a node port. `protocol` is `TCP`, `UDP` or `SCTP`.
    ///
    /// # Errors
    /// When `nft` cannot be run.
    pub fn serves(&self, protocol: &str, target: SocketAddr) -> Result<bool> {
        let (ip, port, protocol) = (target.ip(), target.port(), protocol.to_lowercase());
        let (map, key) = if self.node.both().contains(&ip) {
            ("service-nodeports", format!("{{ {protocol} . {port} }}"))
        } else {
            ("service-ips", format!("{{ {ip} . {protocol} . {port} }}"))
        };
        finds(&self.entry, &["get", "element", family(ip), TABLE, map, &key])
    }

    /// Keeps it from running until [`KubeProxy::resume`]; its rules stay in force.
    ///
    /// # Errors
    /// When it is gone.
    pub fn pause(&self) -> Result<()> {
        self.process.as_ref().map_or(Ok(()), Process::pause)
    }

    /// Lets it run again.
    ///
    /// # Errors
    /// When it is gone.
    pub fn resume(&self) -> Result<()> {
        self.process.as_ref().map_or(Ok(()), Process::resume)
    }

    /// What it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("kube-proxy.log")).unwrap_or_default()
    }

    /// Ends it as whoever takes it off a node does: its rules stay, until this is dropped.
    ///
    /// # Errors
    /// When it cannot be ended.
    pub fn leave(&mut self) -> Result<()> {
        self.process.take().map_or(Ok(()), |process| process.kill().map(drop))
    }

    /// Ends it and removes its rules.
    ///
    /// # Errors
    /// When it cannot be ended or its rules cannot be removed.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    /// Its first transaction brings all rules.
    fn await_rules(&mut self, limit: Duration) -> Result<()> {
        let look = || {
            let process = self.process.as_mut().map(Process::exit_status);
            if let Some(Ok(Some(status))) = process {
                return Ok(Some(status));
            }
            match missing_rules(self.mode, &self.entry).map_err(|error| error.to_string())? {
                Some(missing) => Err(format!("no {missing}")),
                None => Ok(None),
            }
        };
        let ended = wait::until_some("kube-proxy's first rules", limit, look)?;
        ended.map_or(Ok(()), |status| {
            let message = self.process.take().map(|process| process.log_tail()).unwrap_or_default();
            Err(Error::Command { command: KUBE_PROXY.into(), status: status.to_string(), message })
        })
    }

    /// Kills it and removes its rules, if it has made some.
    fn end(&mut self) -> Result<()> {
        let killed = self.process.take().map_or(Ok(()), |process| process.kill().map(drop));
        match self.mode {
            Mode::Nftables => FAMILIES
                .iter()
                .try_for_each(|family| finds(&self.entry, &["delete", "table", family, TABLE]).map(drop))?,
            Mode::Iptables => self.clean_up()?,
            // It fails the first time, at chains that those of mode ipvs lead to, and removes these.
            Mode::Ipvs => self.clean_up().or_else(|_| self.clean_up())?,
        }
        killed
    }

    /// Its chains have jumps from all built-in ones; it knows best which.
    fn clean_up(&self) -> Result<()> {
        let mut command = Command::new(process::built(KUBE_PROXY)?);
        command.args(["--cleanup", "--conntrack-max-per-core=0"]);
        self.entry.attach(&mut command);
        ip::checked(command, KUBE_PROXY).map(drop)
    }
}

/// What is not there yet of the first rules.
fn missing_rules(mode: Mode, entry: &Entry) -> Result<Option<String>> {
    match mode {
        Mode::Nftables => {
            for family in FAMILIES {
                if !finds(entry, &["list", "map", family, TABLE, "service-ips"])? {
                    return Ok(Some(format!("table {family} {TABLE}")));
                }
            }
            Ok(None)
        }
        Mode::Iptables => missing_rule(entry, ["nat", "KUBE-SERVICES"], LAST_RULE),
        Mode::Ipvs => missing_rule(entry, ["filter", "KUBE-FORWARD"], LAST_RULE_OF_IPVS),
    }
}

/// Of which program of iptables the rule is missing that comes last, in a table and chain.
fn missing_rule(entry: &Entry, [table, chain]: [&str; 2], last: &str) -> Result<Option<String>> {
    for program in IPTABLES {
        let mut command = Command::new(program);
        command.args(["-w", "-t", table, "-S", chain]);
        entry.attach(&mut command);
        let rules = match ip::checked(command, IPTABLES_PACKAGE) {
            Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
            // There is no such chain.
            Err(Error::Command { .. }) => String::new(),
            Err(error) => return Err(error),
        };
        if !rules.contains(last) {
            return Ok(Some(format!("rules of {program}")));
        }
    }
    Ok(None)
}

impl Drop for KubeProxy {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("---- log of kube-proxy on {}\n{}", self.node.v4, self.log());
        }
        if let Err(error) = self.end() {
            eprintln!("{error}");
        }
    }
}

fn family(ip: IpAddr) -> &'static str {
    if ip.is_ipv6() { "ip6" } else { "ip" }
}

/// Runs `nft`; false when what it names does not exist.
fn finds(entry: &Entry, arguments: &[&str]) -> Result<bool> {
    loop {
        let mut command = Command::new(NFT);
        command.args(arguments);
        entry.attach(&mut command);
        match ip::checked(command, NFT_PACKAGE) {
            Ok(_) => return Ok(true),
            Err(Error::Command { message, .. }) if message.contains("No such file or directory") => return Ok(false),
            // kube-proxy has changed the rules meanwhile (EINTR of nf_tables: another generation).
            Err(Error::Command { message, .. }) if message.contains("Interrupted system call") => {}
            Err(error) => return Err(error),
        }
    }
}
