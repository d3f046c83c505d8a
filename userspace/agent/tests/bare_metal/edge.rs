//! A machine of the page: a namespace with mounts and a name of its own.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;

use nix::sys::signal::Signal;
use weir_testbed::process::Process;
use weir_testbed::{Cgroup, Netns, wait};

use crate::machine::Machine;
use crate::{SOON, block};

/// Where the page has its files.
const DIRECTORY: &str = "/etc/weir";
/// Two agents share a machine here: the sizes of one that has it for itself would be too much.
const SIZES: &str = "--max-flows=16384 --max-sockets=4096 --max-backends=4096 --max-services=1024";

/// See the module's description.
pub(crate) struct Edge {
    agent: Option<Process>,
    /// What its agent takes for the whole of it; None where the kernel cannot limit CPU time, and it is the real one.
    pub(crate) machine: Option<Machine>,
    /// Keeps the mounts.
    holder: Process,
    cgroup: Cgroup,
    log: PathBuf,
    pub(crate) netns: Netns,
}

impl Edge {
    pub(crate) fn start(prefix: &str, name: &str) -> Self {
        const OWN: &str = "hostname $0; mount -t tmpfs tmpfs /etc/weir; mount -t bpf bpf /sys/fs/bpf; \
                           mount -t tmpfs tmpfs /run; touch /run/is-set-up; exec sleep infinity";
        let netns = Netns::create(&format!("{prefix}{name}")).unwrap();
        let log = std::env::temp_dir().join(format!("{prefix}{name}.log"));
        let mut unshare = netns.command("unshare");
        unshare.args(["--mount", "--uts", "--propagation", "private", "sh", "-ec", OWN, name]);
        let holder = Process::start(unshare, "unshare", &log).unwrap();
        let cgroup = Cgroup::create(&format!("{prefix}{name}")).unwrap();
        let limited = Machine::require("a machine that has too much to do");
        let machine = limited.then(|| Machine::create(&format!("{prefix}machine-{name}")));
        let edge = Self { agent: None, machine, holder, cgroup, log, netns };
        wait::until(name, SOON, || edge.path("/run/is-set-up").exists()).unwrap();
        edge
    }

    /// A file of this machine as others see it.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        Path::new("/proc").join(self.holder.id().to_string()).join("root").join(path.trim_start_matches('/'))
    }

    /// A command that runs lines of the page on this machine.
    fn shell(&self, lines: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.id().to_string(), "--mount", "--uts", "--net", "sh", "-ec", lines]);
        let built = Path::new(env!("CARGO_BIN_EXE_weir-agent")).parent().unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", built.display())).env("WEIR_CGROUP", self.cgroup.path());
        command
    }

    pub(crate) fn try_run(&self, lines: &str) -> Output {
        self.shell(lines).output().unwrap()
    }

    /// Runs lines of the page, which must succeed, and returns what they write.
    pub(crate) fn run(&self, lines: &str) -> String {
        let output = self.try_run(lines);
        assert!(output.status.success(), "{lines}: {output:?}\n{}", self.log());
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn start_agent(&mut self) {
        let group = self.machine.as_ref().map(|machine| format!("--node-cgroup={}", machine.name()));
        let line = format!("exec {} {SIZES} {}", block("agent").trim_end(), group.unwrap_or_default());
        self.agent = Some(Process::start(self.shell(&line), "weir-agent", &self.log).unwrap());
    }

    pub(crate) fn hang_up(&self) {
        self.agent.as_ref().unwrap().signal(Signal::SIGHUP).unwrap();
    }

    /// Puts another file in the old one's place.
    pub(crate) fn write(&self, text: &str) {
        let [new, old] = ["new", "weir.yaml"].map(|name| self.path(&format!("{DIRECTORY}/{name}")));
        fs::write(&new, text).unwrap();
        fs::rename(new, old).unwrap();
    }

    pub(crate) fn read(&self) -> String {
        fs::read_to_string(self.path(&format!("{DIRECTORY}/weir.yaml"))).unwrap()
    }

    /// The answer of the agent at a path of a port, status code and body.
    fn get(&self, port: u16, path: &str) -> Option<(u16, String)> {
        self.netns.enter(|| {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
            stream.set_read_timeout(Some(SOON)).ok()?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").ok()?;
            let mut text = String::new();
            stream.read_to_string(&mut text).ok()?;
            let (head, body) = text.split_once("\r\n\r\n")?;
            Some((head.split_whitespace().nth(1)?.parse().ok()?, body.to_owned()))
        })
    }

    /// Waits until the agent answers `/readyz` with a code and this text.
    pub(crate) fn await_readiness(&self, code: u16, text: &str) {
        let look = || match self.get(10256, "/readyz") {
            Some((seen, body)) if seen == code && body.contains(text) => Ok(()),
            other => Err(format!("{other:?}\n{}", self.log())),
        };
        wait::until_some(&format!("{code} with {text:?}"), SOON, look).unwrap();
    }

    pub(crate) fn metric(&self, series: &str) -> Option<f64> {
        let (_, text) = self.get(10249, "/metrics")?;
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    pub(crate) fn await_metric(&self, series: &str, good: impl Fn(f64) -> bool) {
        let look = || {
            let seen = self.metric(series);
            if seen.is_some_and(&good) { Ok(()) } else { Err(format!("{seen:?}\n{}", self.log())) }
        };
        wait::until_some(series, SOON, look).unwrap();
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Edge {
    fn drop(&mut self) {
        self.agent = None;
        if thread::panicking() {
            eprintln!("---- {}\n{}", self.netns.name(), self.log());
        }
        let _ = fs::remove_file(&self.log);
    }
}

/// The directory of the page's files: each machine mounts its own over it.
pub(crate) struct Directory(bool);

impl Directory {
    pub(crate) fn ensure() -> Self {
        Self(fs::create_dir(DIRECTORY).is_ok())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.0 {
            let _ = fs::remove_dir(DIRECTORY);
        }
    }
}
