//! `weir migrate` where Weir's maps are not what they must be: it says so, and kube-proxy's rules stay as they are. The way of
//! a node that is well is in the agent's tests.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use weir_abi as abi;
use weir_core::ops::MapOp;
use weir_core::stage;
use weir_datapath::{Datapath, MapStore, View};
use weir_testbed::KubeProxy;

use crate::node::serving::Serving;
use crate::node::{Pins, text};

/// What kube-proxy has left or keeps up to date: by program and its arguments.
const RULES: [(&str, &[&str], &str); 3] = [
    ("nft", &["--file"], "kube-proxy.nft"),
    ("iptables-restore", &["--noflush"], "kube-proxy.iptables"),
    ("ip6tables-restore", &["--noflush"], "kube-proxy.ip6tables"),
];

/// The same in mode ipvs, with what others have: a virtual server at the node's address, one of a firewall mark, and a set.
const PLANT_IPVS: &str = "
ip link add kube-ipvs0 type dummy
ip addr add 10.96.0.20/32 dev kube-ipvs0
ip addr add fd00:96::20/128 dev kube-ipvs0
ipset restore <<SETS
create KUBE-CLUSTER-IP hash:ip,port
add KUBE-CLUSTER-IP 10.96.0.20,tcp:80
create KUBE-6-CLUSTER-IP hash:ip,port family inet6
create KUBE-6-LOAD-BALANCER-SOURCE-CID hash:ip,port,net family inet6
create KUBE-NODE-PORT-TCP bitmap:port range 0-65535
create KUBE-SRC-4PGY5S3TGXFRWPCQ hash:ip
create others hash:ip
SETS
ipvsadm --restore <<SERVERS
-A -t 10.96.0.20:80 -s rr
-a -t 10.96.0.20:80 -r 10.244.1.11:8080 -m
-a -t 10.96.0.20:80 -r 10.244.1.99:8080 -m -w 0
-A -t [fd00:96::20]:80 -s rr
-a -t [fd00:96::20]:80 -r [fd00:244:1::11]:8080 -m
-A -t 172.30.0.11:6443 -s wlc
-a -t 172.30.0.11:6443 -r 172.30.0.12:6443 -g
-A -f 7 -s rr
SERVERS
iptables-restore --noflush <<RULES
*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-ROUTER-INPUT - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
COMMIT
RULES
";
const LEFT_OF_IPVS: &str =
    "ipvsadm -Sn; ipset -n list; ip -o link show kube-ipvs0 || true; iptables-save | grep -o '^:KUBE-[^ ]*'";

/// A node that serves `shop/web`, with kube-proxy's rules of the same Service.
struct Node {
    serving: Serving,
    pins: Pins,
    dir: TempDir,
}

/// What `weir migrate` says: its exit code, and where it stops with what.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    waits_at: Option<(String, String)>,
    stderr: String,
}

impl Node {
    /// With the rules of modes nftables and iptables. `None` has been explained.
    fn start(test: &str) -> Option<Self> {
        let node = Self::bare(test)?;
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/fixtures");
        for (program, args, file) in RULES {
            let planted = node.serving.run(program).args(args).arg(fixtures.join(file)).output().unwrap();
            assert!(planted.status.success(), "{planted:?}");
        }
        Some(node)
    }

    /// Without any rules.
    fn bare(test: &str) -> Option<Self> {
        let pins = Pins::new(test)?;
        if let Some((program, ..)) = RULES.iter().find(|rule| Command::new(rule.0).arg("--version").output().is_err()) {
            eprintln!("SKIPPED: {test}: there is no {program}; apt-get install nftables iptables");
            return None;
        }
        let serving = Serving::leave_behind(&pins, true);
        Some(Self { serving, pins, dir: tempfile::tempdir().unwrap() })
    }

    /// Opens the maps where the agent has, and so finds its programs.
    fn open(&self) -> Datapath {
        self.serving.netns().enter(|| self.pins.open())
    }

