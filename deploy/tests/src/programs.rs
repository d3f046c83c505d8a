//! Programs that tests run: this workspace's own, built when they are asked for, and those that operators have.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use weir_testbed::process;
use weir_testbed::{Error, Result};

/// Helm.
pub const HELM: &str = "helm";
/// kubectl, which is Kustomize, too.
pub const KUBECTL: &str = "kubectl";

/// The root of the source tree.
#[must_use]
pub fn root() -> &'static Path {
    // It lies two directories above this crate, and the crate's own path has as many.
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("/"))
}

/// True when the programs are in the cache. Otherwise says on stderr that `what` is skipped, and why, and returns false.
#[must_use]
pub fn require(what: &str, programs: &[&str]) -> bool {
    let missing = programs.iter().find_map(|name| process::built(name).err());
    if let Some(error) = &missing {
        eprintln!("SKIPPED: {what}: {error}");
    }
    missing.is_none()
}

/// A program of this workspace, as the sources say now: the one that was built with the tests, or else built here. That one is
/// built for itself, with fewer features of its libraries, which are then compiled once more.
///
/// # Errors
/// [`Error::Command`] with the compiler's words when it does not build.
pub fn ours(package: &str, name: &str) -> Result<PathBuf> {
    static KNOWN: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    // Tests lie in `deps`, beside the programs.
    let test = std::env::current_exe()
        .map_err(|source| Error::Io { action: "tell where this test lies".to_owned(), source })?;
    let program = test.ancestors().nth(2).unwrap_or(Path::new("/")).join(name);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if !known.get_or_insert_default().insert(name.to_owned()) || changed(&program) > newest_source() {
        return Ok(program);
    }
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root()).args(["build", "--quiet", "--package", package, "--bin", name]);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    run(&mut command)?;
    Ok(program)
}

/// When anything changed that programs are made of. Tests and what only they use is left out.
fn newest_source() -> Option<SystemTime> {
    const LEFT_OUT: [&str; 7] = ["model", "simulator", "testbed", "tests", "xtask", "snapshots", "benches"];
    let mut newest = changed(&root().join("Cargo.lock"));
    let mut open = ["bpf", "crates", "userspace"].map(|name| root().join(name)).to_vec();
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if LEFT_OUT.iter().any(|name| entry.file_name() == *name) {
                continue;
            }
            newest = newest.max(changed(&path));
            if path.is_dir() {
                open.push(path);
            }
        }
    }
    newest
}

/// None if there is no such file.
fn changed(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|data| data.modified()).ok()
}

/// Runs `make` in the source tree, one at a time: verbs write the same files.
///
/// # Errors
/// [`Error::Command`] with all that it printed on stderr when it fails.
pub fn make(words: &[&str]) -> Result<String> {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new("make");
    // What an outer make says is not for this one.
    command.env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    run(command.current_dir(root()).args(words))
}

/// Has `make deb` make the package for Debian, and says where it is.
///
/// # Errors
/// When it is not made, or is not alone in its directory.
pub fn package() -> Result<PathBuf> {
    let directory = root().join("target/debian");
    // What an earlier version left would be found, too.
    let _ = fs::remove_dir_all(&directory);
    make(&["deb"])?;
    let found = fs::read_dir(&directory).and_then(|all| all.map(|entry| Ok(entry?.path())).collect());
    let found: Vec<PathBuf> =
        found.map_err(|source| Error::Io { action: format!("list {}", directory.display()), source })?;
    <[PathBuf; 1]>::try_from(found)
        .map(|[package]| package)
        .map_err(|found| Error::Invalid(format!("not one package, but {found:?}")))
}

/// Where `make static` leaves both programs.
///
/// # Errors
/// When they are not there.
pub fn statically_linked() -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let directory = target.join(format!("{}-unknown-linux-musl/release", std::env::consts::ARCH));
    for name in ["weir-agent", "weir"] {
        let program = directory.join(name);
        fs::metadata(&program).map_err(|source| Error::Io { action: format!("find {}", program.display()), source })?;
    }
    Ok(directory)
}

/// Runs a command to its end and returns what it printed on stdout.
///
/// # Errors
/// [`Error::Command`] with all that it printed on stderr when it fails.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|source| Error::Io { action: format!("run {command:?}"), source })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let program = command.get_program().to_string_lossy().into_owned();
    let words = command.get_args().map(|word| word.to_string_lossy().into_owned());
    Err(Error::Command {
        command: std::iter::once(program).chain(words).collect::<Vec<_>>().join(" "),
        status: output.status.to_string(),
        message: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}
