//! The stage of this node's migration (`weir migrate`): read from a file and followed. See
//! docs/adr/0036-migration-of-a-node.md.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use weir_core::stage::{self, Stage};

use crate::channel::publish;

/// From one look at the file to the next. Whoever changes it waits for what follows; and a directory that comes later, or is
/// mounted over, is no trouble, as it would be for a watch.
const LOOK: Duration = Duration::from_millis(500);

/// Where the stage is kept.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Source")]
pub(crate) struct StageOptions {
    /// Directory in which `weir migrate` leaves the stage of this node's migration; it need not exist
    #[arg(long, env = "WEIR_STATE_DIR", value_name = "DIR", default_value = stage::DIRECTORY)]
    pub(crate) state_dir: PathBuf,
}

/// The stage that is in force.
#[derive(Clone, Debug)]
pub(crate) struct CurrentStage {
    stage: watch::Receiver<Stage>,
    named: bool,
}

impl CurrentStage {
    /// The stage.
    pub(crate) fn get(&self) -> Stage {
        *self.stage.borrow()
    }

    /// Whether another proxy may have connections on this node.
    pub(crate) fn is_beside(&self) -> bool {
        self.get().is_beside(self.named)
    }

    /// Waits for another stage; for ever once nobody follows the file.
    pub(crate) async fn changed(&mut self) {
        if self.stage.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// The file, followed until it is stopped.
pub(crate) struct StageFile {
    path: PathBuf,
    stage: watch::Sender<Stage>,
    /// What was told already.
    trouble: Option<String>,
}

impl StageFile {
    /// Reads the file. At a start it must be good: nobody knows what else was meant. `named`: by its options the agent serves
    /// labelled Services alone.
    pub(crate) fn open(options: &StageOptions, named: bool) -> Result<(Self, CurrentStage)> {
        let path = options.state_dir.join(stage::FILE);
        let stage = read(&path)?;
        if stage != Stage::Usual {
            info!(%stage, file = %path.display(), "this node is being migrated; see `weir migrate`");
        }
        let (stage, receiver) = watch::channel(stage);
        Ok((Self { path, stage, trouble: None }, CurrentStage { stage: receiver, named }))
    }

    /// Works until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let work = async {
            let mut look = tokio::time::interval(LOOK);
            look.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                look.tick().await;
                self.look();
            }
        };
        stop.run_until_cancelled(work).await;
    }

    fn look(&mut self) {
        let trouble = match read(&self.path) {
            Ok(stage) => {
                publish(&self.stage, stage);
                None
            }
            Err(cause) => Some(format!("{cause:#}")),
        };
        if let Some(cause) = trouble.as_ref().filter(|cause| self.trouble.as_ref() != Some(cause)) {
            warn!(%cause, "the stage of this node's migration stays as it was");
        }
        self.trouble = trouble;
    }
}

fn read(path: &Path) -> Result<Stage> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(Stage::Usual),
        Err(cause) => return Err(cause).with_context(|| format!("cannot read {}", path.display())),
    };
    text.parse().with_context(|| format!("{}: correct it by `weir migrate`, or remove it", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(directory: &Path) -> StageOptions {
        StageOptions { state_dir: directory.to_owned() }
    }

    #[test]
    fn without_a_file_and_without_its_directory_the_options_decide() {
        let directory = tempfile::tempdir().unwrap();
        for missing in [directory.path().to_owned(), directory.path().join("none")] {
            let (_, stage) = StageFile::open(&options(&missing), true).unwrap();
            assert_eq!((stage.get(), stage.is_beside()), (Stage::Usual, true));
        }
    }

    #[test]
    fn a_stage_is_in_force_as_soon_as_it_is_seen_and_a_mistake_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(stage::FILE);
        let (mut file, stage) = StageFile::open(&options(directory.path()), false).unwrap();
        for (text, expected) in
            [("take-over\n", Stage::TakeOver), ("over-take\n", Stage::TakeOver), ("drain", Stage::Drain)]
        {
            std::fs::write(&path, text).unwrap();
            file.look();
            assert_eq!(stage.get(), expected, "{text}");
        }
        std::fs::remove_file(path).unwrap();
        file.look();
        assert_eq!(stage.get(), Stage::Usual);
    }

    #[test]
    fn at_a_start_a_mistake_is_refused_with_the_file_and_what_could_be_there() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(stage::FILE), "drained").unwrap();
        let refused = format!("{:#}", StageFile::open(&options(directory.path()), false).err().unwrap());
        assert!(refused.contains("/stage") && refused.contains("take-over, alone or drain"), "{refused}");
    }
}
