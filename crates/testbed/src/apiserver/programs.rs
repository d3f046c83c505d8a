//! The two programs, with their options and ports.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4};
use std::process::Command;

use nix::sys::socket::SockaddrStorage;

use super::{Admission, ApiServer, CERTIFICATES, certificate};
use crate::address::Pair;
use crate::audit::Audit;
use crate::{Error, Result, loopback, process};

pub(super) const ETCD: &str = "etcd";
pub(super) const SERVER: &str = "kube-apiserver";

/// TCP ports of the two programs, at [`loopback::address`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    pub(super) etcd: u16,
    pub(super) etcd_peer: u16,
    pub(super) server: u16,
}

impl Ports {
    pub(super) fn new() -> Result<Self> {
        let [etcd, etcd_peer, server] = loopback::ports()?;
        Ok(Self { etcd, etcd_peer, server })
    }

    /// Where etcd has its clients.
    pub(super) fn etcd_url(&self) -> String {
        url(self.etcd)
    }
}

impl ApiServer {
    pub(super) fn etcd_command(&self) -> Result<Command> {
        let (client, peer) = (self.ports.etcd_url(), url(self.ports.etcd_peer));
        let mut command = Command::new(process::installed(ETCD)?);
        command.arg("--data-dir").arg(self.path("etcd"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("default={peer}"), "--logger", "zap", "--log-level", "warn"]);
        // The data dies with the test.
        command.arg("--unsafe-no-fsync");
        Ok(command)
    }

    pub(super) fn server_command(&self) -> Result<Command> {
        let key = self.service_account_key();
        let bind = if self.entry.is_some() { Ipv6Addr::UNSPECIFIED.into() } else { IpAddr::V4(loopback::address()) };
        let services = self.cluster_ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let mut command = Command::new(process::built(SERVER)?);
        // Most of what it does for a test is to start: it collects garbage less often meanwhile, for a seventh less of CPU time.
        command.env("GOGC", "400");
        command.arg(format!("--etcd-servers={}", self.ports.etcd_url()));
        command.args([format!("--bind-address={bind}"), format!("--secure-port={}", self.ports.server)]);
        command.args([format!("--advertise-address={}", self.advertised)]);
        command.arg(format!("--service-cluster-ip-range={services}"));
        command.arg(format!("--tls-cert-file={}", self.certificate().display()));
        command.arg(format!("--tls-private-key-file={}", key.display()));
        command.arg(format!("--token-auth-file={}", self.path("tokens.csv").display()));
        let public = self.path(CERTIFICATES).join(certificate::PUBLIC_KEY);
        command.arg(format!("--service-account-key-file={}", public.display()));
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
}

fn url(port: u16) -> String {
    format!("http://{}", SocketAddrV4::new(loopback::address(), port))
}

/// The address that the service `default/kubernetes` gets: the calling thread's namespace's first one of the family of
/// `like` that others can reach.
pub(super) fn first_address(like: IpAddr) -> Result<IpAddr> {
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
