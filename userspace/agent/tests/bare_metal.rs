//! docs/bare-metal.md as it stands: its files and commands, on two machines that are namespaces with mounts and a name
//! of their own.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use weir_kube_watch::static_file;
use weir_testbed::load::{Load, Report, RunningLoad};
use weir_testbed::process::Process;
use weir_testbed::serve::{self, Server};
use weir_testbed::{Cgroup, Netns, World, require_root, wait};

const PAGE: &str = include_str!("../../../docs/bare-metal.md");
const EXAMPLE: &str = include_str!("../../../deploy/static/weir.yaml");

/// Patience with anything that should happen at once.
const SOON: Duration = Duration::from_secs(15);
/// For how long nothing may fail.
const WATCHED: Duration = Duration::from_secs(2);
/// Where the page has its files.
const DIRECTORY: &str = "/etc/weir";
/// Requests in a second.
const RATE: u32 = 50;
/// Two agents share a machine here: the sizes of one that has it for itself would be too much.
const SIZES: &str = "--max-flows=16384 --max-sockets=4096 --max-backends=4096 --max-services=1024";

/// The text between the fences that follow a block's name.
fn block(name: &str) -> &'static str {
    let mark = format!("<!-- block: {name} -->\n```");
    let begin = PAGE.find(&mark).unwrap_or_else(|| panic!("no block {name}")) + mark.len();
    let (_, rest) = PAGE[begin..].split_once('\n').unwrap();
    &rest[..rest.find("```").unwrap()]
}

/// Within how many seconds a dead endpoint is out, by the page.
fn stated() -> Duration {
    let (_, rest) = PAGE.split_once("**within ").unwrap();
    Duration::from_secs(rest.split_once(" seconds**").unwrap().0.parse().unwrap())
}

#[test]
fn the_page_shows_the_file_that_is_delivered_and_promises_no_more_than_its_check_does() {
    assert_eq!(block("file"), EXAMPLE);
    let (_, check) = &static_file::parse(EXAMPLE).unwrap().checks[0];
    assert!(check.longest_until_out() < stated(), "{check:?}");
}

/// A machine of the page.
struct Machine {
    agent: Option<Process>,
    /// Keeps the mounts.
    holder: Process,
    cgroup: Cgroup,
    log: PathBuf,
    netns: Netns,
}

impl Machine {
    fn start(prefix: &str, name: &str) -> Self {
        const OWN: &str = "hostname $0; mount -t tmpfs tmpfs /etc/weir; mount -t bpf bpf /sys/fs/bpf; \
                           mount -t tmpfs tmpfs /run; touch /run/is-set-up; exec sleep infinity";
        let netns = Netns::create(&format!("{prefix}{name}")).unwrap();
        let log = std::env::temp_dir().join(format!("{prefix}{name}.log"));
        let mut unshare = netns.command("unshare");
        unshare.args(["--mount", "--uts", "--propagation", "private", "sh", "-ec", OWN, name]);
        let holder = Process::start(unshare, "unshare", &log).unwrap();
        let cgroup = Cgroup::create(&format!("{prefix}{name}")).unwrap();
        let machine = Self { agent: None, holder, cgroup, log, netns };
        wait::until(name, SOON, || machine.path("/run/is-set-up").exists()).unwrap();
        machine
    }

