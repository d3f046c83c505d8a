//! One node's agent: started, asked, killed and started again.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_abi::{self as abi, names};
use weir_datapath::{Counters, PinDir};
use weir_prepared::{Prepared, has_filters};
use weir_testbed::apiserver::{ApiServer, User};
use weir_testbed::process::Process;
use weir_testbed::{Cgroup, World, address, wait};

use super::{SOON, http, sizes, text};

/// Patience with an agent that starts: the kernel checks its programs for seconds, and those of several agents at once on two CPUs for longer.
const LOADED: Duration = Duration::from_secs(30);

/// The status code, and of each part its name, whether it is ready, and a reason.
pub(crate) type Readiness = (u16, Vec<(String, bool, String)>);

/// One node's agent. Its programs and maps are removed on drop; in between it may be killed and started.
pub(crate) struct Agent {
    node: u8,
    process: Option<Process>,
    pub(crate) pins: PathBuf,
    /// What it has found there, if it was anything.
    prepared: Option<Prepared>,
    pub(crate) cgroup: Cgroup,
    log: PathBuf,
    /// Bytes of the log that are of earlier processes.
    earlier: usize,
    arguments: Vec<String>,
}

impl Agent {
    pub(crate) fn start(world: &World, api: &ApiServer, node: u8, options: &[&str]) -> Self {
        Self::with_source(world, node, Self::source(api), options)
    }

    /// The option that leads to an API server.
    pub(crate) fn source(api: &ApiServer) -> [String; 2] {
        let url = api.url_at(address::ROUTER_INSIDE.v4.into());
        let kubeconfig = api.kubeconfig(User::Admin, &url).unwrap();
        ["--kubeconfig".to_owned(), kubeconfig.display().to_string()]
    }

    pub(crate) fn with_source(world: &World, node: u8, source: [String; 2], options: &[&str]) -> Self {
        let mut agent = Self::prepared(world, node, source, options);
        agent.start_again(world);
        agent
    }

    /// The same, not started yet.
    pub(crate) fn prepared(world: &World, node: u8, source: [String; 2], options: &[&str]) -> Self {
        let name = format!("{}node{node}", world.prefix());
        let pins = Path::new("/sys/fs/bpf").join(&name);
        let cgroup = Cgroup::create(&name).unwrap();
        let log = std::env::temp_dir().join(format!("{name}-agent.log"));
        let mut arguments: Vec<String> = source.into();
        for argument in [
            "--node-name",
            &format!("node{node}"),
            "--pin-dir",
            &pins.display().to_string(),
            "--cgroup",
            &cgroup.path().display().to_string(),
            // The worlds switch the offloads of the NICs' peers off.
            "--xdp-on-veth",
        ] {
            arguments.push(argument.to_owned());
        }
        arguments.extend(sizes::options());
        let find = |capacity| world.node(node).netns().enter(|| Prepared::at(&PinDir::new(&pins), &capacity).unwrap());
        let prepared = sizes::of(options).map(find);
        let mut agent = Self { node, process: None, pins, prepared, cgroup, log, earlier: 0, arguments };
        options.iter().for_each(|option| agent.set_option(option));
        agent
    }

    /// Gives an option of the form `--name=value` another value, from the next start on; without `=` it is a switch.
    pub(crate) fn set_option(&mut self, option: &str) {
        self.remove_option(option.split_once('=').map_or(option, |(name, _)| name));
        self.arguments.push(option.to_owned());
    }

    /// Takes an option away, from the next start on.
    pub(crate) fn remove_option(&mut self, name: &str) {
        // Some were given as two words.
        if let Some(at) = self.arguments.iter().position(|argument| argument == name) {
            let value = self.arguments.get(at + 1).filter(|value| !value.starts_with("--"));
            self.arguments.drain(at..=at + usize::from(value.is_some()));
        }
        self.arguments.retain(|argument| !argument.starts_with(&format!("{name}=")));
    }

    /// Has it find no pins, as on a node that never had an agent. The kernel checks its programs then.
    pub(crate) fn find_nothing(&mut self) {
        let prepared = self.prepared.take();
        self.leave_pins(prepared).unwrap();
    }