    /// What an agent does that follows the stage: it leaves connections of another proxy alone.
    fn follow_the_stage(&self, agent: &mut Datapath) {
        assert_eq!(self.stage().as_deref(), Some(stage::Stage::TakeOver.word()));
        let mut config = agent.config().unwrap();
        config.flags |= abi::CONFIG_BESIDE;
        agent.configure(&config).unwrap();
    }

    fn stage(&self) -> Option<String> {
        let word = fs::read_to_string(self.dir.path().join(stage::FILE)).ok()?;
        Some(word.trim().to_owned())
    }

    fn migrate(&self) -> Said {
        let mut command = self.serving.command(&self.pins);
        command.args(["migrate", "-o", "json", "--wait", "0", "--state-dir"]).arg(self.dir.path());
        let Output { status, stdout, stderr } = command.output().unwrap();
        let stderr = text(&stderr);
        let answer: Value = serde_json::from_slice(&stdout).unwrap_or_else(|e| panic!("{e}: {stderr}"));
        let field = |step: &Value, name: &str| step[name].as_str().unwrap().to_owned();
        let waits_at = answer["items"].as_array().unwrap().iter().find(|step| step["state"] == "waits");
        let waits_at = waits_at.map(|step| (field(step, "step"), field(step, "detail")));
        Said { code: status.code(), waits_at, stderr }
    }

    /// Runs it: it must refuse to go beyond this step, with these words, and leave the rules alone.
    #[track_caller]
    fn refuses(&self, step: &str, words: &[&str]) {
        let (before, said) = (self.rules(), self.migrate());
        let (at, why) = said.waits_at.as_ref().unwrap_or_else(|| panic!("it does not wait: {said:?}"));
        assert_eq!((said.code, at.as_str()), (Some(1), step), "{said:?}");
        assert!(words.iter().all(|word| why.contains(word)), "{words:?} in {why}");
        assert!(!said.stderr.contains("remove-rules"), "{said:?}");
        assert_eq!(self.rules(), before);
    }

