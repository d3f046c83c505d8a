//! `docs/conformance.md`: the results of both proxies side by side.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use super::RESULTS;
use super::proxy::Proxy;
use super::summary::{Outcome, Summary, Test};

/// Options of the report.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Directory with the results
    #[arg(long, value_name = "DIR", default_value = RESULTS)]
    results: PathBuf,
    /// The file to write
    #[arg(long, value_name = "FILE", default_value = "docs/conformance.md")]
    output: PathBuf,
}

/// Writes the report.
///
/// # Errors
/// When a summary is missing or the report cannot be written.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let load = |proxy: Proxy| {
        let path = options.results.join(proxy.summary());
        Summary::load(&path).with_context(|| format!("run `make conformance PROXY={}` first", proxy.name()))
    };
    let text = write(&load(Proxy::Weir)?, &load(Proxy::KubeProxy)?)?;
    fs::write(&options.output, text).with_context(|| format!("cannot write {}", options.output.display()))?;
    println!("{}", options.output.display());
    Ok(ExitCode::SUCCESS)
}

/// The report's text.
fn write(weir: &Summary, kube_proxy: &Summary) -> Result<String> {
    let mut text = String::from(
        "# Conformance

Kubernetes' own end-to-end tests of services, unchanged, on a cluster of three nodes: `make conformance`, and
`make conformance PROXY=kube-proxy` for the comparison with kube-proxy in its mode nftables. `make conformance-report`
writes this file.

Agents run with `--spread=random`, not with their default, `local-first`: many of these tests expect every endpoint to be
reached from each node. The nodes are network namespaces of one machine, and the images of the tests' pods are built there
under their official names.

| | weir | kube-proxy |
| --- | --- | --- |
",
    );
    let mut row =
        |name: &str, of: fn(&Summary) -> String| writeln!(text, "| {name} | {} | {} |", of(weir), of(kube_proxy));
    row("passed", |summary| summary.passed.to_string())?;
    row("failed", |summary| summary.failed.to_string())?;
    row("skipped", |summary| summary.skipped.to_string())?;
    row("Kubernetes", |summary| summary.kubernetes.clone())?;
    row("kernel", |summary| summary.kernel.clone())?;
    row("date", |summary| summary.date.clone())?;
    text.push_str("\n| test | weir | kube-proxy |\n| --- | --- | --- |\n");
    let mut rows: BTreeMap<&str, [Option<&Test>; 2]> = BTreeMap::new();
    for (column, summary) in [weir, kube_proxy].into_iter().enumerate() {
        for test in &summary.tests {
            rows.entry(&test.name).or_default()[column] = Some(test);
        }
    }
    let mut reasons = Vec::new();
    for (name, [weir, kube_proxy]) in rows {
        let name = name.trim_start_matches("[sig-network] ");
        writeln!(text, "| {name} | {} | {} |", cell(weir, &mut reasons), cell(kube_proxy, &mut reasons))?;
    }
    if !reasons.is_empty() {
        text.push_str("\nSkipped, in the words of the tests, or left out because this machine cannot run them with any proxy:\n\n");
        for (number, reason) in reasons.iter().enumerate() {
            writeln!(text, "{}. {reason}", number + 1)?;
        }
    }
    Ok(text)
}

/// What a cell says; a skip refers to its reason by number.
fn cell(test: Option<&Test>, reasons: &mut Vec<String>) -> String {
    let Some(test) = test else { return "not run".into() };
    match test.result {
        Outcome::Passed => format!("passed, {:.0} s", test.seconds),
        Outcome::Failed => "**failed**".into(),
        Outcome::Skipped => {
            let reason = test.reason.as_deref().unwrap_or("no reason given").lines().next().unwrap_or_default().trim();
            let known = reasons.iter().position(|known| known == reason);
            let number = known.unwrap_or_else(|| {
                reasons.push(reason.to_owned());
                reasons.len() - 1
            });
            format!("skipped ({})", number + 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(tests: &[(&str, Outcome, Option<&str>)]) -> Summary {
        let tests = tests.iter().map(|(name, result, reason)| Test {
            name: (*name).into(),
            result: *result,
            seconds: 4.2,
            reason: reason.map(Into::into),
        });
        Summary {
            proxy: "weir".into(),
            kubernetes: "v1.2.3".into(),
            kernel: "6.1".into(),
            date: "2000-01-01".into(),
            passed: 1,
            failed: 0,
            skipped: 0,
            tests: tests.collect(),
        }
    }

    #[test]
    fn each_test_has_a_row_and_each_reason_a_number() {
        let weir =
            summary(&[("[sig-network] A", Outcome::Passed, None), ("B", Outcome::Skipped, Some("no cloud\nat x"))]);
        let kube_proxy = summary(&[("B", Outcome::Skipped, Some("no cloud")), ("C", Outcome::Failed, Some("x"))]);
        let text = write(&weir, &kube_proxy).unwrap();
        for line in
            ["| A | passed, 4 s | not run |", "| B | skipped (1) | skipped (1) |", "| C | not run | **failed** |"]
        {
            assert!(text.contains(line), "{text}");
        }
        assert!(text.ends_with("\n\n1. no cloud\n"), "{text}");
    }
}