    /// To the next agent, or else to nobody.
    fn leave_pins(&self, prepared: Option<Prepared>) -> weir_prepared::Result<()> {
        let dir = PinDir::new(&self.pins);
        Prepared::leave(prepared.filter(|_| !has_filters(&dir)), &dir)
    }

    /// Starts it after an end, with the same options.
    pub(crate) fn start_again(&mut self, world: &World) {
        self.start_through(world, &[]);
    }

    /// Starts it by a program that becomes it, such as `setpriv` with its options.
    pub(crate) fn start_through(&mut self, world: &World, wrapper: &[&str]) {
        self.earlier = self.log().len();
        let words: Vec<&str> = wrapper.iter().copied().chain([env!("CARGO_BIN_EXE_weir-agent")]).collect();
        let mut command = world.node(self.node).netns().command(words[0]);
        command.args(&words[1..]).args(&self.arguments);
        self.process = Some(Process::start(command, "weir-agent", &self.log).unwrap());
    }

    /// Waits until it ends by itself.
    pub(crate) fn await_end(&mut self) -> std::process::ExitStatus {
        let process = self.process.as_mut().unwrap();
        let end = wait::until_some("the agent's end", SOON, || process.exit_status().unwrap().ok_or_else(String::new));
        let status = end.unwrap_or_else(|e| panic!("{e}\n{}", self.log()));
        self.process = None;
        status
    }

    /// What it says on `/readyz`.
    pub(crate) fn readiness(&self, world: &World) -> Option<Readiness> {
        let (code, body) = self.get(world, 10256, "/readyz")?;
        let answer: serde_json::Value = serde_json::from_str(&body).unwrap();
        let part = |part: &serde_json::Value| {
            let text = |name: &str| part[name].as_str().unwrap_or_default().to_owned();
            (text("name"), part["ready"].as_bool().unwrap(), text("reason"))
        };
        Some((code, answer["components"].as_array().unwrap().iter().map(part).collect()))
    }

    /// Waits until a part is not ready for a reason with this text, and returns the reason.
    pub(crate) fn await_complaint(&self, world: &World, part: &str, text: &str) -> String {
        let look = || {
            let seen = self.readiness(world);
            let parts = seen.iter().filter(|(code, _)| *code == 503).flat_map(|(_, parts)| parts);
            let mut reasons = parts.filter(|(name, ready, _)| name == part && !ready).map(|(.., reason)| reason);
            let reason = reasons.find(|reason| reason.contains(text));
            reason.cloned().ok_or_else(|| format!("{seen:?}"))
        };
        let what = format!("{part} not ready because of {text:?}");
        wait::until_some(&what, SOON, look).unwrap_or_else(|e| panic!("{e}\n{}", self.log()))
    }

    /// Waits until the log has this text.
    pub(crate) fn await_log(&self, text: &str) {
        let what = format!("{text:?} in the log");
        wait::until(&what, SOON, || self.log().contains(text)).unwrap_or_else(|e| panic!("{e}\n{}", self.log()));
    }

    /// The value of a metric without labels.
    pub(crate) fn metric(&self, world: &World, name: &str) -> f64 {
        let (_, text) = self.get(world, 10249, "/metrics").unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or_else(|| panic!("no metric {name} in\n{text}"))
    }

