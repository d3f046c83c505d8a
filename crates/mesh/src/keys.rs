//! The cluster's keys: one signs, two are valid, so that a key can be replaced while agents run.

use std::fmt;

use ring::hmac;

/// Bytes of a tag: HMAC-SHA-256, not truncated (RFC 2104, FIPS 180-4).
pub(crate) const TAG: usize = 32;

/// One or two keys. Never shows them.
#[derive(Clone)]
pub struct KeyRing(Vec<hmac::Key>);

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyRing({} of them)", self.0.len())
    }
}

/// Why a text holds no keys. Never shows the text.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum KeyError {
    /// No line with a key.
    #[error("it holds no key: write one line, for example from `openssl rand -base64 32`")]
    Empty,
    /// A key that is easily guessed.
    #[error(
        "line {line} holds a key of {length} bytes, but {} are needed: use `openssl rand -base64 32`",
        KeyRing::LEAST
    )]
    Short {
        /// Counted from 1.
        line: usize,
        /// In bytes.
        length: usize,
    },
    /// Three or more.
    #[error("line {line} holds one key too many: keep the new one first, then the one it replaces")]
    TooMany {
        /// Counted from 1.
        line: usize,
    },
    /// Twice the same.
    #[error("line {line} repeats the key before it: remove one of them")]
    Repeated {
        /// Counted from 1.
        line: usize,
    },
}

impl KeyRing {
    /// The least length of a key, in bytes of text: 32 hexadecimal digits are the 128 bits that a tag needs at least.
    pub const LEAST: usize = 32;
    /// The most keys that are valid at once.
    pub const MOST: usize = 2;

    /// One key per line, as it stands there without the spaces around it; empty lines and lines from `#` are skipped.
    /// The first one signs, all are accepted.
    ///
    /// # Errors
    /// [`KeyError`] with the line, without its text.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let lines = text.lines().map(str::trim).enumerate().map(|(index, key)| (index + 1, key));
        let mut found: Vec<&str> = Vec::new();
        for (line, key) in lines.filter(|(_, key)| !key.is_empty() && !key.starts_with('#')) {
            if key.len() < Self::LEAST {
                return Err(KeyError::Short { line, length: key.len() });
            }
            if found.contains(&key) {
                return Err(KeyError::Repeated { line });
            }
            if found.len() == Self::MOST {
                return Err(KeyError::TooMany { line });
            }
            found.push(key);
        }
        if found.is_empty() {
            return Err(KeyError::Empty);
        }
        Ok(Self(found.into_iter().map(|key| hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes())).collect()))
    }

    /// The tag by the key of this number. Numbers beyond the last begin again: the keys may have been exchanged since.
    pub(crate) fn sign(&self, number: usize, message: &[u8]) -> hmac::Tag {
        hmac::sign(&self.0[number % self.0.len()], message)
    }

    /// The number of the key that made the tag. Each comparison takes constant time.
    pub(crate) fn verify(&self, message: &[u8], tag: &[u8]) -> Option<usize> {
        self.0.iter().position(|key| hmac::verify(key, message, tag).is_ok())
    }
}
