//! The command line: the one definition of every option.

mod sizes;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, ValueEnum};
pub(crate) use sizes::SizeOptions;
use weir_abi as abi;
use weir_core::plan::Spread;
use weir_core::source_ports::UNPRIVILEGED;
use weir_datapath::DEFAULT_PIN_DIR;
use weir_telemetry::logging::LogFormat;
use weir_telemetry::server::{HEALTH_ADDRESSES, METRICS_ADDRESS};

use crate::admin::AdminOptions;
use crate::man::ManOptions;
use crate::metrics::MetricsOptions;
use crate::node_ports::NodePortAddresses;

/// Serves Kubernetes Services on this node with eBPF, on the node where traffic arrives first.
///
/// Watches Services, EndpointSlices and Nodes of the Kubernetes API, or reads the same from a file, and keeps the programs
/// and maps of this node right. It can be stopped and started at any time: traffic goes on through what is pinned.
#[derive(Clone, Debug, Parser)]
#[command(name = "weir-agent", version, max_term_width = 120)]
pub(crate) struct Options {
    /// Name of this node in the cluster [default: the host's name]
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub(crate) node_name: Option<String>,
    #[command(flatten)]
    pub(crate) source: SourceOptions,
    #[command(flatten)]
    pub(crate) stage: crate::stage::StageOptions,
    #[command(flatten)]
    pub(crate) service: ServiceOptions,
    #[command(flatten)]
    pub(crate) steering: SteeringOptions,
    #[command(flatten)]
    pub(crate) datapath: DatapathOptions,
    #[command(flatten)]
    pub(crate) sizes: SizeOptions,
    #[command(flatten)]
    pub(crate) page: crate::page::PageOptions,
    #[command(flatten)]
    pub(crate) process: ProcessOptions,
    #[command(flatten)]
    pub(crate) man: ManOptions,
}

/// Where Services come from.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Source")]
pub(crate) struct SourceOptions {
    /// Kubeconfig file; without it the pod's service account, or $KUBECONFIG
    #[arg(long, env = "WEIR_KUBECONFIG", value_name = "FILE", conflicts_with = "static_file")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context within the kubeconfig
    #[arg(long, value_name = "NAME", conflicts_with = "static_file")]
    pub(crate) context: Option<String>,
    /// URLs of API servers, tried in this order, in place of the address that the configuration names. It must not be
    /// the address of a Service: that one is served only after the API server was reached
    #[arg(long, env = "WEIR_API_SERVERS", value_name = "URL", value_delimiter = ',', conflicts_with = "static_file")]
    pub(crate) api_server: Vec<String>,
    /// Read Services, endpoints and nodes from this file in place of the Kubernetes API; read again when it changes.
    /// `weir config check` says beforehand what is wrong with it. Its form, and health checks: docs/bare-metal.md
    #[arg(long = "static", env = "WEIR_STATIC", value_name = "FILE")]
    pub(crate) static_file: Option<PathBuf>,
    /// Serve only Services whose label service.kubernetes.io/service-proxy-name has this value, beside the proxy of all
    /// others: connections that began there are left to it. Without it, Services that have no such label are served
    #[arg(long, value_name = "NAME", default_value = "")]
    pub(crate) service_proxy_name: String,
}

/// How Services are served.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Services")]
pub(crate) struct ServiceOptions {
    /// Which endpoints new connections get where the load does not decide: see --mesh-key-file, --config and the
    /// annotation `weir.dev/policy`. Of services that it does, the policy that nobody has named: `waterfill` for
    /// local-first, `random` for random
    #[arg(long, value_enum, default_value_t = SpreadArg::LocalFirst)]
    pub(crate) spread: SpreadArg,
    /// Configuration file: settings of all Services and of those of a namespace; read again when it changes. Annotations
    /// `weir.dev/...` of a Service come before it
    #[arg(long, env = "WEIR_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Node addresses that serve node ports, and their health checks: `primary` (the node's InternalIPs), `all` (every
    /// address of the node's interfaces but loopback and link-local ones), `localhost` (127.0.0.1 and ::1, for
    /// processes on the host whose socket is bound to neither), or CIDRs of which these and addresses of the node's
    /// interfaces are taken; several add up
    #[arg(long, value_name = "primary|all|localhost|CIDR", value_delimiter = ',', default_value = "primary")]
    pub(crate) nodeport_addresses: Vec<NodePortAddresses>,
    /// Whose address this node takes over towards its own pods, which then see the node in place of the client
    #[arg(long, value_enum, default_value_t = MasqueradeArg::Needed)]
    pub(crate) masquerade: MasqueradeArg,
    /// How clients outside reach endpoints on other nodes. What `dsr` asks of the network: docs/adr/0030-direct-server-return.md
    #[arg(long, value_enum, default_value_t = ExternalModeArg::Snat)]
    pub(crate) external_mode: ExternalModeArg,
    /// Do not serve spec.externalIPs (CVE-2020-8554: whoever may create Services can claim any address)
    #[arg(long)]
    pub(crate) no_external_ips: bool,
    /// Answer echo requests (ping) of pods and clients outside to cluster, load balancer and external IPs that are served
    /// and that this node does not have itself. An answer says that the node serves the address, not that an endpoint works
    #[arg(long)]
    pub(crate) echo_replies: bool,
}