    /// What it has done to maps since its start.
    pub(crate) fn map_ops(&self, world: &World) -> f64 {
        let (_, text) = self.get(world, 10249, "/metrics").unwrap();
        let of_map = text.lines().filter(|line| line.starts_with("weir_map_ops_total{"));
        of_map.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    /// Ends it as a crash would.
    pub(crate) fn kill(&mut self) {
        self.process.take().unwrap().kill().unwrap();
    }

    /// Ends it as an operator would.
    pub(crate) fn stop(&mut self) -> std::process::ExitStatus {
        self.process.take().unwrap().terminate(SOON).unwrap()
    }

    pub(crate) fn process(&mut self) -> &mut Process {
        self.process.as_mut().unwrap()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The log of the process that was started last.
    pub(crate) fn last_log(&self) -> String {
        self.log().split_off(self.earlier)
    }

    /// The answer of a health or metrics path, status code and body.
    pub(crate) fn get(&self, world: &World, port: u16, path: &str) -> Option<(u16, String)> {
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let reply = world.node(self.node).netns().enter(|| http::get(server, path)).ok()?;
        Some((reply.status, reply.body))
    }

    /// Its admin socket.
    pub(crate) fn socket(&self) -> PathBuf {
        weir_telemetry::admin::default_path(&self.pins)
    }

    /// What it says at its admin socket.
    pub(crate) fn told(&self, path: &str) -> String {
        let reply = http::get_at(&self.socket(), path).unwrap_or_else(|e| panic!("{path}: {e}\n{}", self.log()));
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
        reply.body
    }

    pub(crate) fn await_ready(&self, world: &World) {
        let ready = wait::until_some("the agent to be ready", LOADED, || match self.get(world, 10256, "/readyz") {
            Some((200, _)) => Ok(()),
            other => Err(format!("{other:?}\n{}", self.log())),
        });
        ready.unwrap();
    }

    pub(crate) fn view(&self) -> weir_datapath::View {
        weir_datapath::View::open(PinDir::new(&self.pins)).unwrap()
    }

    /// Waits until the maps have (or no longer have) a frontend.
    pub(crate) fn await_frontend(&self, address: IpAddr, port: u16, present: bool) {
        let view = self.view();
        let what = format!("frontend {address}:{port} on node {}", self.node);
        let there = || view.dump().unwrap().frontends.iter().any(|(key, _)| key.address == address && key.port == port);
        wait::until(&what, SOON, || there() == present).unwrap_or_else(|e| panic!("{e}\n{}", self.log()));
    }

    /// Waits until the maps hold exactly these backends of a service, by address.
    pub(crate) fn await_backends(&self, service: &str, mut addresses: Vec<IpAddr>) {
        addresses.sort();
        let view = self.view();
        let what = format!("backends {addresses:?} of {service} on node {}", self.node);
        let backends = || {
            let dump = view.dump().unwrap();
            let named =
                |id: u32| dump.service_names.iter().any(|(known, name)| *known == id && text(&name.name) == service);
            let used = dump.backends.iter().filter(|(_, backend)| backend.flags & abi::BACKEND_USED != 0);
            let mut found: Vec<_> = used.filter(|(_, b)| named(b.service)).map(|(_, b)| b.addr.ip()).collect();
            found.sort();
            found
        };
        let same = || {
            let found = backends();
            if found == addresses { Ok(()) } else { Err(format!("{found:?}")) }
        };
        wait::until_some(&what, SOON, same).unwrap_or_else(|e| panic!("{e}\n{}", self.log()));
    }
}

impl Agent {
    /// Prints what may tell why a test failed: the log, and why packets left each hook. What cannot be read is left out.
    pub(crate) fn testify(&self) {
        eprintln!("---- log of the agent on node {}\n{}", self.node, self.log());
        eprintln!("---- packets on node {}", self.node);
        let Ok(counters) = Counters::open(PinDir::new(&self.pins)) else { return };
        for (hook, reason) in
            (0..abi::HOOK_COUNT).flat_map(|hook| (0..abi::REASON_COUNT).map(move |reason| (hook, reason)))
        {
            let packets = counters.counter(hook, reason).map_or(0, |counter| counter.packets);
            if packets > 0 {
                let hook = u32::try_from(hook).map_or("unknown", names::hook_name);
                eprintln!("{hook} {}: {packets}", names::reason_name(reason));
            }
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.process = None;
        if std::thread::panicking() {
            self.testify();
        }
        let prepared = self.prepared.take().filter(|_| !std::thread::panicking());
        if let Err(error) = self.leave_pins(prepared) {
            eprintln!("{error}");
        }
        let _ = fs::remove_file(&self.log);
        // One that was killed leaves it.
        let _ = fs::remove_file(self.socket());
    }
}
