//! What the documentation shows of the command line is what it says: every `console` block of `docs/cli.md` is run on a node
//! in a world of network namespaces, whose maps and programs are real and whose agent only talks. kube-proxy has left its
//! rules of the same Service there.
//!
//! To add one, write the block with its commands, and run `WEIR_WRITE_DOCS=1 cargo test -p weir-cli --test it transcripts`:
//!
//! * A line that begins with `$ ` is a command, what follows is what it wrote: stdout, then stderr, then
//!   `# exit code N` unless that is 0.
//! * `...` stands for the rest of an answer; lines before it are kept.
//! * Ages, high ports and the number of spaces between columns are not compared, and in a block that begins with
//!   `console any-numbers` no number but that of the exit code. Nor is what is said of the machine alone: a usual one is
//!   shown.
//! * There are a good file and one with a mistake, `weir.yaml` and `typo.yaml`, where the commands are run.

use std::any::Any;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use regex::Regex;
use tempfile::TempDir;

use crate::node::serving::Serving;
use crate::node::told::Told;
use crate::node::{Pins, text};

/// Reasons of what the namespaces' kernels send when they please, and to whom: reports of multicast listeners and neighbours'
/// solicitations, and ARP. A row of them widens the table.
const UNASKED: [&str; 3] = ["not_transport", "not_ip", "other_host"];
/// Checks of `weir doctor` whose answers are the machine's, and the step of `weir migrate` that asks its connection tracking.
const OF_THE_MACHINE: [&str; 9] = [
    "kernel",
    "btf",
    "cgroup2",
    "net.core.bpf_jit_enable",
    "kernel.unprivileged_bpf_disabled",
    "connection tracking",
    "clock",
    "rp_filter eth0",
    "finish",
];
/// What an operator of two machines without Kubernetes writes.
const FILE: &str = include_str!("../../../../deploy/static/weir.yaml");
const OPEN: &str = "```console";
const CLOSE: &str = "```";
const REST: &str = "...";

/// A block, between its fences.
struct Block {
    any_numbers: bool,
    steps: Vec<Step>,
}

/// A command and its answer, line by line.
#[derive(Debug)]
struct Step {
    command: String,
    answer: Vec<String>,
}

impl Block {
    fn parse(fence: &str, lines: &[&str]) -> Self {
        let mut steps: Vec<Step> = Vec::new();
        for line in lines {
            if let Some(command) = line.strip_prefix("$ ") {
                steps.push(Step { command: command.to_owned(), answer: Vec::new() });
            } else {
                steps.last_mut().expect("a block begins with a command").answer.push((*line).to_owned());
            }
        }
        Self { any_numbers: fence.contains("any-numbers"), steps }
    }

    /// The documentation in pieces: text as it is, and blocks.
    fn split(document: &str) -> Vec<Result<Self, String>> {
        let (mut pieces, mut prose) = (Vec::new(), String::new());
        let mut lines = document.lines();
        while let Some(line) = lines.next() {
            writeln!(prose, "{line}").unwrap();
            if line.starts_with(OPEN) {
                pieces.push(Err(std::mem::take(&mut prose)));
                let inside: Vec<&str> = lines.by_ref().take_while(|line| *line != CLOSE).collect();
                pieces.push(Ok(Self::parse(line, &inside)));
                writeln!(prose, "{CLOSE}").unwrap();
            }
        }
        pieces.push(Err(prose));
        pieces
    }
}

/// What must not differ.
struct Compared {
    age: Regex,
    port: Regex,
    number: Regex,
    gap: Regex,
}

impl Compared {
    fn new() -> Self {
        let regex = |text: &str| Regex::new(text).unwrap();
        Self {
            age: regex(r"\b(\d+(\.\d+)?(ms|s|m|h|d))+\b"),
            port: regex(r":\d{5}\b"),
            number: regex(r"\d+(\.\d+)?"),
            gap: regex(r" {2,}"),
        }
    }

    fn of(&self, line: &str, any_numbers: bool) -> String {
        // Behind the last item of JSON is no comma, and one that does not count may come after it.
        let line = self.age.replace_all(line.trim_end().trim_end_matches(','), "AGE");
        let line = self.port.replace_all(&line, ":PORT");
        let line = self.gap.replace_all(&line, "  ").into_owned();
        // What scripts go by.
        if line.starts_with("# exit code") {
            return line;
        }
        if any_numbers { self.number.replace_all(&line, "N").into_owned() } else { line }
    }

