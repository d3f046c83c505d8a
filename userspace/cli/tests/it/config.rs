//! `weir config check`: exit codes and where its words go.

use std::fs;
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::node::text;

const GOOD: &str = "services: [{name: web, loadBalancerIPs: [198.51.100.1], ports: [{port: 80}]}]\n";

/// Checks a file of this text, with more options.
fn check(text: &str, options: &[&str]) -> (Output, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("weir.yaml");
    fs::write(&file, text).unwrap();
    let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
    let output = weir.args(["config", "check"]).arg(file).args(options).output().unwrap();
    (output, directory)
}

#[test]
fn a_good_file_is_said_to_be_good() {
    let (output, _directory) = check(GOOD, &[]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    assert!(text(&output.stdout).contains("weir.yaml is good (nodes: 0, services: 1,"), "{output:?}");
}

#[test]
fn a_wrong_file_is_an_answer_and_its_mistake_goes_to_stderr() {
    let (output, _directory) = check(&GOOD.replace("port: 80", "port: 0"), &[]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()));
    let told = text(&output.stderr);
    assert!(told.contains("weir.yaml: line 1, column 72: port: 0 is not in 1..65535\n1 | services:"), "{told}");
}

#[test]
fn a_document_tells_a_mistake_on_stdout() {
    let (output, _directory) = check(&GOOD.replace("port: 80", "port: 0"), &["-o", "json"]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), String::new()));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["kind"], "ConfigCheck");
    assert_eq!(document["mistake"]["column"], 72, "{document}");
}

#[test]
fn a_file_that_is_not_there_is_an_error() {
    let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
    let output = weir.args(["config", "check", "/nonexistent/weir.yaml"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("cannot read /nonexistent/weir.yaml: No such file"), "{output:?}");
}

#[test]
fn a_file_of_settings_is_checked_as_one() {
    let settings = "defaults: {policy: waterfill}\n";
    assert_eq!(check(settings, &["--settings"]).0.status.code(), Some(0));
    assert_eq!(check(settings, &[]).0.status.code(), Some(1), "it is no file of services");
    let (output, _directory) = check("defaults: {policy: watrfill}\n", &["--settings"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("line 1, column 20: defaults.policy: "), "{output:?}");
}
