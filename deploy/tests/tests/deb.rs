//! The Debian package, installed into a Debian of its own.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;
use weir_deploy_tests::programs::{package, run};
use weir_testbed::{process, require_root};

/// A Debian in a directory; that of the conformance cluster's images.
struct Debian {
    directory: TempDir,
}

impl Debian {
    fn unpack(base: &Path) -> Self {
        let directory = tempfile::Builder::new().prefix("weir-debian-").tempdir().unwrap();
        run(Command::new("tar").arg("-C").arg(directory.path()).arg("-xf").arg(base)).unwrap();
        Self { directory }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path.trim_start_matches('/'))
    }

    fn try_run(&self, words: &[&str]) -> Output {
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let mut command = Command::new("chroot");
        command.arg(self.directory.path()).args(words).env("PATH", path).env("DEBIAN_FRONTEND", "noninteractive");
        command.output().unwrap()
    }

    /// What it prints.
    fn run(&self, words: &[&str]) -> String {
        let output = self.try_run(words);
        let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        assert!(output.status.success(), "{words:?}: {err}\n{out}");
        out + &err
    }

    fn has(&self, path: &str) -> bool {
        fs::symlink_metadata(self.path(path)).is_ok()
    }
}

#[test]
#[ignore = "minutes: make test-deploy"]
fn the_package_installs_without_any_other_is_not_started_keeps_settings_and_goes_without_a_trace() {
    let what = "the Debian package";
    let base = process::cache().join("images/base.tar");
    if !require_root(what) {
        return;
    }
    if !base.exists() {
        eprintln!("SKIPPED: {what}: no {}: run `make bootstrap`", base.display());
        return;
    }
    let debian = Debian::unpack(&base);
    fs::copy(package().unwrap(), debian.path("/weir.deb")).unwrap();
    debian.run(&["dpkg", "--install", "/weir.deb"]);
    for file in [
        "/usr/bin/weir-agent",
        "/usr/bin/weir",
        "/usr/bin/kubectl-weir",
        "/etc/weir/weir.yaml",
        "/etc/default/weir-agent",
        "/usr/lib/systemd/system/weir-agent.service",
        "/usr/share/bash-completion/completions/weir",
        "/usr/share/zsh/vendor-completions/_weir",
        "/usr/share/fish/vendor_completions.d/weir.fish",
        "/usr/share/man/man8/weir-agent.8.gz",
        "/usr/share/man/man8/weir.8.gz",
        "/usr/share/man/man8/weir-status.8.gz",
        "/usr/share/doc/weir/operate.md",
        "/usr/share/doc/weir/copyright",
    ] {
        assert!(debian.has(file), "{file} is not there: {}", debian.run(&["dpkg", "--listfiles", "weir"]));
    }
    let version = debian.run(&["weir", "version"]);
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    debian.run(&["weir", "config", "check", "/etc/weir/weir.yaml"]);
    let help = debian.run(&["weir-agent", "--help"]);
    assert!(help.contains("--static"), "{help}");
    // What it would serve was not said yet.
    let wanted = debian.path("/etc/systemd/system/multi-user.target.wants/weir-agent.service");
    assert!(fs::symlink_metadata(wanted).is_err());

    // An upgrade keeps what the operator has written.
    fs::write(debian.path("/etc/weir/weir.yaml"), "services: []\n").unwrap();
    debian.run(&["dpkg", "--install", "/weir.deb"]);
    assert_eq!(fs::read_to_string(debian.path("/etc/weir/weir.yaml")).unwrap(), "services: []\n");

    // Whoever removes it learns that traffic goes on.
    fs::create_dir_all(debian.path("/sys/fs/bpf/weir")).unwrap();
    let said = debian.run(&["dpkg", "--remove", "weir"]);
    assert!(said.contains("weir cleanup"), "{said}");
    assert!(!debian.has("/usr/bin/weir") && debian.has("/etc/weir/weir.yaml"));
    debian.run(&["dpkg", "--purge", "weir"]);
    assert!(!debian.has("/etc/weir") && !debian.has("/etc/default/weir-agent"));
}
