//! The documentation against the tree and the programs: what it names must exist, and what must be explained is.
//!
//! `WEIR_WRITE_DOCS=1` writes the parts that are made from something else.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod page;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use page::{Page, below, pages, root};
use regex::Regex;
use weir_abi as abi;
use weir_abi::names::reason_name;
use weir_mesh::Refusal;

/// Behind it everything is written by a test.
const MARK: &str = "do not edit below. -->\n";
/// Options of other programs that the pages name, so that a misspelt one of ours is not among them by chance.
const OF_OTHERS: [&str; 20] = [
    "--bin",             // cargo
    "--cascade",         // helm
    "--cgroup-root",     // kubelet
    "--cleanup",         // kube-proxy
    "--connect-timeout", // curl
    "--field-selector",  // kubectl
    "--for",             // kubectl
    "--ignored",         // cargo
    "--image",           // kubectl
    "--ipvs-strict-arp", // kube-proxy
    "--masquerade-all",  // kube-proxy
    "--now",             // systemctl
    "--prefix",          // kubectl
    "--profile",         // kubectl
    "--rate",            // xtask
    "--set",             // helm
    "--tail",            // kubectl
    "--target",          // docker
    "--test",            // cargo
    "--timeout",         // kubectl
];
/// Options of `weir` as a plug-in of kubectl alone, which its reference leaves out.
const OF_THE_PLUG_IN: [&str; 4] = ["--agent-namespace", "--agent-selector", "--all-nodes", "--node"];

fn page(path: &str) -> Page {
    Page::read(Path::new(path))
}

/// A path without its `..`, which must not lead out of the tree.
fn plain(path: &Path) -> Option<PathBuf> {
    path.components().try_fold(PathBuf::new(), |mut plain, component| match component {
        Component::ParentDir => plain.pop().then_some(plain),
        Component::CurDir => Some(plain),
        other => {
            plain.push(other);
            Some(plain)
        }
    })
}

/// Compares, or writes where that is asked for.
fn compare_or_write(path: &str, expected: &str) {
    let path = root().join(path);
    if std::env::var_os("WEIR_WRITE_DOCS").is_some() {
        fs::write(&path, expected).unwrap();
        return;
    }
    assert!(
        fs::read_to_string(&path).unwrap() == expected,
        "{} is out of date: WEIR_WRITE_DOCS=1 cargo test -p weir-agent --test docs",
        path.display()
    );
}

/// What is wrong, one line for each.
fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// What is wrong with a link, if anything is.
fn broken(page: &Page, link: &str, pages: &[Page]) -> Option<String> {
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() { Some(page.path.clone()) } else { plain(&page.directory().join(file)) };
    let Some(target) = target.filter(|target| root().join(target).exists()) else { return Some("no such file".into()) };
    if anchor.is_empty() {
        return None;
    }
    match pages.iter().find(|page| page.path == target) {
        Some(found) if found.anchors.iter().any(|known| known == anchor) => None,
        Some(_) => Some("no such heading".into()),
        None => Some("a heading in what is no page".into()),
    }
}

#[test]
fn every_link_leads_to_a_file_and_a_heading_that_exist() {
    let pages = pages();
    let mut wrong = Vec::new();
    for page in &pages {
        for link in page.links.iter().filter(|link| !link.contains("://")) {
            wrong.extend(broken(page, link, &pages).map(|why| format!("{}: {link}: {why}", page.path.display())));
        }
    }
    assert_none(&wrong);
}

/// Path below `docs/adr` and title of each decision, in order.
fn decisions() -> Vec<(String, String)> {
    let mut paths = below(&root().join("docs/adr"), "md");
    paths.sort();
    let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    let numbered = paths.iter().map(name).filter(|name| name.starts_with(|c: char| c.is_ascii_digit()));
    numbered.map(|name| (page(&format!("docs/adr/{name}")).title, name)).map(|(title, name)| (name, title)).collect()
}

#[test]
fn every_decision_is_in_the_index_and_in_the_table_of_contents() {
    let index = page("docs/adr/README.md").source;
    let (prose, _) = index.split_once(MARK).unwrap();
    let list: String = decisions().iter().map(|(name, title)| format!("* [{title}]({name})\n")).collect();
    compare_or_write("docs/adr/README.md", &format!("{prose}{MARK}\n{list}"));

    let summary = page("docs/SUMMARY.md").source;
    let chapters: String =
        summary.lines().filter(|line| !line.contains("(adr/0")).map(|line| format!("{line}\n")).collect();
    let list: String = decisions().iter().map(|(name, title)| format!("  - [{title}](adr/{name})\n")).collect();
    compare_or_write("docs/SUMMARY.md", &format!("{chapters}{list}"));
}

