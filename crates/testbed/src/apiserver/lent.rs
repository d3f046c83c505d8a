//! API servers that one test has after the other: most of what one costs a test is to start.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::store::Contents;
use super::{Admission, ApiServer, Place};
use crate::entrance::Entrance;
use crate::netns::Netns;
use crate::{Result, address, loopback, wait};

/// What the server makes itself, soon after it is ready: [`ApiServer::lent`] waits for these.
const MADE_SOON: [&str; 7] = [
    "endpointslices/default/kubernetes",
    "namespaces/default",
    "namespaces/kube-node-lease",
    "namespaces/kube-public",
    "namespaces/kube-system",
    "servicecidrs/kubernetes",
    "services/specs/default/kubernetes",
];

/// How long these may take, on a busy machine.
const MADE_LIMIT: Duration = Duration::from_secs(30);

/// Where Services are.
const SERVICES: &str = "services/specs/";

/// What the server changes at any time, or makes later, and no test does.
const ITS_OWN: [&str; 9] = [
    "apiregistration.k8s.io/",
    "configmaps/kube-system/",
    "flowschemas/",
    "health",
    "leases/kube-system/",
    "masterleases/",
    "peerserverleases/",
    "prioritylevelconfigurations/",
    "ranges/",
];

/// One that no test has.
struct Idle {
    api: ApiServer,
    at_first: Contents,
}

static IDLE: Mutex<Vec<Idle>> = Mutex::new(Vec::new());

fn idle() -> MutexGuard<'static, Vec<Idle>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A test's API server. On drop the next test may have it, if nobody has changed what the server itself has made: the rest is removed.
#[derive(Debug)]
pub struct Lent {
    // Who comes in by it is put out before anything is removed.
    entrance: Option<Entrance>,
    /// Taken on drop only.
    api: Option<ApiServer>,
    /// `None` of one that nobody else may have.
    at_first: Option<Contents>,
}

impl ApiServer {
    /// An API server that is reached by its port at all addresses of a router's namespace, in which there is nothing but what it makes itself. Another
    /// test may have had it: the versions of its objects and its log do not begin here.
    ///
    /// # Errors
    /// As [`ApiServer::start`].
    pub fn lent(router: &Netns) -> Result<Lent> {
        static AT_EXIT: Once = Once::new();
        // SAFETY: the function lives as long as the process, and does not unwind.
        AT_EXIT.call_once(|| assert_eq!(unsafe { libc::atexit(end_idle) }, 0));
        let known = idle().pop();
        let Idle { api, at_first } = known.map_or_else(start, Ok)?;
        let entrance = Entrance::open(router, api.port(), (loopback::address(), api.port()).into())?;
        Ok(Lent { entrance: Some(entrance), api: Some(api), at_first: Some(at_first) })
    }
}

fn start() -> Result<Idle> {
    let place = Place::Behind(address::ROUTER_INSIDE);
    let api = ApiServer::create(&std::env::temp_dir(), place, Admission::Alone, &address::cluster_ips(), false)?;
    let made = || {
        let contents = api.contents().map_err(|error| error.to_string())?;
        let missing = MADE_SOON.iter().find(|key| !contents.contains_key(**key));
        missing.map_or(Ok(contents), |key| Err(format!("no {key}")))
    };
    let at_first = wait::until_some("what an API server makes itself", MADE_LIMIT, made)?;
    Ok(Idle { api, at_first })
}

/// Removes what was not there at first. Returns whether all that was is as it was.
fn empty(api: &ApiServer, at_first: &Contents) -> Result<bool> {
    let objects = api.objects()?;
    let added = |contents: &Contents| {
        let is_added = |key: &&String| !at_first.contains_key(*key) && !is_its_own(key);
        contents.keys().filter(is_added).cloned().collect::<Vec<_>>()
    };
    // Only the server gives back their addresses and node ports.
    for key in added(&api.contents()?) {
        let Some((namespace, name)) = key.strip_prefix(SERVICES).and_then(|rest| rest.split_once('/')) else {
            continue;
        };
        let metadata =
            ObjectMeta { namespace: Some(namespace.into()), name: Some(name.into()), ..ObjectMeta::default() };
        objects.delete(&Service { metadata, ..Service::default() })?;
    }
    let left = api.contents()?;
    api.forget(&added(&left).iter().collect::<Vec<_>>())?;
    Ok(at_first.iter().all(|(key, change)| is_its_own(key) || left.get(key) == Some(change)))
}

fn is_its_own(key: &str) -> bool {
    ITS_OWN.iter().any(|prefix| key.starts_with(prefix))
}

impl From<ApiServer> for Lent {
    /// One that nobody else will have.
    fn from(api: ApiServer) -> Self {
        Self { entrance: None, api: Some(api), at_first: None }
    }
}

impl Deref for Lent {
    type Target = ApiServer;

    fn deref(&self) -> &ApiServer {
        self.api.as_ref().expect("it is there until drop")
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut ApiServer {
        self.api.as_mut().expect("it is there until drop")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.entrance = None;
        let (Some(api), Some(at_first)) = (self.api.take(), self.at_first.take()) else { return };
        if thread::panicking() || api.server.is_none() {
            return;
        }
        match empty(&api, &at_first) {
            Ok(true) => idle().push(Idle { api, at_first }),
            Ok(false) => {}
            Err(error) => eprintln!("an API server is not emptied, and ends: {error}"),
        }
    }
}

extern "C" fn end_idle() {
    idle().clear();
}
