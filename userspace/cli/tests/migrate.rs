//! `weir migrate` where Weir's maps are not what they must be: it says so, and kube-proxy's rules stay as they are. The way of
//! a node that is well is in the agent's tests.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod node;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use node::serving::Serving;
use node::{Pins, reopened, text};
use serde_json::Value;
use tempfile::TempDir;
use weir_abi as abi;
use weir_core::ops::MapOp;
use weir_core::stage;
use weir_datapath::{Datapath, MapStore, View};

/// What kube-proxy has left or keeps up to date: by program and its arguments.
const RULES: [(&str, &[&str], &str); 3] = [
    ("nft", &["--file"], "kube-proxy.nft"),
    ("iptables-restore", &["--noflush"], "kube-proxy.iptables"),
    ("ip6tables-restore", &["--noflush"], "kube-proxy.ip6tables"),
];

/// A node that serves `shop/web`, with kube-proxy's rules of the same Service in both of its modes.
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
    /// `None` has been explained.
    fn start(test: &str) -> Option<Self> {
        let pins = Pins::new(test)?;
        if let Some((program, ..)) = RULES.iter().find(|rule| Command::new(rule.0).arg("--version").output().is_err()) {
            eprintln!("SKIPPED: {test}: there is no {program}; apt-get install nftables iptables");
            return None;
        }
        let serving = Serving::leave_behind(&pins, true);
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        for (program, args, file) in RULES {
            let planted = serving.run(program).args(args).arg(fixtures.join(file)).output().unwrap();
            assert!(planted.status.success(), "{planted:?}");
        }
        Some(Self { serving, pins, dir: tempfile::tempdir().unwrap() })
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
    let mut agent = reopened(&node.pins);
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
    node.follow_the_stage(&mut reopened(&node.pins));
    node.refuses("preflight", &start);
    // And with it the maps.
    node.pins.dir().remove_all(false).unwrap();
    node.refuses("preflight", &start);
}
