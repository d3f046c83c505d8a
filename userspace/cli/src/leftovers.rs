//! What kube-proxy leaves behind in the kernel: tables and chains of nftables, chains of iptables, virtual servers and
//! sets of IPVS.
//! Only looks; `weir migrate` removes.

use std::fs;
use std::io::{self, ErrorKind};
use std::process::Command;

use anyhow::{Context, Result, bail};
use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer, NlasIterator};
use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};
use weir_migration::iptables::is_kube_proxys;

use crate::migrate::Ipvs;

/// Tables of kube-proxy's nftables mode.
const TABLE: &str = "kube-proxy";

/// `NFNL_SUBSYS_NFTABLES` of linux/netfilter/nfnetlink.h.
const NFTABLES: u16 = 10;
/// `NFT_MSG_GETTABLE` and `NFT_MSG_GETCHAIN` of linux/netfilter/nf_tables.h.
const GET_TABLE: u16 = 1;
const GET_CHAIN: u16 = 4;
/// `NFTA_TABLE_NAME` and `NFTA_CHAIN_TABLE`, then `NFTA_CHAIN_NAME`.
const TABLE_NAME: u16 = 1;
const CHAIN_NAME: u16 = 3;
/// Bytes of `struct nlmsghdr` and of `struct nfgenmsg`.
const HEADER: usize = 16;
const FAMILY_HEADER: usize = 4;

/// What was found.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Leftovers {
    /// Families with a table of the nftables mode: `ip`, `ip6`.
    pub(crate) tables: Vec<&'static str>,
    /// Tables with chains of the iptables mode, as `ip nat`, and how many there are.
    pub(crate) chains: Vec<(String, usize)>,
    /// Virtual servers of IPVS that are kube-proxy's.
    pub(crate) virtual_servers: usize,
    /// Whether the device of the IPVS mode is there.
    pub(crate) device: bool,
    /// Its sets of addresses and ports.
    pub(crate) sets: usize,
    /// Programs that are not installed, and which alone list what the kernel has.
    pub(crate) missing: Vec<&'static str>,
    /// What could not be looked into, and why.
    pub(crate) unseen: Vec<String>,
}

impl Leftovers {
    /// Looks into the kernel.
    pub(crate) fn find() -> Self {
        let mut found = Self::default();
        match Ipvs::read() {
            Ok(ipvs) => (found.virtual_servers, found.device, found.sets) = ipvs.counts(),
            Err(why) => found.unseen.push(format!("IPVS: {why:#}")),
        }
        if let Err(why) = found.nftables() {
            found.unseen.push(format!("nftables: {why:#}"));
        }
        for (family, names, program) in [
            ("ip", "/proc/net/ip_tables_names", "iptables-legacy-save"),
            ("ip6", "/proc/net/ip6_tables_names", "ip6tables-legacy-save"),
        ] {
            if let Err(why) = found.legacy(family, names, program) {
                found.unseen.push(format!("{program}: {why:#}"));
            }
        }
        found
    }

    /// What iptables writes today is tables and chains of nftables, too.
    fn nftables(&mut self) -> Result<()> {
        for (family, attributes) in dump(GET_TABLE)? {
            if let Some(family) = family_name(family)
                && text(&attributes, TABLE_NAME).as_deref() == Some(TABLE)
            {
                self.tables.push(family);
            }
        }
        let mut chains = Vec::new();
        for (family, attributes) in dump(GET_CHAIN)? {
            let names = (family_name(family), text(&attributes, TABLE_NAME), text(&attributes, CHAIN_NAME));
            if let (Some(family), Some(table), Some(chain)) = names
                && is_kube_proxys(&table, &chain)
            {
                chains.push(format!("{family} {table}"));
            }
        }
        self.count(chains);
        Ok(())
    }

