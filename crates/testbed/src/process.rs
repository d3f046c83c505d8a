//! Long-running programs of a test: logged to a file and never left behind.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::wait;
use crate::{Error, Result};

/// How long a program may take to go after SIGKILL.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// Lines of the log that an error quotes.
const TAIL_LINES: usize = 12;

/// A running program. Killed on drop, and by the kernel when this process dies.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with its output appended to the file `log`. Namespace and cgroup come from
    /// [`crate::Netns::command`] and [`crate::Cgroup::attach`].
    ///
    /// # Errors
    /// When the log cannot be opened or the program cannot be started.
    pub fn start(mut command: Command, name: &str, log: &Path) -> Result<Self> {
        let file = File::options().create(true).append(true).open(log).map_err(Error::file("open", log))?;
        let errors = file.try_clone().map_err(Error::file("share", log))?;
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        let child = spawn_tied(command).map_err(Error::io(format!("start {name}")))?;
        Ok(Self { name: name.to_owned(), child, log: log.to_owned() })
    }

    /// Process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The file that it logs to.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The last lines of its log, for error messages; empty if there is none.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }

    /// Its exit status, or `None` while it runs.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn exit_status(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().map_err(Error::io(format!("look after {}", self.name)))
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When the program is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill(self.pid(), signal).map_err(Error::nix(format!("send {signal} to {}", self.name)))
    }

    /// Keeps it from running until [`Process::resume`]; what it has open stays open.
    ///
    /// # Errors
    /// When the program is gone.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    /// Lets it run again.
    ///
    /// # Errors
    /// When the program is gone.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// Asks it to end with SIGTERM and waits for that.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the end of its log when it still runs after `limit`.
    pub fn terminate(mut self, limit: Duration) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        self.await_exit(limit)
    }

    /// Ends it with SIGKILL, as a crash would.
    ///
    /// # Errors
    /// When the kernel cannot end it.
    pub fn kill(mut self) -> Result<ExitStatus> {
        self.child.kill().map_err(Error::io(format!("kill {}", self.name)))?;
        self.await_exit(KILL_LIMIT)
    }

    fn await_exit(&mut self, limit: Duration) -> Result<ExitStatus> {
        let what = format!("the end of {}", self.name);
        let tail = |log: &Path| format!("still running, log {}", log.display());
        let Self { child, log, .. } = self;
        wait::until_some(&what, limit, || match child.try_wait() {
            Ok(Some(status)) => Ok(status),
            Ok(None) => Err(tail(log)),
            Err(error) => Err(error.to_string()),
        })
    }

    fn pid(&self) -> Pid {
        // Process ids fit: the kernel's limit is 2^22.
        Pid::from_raw(self.child.id().cast_signed())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself: nothing is left to do then.
        if self.child.kill().is_ok() {
            drop(self.child.wait());
        }
    }
}

/// The directory of what `deploy/dev/bootstrap.sh` builds, `${WEIR_CACHE:-~/.cache/weir}`: programs in `bin`, images in
/// `images`.
#[must_use]
pub fn cache() -> PathBuf {
    let cache = std::env::var_os("WEIR_CACHE").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache/weir"));
    cache.or_else(home).unwrap_or_default()
}

/// A program that `make bootstrap` has built, in the [`cache`].
///
/// # Errors
/// [`Error::Missing`] when it is not there.
pub fn built(name: &str) -> Result<PathBuf> {
    let path = cache().join("bin").join(name);
    if path.is_file() {
        return Ok(path);
    }
    Err(Error::Missing { what: format!("{name} ({})", path.display()), hint: "run `make bootstrap`".into() })
}

/// A program in `$PATH`.
///
/// # Errors
/// [`Error::Missing`] when it is not there.
pub fn installed(name: &str) -> Result<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).map(|directory| directory.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| Error::Missing { what: name.into(), hint: "run `make bootstrap`".into() })
}

/// A command and where its child goes.
type Order = (Command, Sender<io::Result<Child>>);

/// Starts a program that the kernel kills when this process dies, however it dies.
///
/// "Parent death" means the death of the *thread* that forked, and a test's thread ends before its process. So one
/// thread that lives as long as the process does all forking.
fn spawn_tied(mut command: Command) -> io::Result<Child> {
    static FORKER: OnceLock<Sender<Order>> = OnceLock::new();
    let parent = std::process::id();
    let tie = move || {
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have died before the line above.
        if nix::unistd::getppid().as_raw().cast_unsigned() == parent {
            Ok(())
        } else {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    };
    // SAFETY: between fork and exec the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(tie) };
    let forker = FORKER.get_or_init(|| {
        let (orders, inbox) = channel::<Order>();
        thread::spawn(move || {
            for (mut command, reply) in inbox {
                // Nobody waits for the answer only if the asking thread has panicked.
                drop(reply.send(command.spawn()));
            }
        });
        orders
    });
    let (reply, answer) = channel();
    let gone = |_| io::Error::other("the thread that starts programs is gone");
    forker.send((command, reply)).map_err(|error| gone(error.to_string()))?;
    answer.recv().map_err(|error| gone(error.to_string()))?
}
