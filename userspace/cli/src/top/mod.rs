//! `weir top`: the node at work, live. Everything but load and delays comes from the maps, so it works while the agent is
//! dead.
//!
//! A thread looks at the node ([`sample`]), [`model`] makes rows of two looks, [`keys`] keeps what the user has chosen,
//! [`screen`] draws, and [`terminal`] leaves the terminal as it was.

#[cfg(test)]
mod drawn;
#[cfg(test)]
mod example;
mod keys;
mod model;
mod sample;
mod screen;
mod terminal;

use std::io::{IsTerminal, stdin, stdout};
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use weir_datapath::{PinDir, View};

use crate::exit::Answer;
use crate::output::Output;
use keys::{Choices, Next};
use model::{Board, board};
use sample::Sample;
use screen::Picture;
use terminal::Screen;

/// How long a key may wait for the picture to follow.
const GLANCE: Duration = Duration::from_millis(100);

/// Options of `top`.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct TopArgs {
    /// Seconds between two looks
    #[arg(long, default_value_t = 1, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    interval: u32,
}

/// Runs the command.
pub(crate) fn run(args: TopArgs, pins: &PinDir, socket: &Path, output: &Output) -> Result<Answer> {
    if !stdin().is_terminal() || !stdout().is_terminal() {
        bail!(
            "`weir top` draws on a terminal, and this is none; `weir services`, `weir weights -w` and `weir drops -w` \
             write text"
        );
    }
    let start = Instant::now();
    let (pins, socket) = (pins.clone(), socket.to_owned());
    // Opened anew each time: an agent that starts with other sizes replaces the maps.
    let look = move || Sample::read(&View::open(pins.clone())?, &socket, start);
    // Before the screen is touched: without maps there is nothing to see.
    let first = look()?;
    let mut screen = Screen::take()?;
    let (send, looks) = sync_channel(1);
    thread::spawn(move || {
        loop {
            thread::sleep(Duration::from_secs(args.interval.into()));
            if send.send(look()).is_err() {
                return;
            }
        }
    });
    live(&mut screen.0, Watched::new(first), &looks, output.is_colored())?;
    Ok(Answer::Yes)
}

/// Draws until the user has seen enough.
fn live(
    terminal: &mut DefaultTerminal,
    mut watched: Watched,
    looks: &Receiver<Result<Sample>>,
    colored: bool,
) -> Result<()> {
    let mut choices = Choices::default();
    loop {
        for look in looks.try_iter() {
            watched.learn(look, choices.paused);
        }
        let trouble = watched.trouble.as_deref();
        terminal
            .draw(|frame| Picture { board: &watched.board, choices: &choices, trouble, colored }.draw(frame))
            .context("cannot draw")?;
        if event::poll(GLANCE)?
            && let Event::Key(key) = event::read()?
            && key.is_press()
            && choices.press(key) == Next::Quit
        {
            return Ok(());
        }
    }
}

/// What was seen so far.
struct Watched {
    last: Sample,
    board: Board,
    /// Why the last look failed.
    trouble: Option<String>,
}

impl Watched {
    fn new(first: Sample) -> Self {
        Self { board: board(None, &first), last: first, trouble: None }
    }

    /// Another look; while the picture stands still it only serves the next rates.
    fn learn(&mut self, look: Result<Sample>, paused: bool) {
        match look {
            Ok(now) => {
                if !paused {
                    self.board = board(Some(&self.last), &now);
                    self.trouble = None;
                }
                self.last = now;
            }
            Err(error) if !paused => self.trouble = Some(format!("{error:#}")),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_that_stands_still_goes_on_with_rates_of_the_last_interval() {
        let mut watched = Watched::new(example::sample(0));
        let first = watched.board.clone();
        watched.learn(Ok(example::sample(2)), true);
        assert_eq!(watched.board, first);
        watched.learn(Ok(example::sample(4)), false);
        assert_eq!(watched.board.services[0].flows, Some(80.0));
    }

    #[test]
    fn maps_that_go_away_leave_the_last_picture_and_say_why_until_they_are_back() {
        let mut watched = Watched::new(example::sample(0));
        let first = watched.board.clone();
        watched.learn(Err(anyhow::anyhow!("no pinned maps")), false);
        assert_eq!((&watched.board, watched.trouble.as_deref()), (&first, Some("no pinned maps")));
        watched.learn(Ok(example::sample(2)), false);
        assert_eq!(watched.trouble, None);
    }
}