/// What `--spread` says.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum SpreadArg {
    /// Those on this node as long as there are any
    LocalFirst,
    /// All alike, as kube-proxy does
    Random,
}

impl From<SpreadArg> for Spread {
    fn from(spread: SpreadArg) -> Self {
        match spread {
            SpreadArg::LocalFirst => Self::LocalFirst,
            SpreadArg::Random => Self::Random,
        }
    }
}

/// What `--masquerade` says.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum MasqueradeArg {
    /// That of clients whose answers would not come back: a pod that reaches itself
    Needed,
    /// As kube-proxy: also that of all who use external addresses, but under externalTrafficPolicy Local, and of
    /// clients outside that use cluster IPs
    External,
    /// As kube-proxy with --masquerade-all: also that of pods that use cluster IPs
    All,
}

impl MasqueradeArg {
    /// As `CONFIG_MASQUERADE_*`.
    pub(crate) const fn flags(self) -> u32 {
        match self {
            Self::Needed => 0,
            Self::External => abi::CONFIG_MASQUERADE_EXTERNAL,
            Self::All => abi::CONFIG_MASQUERADE_EXTERNAL | abi::CONFIG_MASQUERADE_ALL,
        }
    }
}

/// What `--external-mode` says.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum ExternalModeArg {
    /// With the address of this node, by which the answers come back
    Snat,
    /// With their own address where the endpoint's node has this set, too: it answers them with the service's address. It
    /// takes a mesh key, and nodes that reach each other's pods without a tunnel; others are reached as with `snat`
    Dsr,
}

/// What `--pod-sockets` says.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum PodSocketsArg {
    /// When they are made. A connection to an endpoint that does not answer then fails, and counts as no load
    On,
    /// By packet. One that is not answered goes to another endpoint
    Off,
}

/// How load is measured and told. Shares follow it for all Services if there is a mesh key or a configuration file, else
/// only for those with an annotation `weir.dev/...`.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Steering")]
pub(crate) struct SteeringOptions {
    /// File with the key that the agents of a cluster share: they probe each other, and tell each other their load. One
    /// key a line, in base64 or hexadecimal digits; two while it is replaced. Read again when it changes
    #[arg(long, env = "WEIR_MESH_KEY_FILE", value_name = "FILE")]
    pub(crate) mesh_key_file: Option<PathBuf>,
    /// UDP port at which agents probe each other, the same on all nodes
    // Clear of kube-proxy's (10249, 10256) and node ports.
    #[arg(long, value_name = "PORT", default_value_t = 10299, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) mesh_port: u16,
    /// Control group that is this node, where it may not use all of its machine: its path below the root of cgroups. It
    /// must have a CPU quota
    #[arg(long, value_name = "PATH")]
    pub(crate) node_cgroup: Option<PathBuf>,
    /// Where kubelet puts the groups of pods, if not at the root: its --cgroup-root
    #[arg(long, value_name = "PATH", default_value = "")]
    pub(crate) kubelet_cgroup_root: String,
}

