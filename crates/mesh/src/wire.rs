//! Reading and writing numbers in network byte order.

use std::time::Duration;

use weir_core::load::{Sample, Share};

/// A share that is not known.
const UNKNOWN: u16 = u16::MAX;
/// Steps of a share.
const STEPS: f64 = (UNKNOWN - 1) as f64;

/// What is still to be read.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.bytes().map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_be_bytes)
    }

    pub(crate) fn amount(&mut self) -> Option<f64> {
        self.bytes().map(f32::from_be_bytes).map(f64::from)
    }

    pub(crate) fn share(&mut self) -> Option<Option<Sample<Share>>> {
        let (share, age) = (self.u16()?, self.u16()?);
        let value = Share::clamped(f64::from(share) / STEPS);
        Some((share != UNKNOWN).then_some(Sample { value, age: Duration::from_millis(age.into()) }))
    }
}

/// Milliseconds, at most so many.
pub(crate) fn millis(time: Duration, most: u16) -> u16 {
    u16::try_from(time.as_millis()).unwrap_or(u16::MAX).min(most)
}

/// A number that is finite and not negative, with the seven digits that a report needs.
pub(crate) fn amount(number: f64) -> [u8; 4] {
    #[expect(clippy::cast_possible_truncation, reason = "clamped to the range")]
    let short = number.min(f64::from(f32::MAX)) as f32;
    short.to_be_bytes()
}

/// A share in 1/65534 and its age in milliseconds.
pub(crate) fn share(sample: Option<Sample<Share>>) -> [u8; 4] {
    let (share, age) = match sample {
        None => (UNKNOWN, 0),
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share is 0 to 1")]
        Some(Sample { value, age }) => ((value.get() * STEPS).round() as u16, millis(age, u16::MAX)),
    };
    let ([a, b], [c, d]) = (share.to_be_bytes(), age.to_be_bytes());
    [a, b, c, d]
}
