//! The terminal while `weir top` has it, and how it is given back: at the end, and when a signal ends the program.

use std::io::{StdoutLock, stdout};
use std::process::exit;
use std::thread;

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal, raise};
use ratatui::DefaultTerminal;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{LeaveAlternateScreen, disable_raw_mode};

/// Signals that end a program unless it answers them.
const ENDS: [Signal; 4] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];

/// What a shell adds to a signal for the exit code of a program that it has ended.
const ENDED_BY: i32 = 128;

/// The whole terminal, until this is dropped.
pub(super) struct Screen(pub(super) DefaultTerminal);

impl Screen {
    /// Takes the terminal over; from here on signals that end the program give it back first. To be called before other
    /// threads are started: a thread that does not leave the signals to ours would be ended by them at once.
    ///
    /// # Errors
    /// When it is no terminal that can be drawn on; then it is as before.
    pub(super) fn take() -> Result<Self> {
        give_back_at_signals().context("cannot wait for signals")?;
        let taken = ratatui::try_init().inspect_err(|_| drop(give_back()));
        taken.map(Self).context("cannot take the terminal over")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        drop(give_back());
    }
}

/// A thread of its own waits for them: the one that draws may be held up by the terminal, and one that is gone has crossterm
/// read without an end.
fn give_back_at_signals() -> nix::Result<()> {
    let ends: SigSet = ENDS.into_iter().collect();
    // For this thread and those that it starts.
    ends.thread_block()?;
    thread::spawn(move || {
        let Ok(signal) = ends.wait() else { return };
        // First, because it waits for nobody.
        let _ = disable_raw_mode();
        // The next signal does not wait for a terminal that stands still, either.
        let _ = ends.thread_unblock();
        let _undrawn = give_back();
        // So that whoever has started the program learns what has ended it.
        let _ = raise(signal);
        // Somebody has had the signal ignored.
        exit(ENDED_BY + signal as i32);
    });
    Ok(())
}

/// Leaves the terminal as it was found, as far as it is still there. Nobody draws while the answer is held.
fn give_back() -> StdoutLock<'static> {
    let _ = disable_raw_mode();
    let mut screen = stdout().lock();
    let _ = execute!(screen, LeaveAlternateScreen, Show);
    screen
}
