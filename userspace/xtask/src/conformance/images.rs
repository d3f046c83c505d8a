//! Images of the test pods: one file system under several names, since no registry can be reached.
//!
//! The file system has two layers: a small Debian with the commands that test pods run (`deploy/dev/bootstrap.sh` makes
//! it), and the test programs, built from the same source as the tests.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::programs::Programs;

/// The image that holds a pod's namespaces.
pub(super) const PAUSE: &str = "registry.k8s.io/pause:3.10.2";

/// The image that most tests use; it has CoreDNS, too.
pub(super) const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.63.0";

/// The image of the Dockerfile's stage `tools`: the same, with `weir`.
pub(super) const TOOLS: &str = "example.org/weir-tools:0.1.0";

/// An image: its name, and what it runs unless told otherwise.
struct Image {
    name: &'static str,
    entrypoint: &'static [&'static str],
    arguments: &'static [&'static str],
}

/// Names as in test/utils/image/manifest.go of Kubernetes, entry points as in the Dockerfiles in test/images.
const IMAGES: [Image; 8] = [
    Image { name: PAUSE, entrypoint: &["/agnhost"], arguments: &["pause"] },
    Image { name: AGNHOST, entrypoint: &["/agnhost"], arguments: &["pause"] },
    Image { name: "registry.k8s.io/e2e-test-images/agnhost:2.55", entrypoint: &["/agnhost"], arguments: &["pause"] },
    Image { name: "registry.k8s.io/e2e-test-images/busybox:1.37.0-1", entrypoint: &[], arguments: &["sh"] },
    Image {
        name: "registry.k8s.io/e2e-test-images/nginx:1.15-4",
        entrypoint: &["nginx", "-g", "daemon off;"],
        arguments: &[],
    },
    Image { name: "registry.k8s.io/e2e-test-images/glibc-dns-testing:2.0.0", entrypoint: &[], arguments: &["sh"] },
    Image {
        name: "registry.k8s.io/e2e-test-images/regression-issue-74839:1.4",
        entrypoint: &["/regression-issue-74839"],
        arguments: &[],
    },
    Image { name: "registry.k8s.io/build-image/distroless-iptables:v0.9.6", entrypoint: &[], arguments: &["sh"] },
];

const BASE_LAYER: &str = "base.tar";
const PROGRAMS_LAYER: &str = "programs.tar";

/// Programs that lie in the root of the file system.
const PROGRAMS: [&str; 3] = ["agnhost", "coredns", "regression-issue-74839"];

/// The archive of all images, in the form of `docker save`. Builds it when a part of it is newer.
///
/// # Errors
/// When a file cannot be read or written.
pub(super) fn archive(programs: &Programs) -> Result<PathBuf> {
    let directory = programs.images();
    let archive = directory.join("images.tar");
    let mut parts: Vec<_> = PROGRAMS.iter().map(|name| programs.built(name)).collect();
    parts.push(programs.base_layer());
    // The list of images is part of this program.
    parts.push(std::env::current_exe().context("cannot tell where this program lies")?);
    if is_newest(&archive, &parts)? {
        return Ok(archive);
    }
    let draft = tempfile::tempdir_in(&directory).context("cannot make a directory for images")?;
    build_programs_layer(programs, draft.path(), &draft.path().join(PROGRAMS_LAYER))?;
    let finished = draft.path().join("images.tar.new");
    save(programs, &IMAGES, draft.path(), &finished)?;
    fs::rename(&finished, &archive).with_context(|| format!("cannot write {}", archive.display()))?;
    Ok(archive)
}

/// An archive of [`TOOLS`], with files below `directory`.
///
/// # Errors
/// When a file cannot be read or written.
pub(super) fn tools(programs: &Programs, directory: &Path) -> Result<PathBuf> {
    let draft = directory.join("tools");
    let bin = draft.join("root/usr/local/bin");
    fs::create_dir_all(&bin).with_context(|| format!("cannot make {}", bin.display()))?;
    let cli = programs.static_cli()?;
    fs::copy(&cli, bin.join("weir")).with_context(|| format!("cannot copy {}", cli.display()))?;
    pack(&draft.join("root"), &draft.join(PROGRAMS_LAYER))?;
    let archive = draft.join("tools.tar");
    save(programs, &[Image { name: TOOLS, entrypoint: &["/usr/local/bin/weir"], arguments: &[] }], &draft, &archive)?;
    Ok(archive)
}

