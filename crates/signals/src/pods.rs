//! The pods of this node, by their groups.
//!
//! Kubelet limits a pod's group only if each of its containers has a limit, and one container can be at its limit while
//! the pod is not: a pod is as busy as the busiest of itself and its containers, each against its own limit.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use weir_core::load::{Sample, Share};

use crate::cgroup::kubelet::{KubeletRoot, is_uid};
use crate::cgroup::{GroupCpu, GroupMemory, Hierarchies};
use crate::gauge::Gauge;
use crate::source::{Counts, Failure, FailureKind, Source};

/// How often a pod whose group is not there is looked for.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How often new containers are looked for. One that is gone is noticed at once.
const LIST_AGAIN: Duration = Duration::from_secs(5);

/// What a pod uses. `None` is unknown, or for shares: without a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PodLoad {
    /// CPU of the limit, where it is tightest.
    pub cpu: Option<Sample<Share>>,
    /// Memory of the limit, where it is tightest.
    pub memory: Option<Sample<Share>>,
    /// Cores in use.
    pub cores: Option<Sample<f64>>,
    /// Cores that the whole pod may use.
    pub cores_limit: Option<f64>,
    /// Bytes of memory in use.
    pub bytes: Option<Sample<u64>>,
}

/// The pods whose load somebody wants to know.
#[derive(Debug)]
pub struct Pods {
    hierarchies: Hierarchies,
    root: KubeletRoot,
    pods: HashMap<String, Pod>,
    /// Of gauges that are no more, and of looking for groups.
    past: Counts,
}

#[derive(Debug, Default)]
struct Pod {
    place: Option<Place>,
    looked_at: Option<Instant>,
    problem: Option<Failure>,
}

/// A pod's group that was found.
#[derive(Debug)]
struct Place {
    group: PathBuf,
    whole: Part,
    containers: HashMap<OsString, Part>,
    listed_at: Option<Instant>,
}

/// A pod or a container; of the latter only what has a limit.
#[derive(Debug)]
struct Part {
    cpu: Option<Gauge<GroupCpu>>,
    memory: Option<Gauge<GroupMemory>>,
}

impl Pods {
    /// No pods yet.
    #[must_use]
    pub fn new(hierarchies: Hierarchies, root: KubeletRoot) -> Self {
        Self { hierarchies, root, pods: HashMap::new(), past: Counts::default() }
    }

    /// Watches exactly the pods with these uids from now on. What cannot be a uid is left out.
    pub fn watch<'a>(&mut self, uids: impl IntoIterator<Item = &'a str>) {
        let wanted: HashSet<&str> = uids.into_iter().filter(|uid| is_uid(uid)).collect();
        let past = &mut self.past;
        self.pods.retain(|uid, pod| {
            let stays = wanted.contains(uid.as_str());
            if !stays {
                *past = past.plus(pod.counts());
            }
            stays
        });
        for uid in wanted {
            if !self.pods.contains_key(uid) {
                self.pods.insert(uid.to_owned(), Pod::default());
            }
        }
    }

    /// Reads all of them. Each takes a dozen small files: once a second is often enough.
    pub fn tick(&mut self, now: Instant) {
        let Self { hierarchies, root, pods, past } = self;
        for (uid, pod) in pods {
            pod.look(uid, hierarchies, root, now, past);
            let Some(place) = &mut pod.place else { continue };
            if !place.tick(hierarchies, now, past) {
                *past = past.plus(pod.counts());
                pod.place = None;
            }
        }
    }

    /// What a pod uses; `None` if it is not watched or its group is not there.
    #[must_use]
    pub fn load(&self, uid: &str, now: Instant) -> Option<PodLoad> {
        Some(self.pods.get(uid)?.place.as_ref()?.load(now))
    }

    /// How reading went, all pods together.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.pods.values().fold(self.past, |sum, pod| sum.plus(pod.counts()))
    }

    /// What is wrong with which pod.
    pub fn problems(&self) -> impl Iterator<Item = (&str, &Failure)> {
        self.pods.iter().flat_map(|(uid, pod)| pod.problems().map(|problem| (uid.as_str(), problem)))
    }
}

impl Pod {
    /// Looks for the group, if it is not known where it is.
    fn look(&mut self, uid: &str, on: &Hierarchies, root: &KubeletRoot, now: Instant, past: &mut Counts) {
        let soon = self.looked_at.is_some_and(|at| now.saturating_duration_since(at) < LOOK_AGAIN);
        if self.place.is_some() || soon {
            return;
        }
        self.looked_at = Some(now);
        let found = root.candidates(uid).find(|group| on.directory(group).is_dir());
        self.problem = None;
        self.place = found.map(|group| Place::new(on, group));
        if self.place.is_none() {
            past.count_read();
            past.count_failure(FailureKind::Missing);
            let cause =
                io::Error::new(io::ErrorKind::NotFound, "it has no cgroup; is kubelet's cgroup root the right one?");
            self.problem = Some(Failure::Missing { object: format!("pod {uid}"), cause: cause.into() });
        }
    }

