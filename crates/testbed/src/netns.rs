//! Named network namespaces, as `ip netns` makes them, entered by threads and processes.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sched::{CloneFlags, setns};

use crate::{Error, Result};
use crate::{ip, wait};

/// Where `ip netns` keeps its names.
const DIRECTORY: &str = "/run/netns";

/// A network namespace with a name. Deleted on drop.
#[derive(Debug)]
pub struct Netns {
    name: String,
    file: Arc<File>,
    deleted: AtomicBool,
}

impl Netns {
    /// Makes an empty namespace with `lo` up.
    ///
    /// # Errors
    /// When the name is taken or the process may not make namespaces.
    pub fn create(name: &str) -> Result<Self> {
        ip::run(["netns", "add", name])?;
        let path = path_of(name);
        let file = match File::open(&path).map_err(Error::file("open", &path)) {
            Ok(file) => file,
            Err(error) => {
                ip::run(["netns", "delete", name])?;
                return Err(error);
            }
        };
        let netns = Self { name: name.to_owned(), file: Arc::new(file), deleted: AtomicBool::new(false) };
        netns.ip("link set lo up")?;
        Ok(netns)
    }

    /// Its name, as in `ip netns list`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that holds the namespace, for `setns`.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        path_of(&self.name)
    }

    /// Runs `work` on a thread of its own inside the namespace and returns its result. Threads that `work` starts are inside too.
    ///
    /// # Panics
    /// When `work` panics (with its panic) or the process may not enter the namespace.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.entry().enter(work)
    }

    /// Starts a named thread inside the namespace. The thread keeps the namespace alive, even when its name is gone.
    ///
    /// # Errors
    /// When the thread cannot be started.
    ///
    /// # Panics
    /// The new thread panics if the process may not enter the namespace.
    pub fn spawn<T: Send + 'static>(
        &self,
        thread_name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<T>> {
        let entry = self.entry();
        thread::Builder::new()
            .name(thread_name.to_owned())
            .spawn(move || {
                entry.set_current();
                work()
            })
            .map_err(Error::io(format!("start thread {thread_name}")))
    }

    /// A command that will run inside the namespace. Mounts stay as they are: bpffs, cgroups and /sys remain visible,
    /// unlike with `ip netns exec`.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        self.attach(&mut command);
        command
    }

    /// Makes an existing command start inside the namespace.
    pub fn attach(&self, command: &mut Command) {
        self.entry().attach(command);
    }

    /// Runs lines of `ip` commands inside the namespace, in one process.
    ///
    /// # Errors
    /// [`Error::Ip`] with the line that failed; lines after it did not run.
    pub fn ip(&self, script: &str) -> Result<()> {
        // A thread that is there already starts it without a copy of this process's memory, which whoever has to go there between fork and exec
        // needs: worlds run hundreds of these.
        self.enter(|| ip::batch(Command::new("ip"), &self.name, script))
    }

    /// Waits until the namespace takes what comes to `address` for its own: the kernel's route to an IPv6 address that
    /// was just added is written by a work queue (`addrconf_dad_work`), after `ip addr add` has returned.
    ///
    /// # Errors
    /// When `ip` cannot be started, and [`Error::Timeout`] when the address is still somebody else's after `limit`.
    pub fn await_own(&self, address: IpAddr, limit: Duration) -> Result<()> {
        let mut route = Command::new("ip");
        route.args(["-oneline", "route", "get", &address.to_string()]);
        let what = format!("{} to own {address}", self.name);
        self.enter(|| {
            wait::until_some(&what, limit, || {
                let output = route.output().map_err(|error| error.to_string())?;
                let seen = String::from_utf8_lossy(&output.stdout).trim().to_owned();
                if seen.starts_with("local ") { Ok(()) } else { Err(seen) }
            })
        })
    }

    /// Sets a network sysctl of the namespace, for example `net/ipv4/ip_forward`.
    ///
    /// # Errors
    /// When the kernel does not know the name or refuses the value.
    pub fn sysctl(&self, name: &str, value: &str) -> Result<()> {
        let path = Path::new("/proc/sys").join(name);
        self.enter(|| std::fs::write(&path, value))
            .map_err(Error::io(format!("set sysctl {name}={value} in {}", self.name)))
    }

    /// Sets several sysctls, as [`Netns::sysctl`], in one visit.
    ///
    /// # Errors
    /// As [`Netns::sysctl`], for the first that fails.
    pub fn sysctls(&self, settings: &[(&str, &str)]) -> Result<()> {
        self.enter(|| {
            settings.iter().try_for_each(|(name, value)| {
                let action = format!("set sysctl {name}={value} in {}", self.name);
                std::fs::write(Path::new("/proc/sys").join(name), value).map_err(Error::io(action))
            })
        })
    }

    /// Sets what a network device does for the kernel or leaves to it, as `ethtool -K`: names and values in turns.
    ///
    /// # Errors
    /// When there is no `ethtool`, or the device cannot do so.
    pub fn offloads(&self, device: &str, settings: &[&str]) -> Result<()> {
        let mut ethtool = Command::new("ethtool");
        ethtool.args(["-K", device]).args(settings);
        self.enter(|| ip::checked(ethtool, "ethtool").map(drop))
    }

    /// False after [`Netns::delete`].
    #[must_use]
    pub fn exists(&self) -> bool {
        !self.deleted.load(Ordering::Relaxed)
    }

    /// Deletes the name. The kernel frees the namespace when the last thread, process and open file has left it.
    ///
    /// # Errors
    /// When the name cannot be deleted. Deleting twice is not an error.
    pub fn delete(&self) -> Result<()> {
        if self.deleted.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        delete_named(&self.name)
    }

    /// A handle with which threads and processes enter, and which does not delete anything.
    pub(crate) fn entry(&self) -> Entry {
        Entry(Arc::clone(&self.file))
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if let Err(error) = self.delete() {
            eprintln!("{error}");
        }
    }
}

/// The door into a namespace.
#[derive(Clone, Debug)]
pub(crate) struct Entry(Arc<File>);

impl Entry {
    /// Makes a command start inside the namespace.
    pub(crate) fn attach(&self, command: &mut Command) {
        let entry = self.clone();
        let enter = move || setns(entry.0.as_fd(), CloneFlags::CLONE_NEWNET).map_err(Into::into);
        // SAFETY: between fork and exec the closure makes one system call on an open descriptor and allocates nothing.
        unsafe { command.pre_exec(enter) };
    }

    /// As [`Netns::enter`].
    pub(crate) fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            scope
                .spawn(|| {
                    self.set_current();
                    work()
                })
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Moves the calling thread into the namespace, for good. Only for threads that end there.
    pub(crate) fn set_current(&self) {
        setns(self.0.as_fd(), CloneFlags::CLONE_NEWNET)
            .unwrap_or_else(|errno| panic!("cannot enter the namespace behind fd {}: {errno}", self.0.as_raw_fd()));
    }
}

/// All names that `ip netns list` shows.
///
/// # Errors
/// When the directory exists and cannot be read.
pub fn list() -> Result<Vec<String>> {
    let directory = Path::new(DIRECTORY);
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(Error::file("list", directory))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::file("list", directory))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Deletes a namespace by name; one that somebody else has just deleted counts as done.
pub(crate) fn delete_named(name: &str) -> Result<()> {
    match ip::run(["netns", "delete", name]) {
        Err(_) if !path_of(name).exists() => Ok(()),
        other => other,
    }
}

fn path_of(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(name)
}