    fn is_same(&self, step: &Step, now: &[String], any_numbers: bool) -> bool {
        let unasked = now.iter().any(|line| is_unasked(line));
        let narrow = |line: String| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let compared = |lines: &[String]| -> Vec<String> {
            let lines = without_what_may_come(lines).into_iter().map(|line| self.of(line, any_numbers));
            lines.map(|line| if unasked { narrow(line) } else { line }).collect()
        };
        match step.answer.split_last() {
            Some((last, kept)) if last == REST => compared(now).starts_with(&compared(kept)),
            Some(_) | None => compared(&step.answer) == compared(now),
        }
    }
}

/// An answer without what another machine would have otherwise, or what comes when it pleases: rows of a table, and objects
/// of a JSON list that hold no others.
fn without_what_may_come(lines: &[String]) -> Vec<&String> {
    let (mut kept, mut object, mut may_come) = (Vec::new(), 0, false);
    for line in lines.iter().filter(|line| !is_of_the_machine(line)) {
        let text = line.trim();
        let is_called = |(key, name): (&str, &str)| text == format!("\"{key}\": \"{name}\",");
        if text == "{" {
            (object, may_come) = (kept.len(), false);
        }
        may_come |= UNASKED.iter().any(|name| is_called(("reason", name)));
        may_come |= OF_THE_MACHINE.iter().any(|name| is_called(("what", name)));
        kept.push(line);
        if may_come && text.starts_with('}') {
            kept.truncate(object);
            may_come = false;
        }
    }
    kept.retain(|line| !is_unasked(line));
    kept
}

fn is_unasked(row: &str) -> bool {
    row.split_whitespace().any(|cell| UNASKED.contains(&cell))
}

/// Whether it is a row, called so in one of its first two columns, that another machine would have otherwise.
fn is_of_the_machine(line: &str) -> bool {
    let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
    cells.take(2).any(|cell| OF_THE_MACHINE.contains(&cell))
}

/// Where commands are run.
struct Stage {
    serving: Serving,
    told: Told,
    /// Whoever writes to the maps holds their directory: so does the agent that only talks.
    _writer: Box<dyn Any>,
    pins: Pins,
    /// Where the commands are run, and where the stage of a migration would be.
    dir: TempDir,
}

impl Stage {
    fn build(pins: Pins) -> Self {
        let serving = Serving::leave_behind(&pins, true);
        assert!(serving.answers().iter().all(Option::is_some), "somebody has to use the service");
        let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/fixtures/kube-proxy.nft");
        let planted = serving.run("nft").arg("--file").arg(rules).output().unwrap();
        assert!(planted.status.success(), "{planted:?}");
        let weights = serde_json::from_str(include_str!("fixtures/weights.json")).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let typo = FILE.replace("policy: waterfill", "policy: watrfill");
        assert_ne!(typo, FILE);
        for (name, text) in [("weir.yaml", FILE), ("typo.yaml", typo.as_str())] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        Self { serving, told: Told::start(&weights), _writer: Box::new(pins.dir().lock().unwrap()), pins, dir }
    }

    /// What a command writes, as somebody with the default directories would see it.
    fn run(&self, line: &str) -> Vec<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["weir", args @ ..] = words.as_slice() else { panic!("{line:?} is not a command of weir") };
        let mut command: Command = self.serving.command(&self.pins);
        let dir = self.dir.path();
        command.args(args).env("WEIR_ADMIN_SOCKET", self.told.socket()).env("WEIR_STATE_DIR", dir).current_dir(dir);
        let output = command.stdin(std::process::Stdio::null()).output().unwrap();
        let mut written = text(&output.stdout) + &text(&output.stderr);
        match output.status.code() {
            Some(0) => {}
            code => writeln!(written, "# exit code {}", code.unwrap()).unwrap(),
        }
        let written = written
            .replace(&self.pins.0.display().to_string(), "/sys/fs/bpf/weir")
            .replace(&self.told.socket().display().to_string(), "/run/weir/agent.sock")
            .replace(self.serving.prefix(), "");
        written.lines().map(|line| line.trim_end().to_owned()).collect()
    }
}

