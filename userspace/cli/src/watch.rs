//! `--watch`: the same answer again and again, in place on a screen, one after the other elsewhere. `--wait`: the same question
//! until the answer is good.

use std::convert::Infallible;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::args::Watch;
use crate::output::Output;

/// Home, and clear what is below.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Between two looks at what is waited for.
const LOOK: Duration = Duration::from_millis(250);

/// Looks once, and again while what is seen may get better and patience lasts. Returns what was seen last.
pub(crate) fn wait<T>(patience: Duration, may_get_better: impl Fn(&T) -> bool, mut look: impl FnMut() -> T) -> T {
    let start = Instant::now();
    loop {
        let seen = look();
        let left = patience.saturating_sub(start.elapsed());
        if left.is_zero() || !may_get_better(&seen) {
            return seen;
        }
        sleep(LOOK.min(left));
    }
}

/// Repeats until interrupted, or until nobody reads any more.
pub(crate) fn repeat(
    watch: Watch,
    output: Output,
    mut frame: impl FnMut(&Output) -> Result<String>,
) -> Result<Infallible> {
    let output = output.streaming();
    let screen = output.is_screen();
    loop {
        let text = frame(&output)?;
        match (screen, output.is_table()) {
            // Not through the filter of colours, which would swallow it.
            (true, _) => {
                print_raw(CLEAR)?;
                output.print(&text)?;
            }
            (false, true) => output.print(&format!("{text}\n"))?,
            (false, false) => output.print(&text)?,
        }
        sleep(Duration::from_secs(u64::from(watch.interval)));
    }
}

fn print_raw(text: &str) -> Result<()> {
    use std::io::Write;
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_looks_until_all_is_well_and_no_longer_and_at_least_once() {
        let looks = |patience, good_at| {
            let mut looks = 0;
            let last = wait(
                patience,
                |seen| *seen < good_at,
                || {
                    looks += 1;
                    looks
                },
            );
            assert_eq!(last, looks);
            looks
        };
        assert_eq!(looks(Duration::from_secs(60), 2), 2);
        assert_eq!(looks(Duration::ZERO, 2), 1);
        assert_eq!(looks(Duration::from_millis(1), 99), 2, "the last look is when patience ends");
    }
}
