//! The end of a task that builds a world. A child process plays, its parent waits for it, passes signals on, and
//! removes what is left.
//!
//! A release build aborts on a panic, so destructors alone would leave namespaces and pins behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid, setpgid};
use tokio::signal::unix::{SignalKind, signal};
use weir_datapath::PinDir;
use weir_telemetry::admin;
use weir_testbed::{Cgroup, World, bpffs};

/// Names of pin directories start with this and the id of the process that plays, those of directories for files with
/// this and the id of its parent.
const PREFIX: &str = "weir-xtask-";

/// Where directories for files are made: on a disk, unlike /tmp on many systems.
const DIRECTORIES: &str = "/var/tmp";

/// Exit code after Ctrl-C, as shells have it: 128 + SIGINT.
const INTERRUPTED: u8 = 130;

/// How long a task may go on after a signal before it is ended where it is. A world is removed within seconds; what makes 10,000 services takes
/// minutes and does not look at the stop sign.
const GRACE: Duration = Duration::from_secs(20);

/// Longest sleep without a look at the stop sign.
const NAP: Duration = Duration::from_millis(50);

/// Somebody pressed Ctrl-C.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
struct Interrupted;

/// The stop sign: set by SIGINT, SIGTERM and SIGHUP.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Sleeps.
    ///
    /// # Errors
    /// As soon as the task is to end.
    pub(crate) fn sleep(&self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(NAP));
        }
    }

    /// Waits until the task is to end.
    pub(crate) fn wait(&self) {
        while self.check().is_ok() {
            thread::sleep(NAP);
        }
    }

    /// # Errors
    /// When the task is to end.
    pub(crate) fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) { Err(Interrupted.into()) } else { Ok(()) }
    }
}

/// The pin directory of a node of this process' world.
pub(crate) fn pin_dir(node: u8) -> PinDir {
    PinDir::new(Path::new(bpffs::PATH).join(format!("{PREFIX}{}-node{node}", getpid())))
}

/// Calls `work` in a child process, with a directory for its files, and cleans up after it; what earlier runs have left,
/// before it. Returns the exit code that `work` asks for; a signal ends it at the latest after [`GRACE`].
///
/// # Errors
/// When `work` fails or what it has made cannot be removed.
pub(crate) fn supervise(work: impl FnOnce(&Path, &Stop) -> Result<ExitCode>) -> Result<ExitCode> {
    sweep().context("cannot remove what an earlier run has left")?;
    let parent = getpid();
    let prefix = format!("{PREFIX}{parent}-");
    let directory = tempfile::Builder::new().prefix(&prefix).tempdir_in(DIRECTORIES);
    let directory = directory.with_context(|| format!("cannot make a directory in {DIRECTORIES}"))?;
    // SAFETY: this process has a single thread so far, so the child finds no lock taken by a thread that it lacks.
    match unsafe { fork() }.context("cannot start the task's process")? {
        ForkResult::Child => std::process::exit(play(parent, directory.path(), work)),
        ForkResult::Parent { child } => {
            let status = await_child(child);
            eprintln!("removing namespaces, maps and cgroups ...");
            let swept = sweep();
            let code = exit_code(status?)?;
            swept.context("not everything could be removed")?;
            Ok(code)
        }
    }
}

/// The child's life; returns its exit code.
fn play(parent: Pid, directory: &Path, work: impl FnOnce(&Path, &Stop) -> Result<ExitCode>) -> i32 {
    let stop = Stop::default();
    let flag = stop.clone();
    let react = move || {
        flag.0.store(true, Ordering::Relaxed);
        thread::sleep(GRACE);
        // Nobody else would clean up after it.
        if getppid() != parent {
            return;
        }
        // Without destructors, which other threads are at: the parent ends what it has started and removes what it has made, but for files in
        // directories of the system and the cache.
        // SAFETY: it ends the process, whatever its threads do.
        unsafe { nix::libc::_exit(INTERRUPTED.into()) }
    };
    let ready = become_child(parent).and_then(|()| on_signal(react));
    match ready.and_then(|()| work(directory, &stop)) {
        Ok(code) if code == ExitCode::SUCCESS => 0,
        Ok(_) => 1,
        Err(error) if error.is::<Interrupted>() || stop.check().is_err() => INTERRUPTED.into(),
        Err(error) => {
            eprintln!("error: {error:#}");
            1
        }
    }
}

fn become_child(parent: Pid) -> Result<()> {
    // A Ctrl-C must not reach the commands that build the world and take it down: it comes by way of the parent.
    setpgid(Pid::from_raw(0), Pid::from_raw(0)).context("cannot leave the process group")?;
    nix::sys::prctl::set_pdeathsig(Signal::SIGTERM).context("cannot be tied to the parent's life")?;
    if getppid() != parent {
        bail!("the parent is gone");
    }
    Ok(())
}

