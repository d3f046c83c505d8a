//! Counts the open flows of each backend, on a thread of its own: all of the flow tables is read for that.

use std::time::{Duration, Instant};

use tokio::sync::watch;
use weir_abi as abi;
use weir_abi::ticks::TickClock;
use weir_core::flow_pressure::IdleLimits;
use weir_datapath::{Error, View};
use weir_signals::Source;
use weir_signals::open_flows::{Balance, FlowTable, OpenByBackend, OpenFlows};

use crate::host;

/// How often: what depends on it is a time constant of seconds, and the datapath's balance keeps connections right between.
const INTERVAL: Duration = Duration::from_secs(5);
/// Most of a core that counting may take, a twentieth of a percent: a scan of a full table takes tens of milliseconds.
const EFFORT: f64 = 0.0005;
/// How long a count may be old, whatever it takes: nobody says when flows of UDP end.
const LONGEST: Duration = Duration::from_secs(30);

/// The flow tables with the clock of their times.
#[derive(Debug)]
struct Tables {
    view: View,
    clock: Option<TickClock>,
}

impl FlowTable for Tables {
    type Error = Error;

    fn tick(&self) -> u32 {
        self.clock.map_or(0, |clock| clock.at(host::uptime()))
    }

    fn limits(&self) -> Result<IdleLimits, Error> {
        self.view.idle_limits()
    }

    fn visit(&self, visit: &mut dyn FnMut(u8, &abi::Flow)) -> Result<(), Error> {
        self.view.visit_flows(visit)
    }

    fn balances(&self, visit: &mut dyn FnMut((u32, u32), Balance)) -> Result<(), Error> {
        self.view.visit_endpoints(|slot, backend, counters| {
            visit((slot, backend.generation), counters.into());
        })
    }
}

/// The counting task.
pub(super) struct OpenReader {
    flows: OpenFlows<Tables>,
    latest: watch::Sender<OpenByBackend>,
    wanted: watch::Receiver<bool>,
}

impl OpenReader {
    /// Counts as long as that is `wanted`.
    pub(super) fn new(view: View, wanted: watch::Receiver<bool>) -> (Self, watch::Receiver<OpenByBackend>) {
        let (latest, open) = watch::channel(OpenByBackend::new());
        let tables = Tables { view, clock: weir_datapath::tick_clock().ok() };
        (Self { flows: OpenFlows::new(tables), latest, wanted }, open)
    }

    /// Counts for ever.
    pub(super) async fn run(self) {
        let Self { mut flows, latest, mut wanted } = self;
        loop {
            if wanted.wait_for(|wanted| *wanted).await.is_err() {
                return;
            }
            let read = tokio::task::spawn_blocking(move || {
                let begin = Instant::now();
                let read = flows.read(begin);
                (flows, read, begin.elapsed())
            });
            let Ok((back, read, took)) = read.await else { return };
            flows = back;
            if let Ok(Some(open)) = read {
                latest.send_replace(open);
            }
            tokio::time::sleep(pause(took)).await;
        }
    }
}

/// After a count that took so long.
fn pause(took: Duration) -> Duration {
    took.div_f64(EFFORT).clamp(INTERVAL, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_takes_long_is_made_less_often_but_never_left_out() {
        let seconds = |millis| pause(Duration::from_millis(millis)).as_secs();
        assert_eq!([0, 1, 5, 12, 15, 60].map(seconds), [5, 5, 10, 24, 30, 30]);
    }
}
