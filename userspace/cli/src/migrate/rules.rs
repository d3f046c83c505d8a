//! kube-proxy's rules on this node: read and removed by the programs that everybody uses for that.

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use weir_core::model::Family;
use weir_migration::served::{Place, Served};
use weir_migration::{iptables, nftables};

use super::ipvs::Ipvs;

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
const NFT: &str = "nft";
/// What programs for the kernel's older tables have in their names.
const LEGACY: &str = "-legacy";

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Rules {
    iptables: Vec<Tables>,
    /// Families with kube-proxy's table of nftables.
    nftables: Vec<Family>,
    /// Families with the table that keeps connections alive.
    keepers: Vec<Family>,
    pub(super) ipvs: Ipvs,
    /// What kube-proxy serves by all of them.
    pub(super) served: Served,
}

/// The tables of iptables of a family, in the kernel's old or new form.
#[derive(Debug)]
struct Tables {
    restore: String,
    tables: iptables::Tables,
}

impl Rules {
    /// Reads them.
    pub(super) fn read() -> Result<Self> {
        let ipvs = Ipvs::read()?;
        let mut rules = Self { served: ipvs.served(), ipvs, ..Self::default() };
        let mut programs = 0;
        for (family, save, restore) in iptables_programs()? {
            let Some(text) = run(&save, &[], None)? else {
                if save.contains(LEGACY) {
                    eprintln!(
                        "{save} is not installed: rules of kube-proxy in the kernel's older tables, which there are, are not seen"
                    );
                }
                continue;
            };
            programs += 1;
            let tables = iptables::Tables::parse(family, &text).with_context(|| save.clone())?;
            merge(&mut rules.served, tables.served());
            rules.iptables.push(Tables { restore, tables });
        }
        match run(NFT, &["-j", "list", "tables"], None)? {
            Some(text) => rules.read_nftables(&text)?,
            None if programs == 0 => {
                bail!(
                    "neither iptables-save nor nft can be run, which show kube-proxy's rules: install iptables and nftables"
                );
            }
            None => eprintln!("nft is not installed: rules of kube-proxy in mode nftables are not seen"),
        }
        Ok(rules)
    }

    fn read_nftables(&mut self, tables: &str) -> Result<()> {
        let tables: Value = serde_json::from_str(tables).context("`nft -j list tables` is not JSON")?;
        let objects = tables["nftables"].as_array().map(Vec::as_slice).unwrap_or_default();
        let has = |family, name: &str| {
            let is_it = |table: &Value| table["family"] == nftables::family_name(family) && table["name"] == name;
            objects.iter().filter_map(|object| object.get("table")).any(is_it)
        };
        self.keepers = FAMILIES.into_iter().filter(|family| has(*family, nftables::KEEPER)).collect();
        self.nftables = FAMILIES.into_iter().filter(|family| has(*family, nftables::TABLE)).collect();
        for family in &self.nftables {
            let table = ["-j", "list", "table", nftables::family_name(*family), nftables::TABLE];
            let Some(text) = run(NFT, &table, None)? else { continue };
            let served = nftables::served(*family, &text).with_context(|| format!("nft {}", table.join(" ")))?;
            merge(&mut self.served, served);
        }
        Ok(())
    }

