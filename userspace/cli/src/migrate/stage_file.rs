//! The file by which the agent learns of the stage.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use weir_core::stage::{self, Stage};

/// The file, whether or not it exists.
#[derive(Debug)]
pub(crate) struct StageFile(PathBuf);

impl StageFile {
    /// The one in a directory.
    pub(crate) fn in_dir(directory: &Path) -> Self {
        Self(directory.join(stage::FILE))
    }

    /// What it says.
    pub(crate) fn read(&self) -> Result<Stage> {
        match fs::read_to_string(&self.0) {
            Ok(text) => text.parse().with_context(|| format!("{} is damaged: remove it", self.0.display())),
            Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(Stage::Usual),
            Err(cause) => Err(cause).with_context(|| format!("cannot read {}", self.0.display())),
        }
    }

    /// Where it is, if it is there.
    pub(crate) fn path(&self) -> Option<&Path> {
        Some(self.0.as_path()).filter(|path| path.exists())
    }

    /// Has the next agent begin as if there had been none.
    pub(crate) fn remove(&self) -> Result<()> {
        match fs::remove_file(&self.0) {
            Err(cause) if cause.kind() != ErrorKind::NotFound => {
                Err(cause).with_context(|| format!("cannot remove {}", self.0.display()))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Puts another stage in its place: whole, also if the machine dies meanwhile.
    pub(crate) fn write(&self, stage: Stage) -> Result<()> {
        let write = || {
            if let Some(directory) = self.0.parent() {
                fs::create_dir_all(directory)?;
            }
            let new = self.0.with_extension("new");
            let mut file = File::create(&new)?;
            writeln!(file, "{stage}")?;
            file.sync_all()?;
            fs::rename(new, &self.0)
        };
        write().with_context(|| format!("cannot write {}", self.0.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_nothing_is_left_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = StageFile::in_dir(&directory.path().join("weir"));
        assert_eq!(file.read().unwrap(), Stage::Usual);
        for stage in Stage::ALL {
            file.write(stage).unwrap();
            assert_eq!(file.read().unwrap(), stage);
        }
        assert_eq!(fs::read_dir(directory.path().join("weir")).unwrap().count(), 1);
    }

    #[test]
    fn what_was_removed_is_the_usual_stage_and_may_be_removed_twice() {
        let directory = tempfile::tempdir().unwrap();
        let file = StageFile::in_dir(directory.path());
        file.write(Stage::Drain).unwrap();
        assert!(file.path().is_some());
        for _ in 0..2 {
            file.remove().unwrap();
            assert_eq!((file.path(), file.read().unwrap()), (None, Stage::Usual));
        }
    }
}