/// Writes images to an archive: the base layer, and the programs' layer that lies in `draft`.
fn save(programs: &Programs, images: &[Image], draft: &Path, to: &Path) -> Result<()> {
    let layers = [BASE_LAYER, PROGRAMS_LAYER];
    let base = draft.join(BASE_LAYER);
    let linked =
        fs::hard_link(programs.base_layer(), &base).or_else(|_other_disk| symlink(programs.base_layer(), &base));
    linked.context("cannot link the base layer")?;
    let sums = layers.iter().map(|layer| sha256(&draft.join(layer))).collect::<Result<Vec<_>>>()?;
    let mut manifest = Vec::new();
    for (number, Image { name, entrypoint, arguments }) in images.iter().enumerate() {
        let config = json!({
            "architecture": goarch()?,
            "os": "linux",
            "config": {
                "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                "Entrypoint": entrypoint,
                "Cmd": arguments,
            },
            "rootfs": {"type": "layers", "diff_ids": sums},
        });
        let file = format!("{number}.json");
        write(&draft.join(&file), &config)?;
        manifest.push(json!({"Config": file, "RepoTags": [name], "Layers": layers}));
    }
    write(&draft.join("manifest.json"), &manifest.into())?;
    let members = (0..images.len()).map(|number| format!("{number}.json"));
    let members = members.chain(["manifest.json".into()]).chain(layers.map(Into::into));
    run(Command::new("tar").arg("-C").arg(draft).args(["--dereference", "-cf"]).arg(to).args(members))
}

/// Puts the programs into the root of a layer, with the second name that agnhost's own image has, and the directory
/// that its web server writes to.
fn build_programs_layer(programs: &Programs, draft: &Path, layer: &Path) -> Result<()> {
    let root = draft.join("root");
    fs::create_dir_all(root.join("uploads")).context("cannot make a directory for a layer")?;
    for name in PROGRAMS {
        fs::hard_link(programs.built(name), root.join(name)).with_context(|| format!("cannot link {name}"))?;
    }
    symlink("agnhost", root.join("agnhost-2")).context("cannot link agnhost-2")?;
    pack(&root, layer)
}

/// Makes a layer of a tree.
fn pack(root: &Path, layer: &Path) -> Result<()> {
    run(Command::new("tar").args(["--owner=0", "--group=0", "-cf"]).arg(layer).arg("-C").arg(root).arg("."))
}

fn is_newest(archive: &Path, parts: &[PathBuf]) -> Result<bool> {
    let changed = |path: &Path| {
        fs::metadata(path)
            .and_then(|data| data.modified())
            .with_context(|| format!("cannot look at {}", path.display()))
    };
    if !archive.exists() {
        return Ok(false);
    }
    let made = changed(archive)?;
    for part in parts {
        if changed(part)? > made {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The machine's architecture, as Go and images call it.
pub(super) fn goarch() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("images for {other} have no name here: add it in images.rs"),
    }
}

/// A file's digest, as images have it.
fn sha256(path: &Path) -> Result<String> {
    let output = Command::new("sha256sum").arg(path).output().context("cannot run sha256sum")?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.split(' ').next() {
        Some(sum) if output.status.success() && sum.len() == 64 => Ok(format!("sha256:{sum}")),
        _ => bail!("sha256sum {} failed: {}", path.display(), String::from_utf8_lossy(&output.stderr)),
    }
}

fn write(path: &Path, content: &serde_json::Value) -> Result<()> {
    fs::write(path, content.to_string()).with_context(|| format!("cannot write {}", path.display()))
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    if !status.success() {
        bail!("{command:?} failed: {status}");
    }
    Ok(())
}
