//! One cluster for all tests of a file that run at the same time: a new one costs seconds.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{Agent, Cluster};

/// The place where tests meet. The cluster goes with the last test that has it.
pub(crate) struct Shared {
    options: &'static [&'static str],
    cluster: Mutex<Weak<Cluster>>,
}

impl Shared {
    /// A cluster of two nodes with two pods each, and agents with these options.
    pub(crate) const fn new(options: &'static [&'static str]) -> Self {
        Self { options, cluster: Mutex::new(Weak::new()) }
    }

    /// The cluster, for a test of `what`; `None` if the machine cannot run it, which has then been said.
    pub(crate) fn join(&self, what: &str) -> Option<Joined> {
        if !super::can_run(what) {
            return None;
        }
        // A test that could not make it leaves nothing behind.
        let mut meeting = self.cluster.lock().unwrap_or_else(PoisonError::into_inner);
        let cluster = meeting.upgrade().unwrap_or_else(|| {
            let made = Arc::new(Cluster::start(2, 2, self.options));
            *meeting = Arc::downgrade(&made);
            made
        });
        Some(Joined(cluster))
    }
}

/// A test's part in the shared cluster. Names and external addresses of Services must be the test's own.
pub(crate) struct Joined(Arc<Cluster>);

impl Deref for Joined {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.0
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        // The last one's agents tell by themselves.
        if std::thread::panicking() && Arc::strong_count(&self.0) > 1 {
            self.0.agents.iter().for_each(Agent::testify);
        }
    }
}
