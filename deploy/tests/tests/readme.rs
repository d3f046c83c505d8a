//! The README's installation and removal on machines without Kubernetes, line by line as it has them: two machines with systemd, a web
//! server on each, and clients outside.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs::{self, Permissions};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use serde_json::Value;
use weir_deploy_tests::machine::Machine;
use weir_deploy_tests::page::{Line, block_behind, spans_of};
use weir_deploy_tests::programs::{make, package, root};
use weir_testbed::serve::{self, Server};
use weir_testbed::{Cgroup, Node, World, address, ask, process, wait};

/// What stands before the block that installs, and before the one that takes it out again.
const INSTALL: &str = "\n**Machines without Kubernetes**";
const REMOVE: &str = "\nor, on machines without Kubernetes,\n";
/// How the paragraph begins that is for other distributions: what is in the place of the lines before the one that edits.
const ELSEWHERE: &str = "Elsewhere ";

/// The machines' host names, by the example that is installed.
const NAMES: [&str; 2] = ["edge-1", "edge-2"];
/// The addresses of the Service in the world's network.
const SERVICE: [&str; 2] = ["203.0.113.1", "2001:db8:203::1"];

/// What Debian itself writes down.
const DEBIANS_OWN: [&str; 3] = ["/var/cache/", "/var/lib/dpkg/", "/var/log/"];

/// How long the kernel may take to forget programs that nobody holds.
const SOON: Duration = Duration::from_secs(10);

/// Two machines before anything is installed.
struct Site {
    machines: [Machine; 2],
    _servers: [Server; 2],
    world: World,
}

impl Site {
    fn build() -> Self {
        Cgroup::sweep().unwrap();
        let world = World::builder().nodes(2).pods_per_node(0).build().unwrap();
        let [first, second] = [1, 2].map(|number| world.node(number));
        let machine = |node: &Node, name| {
            let machine = Machine::boot(node, name).unwrap();
            machine.write("/run/operator/editor", editor()).unwrap();
            fs::set_permissions(machine.path("/run/operator/editor"), Permissions::from_mode(0o755)).unwrap();
            machine
        };
        let machines = [machine(first, NAMES[0]), machine(second, NAMES[1])];
        let servers = [(first, NAMES[0]), (second, NAMES[1])];
        let servers = servers.map(|(node, name)| serve::http(node.netns(), name, 8080).unwrap());
        Self { machines, _servers: servers, world }
    }

    /// Types a line of the README: what builds in the tree, the rest on each machine. What it prints.
    fn run(&self, line: &str) -> Vec<String> {
        println!("$ {line}");
        if line == "make deb" {
            package().unwrap();
            return Vec::new();
        }
        let run = |machine: &Machine| match line.strip_prefix("make ") {
            Some(verb) => make(&[verb, &format!("DESTDIR={}", machine.path("/").display())]),
            None => machine.shell(line),
        };
        let said = |machine| run(machine).unwrap_or_else(|error| panic!("{line}: {error}\n{}", machine.log()));
        let said: Vec<_> = self.machines.iter().map(said).collect();
        println!("{}", said[0]);
        said
    }

    /// Who answers clients of the Service that come in at a machine, by either family.
    fn answers_at(&self, machine: usize) -> [Option<String>; 2] {
        for prefix in address::external_ips() {
            self.world.route_via(prefix, u8::try_from(machine + 1).unwrap()).unwrap();
        }
        SERVICE.map(|address| {
            let service = SocketAddr::new(address.parse::<IpAddr>().unwrap(), 80);
            self.world.client().enter(|| ask::http_ask(service)).ok().map(|answer| answer.name)
        })
    }

    /// Each machine answers by itself, or nobody does.
    fn assert_served(&self, is_served: bool, after: &str) {
        for (number, name) in NAMES.into_iter().enumerate() {
            let expected = is_served.then(|| name.to_owned());
            let (answers, log) = (self.answers_at(number), self.machines[number].log());
            assert_eq!(answers, [expected.clone(), expected], "at {name} after `{after}`\n{log}");
        }
    }

    /// The files of each machine that were written.
    fn files(&self) -> [Vec<String>; 2] {
        self.machines.each_ref().map(|machine| {
            let mut all = machine.changes().unwrap();
            all.retain(|file| !DEBIANS_OWN.iter().any(|directory| file.starts_with(directory)));
            all
        })
    }