    /// All of iptables and nftables on the node, without dates.
    fn rules(&self) -> String {
        let printed = [&["iptables-save"][..], &["ip6tables-save"], &["nft", "list", "ruleset"]].map(|words| {
            let output = self.serving.run(words[0]).args(&words[1..]).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            text(&output.stdout)
        });
        let lines = printed.iter().flat_map(|text| text.lines()).filter(|line| !line.starts_with('#'));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// What a script prints on the node, which must not fail.
    fn shell(&self, script: &str) -> String {
        let output = self.serving.run("sh").args(["-ec", script]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout)
    }

    /// Starts something that is called as kube-proxy is. It ends when somebody waits for it, or drops it.
    fn kube_proxy(&self) -> Child {
        let program = self.dir.path().join("kube-proxy");
        symlink("/bin/sh", &program).unwrap();
        let mut command = self.serving.run(&program.display().to_string());
        command.args(["-c", "read -r line"]).stdin(Stdio::piped()).spawn().unwrap()
    }
}

#[test]
fn rules_stay_until_the_maps_have_every_frontend_and_endpoint_of_theirs() {
    let Some(node) = Node::start("migrate-maps") else { return };
    // Whoever has the maps open to write is the agent.
    let mut agent = node.open();
    node.refuses("take-over", &["the agent has not followed yet"]);
    node.follow_the_stage(&mut agent);
    let mut write = |op| agent.store().apply(&[op]).unwrap();

    // A frontend was lost since the agent wrote it.
    let dump = View::open(node.pins.dir()).unwrap().dump().unwrap();
    for (address, said) in [("10.96.0.20", "10.96.0.20:80/TCP"), ("fd00:96::20", "[fd00:96::20]:80/TCP")] {
        let is_it = |found: &abi::Frontend, ip: &str| found.kind == abi::KIND_CLUSTER_IP && ip == address;
        let (key, frontend) = *dump
            .frontends
            .iter()
            .find(|(key, found)| key.port == 80 && is_it(found, &key.address.to_string()))
            .unwrap();
        write(MapOp::DeleteFrontend { key });
        node.refuses("verify", &[said, "is kube-proxy's and not in Weir's maps"]);
        write(MapOp::PutFrontend { key, frontend });
    }

    // Endpoints are other ones while kube-proxy follows the cluster.
    let mut kube_proxy = node.kube_proxy();
    node.refuses("stop-kube-proxy", &["kube-proxy runs"]);
    for (id, backend) in &dump.backends {
        let elsewhere = abi::Backend { port: abi::Be16::new(8081), ..*backend };
        write(MapOp::PutBackend { id: *id, backend: elsewhere });
        node.refuses("verify", &[&format!("Weir's maps lack endpoint {}", socket(backend)), "which kube-proxy has"]);
        write(MapOp::PutBackend { id: *id, backend: *backend });
    }
    node.refuses("stop-kube-proxy", &["kube-proxy runs"]);
    kube_proxy.wait().unwrap();

    // Nothing else was in the way.
    let said = node.migrate();
    assert!(said.stderr.contains("remove-rules: remove kube-proxy's rules (iptables and nftables)"), "{said:?}");
    let left = node.rules();
    assert!(!left.contains("KUBE-") && !left.contains("table ip kube-proxy"), "{left}");
}

fn socket(backend: &abi::Backend) -> std::net::SocketAddr {
    std::net::SocketAddr::new(backend.addr.ip(), backend.port.get())
}

#[test]
fn rules_stay_while_no_agent_runs_whatever_the_maps_say() {
    let Some(node) = Node::start("migrate-alone") else { return };
    let start = ["no agent runs on this node", "start weir-agent"];
    node.refuses("preflight", &start);
    assert_eq!(node.stage(), None, "nothing is told to an agent to come");
    // One that has gone after it took over.
    fs::write(node.dir.path().join(stage::FILE), stage::Stage::TakeOver.word()).unwrap();
    node.follow_the_stage(&mut node.open());
    node.refuses("preflight", &start);
    // And with it the maps.
    node.pins.dir().remove_all(false).unwrap();
    node.refuses("preflight", &start);
}

#[test]
fn virtual_servers_of_services_go_with_all_that_belongs_to_them_and_those_of_others_stay() {
    const TEST: &str = "migrate-ipvs";
    if !KubeProxy::require_ipvs(TEST) {
        return;
    }
    let Some(node) = Node::bare(TEST) else { return };
    node.shell(PLANT_IPVS);
    let mut agent = node.open();
    node.refuses("take-over", &["the agent has not followed yet"]);
    node.follow_the_stage(&mut agent);

    // As of any other mode: not before Weir has it.
    let dump = View::open(node.pins.dir()).unwrap().dump().unwrap();
    let (key, frontend) = *dump.frontends.iter().find(|(key, _)| key.address.is_ipv6() && key.port == 80).unwrap();
    agent.store().apply(&[MapOp::DeleteFrontend { key }]).unwrap();
    node.refuses("verify", &["[fd00:96::20]:80/TCP", "is kube-proxy's and not in Weir's maps"]);
    agent.store().apply(&[MapOp::PutFrontend { key, frontend }]).unwrap();

    let said = node.migrate();
    assert!(said.stderr.contains("remove-rules: remove kube-proxy's rules (ipvs) and nothing else"), "{said:?}");
    let left = node.shell(LEFT_OF_IPVS);
    let expected = [
        "-A -t 172.30.0.11:6443 -s wlc",
        "-a -t 172.30.0.11:6443 -r 172.30.0.12:6443 -g -w 1",
        "-A -f 7 -s rr",
        "KUBE-SRC-4PGY5S3TGXFRWPCQ",
        "others",
        ":KUBE-ROUTER-INPUT",
    ];
    let (mut left, mut expected) = (left.lines().collect::<Vec<_>>(), expected.to_vec());
    left.sort_unstable();
    expected.sort_unstable();
    assert_eq!(left, expected);
}
