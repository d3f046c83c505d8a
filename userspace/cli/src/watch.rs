//! `--watch`: the same answer again and again, in place on a screen, one after the other elsewhere.

use std::convert::Infallible;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;

use crate::args::Watch;
use crate::output::Output;

/// Home, and clear what is below.
const CLEAR: &str = "\x1b[H\x1b[2J";

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