    /// The older iptables, which only its own program lists. A kernel that has no such tables is not asked: that would load them.
    fn legacy(&mut self, family: &str, names: &str, program: &'static str) -> Result<()> {
        if fs::read_to_string(names).unwrap_or_default().trim().is_empty() {
            return Ok(());
        }
        let output = match Command::new(program).output() {
            Ok(output) if output.status.success() => output.stdout,
            Ok(output) => bail!("{}", String::from_utf8_lossy(&output.stderr).trim()),
            Err(e) if e.kind() == ErrorKind::NotFound => {
                self.missing.push(program);
                return Ok(());
            }
            Err(e) => return Err(e).context("cannot run it"),
        };
        self.count(legacy_chains(family, &String::from_utf8_lossy(&output)));
        Ok(())
    }

    fn count(&mut self, tables: Vec<String>) {
        for table in tables {
            match self.chains.iter_mut().find(|(known, _)| *known == table) {
                Some((_, count)) => *count += 1,
                None => self.chains.push((table, 1)),
            }
        }
        self.chains.sort();
    }
}

/// The table of each chain of kube-proxy in what `iptables-save` prints: `*nat`, then `:KUBE-SERVICES - [0:0]`.
fn legacy_chains(family: &str, saved: &str) -> Vec<String> {
    let (mut table, mut chains) = ("", Vec::new());
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if line
            .strip_prefix(':')
            .and_then(|rest| rest.split(' ').next())
            .is_some_and(|chain| is_kube_proxys(table, chain))
        {
            chains.push(format!("{family} {table}"));
        }
    }
    chains
}

const fn family_name(family: u8) -> Option<&'static str> {
    match family {
        1 => Some("inet"),
        2 => Some("ip"),
        10 => Some("ip6"),
        _ => None,
    }
}

/// Family and attributes of each object of nftables.
fn dump(message: u16) -> Result<Vec<(u8, Vec<u8>)>> {
    let socket = Socket::new(NETLINK_NETFILTER).context("cannot open a netlink socket")?;
    socket.connect(&SocketAddr::new(0, 0)).context("cannot connect to netlink")?;
    let mut request = [0u8; HEADER + FAMILY_HEADER];
    request[..4].copy_from_slice(&20u32.to_ne_bytes());
    request[4..6].copy_from_slice(&(NFTABLES << 8 | message).to_ne_bytes());
    request[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    socket.send(&request, 0).context("cannot ask")?;
    let mut found = Vec::new();
    loop {
        let (bytes, _) = socket.recv_from_full().context("no answer")?;
        let mut rest = bytes.as_slice();
        while rest.len() >= HEADER {
            let message = NetlinkBuffer::new_checked(rest).context("a broken answer")?;
            let payload = message.payload();
            match (message.message_type(), payload) {
                (NLMSG_DONE, _) => return Ok(found),
                (NLMSG_ERROR, [a, b, c, d, ..]) => {
                    let code = i32::from_ne_bytes([*a, *b, *c, *d]);
                    return refusal(code).map(|()| Vec::new());
                }
                (_, [family, _, _, _, attributes @ ..]) => found.push((*family, attributes.to_vec())),
                _ => bail!("a broken answer"),
            }
            rest = rest.get((message.length() as usize).next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

/// A kernel without nftables has nothing of kube-proxy there.
fn refusal(code: i32) -> Result<()> {
    let error = io::Error::from_raw_os_error(-code);
    match error.raw_os_error() {
        Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOENT) => Ok(()),
        _ => Err(error).context("the kernel refuses"),
    }
}

fn text(attributes: &[u8], kind: u16) -> Option<String> {
    let mut all = NlasIterator::new(attributes).filter_map(Result::ok);
    let found = all.find(|attribute| attribute.kind() == kind)?;
    Some(String::from_utf8_lossy(found.value()).trim_end_matches('\0').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_of_the_older_iptables_are_counted_by_table() {
        let saved = "# Generated\n*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n:KUBE-SEP-ABC - [0:0]\n\
                     -A PREROUTING -j KUBE-SERVICES\nCOMMIT\n*filter\n:KUBE-FORWARD - [0:0]\n:KUBE-FIREWALL - [0:0]\n\
                     :KUBE-ROUTER-INPUT - [0:0]\nCOMMIT\n";
        let mut found = Leftovers::default();
        found.count(legacy_chains("ip", saved));
        assert_eq!(found.chains, [("ip filter".to_owned(), 1), ("ip nat".to_owned(), 2)]);
    }
}