#[test]
fn the_transcripts_in_the_documentation_are_what_the_commands_write() {
    let Some(pins) = Pins::new("transcripts") else { return };
    if Command::new("nft").arg("--version").output().is_err() {
        eprintln!("SKIPPED: transcripts: there is no nft; apt-get install nftables");
        return;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    let document = fs::read_to_string(&path).unwrap();
    let (stage, compared) = (Stage::build(pins), Compared::new());
    let (mut new, mut wrong) = (String::new(), String::new());
    for piece in Block::split(&document) {
        let block = match piece {
            Ok(block) => block,
            Err(prose) => {
                new.push_str(&prose);
                continue;
            }
        };
        for step in &block.steps {
            let mut now = stage.run(&step.command);
            writeln!(new, "$ {}", step.command).unwrap();
            if compared.is_same(step, &now, block.any_numbers) {
                now.clone_from(&step.answer);
            } else {
                writeln!(wrong, "$ {}\nis now\n{}\nand was\n{}", step.command, now.join("\n"), step.answer.join("\n"))
                    .unwrap();
                if step.answer.last().is_some_and(|last| last == REST) {
                    now.truncate(step.answer.len().saturating_sub(1).max(2));
                    now.push(REST.to_owned());
                }
            }
            now.iter().for_each(|line| writeln!(new, "{line}").unwrap());
        }
    }
    if std::env::var_os("WEIR_WRITE_DOCS").is_some() {
        // Somebody else may have written another part of it meanwhile.
        assert_eq!(fs::read_to_string(&path).unwrap(), document, "{path:?} has changed: once more");
        fs::write(&path, new).unwrap();
        return;
    }
    assert!(wrong.is_empty(), "WEIR_WRITE_DOCS=1 cargo test -p weir-cli --test it transcripts\n{wrong}");
}

#[test]
fn what_may_differ_does_not_count_and_all_else_does() {
    let compared = Compared::new();
    let step = |answer: &[&str]| Step {
        command: String::new(),
        answer: answer.iter().map(|line| (*line).to_owned()).collect(),
    };
    let same = |old: &[&str], new: &[&str], any| compared.is_same(&step(old), &step(new).answer, any);
    assert!(same(&["a   3m20s   10.0.0.1:40123"], &["a  5s  10.0.0.1:50001"], false));
    assert!(!same(&["a 3"], &["a 4"], false));
    assert!(same(&["a 3.5"], &["a 44"], true));
    assert!(!same(&["a"], &["a", "b"], false));
    assert!(same(&["a", "..."], &["a", "b", "c"], false));
    assert!(!same(&["x", "..."], &["a", "b"], false));
    assert!(same(&["ok   kernel   Linux 6.12"], &["warn   kernel   Linux 6.1"], false));
    assert!(!same(&["ok   bpffs   here"], &["fail   bpffs   here"], false));
    let check = |name: &str, end: &str| format!("{{\n\"what\": \"{name}\",\n\"state\": \"ok\"\n}}{end}");
    let document = |checks: &[String]| checks.join("\n").lines().map(str::to_owned).collect::<Vec<_>>();
    let (bpffs, more) = (document(&[check("bpffs", "")]), document(&[check("bpffs", ","), check("clock", "")]));
    let old = Step { command: String::new(), answer: bpffs };
    assert!(compared.is_same(&old, &more, false));
    assert!(!compared.is_same(&old, &document(&[check("pins", "")]), false));
    let row = "xdp  to_local  translated  10";
    assert!(same(&[row], &["xdp  not_ip      untouched   1", "xdp  to_local    translated  10"], false));
    assert!(!same(&[row], &["xdp  not_ipv4  untouched  1", row], false));
    let count = |reason: &str, end: &str| format!("{{\n\"reason\": \"{reason}\",\n\"packets\": 1\n}}{end}");
    let (wanted, more) = (document(&[count("back", "")]), document(&[count("back", ","), count("other_host", "")]));
    assert!(compared.is_same(&Step { command: String::new(), answer: wanted }, &more, false));
}
