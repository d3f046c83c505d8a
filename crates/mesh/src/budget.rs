//! What may be sent to one peer: a token bucket, as a virtual schedule (the generic cell rate algorithm, ITU-T I.371).

use std::net::SocketAddr;
use std::time::Duration;

use crate::packet::MAX_PACKET;

/// IPv6 and UDP headers, in bytes.
pub(crate) const HEADERS_V6: usize = 40 + 8;
/// IPv4 and UDP headers, in bytes.
const HEADERS_V4: usize = 20 + 8;

/// Bytes that a payload takes on the wire, without the link's own header.
#[must_use]
pub fn size_on_wire(to: SocketAddr, payload: usize) -> usize {
    payload + headers(to)
}

pub(crate) fn headers(to: SocketAddr) -> usize {
    if to.ip().to_canonical().is_ipv4() { HEADERS_V4 } else { HEADERS_V6 }
}

/// Lets through a rate of bytes per second, and one largest packet at once after a pause.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Of one byte, in nanoseconds.
    cost: u64,
    /// When everything that was spent will have been earned back.
    even: Duration,
}

impl Budget {
    /// The most that may be in stock, in bytes: one largest packet with its headers.
    pub const STOCK: usize = MAX_PACKET + HEADERS_V6;
    /// The highest rate, in bytes per second.
    pub const MAX_RATE: u32 = 1_000_000;

    /// Full at the start. `rate` in bytes per second, 1 to [`Budget::MAX_RATE`].
    #[must_use]
    pub fn new(rate: u32) -> Self {
        // Rounded up, so that the rate is never exceeded.
        Self { cost: 1_000_000_000_u64.div_ceil(u64::from(rate.clamp(1, Self::MAX_RATE))), even: Duration::ZERO }
    }

    /// Bytes that may be sent now.
    #[must_use]
    pub fn available(&self, now: Duration) -> usize {
        let spent = self.even.saturating_sub(now).as_nanos().div_ceil(u128::from(self.cost));
        Self::STOCK.saturating_sub(usize::try_from(spent).unwrap_or(usize::MAX))
    }

    /// Spends so many bytes; false, and nothing is spent, if there are not as many.
    pub fn spend(&mut self, bytes: usize, now: Duration) -> bool {
        if bytes > self.available(now) {
            return false;
        }
        self.even = self.even.max(now) + Duration::from_nanos(self.cost.saturating_mul(bytes as u64));
        true
    }
}
