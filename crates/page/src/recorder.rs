//! Asks the source once a period, whether somebody looks or not: who comes wants to see the last ten minutes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::history::History;
use crate::sample::{Sample, Source};
use crate::stream::STREAMS;

/// From one sample to the next. Browsers move smoothly in between.
pub const PERIOD: Duration = Duration::from_secs(2);

/// Fills the history.
pub struct Recorder {
    source: Arc<dyn Source>,
    history: Arc<Mutex<History>>,
    latest: watch::Sender<Arc<Sample>>,
}

/// What the [server](crate::server) shows. Clones are cheap.
#[derive(Clone)]
pub struct Page {
    pub(crate) source: Arc<dyn Source>,
    history: Arc<Mutex<History>>,
    /// Ends with the recorder.
    pub(crate) latest: watch::Receiver<Arc<Sample>>,
    /// Places for browsers.
    pub(crate) places: Arc<Semaphore>,
}

impl Page {
    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        // A panic of somebody who held it left a point out at worst.
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recorder {
    /// A recorder, and the page that shows what it finds.
    #[must_use]
    pub fn new(source: Arc<dyn Source>) -> (Self, Page) {
        let history = Arc::<Mutex<History>>::default();
        let (latest, seen) = watch::channel(Arc::default());
        let places = Arc::new(Semaphore::new(STREAMS));
        let page = Page { source: Arc::clone(&source), history: Arc::clone(&history), latest: seen, places };
        (Self { source, history, latest }, page)
    }

    /// Records until `stop`; then the streams of all browsers end.
    pub async fn run(self, stop: CancellationToken) {
        let mut tick = tokio::time::interval(PERIOD);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => self.record(),
                () = stop.cancelled() => return,
            }
        }
    }

    fn record(&self) {
        let sample = self.source.sample();
        self.history.lock().unwrap_or_else(PoisonError::into_inner).record(&sample);
        self.latest.send_replace(Arc::new(sample));
    }
}
