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

/// Repeats until interrupted, or until nobody reads any more. What cannot be had later is told, and asked for again: an agent may be starting anew.
pub(crate) fn repeat(
    watch: Watch,
    output: Output,
    mut frame: impl FnMut(&Output) -> Result<String>,
) -> Result<Infallible> {
    let output = output.streaming();
    let screen = output.is_screen();
    let mut seen = false;
    loop {
        let text = or_later(frame(&output), seen)?;
        seen = true;
        match (text, screen, output.is_table()) {
            (Err(cause), _, _) => eprintln!("{cause:#}"),
            // Not through the filter of colours, which would swallow it.
            (Ok(text), true, _) => {
                print_raw(CLEAR)?;
                output.print(&text)?;
            }
            (Ok(text), false, true) => output.print(&format!("{text}\n"))?,
            (Ok(text), false, false) => output.print(&text)?,
        }
        sleep(Duration::from_secs(u64::from(watch.interval)));
    }
}

/// What is seen now, or why nothing is, where something was before: that may pass. Else it is an error.
fn or_later<T>(frame: Result<T>, seen: bool) -> Result<Result<T>> {
    match frame {
        Err(cause) if !seen => Err(cause),
        frame => Ok(frame),
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
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn what_was_never_seen_is_an_error_and_what_is_not_seen_for_once_may_come_again() {
        let missing = || Err::<(), _>(anyhow!("no agent listens"));
        assert!(or_later(missing(), false).is_err());
        assert!(or_later(missing(), true).unwrap().is_err());
        assert!(or_later(Ok(()), true).unwrap().is_ok());
    }

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