/// Programs and interfaces.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Datapath")]
pub(crate) struct DatapathOptions {
    /// Directory on bpffs for maps and links; they outlive the agent
    #[arg(long, env = "WEIR_PIN_DIR", value_name = "DIR", default_value = DEFAULT_PIN_DIR)]
    pub(crate) pin_dir: PathBuf,
    /// The node's interfaces, `*` at the end matches any rest [default: those with the node's addresses or a default
    /// route]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) nic: Vec<String>,
    /// Interfaces with a pod behind them, besides veths with a peer in another namespace
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) pod_interface: Vec<String>,
    /// Interfaces to keep away from, also tunnels of overlay networks and what has no link headers, such as WireGuard
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) ignore_interface: Vec<String>,
    /// Do not use XDP, not even where the driver runs it natively
    #[arg(long)]
    pub(crate) no_xdp: bool,
    /// Use XDP on veths, too: in nodes that are namespaces or containers. The peers must have checksum offload off
    /// (`ethtool -K PEER tx off`), since XDP cannot tell a checksum that is yet to be completed
    #[arg(long)]
    pub(crate) xdp_on_veth: bool,
    /// Use clsact filters even where the kernel has TCX links (6.6)
    #[arg(long)]
    pub(crate) no_tcx: bool,
    /// Whether TCP connections of this node's pods, too, are translated once, when they are made, and not packet by packet.
    /// It takes the rights to list and watch pods and namespaces, whose annotation `weir.dev/pod-sockets: "off"` keeps
    /// single ones out. What it gains and what it costs: docs/adr/0025-sockets-of-pods.md
    #[arg(long, value_enum, default_value_t = PodSocketsArg::Off)]
    pub(crate) pod_sockets: PodSocketsArg,
    /// Send what clients outside and pods send to pods of this node, and their answers, past the host's stack. Firewall
    /// rules and network policies of the host, bandwidth limits and programs of others at pods' interfaces do not see it:
    /// docs/adr/0031-host-bypass.md
    #[arg(long)]
    pub(crate) host_bypass: bool,
    /// cgroup v2 directory whose processes on the host connect through the socket hooks, or `none` [default: the root
    /// of the hierarchy]
    #[arg(long, env = "WEIR_CGROUP", value_name = "DIR")]
    pub(crate) cgroup: Option<PathBuf>,
    /// Source ports for connections that leave to another node: those among them that nothing on the host uses. Left out
    /// are net.ipv4.ip_local_port_range, net.ipv4.ip_local_reserved_ports, node ports, and ports that a socket is bound
    /// to; where fewer than 4096 are left, every second one of the first of these is taken, too
    #[arg(long, value_name = "FIRST-LAST", default_value = "1024-65535", value_parser = parse_ports)]
    pub(crate) snat_ports: (u16, u16),
    /// Drop packets of connections to vanished endpoints in place of resetting them
    #[arg(long)]
    pub(crate) drop_stale: bool,
    /// Seconds after which an idle UDP flow is forgotten
    // What Linux' connection tracking gives a UDP stream (nf_conntrack_udp_timeout_stream).
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = seconds())]
    pub(crate) udp_idle: u32,
    /// Seconds of silence in both directions after which a TCP connection may lose its source port to another one
    // Longer than Linux takes to find out by its keepalives that nobody is there: 2 hours and 9 times 75 s (tcp(7)).
    #[arg(long, value_name = "SECONDS", default_value_t = 8100, value_parser = seconds())]
    pub(crate) tcp_idle: u32,
    /// The same of a TCP connection that one side has closed
    // kube-proxy's --conntrack-tcp-timeout-close-wait.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = seconds())]
    pub(crate) tcp_half_closed: u32,
    /// New flows in a second on one CPU that are a flood: above it no flow is written for a SYN whose client keeps its
    /// address, only in short where it goes. 0: never. By default 125000, or down to 16384 where the CPUs
    /// together would so leave a flow that begins its place for less than a quarter of a second
    #[arg(long, value_name = "N")]
    pub(crate) flood_rate: Option<u32>,
}

/// From one to a year of them.
fn seconds() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=31_536_000)
}

fn parse_ports(text: &str) -> Result<(u16, u16), String> {
    let wrong = || format!("{text:?} is not a range of ports such as 16384-29999");
    let (first, last) = text.split_once('-').ok_or_else(wrong)?;
    let port = |text: &str| text.parse::<u16>().map_err(|e| format!("{}: {e}", wrong()));
    let (first, last) = (port(first)?, port(last)?);
    if !UNPRIVILEGED.contains(&first) || first > last {
        return Err(format!("{text:?}: the first port must be 1024 or more and not above the last"));
    }
    Ok((first, last))
}

/// The process itself.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Process")]
pub(crate) struct ProcessOptions {
    /// Addresses for /healthz, /livez and /readyz
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', default_values_t = HEALTH_ADDRESSES)]
    pub(crate) health_address: Vec<SocketAddr>,
    /// Addresses for /metrics and /proxyMode
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', default_values_t = [METRICS_ADDRESS])]
    pub(crate) metrics_address: Vec<SocketAddr>,
    #[command(flatten)]
    pub(crate) metrics: MetricsOptions,
    #[command(flatten)]
    pub(crate) admin: AdminOptions,
    /// What to log: error, warn, info, debug, trace, also by module
    #[arg(long, env = "WEIR_LOG", value_name = "FILTER", default_value = "info")]
    pub(crate) log: String,
    /// Form of the log: text or json
    #[arg(long, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_options_are_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn node_port_addresses_are_separated_by_commas() {
        let options = ["weir-agent", "--nodeport-addresses", "primary,localhost,192.0.2.0/24"];
        let options = Options::try_parse_from(options).unwrap();
        assert_eq!(options.service.nodeport_addresses.len(), 3);
    }

    #[test]
    fn a_wrong_port_range_is_refused_with_the_reason() {
        for (text, reason) in [("1-2", "1024 or more"), ("3000-2000", "not above"), ("x", "not a range")] {
            let error = Options::try_parse_from(["weir-agent", "--snat-ports", text]).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
