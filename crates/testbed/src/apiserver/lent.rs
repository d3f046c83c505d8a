//! API servers that one test has after the other: most of what one costs a test is to start.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::store::Contents;
use super::{Admission, ApiServer, Place};
use crate::entrance::Entrance;
use crate::netns::{Entry, Netns};
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

/// One that no test has, as the last one has left it.
struct Idle {
    api: ApiServer,
    at_first: Contents,
}

static IDLE: Mutex<Vec<Idle>> = Mutex::new(Vec::new());

fn idle() -> MutexGuard<'static, Vec<Idle>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A test's API server. After it another test may have it.
#[derive(Debug)]
pub struct Lent {
    // Who comes in by it is put out before the next test has it.
    entrance: Option<Entrance>,
    /// Taken on drop only.
    api: Option<ApiServer>,
    /// `None` of one that nobody else may have.
    loan: Option<Loan>,
}

#[derive(Debug)]
struct Loan {
    /// Where the entrance is.
    router: Entry,
    at_first: Contents,
}

impl ApiServer {
    /// An API server that is reached by its port at all addresses of a router's namespace, in which there is nothing but what it makes itself. Another
    /// test may have had it, if it runs and nobody has changed what it has made: the versions of its objects and its log do not begin here.
    ///
    /// # Errors
    /// As [`ApiServer::start`], and when the router has its port in use.
    pub fn lent(router: &Netns) -> Result<Lent> {
        static AT_EXIT: Once = Once::new();
        // SAFETY: the function lives as long as the process, and does not unwind.
        AT_EXIT.call_once(|| assert_eq!(unsafe { libc::atexit(end_idle) }, 0));
        let Idle { api, at_first } = known().map_or_else(start, Ok)?;
        let mut lent = Lent { entrance: None, api: Some(api), loan: Some(Loan { router: router.entry(), at_first }) };
        lent.open()?;
        Ok(lent)
    }
}

impl Lent {
    /// As [`ApiServer::stop`]; its port refuses then.
    ///
    /// # Errors
    /// As there.
    pub fn stop(&mut self) -> Result<()> {
        self.entrance = None;
        ApiServer::stop(self)
    }

    /// As [`ApiServer::start_again`].
    ///
    /// # Errors
    /// As there.
    pub fn start_again(&mut self) -> Result<()> {
        ApiServer::start_again(self)?;
        self.open()
    }

    fn open(&mut self) -> Result<()> {
        if let (Some(loan), None) = (&self.loan, &self.entrance) {
            let port = self.port();
            self.entrance = Some(Entrance::open(&loan.router, port, (loopback::address(), port).into())?);
        }
        Ok(())
    }
}

/// One that was had before, emptied.
fn known() -> Option<Idle> {
    loop {
        let known = idle().pop()?;
        match empty(&known.api, &known.at_first) {
            Ok(true) => return Some(known),
            Ok(false) => {}
            Err(error) => eprintln!("an API server is not had again: {error}"),
        }
    }
}

fn start() -> Result<Idle> {
    let place = Place::Behind(address::ROUTER_INSIDE);
    let api = ApiServer::create(&std::env::temp_dir(), place, Admission::Alone, &address::cluster_ips(), false)?;
    let objects = api.objects()?;
    let made = || {
        let contents = api.contents(&objects).map_err(|error| error.to_string())?;
        let missing = MADE_SOON.iter().find(|key| !contents.contains_key(**key));
        missing.map_or(Ok(contents), |key| Err(format!("no {key}")))
    };
    let at_first = wait::until_some("what an API server makes itself", MADE_LIMIT, made)?;
    Ok(Idle { api, at_first })
}

/// Removes what was not there at first. Returns whether all that was is as it was.
fn empty(api: &ApiServer, at_first: &Contents) -> Result<bool> {
    let objects = api.objects()?;
    objects.check_ready()?;
    let added = |contents: &Contents| {
        let is_added = |key: &&String| !at_first.contains_key(*key) && !is_its_own(key);
        contents.keys().filter(is_added).cloned().collect::<Vec<_>>()
    };
    // Only the server gives back their addresses and node ports.
    for key in added(&api.contents(&objects)?) {
        let Some((namespace, name)) = key.strip_prefix(SERVICES).and_then(|rest| rest.split_once('/')) else {
            continue;
        };
        let metadata =
            ObjectMeta { namespace: Some(namespace.into()), name: Some(name.into()), ..ObjectMeta::default() };
        objects.delete(&Service { metadata, ..Service::default() })?;
    }
    let left = api.contents(&objects)?;
    api.forget(&objects, &added(&left))?;
    Ok(is_as_made(at_first, &left))
}

/// Whether nobody has changed or removed what the server has made itself.
fn is_as_made(at_first: &Contents, now: &Contents) -> bool {
    at_first.iter().all(|(key, change)| is_its_own(key) || now.get(key) == Some(change))
}

fn is_its_own(key: &str) -> bool {
    ITS_OWN.iter().any(|prefix| key.starts_with(prefix))
}

impl From<ApiServer> for Lent {
    /// One that nobody else will have.
    fn from(api: ApiServer) -> Self {
        Self { entrance: None, api: Some(api), loan: None }
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
        if let (Some(api), Some(loan)) = (self.api.take(), self.loan.take()) {
            idle().push(Idle { api, at_first: loan.at_first });
        }
    }
}

extern "C" fn end_idle() {
    idle().clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(keys: &[(&str, &str)]) -> Contents {
        keys.iter().map(|(key, change)| ((*key).to_owned(), (*change).to_owned())).collect()
    }

    #[test]
    fn what_a_server_has_made_is_as_made_until_somebody_else_changes_or_removes_it() {
        let made = [("leases/kube-system/apiserver", "4"), ("namespaces/default", "5")];
        let is_as_made = |now: &[(&str, &str)]| is_as_made(&contents(&made), &contents(now));
        assert!(is_as_made(&made));
        assert!(
            is_as_made(&[("namespaces/default", "5"), ("namespaces/mine", "9")]),
            "the lease is the server's to change"
        );
        assert!(!is_as_made(&[made[0], ("namespaces/default", "6")]));
        assert!(!is_as_made(&[made[0]]));
    }
}
