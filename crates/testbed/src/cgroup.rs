//! Child cgroups in the v2 hierarchy, for socket hooks of one test node at a time: one kernel has one cgroup tree.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{io, thread};

use crate::wait;
use crate::{Error, Result};

/// The file of a cgroup that lists its processes and takes new ones.
const PROCESSES: &str = "cgroup.procs";

/// How long killed processes may take to leave a cgroup.
const EMPTY_LIMIT: Duration = Duration::from_secs(5);

/// The file system type of a v1 hierarchy: one for each controller or group of controllers.
const V1: &str = "cgroup";

/// The file system type of the v2 hierarchy.
const V2: &str = "cgroup2";

/// Where the processes of a whole node live: a cgroup with children may have no processes of its own.
const NODE_PROCESSES: &str = "system";

/// A cgroup of the v2 hierarchy. On drop its processes are killed and it is removed.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    /// The file that takes new processes.
    members: PathBuf,
}

impl Cgroup {
    /// Makes the cgroup `weir-PID-NAME` below the root of the v2 hierarchy, PID being this process.
    ///
    /// It is a threaded cgroup: processes and single threads of this process can live in it.
    ///
    /// # Errors
    /// When no v2 hierarchy is mounted, the name is taken, or the process may not make cgroups.
    pub fn create(name: &str) -> Result<Self> {
        let cgroup = Self::create_domain(name)?;
        let kind = cgroup.path.join("cgroup.type");
        fs::write(&kind, "threaded").map_err(Error::file("write", &kind))?;
        Ok(cgroup)
    }

    /// The same for a whole node, kubelet and containers included: it can have children with controllers, and there is a
    /// cgroup of its name in each v1 hierarchy, too. Only processes can live in it.
    ///
    /// # Errors
    /// As [`Cgroup::create`].
    pub fn create_for_node(name: &str) -> Result<Self> {
        let mut cgroup = Self::create_domain(name)?;
        let system = cgroup.path.join(NODE_PROCESSES);
        for directory in cgroup.twins()?.into_iter().chain([system.clone()]) {
            fs::create_dir(&directory).map_err(Error::file("create cgroup", &directory))?;
        }
        cgroup.members = system.join(PROCESSES);
        Ok(cgroup)
    }

    /// Where its twins in v1 hierarchies are, or would be.
    pub(crate) fn twins(&self) -> Result<Vec<PathBuf>> {
        Ok(mounts(V1)?.into_iter().map(|root| root.join(self.name())).collect())
    }

    /// Kills its processes and removes it, its twins in v1 hierarchies after it: they are empty then.
    fn remove(&self) -> Result<()> {
        remove(&self.path)?;
        self.twins()?.iter().try_for_each(|twin| remove(twin))
    }

    fn create_domain(name: &str) -> Result<Self> {
        let path = root()?.join(format!("{}{name}", prefix(std::process::id())));
        fs::create_dir(&path).map_err(Error::file("create cgroup", &path))?;
        let members = path.join(PROCESSES);
        Ok(Self { path, members })
    }