    /// How kube-proxy makes the rules that are there.
    pub(super) fn modes(&self) -> Vec<&'static str> {
        let any =
            |is_it: fn(&iptables::Tables) -> bool| self.iptables.iter().any(|Tables { tables, .. }| is_it(tables));
        let iptables = any(iptables::Tables::is_of_iptables);
        let ipvs = any(iptables::Tables::is_of_ipvs) || self.ipvs.is_there(&self.sets_that_stay());
        let nftables = !self.nftables.is_empty();
        [("iptables", iptables), ("ipvs", ipvs), ("nftables", nftables)]
            .into_iter()
            .filter(|(_, found)| *found)
            .map(|(name, _)| name)
            .collect()
    }

    /// Families in which kube-proxy has virtual servers and not yet the rules that masquerade what comes to them: it writes
    /// these last.
    pub(super) fn unfinished(&self) -> Vec<Family> {
        let served = self.ipvs.served();
        let has_servers = |family: &Family| {
            let of = |place| {
                matches!(place, Place::Address(ip) if Family::of(ip) == *family) || place == Place::Node(*family)
            };
            served.keys().any(|frontend| of(frontend.place))
        };
        let is_written = |family: &Family| {
            self.iptables.iter().any(|Tables { tables, .. }| tables.family() == *family && tables.is_written())
        };
        FAMILIES.into_iter().filter(has_servers).filter(|family| !is_written(family)).collect()
    }

    fn sets_that_stay(&self) -> BTreeSet<&str> {
        self.iptables.iter().flat_map(|Tables { tables, .. }| tables.sets_that_stay()).collect()
    }

    /// Whether something keeps kube-proxy's connections alive.
    pub(super) fn has_keeper(&self) -> bool {
        !self.keepers.is_empty() || self.iptables.iter().any(|Tables { tables, .. }| tables.has_keeper())
    }

    /// Removes kube-proxy's rules and nothing else; its connections go on, but those that IPVS carries.
    pub(super) fn remove(&self) -> Result<()> {
        let sets_that_stay = self.sets_that_stay();
        let has_ipvs = self.ipvs.is_there(&sets_that_stay);
        if has_ipvs {
            self.ipvs.remove_servers()?;
        }
        for Tables { restore, tables } in &self.iptables {
            if let Some(script) = tables.removal() {
                write(restore, &["--noflush", "-w"], &script)?;
            }
        }
        let script: String = self.nftables.iter().map(|family| nftables::removal(*family)).collect();
        if !script.is_empty() {
            write(NFT, &["-f", "-"], &script)?;
        }
        if has_ipvs { self.ipvs.remove_sets(&sets_that_stay) } else { Ok(()) }
    }

    /// Removes what kept kube-proxy's connections alive.
    pub(super) fn remove_keeper(&self) -> Result<()> {
        for Tables { restore, .. } in self.iptables.iter().filter(|Tables { tables, .. }| tables.has_keeper()) {
            write(restore, &["--noflush", "-w"], &iptables::keeper_removal())?;
        }
        let script: String = self.keepers.iter().map(|family| nftables::keeper_removal(*family)).collect();
        if script.is_empty() { Ok(()) } else { write(NFT, &["-f", "-"], &script) }
    }
}

/// What serves one frontend in two places serves it with the endpoints of both.
fn merge(all: &mut Served, more: Served) {
    for (frontend, endpoints) in more {
        all.entry(frontend).or_default().extend(endpoints);
    }
}

/// Programs that read and write: those of nf_tables, and those of the kernel's older tables where it has some. Where neither
/// is known by its full name, what the distribution has.
fn iptables_programs() -> Result<Vec<(Family, String, String)>> {
    let mut programs = Vec::new();
    for (family, name, names) in
        [(Family::V4, "iptables", "ip_tables_names"), (Family::V6, "ip6tables", "ip6_tables_names")]
    {
        let in_form = |form: &str| (family, format!("{name}{form}-save"), format!("{name}{form}-restore"));
        let named = run(&in_form("-nft").1, &["--version"], None)?.is_some();
        programs.push(in_form(if named { "-nft" } else { "" }));
        let tables = fs::read_to_string(format!("/proc/self/net/{names}")).unwrap_or_default();
        if named && !tables.trim().is_empty() {
            programs.push(in_form(LEGACY));
        }
    }
    Ok(programs)
}

pub(super) fn write(program: &str, arguments: &[&str], script: &str) -> Result<()> {
    match run(program, arguments, Some(script))? {
        Some(_) => Ok(()),
        None => bail!("{program} is not installed"),
    }
}

/// Runs a program and returns what it prints; `None` if there is no such program.
pub(super) fn run(program: &str, arguments: &[&str], input: Option<&str>) -> Result<Option<String>> {
    let called = || format!("{program} {}", arguments.join(" "));
    loop {
        let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
        let spawned =
            Command::new(program).args(arguments).stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(None),
            Err(cause) => return Err(cause).with_context(|| format!("cannot run {}", called())),
        };
        if let (Some(mut pipe), Some(text)) = (child.stdin.take(), input) {
            // Whoever refuses the first line does not read the last one; its message says why.
            let _ = pipe.write_all(text.as_bytes());
        }
        let output = child.wait_with_output().with_context(called)?;
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if output.status.success() {
            return Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()));
        }
        // Rules have changed while nft was reading them: EINTR of nf_tables.
        if !message.contains("Interrupted system call") {
            bail!("{}: {message} ({})", called(), output.status);
        }
    }
}
