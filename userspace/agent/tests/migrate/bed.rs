//! The node that moves, and everybody who uses its Services meanwhile.

use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_core::conntrack::masquerade_port;
use weir_core::source_ports::PortSet;
use weir_testbed::ask::PATIENCE;
use weir_testbed::kube_proxy::Mode;
use weir_testbed::{KubeProxy, Netns, Pod, address, wait};

use crate::harness::callers::{Caller, say};
use crate::harness::echo::{Echo, Talk, echo, ready, slice};
use crate::harness::traffic::{Client, Traffic};
use crate::harness::{self, Agent, Cluster, SOON, text};

/// What others have on the node. The last chain is the kubelet's.
const RULES_OF_OTHERS: [&str; 2] = [
    "*mangle\n:OTHER - [0:0]\n-A PREROUTING -p tcp -m tcp --dport 4444 -m comment --comment \"not \\\"kube's\\\"\" -j OTHER\n\
     -A OTHER -j RETURN\nCOMMIT\n",
    "*filter\n:KUBE-FIREWALL - [0:0]\n-A FORWARD -m comment --comment \"before KUBE-SERVICES\" -j ACCEPT\n\
     -A INPUT -j KUBE-FIREWALL\n-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP\nCOMMIT\n",
];
const TABLE_OF_OTHERS: &str =
    "table inet other { chain forward { type filter hook forward priority 5; tcp dport 4444 counter drop; }; }";

/// From one datagram of a talk to the next.
const INTERVAL: Duration = Duration::from_millis(20);

/// Datagrams over one socket all the time, as of a resolver that keeps its port.
pub(crate) struct UdpTalk {
    stop: Sender<()>,
    thread: JoinHandle<(u32, Vec<String>)>,
}

impl UdpTalk {
    fn start(name: String, netns: &Netns, target: SocketAddr) -> Self {
        let (stop, stopped) = channel();
        let talk = move || {
            let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any).unwrap();
            socket.set_read_timeout(Some(wait::patience(PATIENCE))).unwrap();
            let (mut answered, mut failures) = (0, Vec::new());
            while stopped.recv_timeout(wait::patience(INTERVAL)) == Err(RecvTimeoutError::Timeout) {
                match say(&socket, Some(target)) {
                    Ok(_) => answered += 1,
                    Err(error) => failures.push(format!("{name} to {target} after {answered} answers: {error}")),
                }
            }
            (answered, failures)
        };
        Self { stop, thread: netns.spawn("datagrams", talk).unwrap() }
    }

    fn end(self) -> (u32, Vec<String>) {
        drop(self.stop);
        self.thread.join().unwrap()
    }
}

/// Node 1 with kube-proxy and an agent, node 2 with endpoints; one Service that everybody uses all the time.
pub(crate) struct Migration {
    // They go before the namespaces that they live in.
    pub(crate) kube_proxy: Option<KubeProxy>,
    pub(crate) cluster: Cluster,
    pub(crate) mode: Mode,
    service: Echo,
    state: tempfile::TempDir,
    weir: PathBuf,
}

impl Migration {
    /// `None` has been explained.
    pub(crate) fn start(what: &str, mode: Mode) -> Option<Self> {
        if !harness::can_run(what) || !KubeProxy::require(what) {
            return None;
        }
        if mode == Mode::Ipvs && !KubeProxy::require_ipvs(what) {
            return None;
        }
        // Both are built by `cargo test --workspace` and `cargo build`.
        let weir = Path::new(env!("CARGO_BIN_EXE_weir-agent")).with_file_name("weir");
        if !weir.is_file() {
            eprintln!("SKIPPED: {what}: no {}; build it by `cargo build -p weir-cli`", weir.display());
            return None;
        }
        let mut cluster = Cluster::without_agents(2, 2);
        let node = cluster.world.node(1);
        // What kube-proxy has begun is to be forgotten soon once it is over.
        node.netns().enter(|| {
            for timeout in ["udp_timeout", "udp_timeout_stream", "tcp_timeout_time_wait", "tcp_timeout_close"] {
                std::fs::write(format!("/proc/sys/net/netfilter/nf_conntrack_{timeout}"), "2").unwrap();
            }
        });
        for (family, rules) in
            ["iptables-restore", "ip6tables-restore"].iter().flat_map(|f| RULES_OF_OTHERS.map(|r| (f, r)))
        {
            feed(node.netns(), &[family, "--noflush"], rules);
        }
        feed(node.netns(), &["nft", "-f", "-"], TABLE_OF_OTHERS);
        let state = tempfile::tempdir().unwrap();
        let directory = format!("--state-dir={}", state.path().join("weir").display());
        let options = ["--service-proxy-name=weir", "--spread=random", &directory];
        cluster.agents.push(Agent::start(&cluster.world, &cluster.api, 1, &options));
        let service = Echo { service: cluster.objects.apply(&echo("moved", "NodePort")).unwrap() };
        let pods = [cluster.world.node(1).pod(2), cluster.world.node(2).pod(1)];
        for (suffix, v6) in [("v4", false), ("v6", true)] {
            cluster.objects.apply(&slice("moved", suffix, v6, &ready(&pods))).unwrap();
        }
        cluster.agents[0].await_ready(&cluster.world);
        let mut migration = Self { kube_proxy: None, cluster, mode, service, state, weir };
        migration.start_kube_proxy();
        Some(migration)
    }

