//! A machine of its own whose process 1 is systemd: a node's network, cgroups and a bpffs of its own, and for a root what this
//! machine's root file system holds. What is written there goes with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use weir_testbed::process::{self, Process};
use weir_testbed::{Cgroup, Error, Node, Result, require_root, wait};

use crate::programs::{root, run};

const SYSTEMD: &str = "/lib/systemd/systemd";

/// Where an administrator's shell looks for programs.
const PATH: &str = "/run/operator:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Where the machine shows what was written to its root file system, and nothing else.
const CHANGES: &str = "/run/changes";

/// Patience with systemd until it has nothing left to start.
const SOON: Duration = Duration::from_secs(30);

/// `setup DIRECTORY NAME TREE`: file systems as systemd has them on a host, no unit of this machine's and no generator of units.
/// Services log to a file, since there is no journal. The tree is where it is here, to be read. The file `id` gets the number that process 1 has outside, which the proc of outside
/// tells, as soon as the root is the machine's own.
const SETUP: &str = r#"
from=$1 name=$2 tree=$3
read -r id _ </proc/self/stat
exec 3>"$from/id"
layers=$from/layers
mkdir "$layers"
mount -t tmpfs tmpfs "$layers"
mkdir "$layers"/{upper,work,root}
mount -t overlay overlay -o "lowerdir=/,upperdir=$layers/upper,workdir=$layers/work" "$layers/root"
cd "$layers/root"
rm -rf usr/{lib,local/lib}/systemd/system{,-generators} etc/systemd/system{,-generators}
mkdir -p usr/lib/systemd/system etc/systemd/system ./"$tree"
echo "$name" >etc/hostname
# Containers forbid services to start by it.
rm -f usr/sbin/policy-rc.d
for target in sysinit basic shutdown umount network-pre multi-user; do
	printf '[Unit]\nDescription=%s\nDefaultDependencies=no\n' $target >usr/lib/systemd/system/$target.target
done
mount --bind "$tree" ./"$tree"
mount -o remount,bind,ro ./"$tree"
mount -t proc proc proc
mount --rbind /dev dev
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t bpf -o mode=0700 bpf sys/fs/bpf
mount -t tmpfs -o mode=0755 tmpfs run
mkdir -p run/{changes,operator} run/systemd/system/service.d
printf '[Service]\nStandardOutput=append:/run/log\nStandardError=append:/run/log\n' >run/systemd/system/service.d/log.conf
mount --bind "$layers/upper" run/changes
pivot_root . mnt
cd /
umount --lazy /mnt
echo "$id" >&3
exec 3>&-
exec env -i container=weir-test PATH="$PATH" /lib/systemd/systemd --system --unit=multi-user.target
"#;

/// See the module's description. Its processes end with it.
pub struct Machine {
    _systemd: Process,
    // Its processes end before it goes.
    _cgroup: Cgroup,
    directory: TempDir,
}

impl Machine {
    /// True when this machine can have such ones; else says on stderr that `what` is skipped, and why.
    #[must_use]
    pub fn can_boot(what: &str) -> bool {
        if !require_root(what) {
            return false;
        }
        let programs = ["systemctl", "nsenter", "unshare", "pivot_root"];
        let missing =
            programs.into_iter().find_map(|name| process::installed(name).err().map(|error| error.to_string()));
        let missing = missing.or_else(|| (!Path::new(SYSTEMD).exists()).then(|| format!("there is no {SYSTEMD}")));
        let missing =
            missing.or_else(|| (!knows_overlay()).then(|| "the kernel has no file system overlay".to_owned()));
        if let Some(missing) = &missing {
            eprintln!("SKIPPED: {what}: {missing}");
        }
        missing.is_none()
    }

