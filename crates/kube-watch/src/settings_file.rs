//! The agent's configuration file: what is wanted of the steering of every Service, and of those of a namespace.
//!
//! ```yaml
//! defaults:
//!   policy: waterfill
//!   target: 0.8
//! namespaces:
//!   shop:
//!     max-rtt: 20ms
//!     relies-on: database            # of the namespace shop
//! ```
//!
//! The keys are those of [`Key`], the values are written as in annotations. A mistake is refused with its line and
//! column, and the whole file with it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_saphyr::Spanned;
use tokio::sync::Notify;
use weir_core::settings::{Key, Overrides, Scope, Settings};

use crate::file::{Changes, Source, from_yaml, load};
pub use crate::file::{FileError, FollowError, Reading};

/// The file's form. Values stay as they are written, each with its place.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    defaults: Written,
    #[serde(default)]
    namespaces: BTreeMap<String, Written>,
}

type Written = BTreeMap<String, Spanned<String>>;

/// Reads the text of a file.
///
/// # Errors
/// The first mistake in the text: not YAML, an unknown key, or a value that cannot be read.
pub fn parse(text: &str) -> Result<Settings, FileError> {
    let Document { defaults, namespaces } = from_yaml(text, "defaults: {}")?;
    let namespaces = namespaces.into_iter().map(|(name, written)| {
        let own = overrides(&format!("namespaces.{name}"), &written, Scope::Namespace(&name))?;
        Ok((Arc::from(name), own))
    });
    Ok(Settings {
        defaults: overrides("defaults", &defaults, Scope::Cluster)?,
        namespaces: namespaces.collect::<Result<_, FileError>>()?,
    })
}

fn overrides(place: &str, written: &Written, scope: Scope<'_>) -> Result<Overrides, FileError> {
    let mut own = Overrides::default();
    for (name, value) in written {
        let wrong = |why: &dyn std::fmt::Display| FileError::at(value.referenced, format!("{place}.{name}: {why}"));
        let key: Key = name.parse().map_err(|unknown| wrong(&unknown))?;
        own.set(key, &value.value, scope).map_err(|why| wrong(&why))?;
    }
    Ok(own)
}

/// Why a configuration file cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is missing or wrong.
    #[error("{0}")]
    Refused(String),
    /// There would be no news of it.
    #[error(transparent)]
    Follow(#[from] FollowError),
}

/// A configuration file that is followed.
pub struct SettingsFile {
    changes: Changes,
    source: Source,
}

impl SettingsFile {
    /// Reads the file and follows it from then on. It must be good: at a start nothing is in force that could stay, and
    /// other settings than those that somebody wrote would be a surprise.
    ///
    /// # Errors
    /// If the file cannot be read, is wrong, or its directory cannot be watched.
    pub async fn open(path: &Path) -> Result<(Self, Settings), OpenError> {
        // Set up before the first reading: a change between the two is seen.
        let changes = Changes::of(path)?;
        let (text, settings) = load(path, parse).await.map_err(OpenError::Refused)?;
        let source = Source::new(path.to_owned(), "settings", Some(text));
        Ok((Self { changes, source }, settings))
    }

    /// Waits until the file changes or `reload` asks for it (a SIGHUP, say), and reads it again. The log hears of a
    /// mistake once until it is mended, or is asked for.
    pub async fn next(&mut self, reload: &Notify) -> Reading<Settings> {
        tokio::select! {
            () = self.changes.next() => {}
            () = reload.notified() => {
                self.source.asked();
                self.changes.renew();
            }
        }
        self.source.read(parse).await
    }
}
