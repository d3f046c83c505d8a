//! Tells the socket hooks which pods' TCP connections they translate: by the ids of their cgroups. See
//! docs/adr/0025-sockets-of-pods.md.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use weir_abi as abi;
use weir_core::model::PodUid;
use weir_core::pod_sockets::HookedPods as Wanted;
use weir_datapath::HookedPods;
use weir_signals::cgroup::kubelet::KubeletRoot;

/// How often pods without a group are looked for: a new pod's is there before its containers start.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long a pod may have an address but no group until that is told.
const STRANGE: u32 = 30;

/// Keeps the map of hooked pods as the pods are.
#[derive(Debug)]
pub(crate) struct PodSockets {
    map: HookedPods,
    /// Where the v2 hierarchy is mounted.
    cgroups: PathBuf,
    root: KubeletRoot,
    wanted: watch::Receiver<Option<Wanted>>,
    /// Groups that were found. A pod keeps its group for life, and no id is given out twice.
    groups: BTreeMap<PodUid, u64>,
    /// Looks in a row at which a pod had no group.
    missed: u32,
    /// What the map holds, as far as it was we who wrote it.
    written: Option<BTreeMap<u64, abi::HookedPod>>,
    told: Option<String>,
}

impl PodSockets {
    pub(crate) fn new(
        map: HookedPods,
        cgroups: PathBuf,
        root: KubeletRoot,
        wanted: watch::Receiver<Option<Wanted>>,
    ) -> Self {
        Self { map, cgroups, root, wanted, groups: BTreeMap::new(), missed: 0, written: None, told: None }
    }

    /// Works until `stop`. Until pods are known the map stays as an earlier agent left it.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let work = async {
            loop {
                let waits = !self.update();
                let changed = self.wanted.changed();
                let news = if waits {
                    tokio::time::timeout(LOOK_AGAIN, changed).await.unwrap_or(Ok(()))
                } else {
                    changed.await
                };
                if news.is_err() {
                    // The watch ends with the agent.
                    return;
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// Looks for groups and writes what was found. Whether that is all; a few hundred pods are a matter of milliseconds.
    fn update(&mut self) -> bool {
        let Some(wanted) = self.wanted.borrow_and_update().clone() else { return true };
        self.groups.retain(|pod, _| wanted.contains_key(pod));
        for pod in wanted.keys() {
            if !self.groups.contains_key(pod)
                && let Some(group) = self.root.group_id(&self.cgroups, *pod)
            {
                self.groups.insert(*pod, group);
            }
        }
        let all_found = self.groups.len() == wanted.len();
        self.missed = if all_found { 0 } else { self.missed.saturating_add(1) };
        if self.missed == STRANGE {
            let (pods, cgroups) = (wanted.len() - self.groups.len(), self.cgroups.display());
            warn!(
                %cgroups, pods,
                "pods have no cgroup of version 2, so their connections are translated by packet; is --kubelet-cgroup-root \
                 right?"
            );
        }
        let failure = self.write(&wanted).err().map(|cause| cause.to_string());
        if let Some(cause) = failure.as_ref().filter(|_| failure != self.told) {
            warn!(%cause, "some pods' connections are not translated as they should be");
        }
        self.told = failure;
        all_found && self.told.is_none()
    }

    fn write(&mut self, wanted: &Wanted) -> weir_datapath::Result<()> {
        let pods = self.groups.iter().filter_map(|(pod, group)| Some((*group, *wanted.get(pod)?))).collect();
        if self.written.as_ref() == Some(&pods) {
            return Ok(());
        }
        self.written = None;
        self.map.replace(&pods)?;
        info!(pods = pods.len(), "pods connect through socket hooks");
        self.written = Some(pods);
        Ok(())
    }
}
