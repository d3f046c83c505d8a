//! Which pods' TCP connections are translated once, at `connect()`, and not packet by packet. Whoever is in doubt is left to
//! the packets, which are always served. See docs/adr/0025-sockets-of-pods.md.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use weir_abi as abi;

use crate::model::{Family, PodUid};

/// The annotation of a pod or a namespace that says `on` or `off`.
pub const ANNOTATION: &str = "weir.dev/pod-sockets";

/// What an annotation asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wish {
    /// To be translated at `connect()`.
    On,
    /// To be translated by packet.
    Off,
}

/// Neither `on` nor `off`.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("\"{0}\" is neither \"on\" nor \"off\"")]
pub struct UnknownWish(String);

impl FromStr for Wish {
    type Err = UnknownWish;

    fn from_str(text: &str) -> Result<Self, UnknownWish> {
        match text {
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            other => Err(UnknownWish(other.to_owned())),
        }
    }
}

/// A pod of this node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pod {
    /// Names its cgroup.
    pub uid: PodUid,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its own addresses, none before it has any.
    pub addresses: Vec<IpAddr>,
    /// Whether it has the node's network: its processes are the host's.
    pub host_network: bool,
    /// Whether all of its containers have ended for good.
    pub ended: bool,
    /// What its annotation asks for, which comes before its namespace's.
    pub wish: Option<Wish>,
}

/// The pods whose connections are translated at `connect()`, with what the hooks have to know of them.
pub type HookedPods = BTreeMap<PodUid, abi::HookedPod>;

/// Chooses among the pods of this node. `namespaces` says what the annotations of all namespaces ask for; a pod whose
/// namespace is not known yet is left out.
pub fn hooked<'a>(
    pods: impl IntoIterator<Item = &'a Pod>,
    namespaces: &BTreeMap<Arc<str>, Option<Wish>>,
) -> HookedPods {
    let wants = |pod: &Pod| {
        let of_namespace = namespaces.get(&pod.namespace)?;
        Some(pod.wish.or(*of_namespace).unwrap_or(Wish::On) == Wish::On)
    };
    let has_its_own = |pod: &&Pod| !pod.host_network && !pod.ended && !pod.addresses.is_empty();
    let chosen = pods.into_iter().filter(has_its_own).filter(|pod| wants(pod).unwrap_or(false));
    chosen.map(|pod| (pod.uid, entry(&pod.addresses))).collect()
}

/// The first address of each family is the one that the pod's connections come from.
fn entry(addresses: &[IpAddr]) -> abi::HookedPod {
    let first = |family| {
        let found = addresses.iter().find(|address| Family::of(**address) == family);
        found.map_or(abi::Addr::UNSET, |address| abi::Addr::from(*address))
    };
    abi::HookedPod { addr4: first(Family::V4), addr6: first(Family::V6) }
}