    /// A cgroup below this one, such as kubelet makes for a pod, with all that are missing in between. Like this one it is
    /// threaded, which this one must be.
    ///
    /// # Errors
    /// As [`Cgroup::create`], but it may be there already.
    pub fn below(&self, path: &str) -> Result<Self> {
        let mut directory = self.path.clone();
        for name in path.split('/') {
            directory.push(name);
            match fs::create_dir(&directory) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => {
                    made.map_err(Error::file("create cgroup", &directory))?;
                    let kind = directory.join("cgroup.type");
                    fs::write(&kind, "threaded").map_err(Error::file("write", &kind))?;
                }
            }
        }
        let members = directory.join(PROCESSES);
        Ok(Self { path: directory, members })
    }

    /// Its directory, for attaching programs.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its name, below the root of the hierarchy.
    #[must_use]
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Makes a command start inside the cgroup.
    ///
    /// # Errors
    /// When the cgroup is gone.
    pub fn attach(&self, command: &mut Command) -> Result<()> {
        let file = File::options().write(true).open(&self.members).map_err(Error::file("open", &self.members))?;
        // "0" is the process that writes, here the child.
        let join = move || (&file).write_all(b"0");
        // SAFETY: between fork and exec the closure makes one system call on an open file and allocates nothing.
        unsafe { command.pre_exec(join) };
        Ok(())
    }

    /// Runs `work` on a thread of its own inside the cgroup: its sockets meet the cgroup's socket hooks.
    ///
    /// # Errors
    /// When the thread cannot be moved.
    ///
    /// # Panics
    /// When `work` panics, with its panic.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        let threads = self.path.join("cgroup.threads");
        let run = || fs::write(&threads, "0").map(|()| work());
        let result = thread::scope(|scope| scope.spawn(run).join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
        result.map_err(Error::file("join", &threads))
    }

    /// Kills its processes and removes it.
    ///
    /// # Errors
    /// When a process does not go or the directory stays busy.
    pub fn delete(self) -> Result<()> {
        // Dropping would be the same, but silent about errors.
        let result = self.remove();
        std::mem::forget(self);
        result
    }

    /// Removes what killed test processes have left: cgroups whose name holds the id of a process that is gone.
    ///
    /// # Errors
    /// When the hierarchy cannot be listed or a left cgroup cannot be removed.
    pub fn sweep() -> Result<()> {
        for root in [vec![root()?], mounts(V1)?].concat() {
            for entry in fs::read_dir(&root).map_err(Error::file("list", &root))? {
                let entry = entry.map_err(Error::file("list", &root))?;
                let name = entry.file_name();
                let owner = name.to_str().and_then(|name| name.strip_prefix("weir-")?.split_once('-')?.0.parse().ok());
                if owner.is_some_and(|pid| !is_alive(pid)) {
                    remove(&entry.path())?;
                }
            }
        }
        Ok(())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("{error}");
        }
    }
}

/// Where the v2 hierarchy is mounted: `/sys/fs/cgroup`, or `/sys/fs/cgroup/unified` beside v1 controllers.
///
/// # Errors
/// [`Error::Missing`] when it is mounted nowhere.
pub fn root() -> Result<PathBuf> {
    mounts(V2)?.into_iter().next().ok_or_else(|| Error::Missing {
        what: "a mounted cgroup v2 hierarchy".into(),
        hint: "mount -t cgroup2 none /sys/fs/cgroup/unified".into(),
    })
}

/// Where file systems of a type are mounted.
fn mounts(kind: &str) -> Result<Vec<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mounts").map_err(Error::io("read /proc/self/mounts"))?;
    let found = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (directory, own_kind) = (fields.next()?, fields.next()?);
        (own_kind == kind).then(|| PathBuf::from(directory))
    });
    Ok(found.collect())
}

/// True while a process with this id exists.
pub(crate) fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

fn prefix(pid: u32) -> String {
    format!("weir-{pid}-")
}

fn remove(path: &Path) -> Result<()> {
    let what = format!("the removal of cgroup {}", path.display());
    wait::until_some(&what, EMPTY_LIMIT, || {
        kill_members(path).and_then(|()| remove_tree(path)).map_err(|error| error.to_string())
    })
}

/// Removes a cgroup and its children. One that is gone counts as removed.
fn remove_tree(path: &Path) -> io::Result<()> {
    let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let entries = match fs::read_dir(path) {
        Err(error) if gone(&error) => return Ok(()),
        other => other?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(path).or_else(|error| if gone(&error) { Ok(()) } else { Err(error) })
}

/// Kills every process in the cgroup. A thread of this very process is left alone: it leaves when its work is done.
fn kill_members(path: &Path) -> io::Result<()> {
    let kind = match fs::read_to_string(path.join("cgroup.type")) {
        // It is gone, or of a v1 hierarchy: then its processes were killed by way of v2.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    if kind.trim() != "threaded" {
        // All at once, children's included: nobody is left to start another.
        return fs::write(path.join("cgroup.kill"), "1");
    }
    // A threaded cgroup lists threads only, and has no `cgroup.kill`.
    let members = match fs::read_to_string(path.join("cgroup.threads")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for thread in members.lines().filter_map(|line| line.parse::<i32>().ok()) {
        let own = Path::new("/proc/self/task").join(thread.to_string()).exists();
        // Thread 0 is one that this pid namespace cannot see.
        if !own && thread > 0 {
            match nix::sys::signal::kill(nix::unistd::Pid::from_raw(thread), nix::sys::signal::Signal::SIGKILL) {
                Ok(()) | Err(nix::Error::ESRCH) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
    Ok(())
}
