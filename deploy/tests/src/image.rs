//! The container image as the Dockerfile's last stage has it, made without Docker: an archive in OCI's layout
//! (<https://github.com/opencontainers/image-spec>, image-layout.md).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use weir_testbed::{Error, Result};

use crate::programs::{run, statically_linked};

/// The name of the image where nobody gives another: what a node's container runtime makes of the chart's `weir:VERSION`.
#[must_use]
pub fn default_name() -> String {
    format!("docker.io/library/weir:{}", env!("CARGO_PKG_VERSION"))
}

/// What the last stage of a Dockerfile does.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Stage {
    /// Files of an earlier stage, and where they go.
    pub copies: Vec<(PathBuf, PathBuf)>,
    /// `LABEL`s, arguments put in.
    pub labels: BTreeMap<String, String>,
    /// `USER`.
    pub user: String,
    /// `ENTRYPOINT`.
    pub entrypoint: Vec<String>,
}

impl Stage {
    /// The last stage of a Dockerfile, which must be `FROM scratch`.
    ///
    /// # Errors
    /// Names the line that is none of the few that such a stage needs.
    pub fn last(dockerfile: &str) -> Result<Self> {
        let (_, lines) = dockerfile
            .rsplit_once("\nFROM scratch\n")
            .ok_or_else(|| Error::Invalid("the Dockerfile has no stage from scratch".to_owned()))?;
        let mut stage = Self::default();
        let mut arguments = BTreeMap::new();
        for line in lines.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let unknown = || Error::Invalid(format!("the Dockerfile's last stage has a line of no known form: {line}"));
            let (verb, rest) = line.split_once(' ').ok_or_else(unknown)?;
            let pair = || rest.split_once('=').ok_or_else(unknown);
            match verb {
                "ARG" => drop(arguments.insert(format!("${{{}}}", pair()?.0), pair()?.1.to_owned())),
                "LABEL" => {
                    let (name, value) = pair()?;
                    let value = value.trim_matches('"').to_owned();
                    let value = arguments.iter().fold(value, |text, (name, value)| text.replace(name, value));
                    stage.labels.insert(name.to_owned(), value);
                }
                "COPY" => {
                    let files = rest.strip_prefix("--from=build ").and_then(|files| files.split_once(' '));
                    let (from, to) = files.ok_or_else(unknown)?;
                    stage.copies.push((from.into(), to.into()));
                }
                "USER" => rest.clone_into(&mut stage.user),
                "ENTRYPOINT" => stage.entrypoint = serde_json::from_str(rest).map_err(|_error| unknown())?,
                _ => return Err(unknown()),
            }
        }
        Ok(stage)
    }

    /// Writes the image under a name such as `example.org/weir:1` to an archive below `directory`. `find` says where a file of
    /// the earlier stage lies here.
    ///
    /// # Errors
    /// When a file is missing or cannot be written.
    pub fn pack(&self, name: &str, directory: &Path, find: impl Fn(&Path) -> PathBuf) -> Result<PathBuf> {
        let (tree, layout) = (directory.join("root"), directory.join("layout"));
        for (from, to) in &self.copies {
            let target = tree.join(to.strip_prefix("/").unwrap_or(to));
            run(Command::new("install").arg("-D").arg(find(from)).arg(target))?;
        }
        let layer = directory.join("layer.tar");
        archive(&tree, &layer)?;
        let layer = read(&layer)?;
        let config = json!({
            "architecture": architecture()?,
            "os": "linux",
            "config": {"User": self.user, "Entrypoint": self.entrypoint, "Labels": self.labels},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", sum(&layer))]},
        });
        let config = blob(&layout, config.to_string().as_bytes(), "config.v1+json")?;
        let layer = blob(&layout, &layer, "layer.v1.tar")?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config,
            "layers": [layer],
        });
        let mut manifest = blob(&layout, manifest.to_string().as_bytes(), "manifest.v1+json")?;
        manifest["annotations"] = json!({"io.containerd.image.name": name});
        write(&layout.join("index.json"), json!({"schemaVersion": 2, "manifests": [manifest]}).to_string().as_bytes())?;
        write(&layout.join("oci-layout"), br#"{"imageLayoutVersion": "1.0.0"}"#)?;
        let image = directory.join("image.tar");
        archive(&layout, &image)?;
        Ok(image)
    }
}