    fn counts(&self) -> Counts {
        let parts = self.place.iter().flat_map(Place::parts);
        parts.fold(Counts::default(), |sum, part| sum.plus(part.counts()))
    }

    fn problems(&self) -> impl Iterator<Item = &Failure> {
        let parts = self.place.iter().flat_map(Place::parts);
        self.problem.iter().chain(parts.flat_map(Part::problems))
    }
}

impl Place {
    fn new(on: &Hierarchies, group: PathBuf) -> Self {
        let whole = Part { cpu: Some(Gauge::new(on.cpu(&group))), memory: Some(Gauge::new(on.memory(&group))) };
        Self { group, whole, containers: HashMap::new(), listed_at: None }
    }

    /// Reads the pod and its containers. False if the group is gone.
    fn tick(&mut self, on: &Hierarchies, now: Instant, past: &mut Counts) -> bool {
        let listed = self.listed_at.is_some_and(|at| now.saturating_duration_since(at) < LIST_AGAIN);
        if !listed {
            // If there is nothing to list, reading says the same and counts it.
            let containers = list(&on.directory(&self.group)).unwrap_or_default();
            self.update(on, containers, past);
            self.listed_at = Some(now);
        }
        self.whole.tick(now);
        for container in self.containers.values_mut() {
            container.tick(now);
            if container.is_missing() {
                self.listed_at = None;
            }
        }
        !self.whole.is_missing()
    }

    /// Keeps the gauges of containers that are still there and can be read.
    fn update(&mut self, on: &Hierarchies, names: Vec<OsString>, past: &mut Counts) {
        let mut before = std::mem::take(&mut self.containers);
        for name in names {
            let kept = before.remove(&name).filter(|container| {
                let keeps = !container.is_missing();
                if !keeps {
                    *past = past.plus(container.counts());
                }
                keeps
            });
            let container = kept.unwrap_or_else(|| Part::of_container(on, &self.group.join(&name)));
            self.containers.insert(name, container);
        }
        *past = before.values().fold(*past, |sum, gone| sum.plus(gone.counts()));
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        std::iter::once(&self.whole).chain(self.containers.values())
    }

    fn load(&self, now: Instant) -> PodLoad {
        let cpu = self.whole.cpu.as_ref().and_then(|gauge| gauge.sample(now));
        let memory = self.whole.memory.as_ref().and_then(|gauge| gauge.sample(now));
        PodLoad {
            cpu: busiest(self.parts().filter_map(|part| part.cpu.as_ref()), now, |used| used.share),
            memory: busiest(self.parts().filter_map(|part| part.memory.as_ref()), now, |used| used.share),
            cores: cpu.map(|Sample { value, age }| Sample { value: value.cores, age }),
            cores_limit: cpu.and_then(|cpu| cpu.value.limit),
            bytes: memory.map(|Sample { value, age }| Sample { value: value.bytes, age }),
        }
    }
}

impl Part {
    /// What cannot be told to have a limit gets a gauge, which says why.
    fn of_container(on: &Hierarchies, group: &Path) -> Self {
        let (mut cpu, mut memory) = (on.cpu(group), on.memory(group));
        let cpu = cpu.is_limited().unwrap_or(true).then(|| Gauge::new(cpu));
        Self { cpu, memory: memory.is_limited().unwrap_or(true).then(|| Gauge::new(memory)) }
    }

    fn tick(&mut self, now: Instant) {
        if let Some(gauge) = &mut self.cpu {
            gauge.tick(now);
        }
        if let Some(gauge) = &mut self.memory {
            gauge.tick(now);
        }
    }

    fn problems(&self) -> impl Iterator<Item = &Failure> {
        self.cpu.as_ref().and_then(Gauge::problem).into_iter().chain(self.memory.as_ref().and_then(Gauge::problem))
    }

    fn is_missing(&self) -> bool {
        self.problems().any(|problem| problem.kind() == FailureKind::Missing)
    }

    fn counts(&self) -> Counts {
        let cpu = self.cpu.as_ref().map(Gauge::counts).unwrap_or_default();
        cpu.plus(self.memory.as_ref().map(Gauge::counts).unwrap_or_default())
    }
}

/// Directories below a group.
fn list(directory: &Path) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.push(entry.file_name());
        }
    }
    Ok(names)
}

/// The largest share. Unknown as soon as one is: the one that nobody knows may be the largest.
fn busiest<'a, S: Source + 'a>(
    gauges: impl Iterator<Item = &'a Gauge<S>>,
    now: Instant,
    share: impl Fn(&S::Value) -> Option<Share>,
) -> Option<Sample<Share>> {
    let mut busiest: Option<Sample<Share>> = None;
    for gauge in gauges {
        let Sample { value, age } = gauge.sample(now)?;
        // No limit here says nothing about the others.
        let Some(value) = share(&value) else { continue };
        if busiest.is_none_or(|busiest| value > busiest.value) {
            busiest = Some(Sample { value, age });
        }
    }
    busiest
}