/// Calls `react` at each signal that asks to end, from a thread of its own.
fn on_signal(react: impl Fn() + Send + 'static) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let runtime = runtime.context("cannot start the runtime")?;
    let entered = runtime.enter();
    let cannot = "cannot wait for signals";
    let mut interrupt = signal(SignalKind::interrupt()).context(cannot)?;
    let mut terminate = signal(SignalKind::terminate()).context(cannot)?;
    let mut hangup = signal(SignalKind::hangup()).context(cannot)?;
    drop(entered);
    let listen = move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hangup.recv() => {}
                }
                react();
            }
        });
    };
    thread::Builder::new().name("signals".into()).spawn(listen).context(cannot)?;
    Ok(())
}

fn await_child(child: Pid) -> Result<WaitStatus> {
    let ended = Arc::new(AtomicBool::new(false));
    let gone = Arc::clone(&ended);
    on_signal(move || {
        // After its end the id may be somebody else's.
        if !gone.load(Ordering::Relaxed) {
            let _ = kill(child, Signal::SIGTERM);
        }
    })?;
    // Until it is waited for, its id is nobody else's.
    while waitid(Id::Pid(child), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::EINTR) {}
    ended.store(true, Ordering::Relaxed);
    // What it has started and nobody will wait for any more: it leads their process group.
    let _ = killpg(child, Signal::SIGKILL);
    waitpid(child, None).context("cannot wait for the task's process")
}

fn exit_code(status: WaitStatus) -> Result<ExitCode> {
    match status {
        // The child has said what was wrong.
        WaitStatus::Exited(_, code) => Ok(ExitCode::from(u8::try_from(code).unwrap_or(1))),
        WaitStatus::Signaled(_, signal, _) => bail!("the task's process was ended by {signal}"),
        other @ (WaitStatus::Stopped(..)
        | WaitStatus::PtraceEvent(..)
        | WaitStatus::PtraceSyscall(_)
        | WaitStatus::Continued(_)
        | WaitStatus::StillAlive) => bail!("the task's process is in an unknown state: {other:?}"),
    }
}

/// Removes pins, namespaces, cgroups and files whose process is gone. Tries all, and reports the first failure.
fn sweep() -> Result<()> {
    // Cgroups first: what still runs in them may hold the rest.
    let results = [
        Cgroup::sweep().map_err(Into::into),
        sweep_pins(),
        World::sweep().map_err(Into::into),
        sweep_directories(),
        sweep_sockets(),
    ];
    results.into_iter().collect()
}

fn sweep_pins() -> Result<()> {
    if !Path::new(bpffs::PATH).exists() {
        return Ok(());
    }
    abandoned(Path::new(bpffs::PATH))?
        .into_iter()
        .try_for_each(|path| PinDir::new(path).remove_all(false).map(drop).map_err(Into::into))
}

fn sweep_directories() -> Result<()> {
    abandoned(Path::new(DIRECTORIES))?
        .into_iter()
        .try_for_each(|path| fs::remove_dir_all(&path).with_context(|| format!("cannot remove {}", path.display())))
}

/// Agents that were killed leave them.
fn sweep_sockets() -> Result<()> {
    if !Path::new(admin::DIRECTORY).exists() {
        return Ok(());
    }
    abandoned(Path::new(admin::DIRECTORY))?
        .into_iter()
        .try_for_each(|path| fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display())))
}

/// What lies in `root` under the name of a process that is gone.
fn abandoned(root: &Path) -> Result<Vec<PathBuf>> {
    let cannot = || format!("cannot list {}", root.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(root).with_context(cannot)? {
        let entry = entry.with_context(cannot)?;
        if entry.file_name().to_str().and_then(owner).is_some_and(|pid| !is_alive(pid)) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// The process that a directory of this name belongs to, if it is a task's.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok()
}

fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_of_a_task_have_an_owner() {
        for own in ["weir-xtask-4711-node1", "weir-xtask-4711-a8Fq"] {
            assert_eq!(owner(own), Some(4711), "{own}");
        }
        for foreign in ["weir", "weir-xtask-node1", "weir-4711-node1", "w4711-0-node1"] {
            assert_eq!(owner(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_set_stop_sign_ends_a_sleep_with_an_error_that_is_an_interruption() {
        let stop = Stop::default();
        assert!(stop.sleep(Duration::ZERO).is_ok());
        stop.0.store(true, Ordering::Relaxed);
        assert!(stop.sleep(Duration::from_secs(3600)).unwrap_err().is::<Interrupted>());
    }
}