#[test]
fn every_page_is_in_the_table_of_contents() {
    let summary = page("docs/SUMMARY.md");
    let listed: BTreeSet<_> = summary.links.iter().filter_map(|link| plain(&summary.directory().join(link))).collect();
    let missing = pages().into_iter().filter(|page| page.path != summary.path && !listed.contains(&page.path));
    assert_none(&missing.map(|page| format!("{}: not in docs/SUMMARY.md", page.path.display())).collect::<Vec<_>>());
}

#[test]
fn every_reason_is_explained_with_its_number() {
    let given_out = (0..abi::REASON_COUNT).filter(|reason| reason_name(*reason) != "unknown");
    let expected: BTreeSet<_> = given_out.map(|reason| (reason, format!("`{}`", reason_name(reason)))).collect();
    let reasons = page("docs/reasons.md");
    let explained: BTreeSet<_> =
        reasons.rows().filter_map(|row| Some((row.first()?.parse().ok()?, (*row.get(1)?).to_owned()))).collect();
    assert_eq!(explained, expected);
}

#[test]
fn every_refusal_of_the_mesh_is_explained() {
    let text = page("docs/troubleshoot.md").source;
    let (_, section) = text.split_once("## A peer is silent\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let kinds = section.lines().filter_map(|row| Some(row.strip_prefix("| `")?.split_once(" |")?.0));
    let explained: BTreeSet<_> = kinds.flat_map(|kinds| kinds.split(", ")).map(|kind| kind.trim_matches('`')).collect();
    assert_eq!(explained, Refusal::ALL.map(Refusal::label).into());
}

/// The Rust sources of libraries and programs, without their tests.
fn sources() -> String {
    let files = ["crates", "userspace"].map(|folder| below(&root().join(folder), "rs")).concat();
    let of_program = files.iter().filter(|path| path.components().any(|part| part.as_os_str() == "src"));
    let text = of_program.map(|path| fs::read_to_string(path).unwrap());
    text.map(|text| text.split("#[cfg(test)]").next().unwrap_or_default().to_owned()).collect()
}

/// Reasons of events in the table.
fn explained_events() -> BTreeSet<String> {
    let events = page("docs/events.md");
    let names = events
        .rows()
        .flat_map(|row| row[0].split(", ").map(|name| name.trim_matches('`').to_owned()).collect::<Vec<_>>());
    names.filter(|name| name != "event").collect()
}

#[test]
fn every_kubernetes_event_is_explained_and_none_that_nobody_sends() {
    let explained = explained_events();
    let sources = sources();
    let mut wrong: Vec<_> = explained.iter().filter(|name| !sources.contains(&format!("\"{name}\""))).collect();
    assert!(wrong.is_empty(), "explained, and in no source: {wrong:?}");
    let sent = Regex::new(r#"Regarding::\w+\([^;]*?,\s*"([A-Z][a-z]+[A-Z][A-Za-z]+)""#).unwrap();
    let sent: BTreeSet<_> = sent.captures_iter(&sources).map(|found| found[1].to_owned()).collect();
    wrong = sent.difference(&explained).collect();
    assert!(wrong.is_empty(), "sent, and not in docs/events.md: {wrong:?}");
}

#[test]
fn every_kubernetes_event_is_awaited_from_the_api_server_by_a_test() {
    let files = ["crates", "userspace"].map(|folder| below(&root().join(folder), "rs")).concat();
    let of_tests = files.iter().filter(|path| path.components().any(|part| part.as_os_str() == "tests"));
    // Both helpers of this name ask a real one.
    let awaited = Regex::new(r#"\bawait_event(?:_about)?\([^;]*?"([A-Z][A-Za-z]+)",?\s*\)"#).unwrap();
    let mut found = BTreeSet::new();
    for file in of_tests {
        let text = fs::read_to_string(file).unwrap();
        found.extend(awaited.captures_iter(&text).map(|found| found[1].to_owned()));
    }
    assert_eq!(found, explained_events());
}

#[test]
fn every_metric_that_is_named_is_in_the_reference() {
    let reference = page("docs/metrics.md").source;
    // A crate's name is followed by what is in it.
    let name = Regex::new(r"\b((?:weir|kubeproxy)_[a-z_]+[a-z])\b(::)?").unwrap();
    let names = |text: &str| {
        let metrics = name.captures_iter(text).filter(|found| found.get(2).is_none());
        metrics.map(|found| found[1].to_owned()).collect::<Vec<_>>()
    };
    let known: BTreeSet<_> = names(&reference).into_iter().collect();
    let programs =
        ["weir_xdp", "weir_nic_in", "weir_nic_out", "weir_l3_in", "weir_l3_out", "weir_pod_in", "weir_pod_out"];
    let mut wrong = Vec::new();
    for page in pages().iter().filter(|page| page.path != Path::new("docs/metrics.md")) {
        let named = page.code.iter().flat_map(|code| names(code));
        let named = named.filter(|name| !known.contains(name) && !programs.contains(&name.as_str()));
        wrong.extend(named.map(|name| format!("{}: {name} is not in docs/metrics.md", page.path.display())));
    }
    assert_none(&wrong);
}

/// What the agent says of itself, without the environment of whoever runs the test.
fn help_of_the_agent() -> String {
    let help = Command::new(env!("CARGO_BIN_EXE_weir-agent")).arg("--help").env_clear().output().unwrap();
    assert!(help.status.success(), "{help:?}");
    String::from_utf8(help.stdout).unwrap().replace("=]", "]")
}

fn options(text: &str) -> Vec<String> {
    static OPTION: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(?:^|[^-\w])(--[a-z][a-z0-9-]*)").unwrap());
    // What an arrow of a picture carries is none.
    let lines = text.lines().filter(|line| !line.contains("-->"));
    lines.flat_map(|line| OPTION.captures_iter(line)).map(|found| found[1].to_owned()).collect()
}

#[test]
fn every_option_that_is_named_exists() {
    let commands = page("docs/cli.md").source;
    let (_, reference) = commands.split_once(MARK).unwrap();
    let ours = [options(&help_of_the_agent()), options(reference)].concat();
    let known: BTreeSet<_> = ours.iter().map(String::as_str).chain(OF_OTHERS).chain(OF_THE_PLUG_IN).collect();
    let mut wrong = Vec::new();
    for page in pages() {
        let named = page.code.iter().flat_map(|code| options(code));
        let unknown = named.filter(|option| !known.contains(option.as_str()));
        wrong.extend(unknown.map(|option| format!("{}: there is no {option}", page.path.display())));
    }
    assert_none(&wrong);
}

#[test]
fn every_command_that_is_named_exists() {
    let commands = page("docs/cli.md").anchors;
    let command = Regex::new(r"(?m)^\s*(?:\$ )?weir ([a-z]+)").unwrap();
    let mut wrong = Vec::new();
    for page in pages() {
        let named = page.code.iter().flat_map(|code| command.captures_iter(code)).map(|found| found[1].to_owned());
        let unknown = named.filter(|name| !commands.contains(&format!("weir-{name}")));
        wrong.extend(unknown.map(|name| format!("{}: there is no command `weir {name}`", page.path.display())));
    }
    assert_none(&wrong);
}

#[test]
fn every_alert_is_in_the_troubleshooting() {
    let rules = fs::read_to_string(root().join("deploy/helm/weir/files/rules.yaml")).unwrap();
    let alert = Regex::new(r"alert: (\w+)").unwrap();
    let alerts: BTreeSet<_> = alert.captures_iter(&rules).map(|found| found[1].to_owned()).collect();
    let page = page("docs/troubleshoot.md");
    let explained: BTreeSet<_> = page.code.into_iter().filter(|code| code.starts_with("Weir")).collect();
    assert_eq!(explained, alerts);
}

#[test]
fn every_runbook_of_an_alert_is_a_heading() {
    let link = Regex::new(r"docs/([a-z-]+\.md)#([\w-]+)").unwrap();
    let mut wrong = Vec::new();
    for file in below(&root().join("deploy/helm"), "yaml") {
        for found in link.captures_iter(&fs::read_to_string(&file).unwrap()) {
            let page = page(&format!("docs/{}", &found[1]));
            if !page.anchors.iter().any(|anchor| *anchor == found[2]) {
                wrong.push(format!("{}: {} has no heading {}", file.display(), &found[1], &found[2]));
            }
        }
    }
    assert_none(&wrong);
}

#[test]
fn the_page_of_the_agents_options_is_what_help_says() {
    let document = page("docs/agent.md").source;
    let (prose, _) = document.split_once(MARK).unwrap();
    let help = help_of_the_agent();
    let lines: Vec<_> = help.trim_end().lines().map(str::trim_end).collect();
    compare_or_write("docs/agent.md", &format!("{prose}{MARK}\n```text\n{}\n```\n", lines.join("\n")));
}
