//! `weir cleanup`: leaves the node as if Weir had never been there.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::net::if_::if_nameindex;
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use serde::Serialize;
use weir_datapath::{Error, PinDir, detach_clsact};

use crate::args::CleanupArgs;
use crate::exit::{Answer, require_rights};
use crate::links::{interface_name, parse};
use crate::migrate::StageFile;
use crate::output::{Kind, Output, Row};

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PinRow {
    kind: &'static str,
    name: String,
    /// The interface of a link.
    interface: Option<String>,
    path: PathBuf,
    action: &'static str,
}

impl Row for PinRow {
    const KIND: Kind = Kind::CleanupList;

    fn headers(_wide: bool) -> Vec<&'static str> {
        vec!["KIND", "NAME", "INTERFACE", "PATH", "ACTION"]
    }

    fn cells(&self, _wide: bool) -> Vec<String> {
        vec![
            self.kind.to_owned(),
            self.name.clone(),
            self.interface.clone().unwrap_or_default(),
            self.path.display().to_string(),
            self.action.to_owned(),
        ]
    }

    fn name(&self) -> String {
        format!("{}/{}", self.kind, self.name)
    }
}

fn rows(pins: &PinDir, paths: Vec<PathBuf>, dry_run: bool, interface: impl Fn(u32) -> String) -> Vec<PinRow> {
    let row = |path: PathBuf| {
        let pin = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let is_link = pins.is_link(&path);
        let (name, index) = if is_link { parse(&pin) } else { (pin.as_str(), None) };
        let action = match (is_link, dry_run) {
            (true, true) => "would detach",
            (true, false) => "detached",
            (false, true) => "would remove",
            (false, false) => "removed",
        };
        let kind = match (is_link, pins.is_program(&path)) {
            (true, _) => "link",
            (false, true) => "program",
            (false, false) => "map",
        };
        PinRow { kind, name: name.to_owned(), interface: index.map(&interface), path: path.clone(), action }
    };
    paths.into_iter().map(row).collect()
}

/// What a migration has left for the next agent.
fn stage_row(path: &Path, dry_run: bool) -> PinRow {
    PinRow {
        kind: "stage",
        name: "migration".to_owned(),
        interface: None,
        path: path.to_owned(),
        action: if dry_run { "would remove" } else { "removed" },
    }
}

/// Runs the command.
pub(crate) fn run(pins: &PinDir, args: &CleanupArgs, output: &Output) -> Result<Answer> {
    require_ours(pins)?;
    let planned = pins.remove_all(true)?;
    let stage = StageFile::in_dir(&args.state.state_dir);
    let stage_rows = |dry_run| stage.path().map(|path| stage_row(path, dry_run)).into_iter();
    if args.dry_run {
        let mut planned = rows(pins, planned, true, interface_name);
        planned.extend(stage_rows(true));
        output.print(&output.list(&planned)?)?;
        eprintln!("tc filters named weir_* would be removed from the interfaces of this network namespace, too");
        return Ok(Answer::Yes);
    }
    // tc filters are removed by whoever may, and those who may not are told nothing by the kernel.
    require_rights("cannot detach programs from interfaces")?;
    // Held until the end: no agent may start in between.
    let _lock = if pins.exists()? { lock(pins, args.force)? } else { None };
    if !args.yes && !confirmed(pins, planned.len())? {
        eprintln!("nothing was removed");
        return Ok(Answer::No);
    }
    // Before the maps go: these programs would run on without them.
    for interface in interfaces()? {
        detach_clsact(&interface);
    }
    // Named while their links still are.
    let mut done = rows(pins, planned, false, interface_name);
    let removed = pins.remove_all(false)?;
    done.retain(|row| removed.contains(&row.path));
    if done.is_empty() {
        eprintln!("nothing is pinned in {}", pins.root().display());
    }
    done.extend(stage_rows(false));
    stage.remove()?;
    output.print(&output.list(&done)?)?;
    Ok(Answer::Yes)
}

/// Detaches and removes everything, unless an agent runs.
pub(crate) fn remove(pins: &PinDir) -> Result<()> {
    require_ours(pins)?;
    let _lock = if pins.exists()? { lock(pins, false)? } else { None };
    for interface in interfaces()? {
        detach_clsact(&interface);
    }
    pins.remove_all(false)?;
    Ok(())
}

/// The right to write, or with `force` none where an agent has it.
fn lock(pins: &PinDir, force: bool) -> Result<Option<impl Sized + use<>>> {
    match pins.lock() {
        Ok(lock) => Ok(Some(lock)),
        Err(Error::Locked { .. }) if force => Ok(None),
        Err(error @ Error::Locked { .. }) => {
            Err(error).context("an agent runs and would put everything back: stop it, or insist with --force")
        }
        Err(error) => Err(error.into()),
    }
}

/// An error unless the directory holds pins of Weir and nothing else: a mistyped one must not cost somebody's files.
fn require_ours(pins: &PinDir) -> Result<()> {
    let root = pins.root();
    if !pins.exists()? {
        return Ok(());
    }
    let file_system = statfs(root).with_context(|| format!("cannot inspect {}", root.display()))?;
    if file_system.filesystem_type() != BPF_FS_MAGIC {
        return Err(Error::NoBpffs { path: root.to_owned() }.into());
    }
    for name in pins.entries()? {
        if !name.to_str().is_some_and(PinDir::is_own) {
            bail!("{} is not Weir's alone, it holds {}: not touching it", root.display(), name.display());
        }
    }
    Ok(())
}

fn confirmed(pins: &PinDir, count: usize) -> Result<bool> {
    if !io::stdin().is_terminal() {
        bail!("cleanup stops the serving of all services on this node: say --yes, or look first with --dry-run");
    }
    eprint!("Remove {count} pins in {}? Services are no longer served on this node. [y/N] ", pins.root().display());
    io::stderr().flush()?;
    let mut line = String::new();
    io::stdin().read_line(&mut line).context("cannot read the answer")?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

/// Names of the interfaces of this network namespace, sorted.
fn interfaces() -> Result<Vec<String>> {
    let all = if_nameindex().context("cannot list the interfaces")?;
    let mut names: Vec<_> = all.iter().map(|interface| interface.name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::args::Format;
    use crate::output::tests::plain;

    #[test]
    fn a_dry_run_says_which_links_programs_and_maps_would_go() {
        let pins = PinDir::new("/sys/fs/bpf/weir");
        let program = pins.root().join("programs-0123456789abcdef").join("weir_nic_in");
        let paths = vec![pins.links().join("nic_in-2"), pins.links().join("connect4"), program, pins.map("services")];
        let rows = rows(&pins, paths, true, |index| format!("eth{index}"));
        insta::assert_snapshot!(anstream::adapter::strip_str(&plain(Format::Table).list(&rows).unwrap()), @r"
        KIND      NAME          INTERFACE   PATH                                                     ACTION
        link      nic_in        eth2        /sys/fs/bpf/weir/links/nic_in-2                          would detach
        link      connect4      <none>      /sys/fs/bpf/weir/links/connect4                          would detach
        program   weir_nic_in   <none>      /sys/fs/bpf/weir/programs-0123456789abcdef/weir_nic_in   would remove
        map       services      <none>      /sys/fs/bpf/weir/maps-v13/services                       would remove
        ");
    }

    #[test]
    fn a_directory_of_plain_files_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("links")).unwrap();
        let error = require_ours(&PinDir::new(dir.path())).unwrap_err();
        assert!(error.to_string().contains("not on a BPF file system"), "{error}");
    }
}
