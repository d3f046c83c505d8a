//! What is going on, on stderr: a moving line on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Time between two movements of the line.
const TICK: Duration = Duration::from_millis(100);

/// One step of a task. Its line vanishes on drop.
#[derive(Debug)]
pub(crate) struct Step {
    bar: Option<ProgressBar>,
    name: &'static str,
    start: Instant,
}

impl Step {
    /// A step whose length nobody knows.
    pub(crate) fn begin(name: &'static str) -> Self {
        Self::make(name, || {
            let style = ProgressStyle::with_template("{spinner} {prefix} {msg}");
            ProgressBar::new_spinner().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
        })
    }

    /// A step that takes this time.
    pub(crate) fn timed(name: &'static str, length: Duration) -> Self {
        Self::make(name, || {
            let style = ProgressStyle::with_template("{prefix:30} [{bar:20}] {msg}");
            let length = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
            ProgressBar::new(length).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        })
    }

    /// A step that shows a line of a table.
    pub(crate) fn row(name: &'static str) -> Self {
        Self::make(name, || {
            let style = ProgressStyle::with_template("{msg}");
            ProgressBar::new_spinner().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
        })
    }

    /// Whether anybody sees what moves.
    pub(crate) fn is_live(&self) -> bool {
        self.bar.is_some()
    }

    fn make(name: &'static str, bar: impl FnOnce() -> ProgressBar) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = bar().with_prefix(name);
            bar.enable_steady_tick(TICK);
            bar
        });
        if bar.is_none() {
            eprintln!("{name} ...");
        }
        Self { bar, name, start: Instant::now() }
    }

    /// Shows how far it is; on a terminal only.
    pub(crate) fn show(&self, message: String) {
        if let Some(bar) = &self.bar {
            bar.set_position(u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX));
            bar.set_message(message);
        }
    }

    /// Ends it with a line that stays.
    pub(crate) fn done(self) {
        let (name, seconds) = (self.name, self.start.elapsed().as_secs_f64());
        drop(self);
        eprintln!("{name}: {seconds:.1} s");
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
