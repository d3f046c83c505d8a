//! The file that holds the cluster's keys, a Secret's mount as a rule: read again while the agent runs.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ring::digest;
use zeroize::Zeroizing;

use crate::keys::{KeyError, KeyRing};

/// Larger files are not key files. In bytes.
const LIMIT: u64 = 4096;

/// A key file, and what it held when it was read last.
#[derive(Debug)]
pub struct KeyFile {
    path: PathBuf,
    /// Compared by digest: the text itself is not kept.
    seen: digest::Digest,
}

/// Why a key file gives no keys.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file cannot be read.
    #[error(
        "mesh key file {path}: cannot be read: mount the Secret there, or configure no key file to be without the mesh"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        cause: io::Error,
    },
    /// Longer than any key file.
    #[error("mesh key file {path}: longer than {LIMIT} bytes: it must hold one key per line")]
    Long {
        /// The file.
        path: PathBuf,
    },
    /// The text is not UTF-8.
    #[error("mesh key file {path}: not a text: write the key in base64 or hexadecimal digits")]
    Text {
        /// The file.
        path: PathBuf,
    },
    /// The text holds no keys.
    #[error("mesh key file {path}: {cause}")]
    Keys {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        cause: KeyError,
    },
}

impl KeyFile {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// [`KeyFileError`]: without a key there is no mesh.
    pub fn open(path: impl Into<PathBuf>) -> Result<(Self, KeyRing), KeyFileError> {
        let path = path.into();
        let text = read(&path)?;
        let keys = parse(&path, &text)?;
        Ok((Self { seen: digest_of(&text), path }, keys))
    }

    /// Reads it again: the keys if it is another text than last time.
    ///
    /// # Errors
    /// [`KeyFileError`]: go on with the keys from before and try again later.
    pub fn refresh(&mut self) -> Result<Option<KeyRing>, KeyFileError> {
        let text = read(&self.path)?;
        let digest = digest_of(&text);
        if digest.as_ref() == self.seen.as_ref() {
            return Ok(None);
        }
        let keys = parse(&self.path, &text)?;
        self.seen = digest;
        Ok(Some(keys))
    }
}

fn digest_of(text: &[u8]) -> digest::Digest {
    digest::digest(&digest::SHA256, text)
}

fn parse(path: &Path, text: &[u8]) -> Result<KeyRing, KeyFileError> {
    // The error of the conversion is left out: it tells where in the secret the odd byte is.
    let text = str::from_utf8(text).ok().ok_or_else(|| KeyFileError::Text { path: path.into() })?;
    KeyRing::parse(text).map_err(|cause| KeyFileError::Keys { path: path.into(), cause })
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, KeyFileError> {
    let error = |cause| KeyFileError::Read { path: path.into(), cause };
    // The room is there from the start: a buffer that grows leaves copies behind.
    let mut text = Zeroizing::new(Vec::with_capacity(2 * usize::try_from(LIMIT).unwrap_or(usize::MAX / 2)));
    File::open(path).map_err(error)?.take(LIMIT + 1).read_to_end(&mut text).map_err(error)?;
    if text.len() as u64 > LIMIT {
        return Err(KeyFileError::Long { path: path.into() });
    }
    Ok(text)
}