    /// Boots one on the network of a node, under this host name, until it has nothing left to start.
    ///
    /// # Errors
    /// When it cannot be started, or is not done soon.
    pub fn boot(node: &Node, name: &str) -> Result<Self> {
        // systemd makes groups below it.
        let cgroup = Cgroup::create_for_node(&format!("{}-systemd", node.netns().name()))?;
        let directory = tempfile::Builder::new().prefix("weir-machine-").tempdir();
        let directory = directory.map_err(|source| Error::Io { action: "make a directory".to_owned(), source })?;
        let mut command = node.netns().command("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--uts", "--ipc", "--cgroup"]);
        command.args(["--propagation", "private", "bash", "-euo", "pipefail", "-c", SETUP, "setup"]);
        command.arg(directory.path()).arg(name).arg(root());
        cgroup.attach(&mut command)?;
        let systemd = Process::start(command, "systemd", &directory.path().join("systemd.log"))?;
        let machine = Self { _systemd: systemd, _cgroup: cgroup, directory };
        let idle = || match machine.run(&["systemctl", "list-jobs"]) {
            Ok(said) if said.contains("No jobs") => Ok(()),
            other => Err(format!("{other:?}")),
        };
        wait::until_some(name, SOON, idle).map_err(|error| Error::Invalid(format!("{error}\n{}", machine.log())))?;
        Ok(machine)
    }

    /// Process 1 of the machine, as it is called here; empty before it is there.
    fn init(&self) -> String {
        fs::read_to_string(self.directory.path().join("id")).unwrap_or_default().trim().to_owned()
    }

    /// A file of the machine, as others see it.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        Path::new("/proc").join(self.init()).join("root").join(path.trim_start_matches('/'))
    }

    /// What a file of the machine says; empty if it cannot be read.
    #[must_use]
    pub fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_default()
    }

    /// Writes a file of the machine, and the directory that it is in.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) -> Result<()> {
        let file = self.path(path);
        let made = file.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&file, content));
        made.map_err(|source| Error::Io { action: format!("write {path} of a machine"), source })
    }

    /// Runs a command there and returns what it prints on stdout.
    ///
    /// # Errors
    /// [`Error::Command`] with all that it printed on stderr when it fails.
    pub fn run(&self, words: &[&str]) -> Result<String> {
        run(self.command()?.args(words))
    }

    /// Runs a line as its administrator would, in the tree, and returns what it prints on both outputs.
    ///
    /// # Errors
    /// [`Error::Command`] with all of that when it fails.
    pub fn shell(&self, line: &str) -> Result<String> {
        let mut command = self.command()?;
        command.args(["bash", "-euc", &format!("cd {}\n{line}", root().display())]);
        let output = command.output();
        let output = output.map_err(|source| Error::Io { action: format!("run `{line}`"), source })?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        if output.status.success() {
            return Ok(said);
        }
        Err(Error::Command { command: line.to_owned(), status: output.status.to_string(), message: said })
    }

    /// A command that runs on the machine what its words are.
    fn command(&self) -> Result<Command> {
        let init = self.init();
        if init.is_empty() {
            return Err(Error::Invalid("it has no process 1 yet".to_owned()));
        }
        let mut command = Command::new("nsenter");
        command.args(["--target", &init, "--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--"]);
        command.env_clear().env("PATH", PATH).env("HOME", "/root").env("DEBIAN_FRONTEND", "noninteractive");
        Ok(command)
    }

    /// The files of its root file system that were made or written since it was booted and are still there, and empty directories
    /// called `weir`; sorted.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub fn changes(&self) -> Result<Vec<String>> {
        // Character devices of this layer stand for what was taken away, directories for those that hold a change.
        let directories = ["-type", "d", "-name", "weir", "-empty"];
        let files = ["!", "-type", "d", "!", "-type", "c"];
        let found = self.run(&[&["find", CHANGES][..], &files, &["-o"], &directories].concat())?;
        let mut all: Vec<_> = found.lines().map(|path| path.trim_start_matches(CHANGES).to_owned()).collect();
        all.sort();
        Ok(all)
    }

    /// What its services and systemd itself have said.
    #[must_use]
    pub fn log(&self) -> String {
        self.read("/run/log") + &fs::read_to_string(self.directory.path().join("systemd.log")).unwrap_or_default()
    }
}

/// Whether the kernel has the file system, maybe as a module that nobody has needed yet.
fn knows_overlay() -> bool {
    let knows = || fs::read_to_string("/proc/filesystems").is_ok_and(|all| all.contains("\toverlay\n"));
    knows() || run(Command::new("modprobe").args(["--quiet", "overlay"])).is_ok() && knows()
}