    /// Types these lines until all is well, then those, and looks what is left of it. Returns the files that are left.
    fn install_and_remove(&self, install: &[String], remove: &[String]) -> [Vec<String>; 2] {
        let before = self.files();
        let pins = self.machines.each_ref().map(pins_of);
        install.iter().for_each(|line| drop(self.run(line)));
        self.assert_served(true, install.last().unwrap());
        let programs = self.machines.each_ref().map(programs_of);
        assert!(programs.iter().all(|programs| programs.len() > 2), "{programs:?}");

        let mut is_served = true;
        for line in remove {
            self.run(line);
            is_served &= !line.starts_with("weir cleanup");
            self.assert_served(is_served, line);
        }
        assert!(!is_served, "no line cleans up: {remove:?}");
        assert_eq!(self.machines.each_ref().map(pins_of), pins);
        for (machine, programs) in self.machines.iter().zip(programs) {
            let gone = || programs.iter().all(|id| machine.run(&["bpftool", "prog", "show", "id", id]).is_err());
            wait::until("the end of the programs", SOON, gone).unwrap();
        }
        let mut left = self.files();
        left.iter_mut().zip(before).for_each(|(left, before)| left.retain(|file| !before.contains(file)));
        left
    }
}

/// An editor of somebody who knows what to write: the addresses of these machines, in the place of the example's.
fn editor() -> String {
    let [first, second] = [1, 2].map(address::node);
    let [v4, v6] = SERVICE;
    let changes = [
        ("192.0.2.11", first.v4.to_string()),
        ("192.0.2.12", second.v4.to_string()),
        ("2001:db8:1::11", first.v6.to_string()),
        ("2001:db8:1::12", second.v6.to_string()),
        ("198.51.100.1", v4.to_owned()),
        ("2001:db8:2::1", v6.to_owned()),
    ];
    let changes = changes.map(|(from, to)| format!("-e 's/{}/{to}/'", from.replace('.', "\\.")));
    format!("#!/bin/sh\nexec sed -i {} \"$1\"\n", changes.join(" "))
}

/// All that is pinned; some is the kernel's own (`bpf_preload`).
fn pins_of(machine: &Machine) -> String {
    machine.run(&["find", "/sys/fs/bpf"]).unwrap()
}

/// The numbers of the programs that pinned links hold at interfaces and cgroups of a machine.
fn programs_of(machine: &Machine) -> Vec<String> {
    let links = machine.run(&["find", "/sys/fs/bpf/weir/links", "-type", "f"]).unwrap();
    let program = |link: &str| {
        let said = machine.run(&["bpftool", "--json", "link", "show", "pinned", link]).unwrap();
        serde_json::from_str::<Value>(&said).unwrap()["prog_id"].to_string()
    };
    links.lines().map(program).collect()
}

/// The lines of the README's block behind these words.
fn block(words: &str) -> Vec<Line> {
    let lines = block_behind(&readme(), words);
    assert!(!lines.is_empty(), "README.md has no block behind {words:?}");
    lines
}

fn readme() -> String {
    fs::read_to_string(root().join("README.md")).unwrap()
}

fn typed(lines: Vec<Line>) -> Vec<String> {
    lines.into_iter().map(|line| line.command).collect()
}

/// True when this machine can follow the README; else it has been said why not.
fn can_follow(what: &str) -> bool {
    let missing = ["bpftool", "dpkg"].into_iter().find_map(|name| process::installed(name).err());
    if let Some(error) = &missing {
        eprintln!("SKIPPED: {what}: {error}");
    }
    missing.is_none() && Machine::can_boot(what)
}

#[test]
#[ignore = "minutes: make test-deploy"]
fn the_readmes_lines_for_debian_serve_and_then_leave_nothing() {
    if !can_follow("the README on Debian") {
        return;
    }
    let [install, remove] = [INSTALL, REMOVE].map(|words| typed(block(words)));
    let left = Site::build().install_and_remove(&install, &remove);
    assert_eq!(left, <[Vec<String>; 2]>::default(), "settings go, too");
}

#[test]
#[ignore = "minutes: make test-deploy"]
fn the_readmes_lines_for_other_distributions_serve_and_then_leave_the_settings() {
    if !can_follow("the README elsewhere") {
        return;
    }
    let mut install = spans_of(&readme(), ELSEWHERE);
    install.retain(|span| ["make ", "systemctl "].iter().any(|begin| span.starts_with(begin)));
    install.extend(typed(block(INSTALL)).into_iter().skip_while(|line| !line.starts_with("editor ")));
    let other = |line: Line| line.comment.strip_prefix("or: ").map_or(line.command, str::to_owned);
    let remove: Vec<_> = block(REMOVE).into_iter().map(other).collect();
    let settings = ["/etc/default/weir-agent", "/etc/weir/weir.yaml"].map(str::to_owned).to_vec();
    assert_eq!(Site::build().install_and_remove(&install, &remove), [settings.clone(), settings]);
}
