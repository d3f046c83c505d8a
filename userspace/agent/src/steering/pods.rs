//! Reads what the steered services' pods on this node use, on a thread of its own: cgroups are a dozen small files each.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tracing::warn;
use weir_core::model::PodUid;
use weir_core::policies::EndpointLoad;
use weir_core::steering::PodUse;
use weir_signals::cgroup::Hierarchies;
use weir_signals::cgroup::kubelet::KubeletRoot;
use weir_signals::{Counts, PodLoad, Pods};

/// How often (signals' own advice).
const INTERVAL: Duration = Duration::from_secs(1);

/// What was read, and when.
#[derive(Clone, Debug, Default)]
pub(super) struct PodReadings {
    pub(super) pods: HashMap<PodUid, PodUse>,
    pub(super) at: Option<Instant>,
    pub(super) counts: Counts,
    pub(super) problem: Option<String>,
}

/// The reading task.
pub(super) struct PodReader {
    /// None where the machine has no cgroups.
    pods: Option<Pods>,
    wanted: watch::Receiver<Vec<PodUid>>,
    readings: watch::Sender<PodReadings>,
}

impl PodReader {
    /// Reads the pods that are `wanted`. `root` is kubelet's `--cgroup-root`.
    pub(super) fn new(
        sys: &Path,
        root: &str,
        wanted: watch::Receiver<Vec<PodUid>>,
    ) -> (Self, watch::Receiver<PodReadings>) {
        let found = Hierarchies::find(&sys.join("fs/cgroup"));
        let pods = found.inspect_err(|cause| warn!(%cause, "the load of pods stays unknown")).ok();
        let pods = pods.map(|found| Pods::new(found, KubeletRoot::new(root)));
        let (readings, latest) = watch::channel(PodReadings::default());
        (Self { pods, wanted, readings }, latest)
    }

    /// Reads for ever.
    pub(super) async fn run(self) {
        let Self { pods, mut wanted, readings } = self;
        let Some(mut pods) = pods else { return };
        let mut tick = tokio::time::interval(INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let uids = wanted.borrow_and_update().clone();
            if uids.is_empty() {
                // What was counted goes on.
                readings.send_replace(PodReadings { counts: pods.counts(), ..PodReadings::default() });
                if wanted.changed().await.is_err() {
                    return;
                }
                continue;
            }
            let read = tokio::task::spawn_blocking(move || {
                let latest = read(&mut pods, &uids);
                (pods, latest)
            });
            let Ok((back, latest)) = read.await else { return };
            pods = back;
            readings.send_replace(latest);
        }
    }
}

fn read(pods: &mut Pods, uids: &[PodUid]) -> PodReadings {
    let texts: Vec<String> = uids.iter().map(ToString::to_string).collect();
    pods.watch(texts.iter().map(String::as_str));
    let now = Instant::now();
    pods.tick(now);
    let used = uids.iter().zip(&texts).filter_map(|(uid, text)| Some((*uid, used(pods.load(text, now)?))));
    let problem = pods.problems().next().map(|(uid, problem)| format!("pod {uid}: {problem}"));
    PodReadings { pods: used.collect(), at: Some(now), counts: pods.counts(), problem }
}

fn used(load: PodLoad) -> PodUse {
    let PodLoad { cpu, memory, cores, cores_limit, bytes: _ } = load;
    let load =
        EndpointLoad { cpu: cpu.map(|sample| sample.value), memory: memory.map(|sample| sample.value), network: None };
    PodUse { load, cores, cores_limit }
}
