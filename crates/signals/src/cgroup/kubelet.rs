//! Where kubelet puts a pod's group: `pkg/kubelet/cm/cgroup_manager_linux.go` and `pod_container_manager_linux.go`.
//!
//! A group has a list of names: those of kubelet's root, `kubepods`, the pod's class unless it is guaranteed, and `pod`
//! with the pod's uid. The cgroupfs driver makes a directory of each name. The systemd driver makes slices of them, in
//! which each slice's name begins with its parent's.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use weir_core::model::PodUid;

/// Kubelet's `--cgroup-root` below which `kubepods` is; empty by default.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct KubeletRoot(Vec<String>);

/// Classes by which kubelet groups pods; guaranteed ones are in none.
const CLASSES: [Option<&str>; 3] = [Some("burstable"), None, Some("besteffort")];

impl KubeletRoot {
    /// A root as kubelet's option has it, for example `/kubelet` in nodes that kind makes.
    #[must_use]
    pub fn new(path: &str) -> Self {
        Self(path.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect())
    }

    /// The id of a pod's group in the v2 hierarchy that is mounted at `mount`, by which programs in the kernel know it; `None`
    /// while it has none there.
    #[must_use]
    pub fn group_id(&self, mount: &Path, pod: PodUid) -> Option<u64> {
        let group = self.candidates(&pod.to_string()).find_map(|group| fs::metadata(mount.join(group)).ok());
        // The inode of its directory (cgroup_id() in include/linux/cgroup.h).
        group.map(|group| group.ino())
    }

    /// All groups that a pod can have, of every class and driver. Of static pods kubelet names the group by the
    /// annotation `kubernetes.io/config.hash`, not by the uid that the API server knows.
    pub(crate) fn candidates(&self, uid: &str) -> impl Iterator<Item = PathBuf> {
        let pod = format!("pod{uid}");
        CLASSES.into_iter().flat_map(move |class| {
            let root = self.0.iter().map(String::as_str);
            let names: Vec<&str> = root.chain(["kubepods"]).chain(class).chain([pod.as_str()]).collect();
            [slices(&names), names.iter().collect()]
        })
    }
}

/// `["kubepods", "burstable", "podA-B"]` is `kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podA_B.slice`:
/// a dash in a slice's name stands for a level.
fn slices(names: &[&str]) -> PathBuf {
    let mut slice = String::new();
    let mut path = PathBuf::new();
    for name in names {
        if !slice.is_empty() {
            slice.push('-');
        }
        slice.push_str(&name.replace('-', "_"));
        path.push(format!("{slice}.slice"));
    }
    path
}

/// Whether a uid can be one: it becomes part of a path.
pub(crate) fn is_uid(uid: &str) -> bool {
    !uid.is_empty() && uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}
