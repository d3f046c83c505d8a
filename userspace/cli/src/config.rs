//! `weir config`: the agent's files before an agent reads them, and what an agent made of them.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use serde::Serialize;
use weir_kube_watch::settings_file;
use weir_kube_watch::static_file::{self, Contents, FileError};

use crate::config_view::{self, ViewArgs};
use crate::exit::Answer;
use crate::output::{Kind, Output};

/// Commands of `config`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Say whether an agent would take a file, and else what is wrong with it, and where
    #[command(
        after_help = "Examples:\n  weir config check /etc/weir/weir.yaml\n  weir config check --settings /etc/weir/settings.yaml"
    )]
    Check(CheckArgs),
    /// Show what the running agent works with, and where each value is from
    #[command(after_help = "Examples:\n  weir config view\n  weir config view --all -o json")]
    View(ViewArgs),
}

/// Options of `config check`.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// The file of weir-agent's --static
    pub(crate) file: PathBuf,
    /// It is the file of --config
    #[arg(long)]
    pub(crate) settings: bool,
}

/// What was found.
#[derive(Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Verdict {
    file: String,
    good: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    mistake: Option<Mistake>,
    #[serde(skip_serializing_if = "Option::is_none")]
    holds: Option<Holds>,
}

/// The first mistake of a file.
#[derive(Debug, Eq, PartialEq, Serialize)]
struct Mistake {
    /// From 1; 0 if it has no place.
    line: u64,
    /// In characters, from 1; 0 if it has no place.
    column: u64,
    message: String,
}

/// What a good file holds.
#[derive(Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", untagged)]
enum Holds {
    #[serde(rename_all = "camelCase")]
    Static {
        nodes: usize,
        services: usize,
        endpoints: usize,
        checked_services: usize,
    },
    Settings {
        namespaces: usize,
    },
}

impl Holds {
    fn of(Contents { nodes, services, slices, checks }: &Contents) -> Self {
        let endpoints = slices.iter().map(|slice| slice.endpoints.len()).sum();
        Self::Static { nodes: nodes.len(), services: services.len(), endpoints, checked_services: checks.len() }
    }
}

impl fmt::Display for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static { nodes, services, endpoints, checked_services } => write!(
                f,
                "nodes: {nodes}, services: {services}, of them with a health check: {checked_services}, endpoints: \
                 {endpoints}"
            ),
            Self::Settings { namespaces } => write!(f, "namespaces with settings of their own: {namespaces}"),
        }
    }
}

/// Runs the command.
pub(crate) fn run(command: &ConfigCommand, socket: &Path, output: &Output) -> Result<Answer> {
    match command {
        ConfigCommand::Check(args) => check(args, output),
        ConfigCommand::View(args) => config_view::run(*args, socket, output),
    }
}

fn check(CheckArgs { file, settings }: &CheckArgs, output: &Output) -> Result<Answer> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let held = if *settings {
        settings_file::parse(&text).map(|settings| Holds::Settings { namespaces: settings.namespaces.len() })
    } else {
        static_file::parse(&text).map(|contents| Holds::of(&contents))
    };
    let answer = if held.is_ok() { Answer::Yes } else { Answer::No };
    if output.is_document() {
        output.print(&output.document(Kind::ConfigCheck, &Verdict::new(file, held))?)?;
        return Ok(answer);
    }
    match held {
        Ok(holds) => output.print(&format!("{} is good ({holds})\n", file.display()))?,
        // As a compiler does: what is wrong goes where errors go, whatever reads the output.
        Err(mistake) => eprint!("{}", complaint(file, &text, &mistake)),
    }
    Ok(answer)
}

impl Verdict {
    fn new(file: &Path, held: Result<Holds, FileError>) -> Self {
        let (good, file) = (held.is_ok(), file.display().to_string());
        let (holds, mistake) = match held {
            Ok(holds) => (Some(holds), None),
            Err(FileError { line, column, message }) => (None, Some(Mistake { line, column, message })),
        };
        Self { file, good, mistake, holds }
    }
}

/// The mistake, below it the line with a mark below its place.
fn complaint(file: &Path, text: &str, mistake: &FileError) -> String {
    let mut complaint = format!("{}: {mistake}\n", file.display());
    let index = usize::try_from(mistake.line).ok().and_then(|line| line.checked_sub(1));
    if let Some(line) = index.and_then(|index| text.lines().nth(index)) {
        let number = mistake.line.to_string();
        let before = usize::try_from(mistake.column.saturating_sub(1)).unwrap_or_default();
        // Tabs stay what they are, so that the mark is below its place whatever their width.
        let blanks: String = line.chars().take(before).map(|c| if c == '\t' { c } else { ' ' }).collect();
        complaint.push_str(&format!("{number} | {line}\n{:width$} | {blanks}^\n", "", width = number.len()));
    }
    complaint
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
nodes: [{name: edge-1, addresses: [192.0.2.11]}]
services:
  - name: web
    loadBalancerIPs: [198.51.100.1]
    healthCheck: {}
    ports: [{port: 80, targetPort: 8080}]
    endpoints: [{address: 192.0.2.11, node: edge-1}, {address: 192.0.2.12}]
";

    fn mistake(text: &str) -> String {
        complaint(Path::new("weir.yaml"), text, &static_file::parse(text).unwrap_err())
    }

    #[test]
    fn a_good_file_is_told_with_what_it_holds() {
        let holds = Holds::of(&static_file::parse(GOOD).unwrap());
        assert_eq!(holds.to_string(), "nodes: 1, services: 1, of them with a health check: 1, endpoints: 2");
        let verdict = serde_json::to_value(Verdict::new(Path::new("weir.yaml"), Ok(holds))).unwrap();
        let expected = serde_json::json!({
            "file": "weir.yaml",
            "good": true,
            "holds": {"nodes": 1, "services": 1, "endpoints": 2, "checkedServices": 1}
        });
        assert_eq!(verdict, expected);
    }

    #[test]
    fn a_mistake_is_shown_in_its_line_with_what_is_wrong_and_what_would_be_right() {
        insta::assert_snapshot!(mistake(&GOOD.replace("[198.51.100.1]", "[198.51.100]")), @r#"
        weir.yaml: line 4, column 23: loadBalancerIPs: "198.51.100" is not an IP address
        4 |     loadBalancerIPs: [198.51.100]
          |                       ^
        "#);
        let unknown = mistake(&GOOD.replace("healthCheck", "healthcheck"));
        assert!(
            unknown.starts_with("weir.yaml: line 5, column 5: unknown field `healthcheck`, expected one of"),
            "{unknown}"
        );
        assert!(unknown.ends_with("5 |     healthcheck: {}\n  |     ^\n"), "{unknown}");
    }

    #[test]
    fn a_mistake_without_a_place_is_told_without_a_line() {
        let nowhere = FileError { line: 0, column: 0, message: "too deep".to_owned() };
        assert_eq!(complaint(Path::new("a"), "b\n", &nowhere), "a: line 0, column 0: too deep\n");
    }

    #[test]
    fn a_mistake_in_a_document_has_its_place_as_numbers() {
        let error = static_file::parse("services: {}").unwrap_err();
        let verdict = serde_json::to_value(Verdict::new(Path::new("a"), Err(error))).unwrap();
        assert_eq!((&verdict["good"], &verdict["mistake"]["line"]), (&false.into(), &1.into()));
        assert!(verdict["mistake"]["message"].is_string() && verdict.get("holds").is_none(), "{verdict}");
    }
}
