//! What tests are made of: moments, trees of files, short ways to read.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use weir_signals::{Failure, FailureKind, Source};

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A moment, in milliseconds after the first.
pub(crate) fn at(millis: u64) -> Instant {
    *START + Duration::from_millis(millis)
}

pub(crate) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A directory with files, gone at the end of the test.
pub(crate) struct Tree(TempDir);

impl Tree {
    pub(crate) fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        let tree = Self::new();
        for (path, text) in files {
            tree.write(path, text);
        }
        tree
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn remove(&self, path: &str) {
        let path = self.path(path);
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }
}

/// The value of a reading that must go well.
pub(crate) fn value<S: Source>(source: &mut S, now: Instant) -> S::Value {
    source.read(now).unwrap().expect("there is a value")
}

/// The failure of a reading that must go wrong.
pub(crate) fn failure<S: Source>(source: &mut S, now: Instant) -> Failure
where
    S::Value: std::fmt::Debug,
{
    source.read(now).expect_err("reading fails")
}

pub(crate) fn kind<S: Source>(source: &mut S, now: Instant) -> FailureKind
where
    S::Value: std::fmt::Debug,
{
    failure(source, now).kind()
}

pub(crate) fn near(is: f64, expected: f64) -> bool {
    (is - expected).abs() < 1e-6
}
