//! The small text files of the kernel, read and taken apart without allocating.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::source::Failure;

/// No file of ours is larger: /proc/stat of a machine with 4096 CPUs is half of it.
const LARGEST: u64 = 1 << 20;

/// A file that is opened anew at each reading (what is open of a cgroup that was made again is the old one), into a
/// buffer that stays.
#[derive(Debug)]
pub(crate) struct TextFile {
    path: PathBuf,
    buffer: Vec<u8>,
}

impl TextFile {
    pub(crate) const fn new(path: PathBuf) -> Self {
        Self { path, buffer: Vec::new() }
    }

    /// Its content.
    pub(crate) fn read(&mut self) -> Result<&[u8], Failure> {
        match self.read_file() {
            Ok(length) if length as u64 > LARGEST => Err(self.malformed("content of less than 1 MiB")),
            Ok(_) => Ok(&self.buffer),
            Err(cause) => Err(missing(&self.path, cause)),
        }
    }

    /// Its content; `None` if there is no such file.
    pub(crate) fn read_if_exists(&mut self) -> Result<Option<&[u8]>, Failure> {
        match self.read_file() {
            Ok(_) => Ok(Some(&self.buffer)),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(missing(&self.path, cause)),
        }
    }

    fn read_file(&mut self) -> io::Result<usize> {
        self.buffer.clear();
        File::open(&self.path)?.take(LARGEST + 1).read_to_end(&mut self.buffer)
    }

    /// Its name in messages.
    pub(crate) fn object(&self) -> String {
        self.path.display().to_string()
    }

    pub(crate) fn malformed(&self, what: &'static str) -> Failure {
        Failure::Malformed { object: self.object(), what }
    }

    /// What `parse` finds in the file.
    pub(crate) fn parse<T>(
        &mut self,
        what: &'static str,
        parse: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<T, Failure> {
        parse(self.read()?).ok_or_else(|| self.malformed(what))
    }
}

pub(crate) fn missing(path: &Path, cause: io::Error) -> Failure {
    Failure::Missing { object: path.display().to_string(), cause: cause.into() }
}

/// Lines that end: a line without an end may be cut within a number.
pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').filter_map(|line| line.strip_suffix(b"\n"))
}

/// Words between blanks.
pub(crate) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// A decimal number without sign; `None` if it is none, or needs more than 64 bits.
pub(crate) fn integer(word: &[u8]) -> Option<u64> {
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
    let (first, rest) = word.split_first()?;
    rest.iter().try_fold(digit(first)?, |number, byte| number.checked_mul(10)?.checked_add(digit(byte)?))
}

/// A number with a fraction.
pub(crate) fn fraction(word: &[u8]) -> Option<f64> {
    str::from_utf8(word).ok()?.parse().ok()
}

/// The number in the line that begins with this word.
pub(crate) fn integer_after(text: &[u8], key: &[u8]) -> Option<u64> {
    lines(text).find_map(|line| {
        let mut words = words(line);
        (words.next() == Some(key)).then(|| words.next().and_then(integer))?
    })
}

/// The only number of a file.
pub(crate) fn only_integer(text: &[u8]) -> Option<u64> {
    let mut words = lines(text).flat_map(words);
    words.next().and_then(integer).filter(|_| words.next().is_none())
}
