//! `make install`, and the unit that it brings.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::Value;
use weir_deploy_tests::programs::{make, run};
use weir_testbed::process;

const UNIT: &str = include_str!("../../systemd/weir-agent.service");
const DAEMON_SET: &str = include_str!("../../helm/weir/templates/daemonset.yaml");

/// The keys of a unit; the last value of each.
fn settings(unit: &str) -> BTreeMap<&str, &str> {
    let lines = unit.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once('=')).collect()
}

#[test]
fn the_unit_grants_what_the_chart_grants() {
    let (_, list) = DAEMON_SET.split_once("drop: [ALL]\n              add: [").unwrap();
    let (list, _) = list.split_once(']').unwrap();
    let mut chart: Vec<String> = list.split(", ").map(|name| format!("CAP_{name}")).collect();
    let mut unit: Vec<&str> = settings(UNIT)["CapabilityBoundingSet"].split(' ').collect();
    chart.sort();
    unit.sort_unstable();
    assert_eq!(unit, chart);
}

#[test]
fn systemd_takes_every_line_of_the_unit_and_finds_it_hardened() {
    if let Err(error) = process::installed("systemd-analyze") {
        eprintln!("SKIPPED: the unit: {error}");
        return;
    }
    // It looks for the program, which is not installed here.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir-agent.service");
    let unit = UNIT.replace("=/usr/bin/weir-agent", "=/bin/true");
    fs::write(&path, unit.replace("Documentation=", "#")).unwrap();
    let checked = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stderr);
    // Others' units of this machine are looked at as well.
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("weir-agent")).collect();
    assert!(checked.status.success() && ours.is_empty(), "{said}");

    let mut security = Command::new("systemd-analyze");
    security.args(["security", "--offline=true", "--no-pager", "--threshold=30"]).arg(&path);
    // 3.0 is the most; a unit without any of it has 9.6.
    run(&mut security).unwrap();
}

#[test]
#[ignore = "minutes: make test-deploy"]
fn make_install_puts_everything_below_its_prefix_and_keeps_settings_and_make_uninstall_takes_it_away() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let install = || make(&["install", &format!("DESTDIR={}", root.display()), "PREFIX=/opt/weir"]).unwrap();
    install();
    for (file, mode) in [
        ("opt/weir/bin/weir-agent", 0o755),
        ("opt/weir/bin/weir", 0o755),
        ("opt/weir/bin/kubectl-weir", 0o755),
        ("opt/weir/share/man/man8/weir.8", 0o644),
        ("opt/weir/share/man/man8/weir-agent.8", 0o644),
        ("opt/weir/share/man/man8/weir-status.8", 0o644),
        ("opt/weir/share/bash-completion/completions/weir", 0o644),
        ("opt/weir/share/zsh/site-functions/_weir", 0o644),
        ("opt/weir/share/fish/vendor_completions.d/weir.fish", 0o644),
        ("opt/weir/lib/systemd/system/weir-agent.service", 0o644),
        ("etc/weir/weir.yaml", 0o644),
        ("etc/default/weir-agent", 0o644),
    ] {
        let found = fs::metadata(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert_eq!(found.permissions().mode() & 0o777, mode, "{file}");
        assert!(found.len() > 0, "{file}");
    }
    let unit = fs::read_to_string(root.join("opt/weir/lib/systemd/system/weir-agent.service")).unwrap();
    assert!(settings(&unit)["ExecStart"].starts_with("/opt/weir/bin/weir-agent "), "{unit}");
    let said = run(Command::new(root.join("opt/weir/bin/weir")).args(["version", "--output=json"])).unwrap();
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["version"], env!("CARGO_PKG_VERSION"));

    fs::write(root.join("etc/weir/weir.yaml"), "services: []\n").unwrap();
    install();
    assert_eq!(fs::read_to_string(root.join("etc/weir/weir.yaml")).unwrap(), "services: []\n");

    make(&["uninstall", &format!("DESTDIR={}", root.display()), "PREFIX=/opt/weir"]).unwrap();
    let left = run(Command::new("find").arg(root).args(["!", "-type", "d", "-printf", "%P\n"])).unwrap();
    let mut left: Vec<&str> = left.lines().collect();
    left.sort_unstable();
    assert_eq!(left, ["etc/default/weir-agent", "etc/weir/weir.yaml"], "settings stay, and nothing else");
}
