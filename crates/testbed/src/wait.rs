//! Waiting for a condition instead of sleeping.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// Time between two looks at a condition.
const PAUSE: Duration = Duration::from_millis(5);

/// Set to more than 1 where the machine is emulated.
const FACTOR: &str = "WEIR_TEST_PATIENCE";

/// A limit that holds on any machine, as long as it is here: `WEIR_TEST_PATIENCE` times.
#[must_use]
pub fn patience(limit: Duration) -> Duration {
    limit * slowness()
}

/// How many times as long anything may take here; at least 1.
#[must_use]
pub fn slowness() -> u32 {
    static TIMES: LazyLock<u32> =
        LazyLock::new(|| std::env::var(FACTOR).ok().and_then(|text| text.parse().ok()).unwrap_or(1));
    (*TIMES).max(1)
}

/// Looks at `condition` until it holds.
///
/// # Errors
/// [`Error::Timeout`] naming `what` when it does not hold within `limit`.
pub fn until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) -> Result<()> {
    until_some(what, limit, || condition().then_some(()).ok_or_else(String::new))
}

/// Looks until `look` returns a value; its error says what was seen instead.
///
/// # Errors
/// [`Error::Timeout`] naming `what` and the last thing seen when there is no value within `limit`.
pub fn until_some<T>(
    what: &str,
    limit: Duration,
    mut look: impl FnMut() -> std::result::Result<T, String>,
) -> Result<T> {
    let limit = patience(limit);
    let deadline = Instant::now() + limit;
    loop {
        let seen = match look() {
            Ok(value) => return Ok(value),
            Err(seen) => seen,
        };
        if Instant::now() >= deadline {
            let detail = if seen.is_empty() { seen } else { format!("; seen last: {seen}") };
            return Err(Error::Timeout { what: what.to_owned(), limit, detail });
        }
        std::thread::sleep(PAUSE);
    }
}