    pub(crate) fn start_kube_proxy(&mut self) {
        let url = self.cluster.api.url_at(address::ROUTER_INSIDE.v4.into());
        let node = self.cluster.world.node(1);
        // The one before takes its rules along, which would be those of the next one by then.
        self.kube_proxy = None;
        self.kube_proxy = Some(KubeProxy::start_in(self.mode, &self.cluster.api, &url, node).unwrap());
    }

    pub(crate) fn netns(&self) -> &Netns {
        self.cluster.world.node(1).netns()
    }

    pub(crate) fn agent(&mut self) -> &mut Agent {
        &mut self.cluster.agents[0]
    }

    /// What an agent's crash and its next life change: nothing.
    pub(crate) fn restart_agent(&mut self) {
        let Cluster { agents, world, .. } = &mut self.cluster;
        agents[0].kill();
        agents[0].start_again(world);
        agents[0].await_ready(world);
    }

    /// Everybody on node 1 with what they connect to.
    pub(crate) fn each_client(&self, talk: Talk, mut act: impl FnMut(&str, Client<'_>, SocketAddr)) {
        let pod: Pod = self.cluster.world.node(1).pod(1);
        let outside = self.cluster.world.client();
        let host = Client::Host(self.netns(), &self.cluster.agents[0].cgroup);
        let node = self.cluster.world.node(1);
        let (inside, ports) = (self.service.cluster_ips(talk), self.service.node_ports(node, talk));
        for (caller, client, targets) in [
            (Caller::Outside, Client::Netns(outside), ports),
            (Caller::Pod(pod.clone()), Client::Netns(pod.netns()), inside),
            (Caller::Host(1), host, inside),
        ] {
            targets.iter().for_each(|target| act(&caller.to_string(), client, *target));
        }
    }

    pub(crate) fn connections(&self) -> Traffic {
        let mut traffic = Traffic::default();
        self.each_client(Talk::Tcp, |name, client, target| traffic.connection(name, client, target));
        traffic
    }

    pub(crate) fn talks(&self) -> Vec<UdpTalk> {
        let mut talks = Vec::new();
        self.each_client(Talk::Udp, |name, client, target| {
            talks.push(match client {
                Client::Netns(netns) => UdpTalk::start(name.to_owned(), netns, target),
                Client::Host(netns, cgroup) => cgroup.enter(|| UdpTalk::start(name.to_owned(), netns, target)).unwrap(),
            });
        });
        talks
    }

    pub(crate) fn await_answers(&self) {
        self.each_client(Talk::Http, |name, client, target| {
            let ask = || Talk::Http.ask(target, wait::patience(PATIENCE));
            let seen = || match client {
                Client::Netns(netns) => netns.enter(ask),
                Client::Host(netns, cgroup) => cgroup.enter(|| netns.enter(ask)).unwrap(),
            };
            wait::until_some(&format!("an answer to {name}"), SOON, || seen().map_err(|error| error.to_string()))
                .unwrap();
        });
    }

    /// Runs `weir migrate`: whether all is done, and the steps with their states.
    pub(crate) fn migrate(&self, options: &[&str]) -> (bool, Vec<(String, String)>) {
        let mut command = self.netns().command(&self.weir);
        command.args(["migrate", "-o", "json", "--state-dir"]).arg(self.state.path().join("weir"));
        command.arg("--pin-dir").arg(&self.cluster.agents[0].pins).args(options);
        let start = Instant::now();
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        println!("{}: {options:?} took {:?}: {said}", jiff::Timestamp::now(), start.elapsed());
        let code = output.status.code();
        assert!(matches!(code, Some(0 | 1)), "{code:?}: {said}{}", self.cluster.agents[0].log());
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let text = |step: &serde_json::Value, name: &str| step[name].as_str().unwrap().to_owned();
        let steps = answer["items"].as_array().unwrap().iter();
        (
            code == Some(0),
            steps
                .map(|step| (text(step, "step"), format!("{}: {}", text(step, "state"), text(step, "detail"))))
                .collect(),
        )
    }

    /// Runs it again and again until it waits at a step; returns for what.
    pub(crate) fn migrate_until(&self, step: &str, options: &[&str]) -> String {
        let look = || {
            let (done, steps) = self.migrate(&[options, &["--wait=0"]].concat());
            let waits = steps.iter().find(|(_, state)| state.starts_with("waits"));
            let waits = waits.filter(|(name, _)| !done && name == step).map(|(_, cause)| cause.clone());
            waits.ok_or_else(|| format!("{steps:?}"))
        };
        let waits = wait::until_some(&format!("`weir migrate` at {step}"), SOON, look);
        waits.unwrap_or_else(|error| panic!("{error}\n{}", self.cluster.agents[0].log()))
    }

    pub(crate) fn migrate_to_the_end(&self, options: &[&str]) {
        let (done, steps) = self.migrate(options);
        assert!(done && steps.iter().all(|(_, state)| state.starts_with("done")), "{steps:?}");
    }

    /// New flows that Weir has given an endpoint to so far.
    pub(crate) fn new_flows(&self) -> u64 {
        let view = self.cluster.agents[0].view();
        let names = view.dump().unwrap().service_names;
        let own = names.iter().filter(|(_, name)| text(&name.name) == "moved");
        own.map(|(id, _)| view.service_counters(*id).unwrap()).map(|counters| counters.local + counters.remote).sum()
    }

    pub(crate) fn await_new_flows(&self) {
        let before = self.new_flows();
        let seen = || if self.new_flows() > before + 100 { Ok(()) } else { Err(self.new_flows().to_string()) };
        wait::until_some("100 new flows through Weir", SOON, seen).unwrap();
    }

    /// Waits until Weir takes none of the ports that live connections of kube-proxy's are masqueraded to.
    pub(crate) fn await_ports_that_are_not_kube_proxys(&self) {
        let read = || std::fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap();
        let apart = || {
            let table = self.netns().enter(read);
            let theirs: PortSet = table.lines().filter_map(masquerade_port).collect();
            if theirs.len() < 4 {
                return Err(format!("clients outside and on the host, in both families: {theirs}"));
            }
            let ours = self.cluster.agents[0].view().source_ports().unwrap();
            let shared: Vec<_> = theirs.iter().filter(|port| ours.contains(*port)).collect();
            if shared.is_empty() { Ok(()) } else { Err(format!("{shared:?}")) }
        };
        wait::until_some("ports of Weir's own", SOON, apart).unwrap();
    }

    /// What is there of iptables and nftables but kube-proxy's and ours, and what a counter or a date says.
    pub(crate) fn rules_of_others(&self) -> String {
        let saved = ["iptables-save", "ip6tables-save"].map(|program| self.printed(&[program]));
        let lines = saved.iter().flat_map(|saved| saved.lines());
        let lines = lines.filter(|line| !line.contains("WEIR-MIGRATION"));
        let theirs =
            |line: &&str| !line.contains("KUBE-") || line.contains("KUBE-FIREWALL") || line.contains("before KUBE-");
        let rules: Vec<_> =
            lines.filter(|line| line.starts_with("-A ") || line.starts_with(":OTHER")).filter(theirs).collect();
        format!("{}\n{}", rules.join("\n"), self.printed(&["nft", "list", "table", "inet", "other"]))
    }

    /// What is there of kube-proxy, and of what `weir migrate` has left in its place.
    pub(crate) fn left_overs(&self) -> Vec<String> {
        let mut programs = vec!["iptables-save", "ip6tables-save", "nft list tables"];
        if self.mode == Mode::Ipvs {
            programs.extend(["ipvsadm -Sn", "ipset -n list", "ip -o address show"]);
        }
        let printed = programs.iter().map(|line| self.printed(&line.split(' ').collect::<Vec<_>>()));
        let is_left = |line: &str| {
            let chain = line.starts_with(':') || line.starts_with("-A");
            let kubes =
                chain && line.contains("KUBE-") && !line.contains("KUBE-FIREWALL") && !line.contains("before KUBE-");
            let ipvs = line.starts_with("-A -") || line.starts_with("KUBE-") || line.contains("kube-ipvs0");
            (kubes || ipvs)
                || line.contains("WEIR-MIGRATION")
                || line.ends_with(" kube-proxy")
                || line.ends_with(" weir-migration")
        };
        let lines: Vec<_> = printed.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
        lines.into_iter().filter(|line| is_left(line)).collect()
    }

    /// What a program of the node prints.
    fn printed(&self, words: &[&str]) -> String {
        let output = self.netns().command(words[0]).args(&words[1..]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Runs a program that reads a text.
pub(crate) fn feed(netns: &Netns, words: &[&str], text: &str) {
    let mut command = netns.command(words[0]);
    let mut child = command.args(&words[1..]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    assert!(status.success(), "{words:?}: {}", String::from_utf8_lossy(&stderr));
}

/// Ends talks; each datagram must have been answered.
pub(crate) fn assert_answered(talks: Vec<UdpTalk>) {
    for (answers, failures) in talks.into_iter().map(UdpTalk::end) {
        assert!(answers > 0 && failures.is_empty(), "{answers} datagrams were answered, but {failures:#?}");
    }
}