/// Writes the image of the Dockerfile's last stage under `name` to the archive `to`, of the programs that `make static` has
/// built.
///
/// # Errors
/// When the programs are not there, and those of [`Stage::pack`].
pub fn pack_built(dockerfile: &str, name: &str, to: &Path) -> Result<()> {
    let built = statically_linked()?;
    let find = |file: &Path| match file.strip_prefix("/out") {
        Ok(name) => built.join(name),
        Err(_) => file.to_owned(),
    };
    let draft = tempfile::Builder::new().prefix("weir-image-").tempdir();
    let draft = draft.map_err(|source| Error::Io { action: "make a directory for the image".to_owned(), source })?;
    let image = Stage::last(dockerfile)?.pack(name, draft.path(), find)?;
    run(Command::new("install").args(["-D", "-m", "644"]).arg(image).arg(to)).map(drop)
}

/// Stores a blob and returns its descriptor.
fn blob(layout: &Path, content: &[u8], kind: &str) -> Result<Value> {
    let sum = sum(content);
    write(&layout.join("blobs/sha256").join(&sum), content)?;
    let kind = format!("application/vnd.oci.image.{kind}");
    Ok(json!({"mediaType": kind, "digest": format!("sha256:{sum}"), "size": content.len()}))
}

fn sum(content: &[u8]) -> String {
    digest(&SHA256, content).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The same files make the same archive.
fn archive(tree: &Path, to: &Path) -> Result<()> {
    let mut command = Command::new("tar");
    command.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0"]);
    run(command.arg("-C").arg(tree).arg("-cf").arg(to).arg(".")).map(drop)
}

/// The machine's name as Go has it.
fn architecture() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => Err(Error::Invalid(format!("images for {other} have no known name"))),
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|source| Error::Io { action: format!("read {}", path.display()), source })
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    let made = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(path, content));
    made.map_err(|source| Error::Io { action: format!("write {}", path.display()), source })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

    use super::*;

    #[test]
    fn the_last_stage_is_read_as_docker_reads_it() {
        let stage = Stage::last(
            "FROM rust AS build\nRUN make\n\nFROM scratch\nARG VERSION=1\n# Why.\nLABEL a.b=\"v${VERSION}\"\n\
             COPY --from=build /out/a /bin/a\nUSER 0:0\nENTRYPOINT [\"/bin/a\", \"-v\"]\n",
        );
        let expected = Stage {
            copies: vec![("/out/a".into(), "/bin/a".into())],
            labels: [("a.b".to_owned(), "v1".to_owned())].into(),
            user: "0:0".to_owned(),
            entrypoint: vec!["/bin/a".to_owned(), "-v".to_owned()],
        };
        assert_eq!(stage.unwrap(), expected);
    }

    #[test]
    fn a_stage_that_does_more_is_refused() {
        for text in ["FROM debian\n", "FROM a\nFROM scratch\nRUN x\n", "FROM a\nFROM scratch\nCOPY a /b\n"] {
            assert!(Stage::last(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_image_is_the_same_each_time_and_its_blobs_have_their_own_sums() {
        let stage = Stage {
            copies: vec![("/a".into(), "/usr/bin/a".into())],
            entrypoint: vec!["/usr/bin/a".to_owned()],
            ..Stage::default()
        };
        let sums = [1, 2].map(|_| {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("a");
            fs::write(&file, "#!").unwrap();
            let image = stage.pack("example.org/a:1", directory.path(), |_| file.clone()).unwrap();
            for blob in fs::read_dir(directory.path().join("layout/blobs/sha256")).unwrap() {
                let path = blob.unwrap().path();
                assert_eq!(path.file_name().unwrap().to_str().unwrap(), sum(&fs::read(&path).unwrap()));
            }
            sum(&fs::read(image).unwrap())
        });
        assert_eq!(sums[0], sums[1]);
    }
}