    /// A file of this machine as others see it.
    fn path(&self, path: &str) -> PathBuf {
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

    fn try_run(&self, lines: &str) -> Output {
        self.shell(lines).output().unwrap()
    }

    fn run(&self, lines: &str) {
        let output = self.try_run(lines);
        assert!(output.status.success(), "{lines}: {output:?}\n{}", self.log());
    }

    fn start_agent(&mut self) {
        let command = self.shell(&format!("exec {} {SIZES}", block("agent").trim_end()));
        self.agent = Some(Process::start(command, "weir-agent", &self.log).unwrap());
    }

    fn hang_up(&self) {
        self.agent.as_ref().unwrap().signal(Signal::SIGHUP).unwrap();
    }

    /// Puts another file in the old one's place.
    fn write(&self, text: &str) {
        let [new, old] = ["new", "weir.yaml"].map(|name| self.path(&format!("{DIRECTORY}/{name}")));
        fs::write(&new, text).unwrap();
        fs::rename(new, old).unwrap();
    }

    fn read(&self) -> String {
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
    fn await_readiness(&self, code: u16, text: &str) {
        let look = || match self.get(10256, "/readyz") {
            Some((seen, body)) if seen == code && body.contains(text) => Ok(()),
            other => Err(format!("{other:?}\n{}", self.log())),
        };
        wait::until_some(&format!("{code} with {text:?}"), SOON, look).unwrap();
    }

    fn metric(&self, series: &str) -> Option<f64> {
        let (_, text) = self.get(10249, "/metrics")?;
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    fn await_metric(&self, series: &str, good: impl Fn(f64) -> bool) {
        let look = || {
            let seen = self.metric(series);
            if seen.is_some_and(&good) { Ok(()) } else { Err(format!("{seen:?}\n{}", self.log())) }
        };
        wait::until_some(series, SOON, look).unwrap();
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.agent = None;
        if thread::panicking() {
            eprintln!("---- {}\n{}", self.netns.name(), self.log());
        }
        let _ = fs::remove_file(&self.log);
    }
}

/// The directory of the page's files: each machine mounts its own over it.
struct Directory(bool);

impl Directory {
    fn ensure() -> Self {
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

/// Both machines and a client on one wire. The client's route to the service's address is edge-1's.
struct Bed {
    edges: [Machine; 2],
    client: Netns,
    _switch: Netns,
    _directory: Directory,
}

impl Bed {
    fn start() -> Self {
        World::sweep().unwrap();
        Cgroup::sweep().unwrap();
        let directory = Directory::ensure();
        // As worlds call theirs, so that what a killed test leaves is swept.
        let prefix = format!("w{}-0-node-", std::process::id());
        let [switch, client] = ["switch", "client"].map(|name| Netns::create(&format!("{prefix}{name}")).unwrap());
        switch.ip("link add br0 type bridge forward_delay 0 mcast_snooping 0\nlink set br0 up").unwrap();
        let edges = ["edge-1", "edge-2"].map(|name| Machine::start(&prefix, name));
        for (number, netns) in [(1, &client), (11, &edges[0].netns), (12, &edges[1].netns)] {
            let name = netns.name();
            switch
                .ip(&format!(
                    "link add port{number} type veth peer name eth0 netns {name}\nlink set port{number} master br0 up"
                ))
                .unwrap();
            netns.ip(&format!("addr add 192.0.2.{number}/24 dev eth0\nlink set eth0 up")).unwrap();
        }
        client.ip("route add 198.51.100.1/32 via 192.0.2.11").unwrap();
        Self { edges, client, _switch: switch, _directory: directory }
    }

    /// The page until both agents serve.
    fn set_up(&mut self) {
        self.edges[0].run(block("key"));
        let [key, other] = [0, 1].map(|edge: usize| self.edges[edge].path("/etc/weir/mesh.key"));
        fs::copy(key, other).unwrap();
        for edge in &mut self.edges {
            edge.write(block("file"));
            edge.run(block("forwarding"));
            edge.start_agent();
        }
        for edge in &self.edges {
            edge.await_readiness(200, "");
        }
    }

    /// A web server on one of the machines.
    fn serve(&self, edge: usize, name: &str, port: u16) -> Server {
        serve::http(&self.edges[edge].netns, name, port).unwrap()
    }

    fn ask(&self) -> RunningLoad {
        let service = SocketAddr::new(IpAddr::from([198, 51, 100, 1]), 80);
        Load::http(service).concurrency(4).rate(RATE).start(&self.client).unwrap()
    }
}

/// What clients see from now on.
fn watch(load: &mut RunningLoad) -> Report {
    load.take().unwrap();
    thread::sleep(WATCHED);
    let report = load.take().unwrap();
    assert!(report.answered() > 0, "{report:?}");
    report
}

/// Waits until one of the servers answers, without a failure from now on.
fn await_answers_of(load: &mut RunningLoad, server: &str) {
    load.take().unwrap();
    let look = || {
        let report = load.take().unwrap();
        assert_eq!(report.failed(), 0, "{:?}", report.errors);
        if report.share(server) > 0.0 { Ok(()) } else { Err(format!("{:?}", report.answers)) }
    };
    wait::until_some(&format!("an answer of {server}"), SOON, look).unwrap();
}

/// The command line, where it is built, and for the same maps.
fn has_weir(what: &str) -> bool {
    let weir = Path::new(env!("CARGO_BIN_EXE_weir-agent")).with_file_name("weir");
    let version = Command::new(weir).arg("version").output().map(|output| String::from_utf8(output.stdout).unwrap());
    let found = version.is_ok_and(|text| text.trim_end().ends_with(&format!("ABI version {}", weir_abi::ABI_VERSION)));
    if !found {
        println!("SKIPPED: {what}: `weir` is not built, or is an older one; run `cargo build -p weir-cli`");
    }
    found
}

#[test]
fn the_page_works_as_it_is_written() {
    if !require_root("the page about bare metal") {
        return;
    }
    let mut bed = Bed::start();
    let [first, _second] = [(0, "edge-1"), (1, "edge-2")].map(|(edge, name)| bed.serve(edge, name, 8080));
    let _third = bed.serve(1, "edge-2-b", 8081);
    bed.set_up();
    let edge = &bed.edges[0];
    if has_weir("the page's commands") {
        bed.edges.iter().for_each(|edge| edge.run(block("check")));
        edge.run(block("look"));
    }
    for (edge, peer) in [(0, "edge-2"), (1, "edge-1")] {
        bed.edges[edge].await_metric(&format!("weir_probe_rtt_seconds{{peer=\"{peer}\"}}"), |seconds| seconds > 0.0);
    }

    let mut load = bed.ask();
    let report = watch(&mut load);
    assert_eq!(report.failed(), 0, "{:?}", report.errors);
    assert!(report.share("edge-1") > 0.0 && report.share("edge-2-b") == 0.0, "{:?}", report.answers);

    // A web server dies.
    drop(first);
    let died = Instant::now();
    thread::sleep(stated().saturating_sub(died.elapsed()));
    let report = watch(&mut load);
    assert_eq!(report.failed(), 0, "{:?} later than {:?} after its death", report.errors, stated());
    assert_eq!(report.share("edge-2"), 1.0, "{:?}", report.answers);
    assert_eq!(edge.metric("weir_failing_endpoints"), Some(1.0));
    if has_weir("the state of a dead endpoint") {
        let shown = String::from_utf8(edge.try_run("weir endpoints web").stdout).unwrap();
        let dead = shown.lines().find(|line| line.contains("192.0.2.11:8080"));
        assert!(dead.is_some_and(|line| line.contains("draining")), "{shown}");
    }

    // The file changes.
    bed.edges.iter().for_each(|edge| edge.run(block("add")));
    await_answers_of(&mut load, "edge-2-b");
    let _first = bed.serve(0, "edge-1", 8080);
    await_answers_of(&mut load, "edge-1");

    // The file is broken: nothing changes.
    let good = edge.read();
    let broken = good.replace("[198.51.100.1]", "[198.51.100]");
    edge.write(&broken);
    let (mistake, series) = ("line 17, column 23: loadBalancerIPs", "weir_watch_connected{kind=\"services\"}");
    edge.await_readiness(503, mistake);
    edge.await_metric(series, |connected| connected == 0.0);
    if has_weir("the page's mistake") {
        let output = edge.try_run(block("check"));
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(String::from_utf8(output.stderr).unwrap(), block("mistake"));
    }
    let told = edge.log().matches(mistake).count();
    edge.hang_up();
    wait::until("the mistake to be told again", SOON, || edge.log().matches(mistake).count() > told).unwrap();
    let report = watch(&mut load);
    assert_eq!(report.failed(), 0, "{:?}", report.errors);
    edge.write(&good);
    edge.await_readiness(200, "");
    edge.await_metric(series, |connected| connected == 1.0);
}
