//! The static file on its way to the writer, and the health checks that it asks for: an endpoint that fails one is
//! handed on as not ready.
//!
//! Who is asked when, and what follows from the answers, is [`weir_core::endpoint_checks`]'. Here are the clock, the
//! questions, and whom the news are told.

mod ask;
mod metrics;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::TryFutureExt;
use futures::future;
use tokio::sync::mpsc::error::SendError;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};
use weir_core::cluster::Event;
use weir_core::endpoint_checks::{AllFail, Asked, EndpointChecks, Turn};
use weir_kube_watch::static_file::{self, Contents};
use weir_kube_watch::status::StatusWriter;

use crate::host;
use ask::Failure;
pub(crate) use metrics::CheckMetrics;

/// How long a new agent waits for first answers before it hands the file on: meanwhile the maps serve what the agent
/// before knew, endpoints that it had found dead left out.
const FIRST_ANSWERS: Duration = Duration::from_secs(3);

/// Follows the file at `path` until nobody takes its `changes` any more.
///
/// # Errors
/// If there would be no news of the file ever, or a question ends in a panic.
pub(crate) async fn follow(
    path: PathBuf,
    changes: mpsc::Sender<Event>,
    status: StatusWriter,
    reload: Arc<Notify>,
    metrics: CheckMetrics,
) -> Result<()> {
    let (sink, news) = mpsc::channel(1);
    let checker = Checker::new(changes, metrics)?;
    let file = static_file::follow(&path, sink, status, reload).map_err(anyhow::Error::from);
    future::try_join(file, checker.run(news)).await.map(drop)
}

/// What became of a question.
struct Answer {
    asked: Asked,
    took: Duration,
    result: Result<(), Failure>,
}

/// See the module's description.
struct Checker {
    checks: EndpointChecks,
    start: Instant,
    asking: JoinSet<Answer>,
    /// What the file says, without its endpoints, and when it is handed on at the latest.
    held: Option<(Contents, Instant)>,
    /// Something was handed on before.
    told: bool,
    changes: mpsc::Sender<Event>,
    metrics: CheckMetrics,
}

impl Checker {
    fn new(changes: mpsc::Sender<Event>, metrics: CheckMetrics) -> Result<Self> {
        let checks = EndpointChecks::new(u64::from_ne_bytes(host::random()?));
        let (start, asking) = (Instant::now(), JoinSet::new());
        Ok(Self { checks, start, asking, held: None, told: false, changes, metrics })
    }

    /// Works until nobody tells any more, or nobody listens.
    async fn run(mut self, mut news: mpsc::Receiver<Contents>) -> Result<()> {
        loop {
            for asked in self.checks.due(self.start.elapsed()) {
                self.asking.spawn(answer(asked));
            }
            let next = self.checks.next().map(|at| self.start + at);
            let wake = next.into_iter().chain(self.held.as_ref().map(|(_, until)| *until)).min();
            let changes = tokio::select! {
                contents = news.recv() => {
                    let Some(contents) = contents else { return Ok(()) };
                    self.take(contents);
                    Vec::new()
                }
                Some(answer) = self.asking.join_next() => self.judge(answer.context("a health check ended")?),
                () = sleep_until(wake.unwrap_or(self.start)), if wake.is_some() => Vec::new(),
                () = self.changes.closed() => return Ok(()),
            };
            if self.hand_on(changes).await.is_err() {
                return Ok(());
            }
        }
    }

    /// The file says something new.
    fn take(&mut self, mut contents: Contents) {
        let (checks, slices) = (std::mem::take(&mut contents.checks), std::mem::take(&mut contents.slices));
        self.checks.replace(checks, slices, self.start.elapsed());
        let until = match &self.held {
            Some((_, until)) => *until,
            None if self.told => Instant::now(),
            None => Instant::now() + FIRST_ANSWERS,
        };
        self.held = Some((contents, until));
        self.metrics.count(self.checks.counts());
    }

    /// Which changes of the cluster an answer makes.
    fn judge(&mut self, answer: Answer) -> Vec<Event> {
        let Answer { asked, took, result } = answer;
        self.metrics.asked(took, result.as_ref().err());
        let Some(turn) = self.checks.answered(asked.id, result.is_ok()) else { return Vec::new() };
        self.metrics.count(self.checks.counts());
        tell(&turn, result.err());
        turn.slices.into_iter().map(Event::Slice).collect()
    }

    /// Hands changes on, or all there is if it was held back until now. What is held back has them in it.
    async fn hand_on(&mut self, mut changes: Vec<Event>) -> Result<(), SendError<Event>> {
        let ready =
            |(_, until): &mut (Contents, Instant)| self.told || self.checks.is_settled() || *until <= Instant::now();
        if let Some((mut contents, _)) = self.held.take_if(ready) {
            contents.slices = self.checks.slices();
            changes = contents.into_events().into();
            self.told = true;
        }
        if self.held.is_none() {
            for change in changes {
                self.changes.send(change).await?;
            }
        }
        Ok(())
    }
}

async fn answer(asked: Asked) -> Answer {
    let begin = Instant::now();
    let result = ask::ask(asked.endpoint, &asked.check).await;
    Answer { took: begin.elapsed(), asked, result }
}

fn tell(turn: &Turn, failure: Option<Failure>) {
    let Turn { service, endpoint, passes, first, passing, all_fail, slices: _ } = turn;
    match failure {
        None if *first => debug!(%service, %endpoint, "an endpoint passes its health check"),
        None => info!(%service, %endpoint, passing, "an endpoint passes its health check again"),
        Some(cause) => warn!(%service, %endpoint, %cause, passing, "an endpoint fails its health check"),
    }
    if !passes && *passing == 0 {
        match all_fail {
            AllFail::UseAll => warn!(%service, "no endpoint passes its health check: all of them are used"),
            AllFail::Refuse => warn!(%service, "no endpoint passes its health check: new connections are refused"),
        }
    }
}

#[cfg(test)]
mod tests;
