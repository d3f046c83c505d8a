//! This machine's own /proc and cgroups.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use weir_signals::cgroup::{CpuHierarchy, Hierarchies, MemoryHierarchy};
use weir_signals::{Failure, FailureKind, Gauge, Node, NodeOptions, Source};

const CGROUPS: &str = "/sys/fs/cgroup";
/// Time between readings.
const TICK: Duration = Duration::from_millis(100);
const LIMIT: Duration = Duration::from_secs(20);

/// Ticks until `look` has a value.
fn eventually<T>(what: &str, mut look: impl FnMut(Instant) -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        let now = Instant::now();
        if let Some(value) = look(now) {
            return value;
        }
        assert!(now < deadline, "{what}: not within {LIMIT:?}");
        std::thread::sleep(TICK);
    }
}

#[test]
fn cpu_memory_and_pressure_of_this_machine_are_told() {
    let mut node = Node::new(NodeOptions::default()).unwrap();
    let load = eventually("CPU and memory", |now| {
        node.tick(now);
        let load = node.load(now);
        (load.cpu.is_some() && load.memory.is_some()).then_some(load)
    });
    let cores = std::thread::available_parallelism().unwrap().get();
    #[expect(clippy::cast_precision_loss, reason = "no machine has 2^52 cores")]
    let cores = cores as f64;
    assert!(load.capacity >= cores, "{} of at least {cores} that this test may use", load.capacity);
    assert!(load.memory.unwrap().value.get() > 0.0, "this test uses some");
    if fs::read("/proc/pressure/cpu").is_ok() {
        assert!(load.pressure.is_some());
    } else {
        eprintln!("SKIPPED: pressure: this kernel has none, or it is off (psi=1)");
    }
    for (name, counts, problem) in node.sources() {
        let unknown_speed = name == "network" && counts.failures(FailureKind::Malformed) > 0;
        let no_pressure = name == "pressure" && load.pressure.is_none();
        assert!(problem.is_none() || unknown_speed || no_pressure, "{name}: {problem:?}");
    }
}

#[test]
fn the_loopback_link_of_this_machine_counts_bytes() {
    let options = NodeOptions {
        links: vec![weir_signals::network::Link { name: "lo".to_owned(), rate: Some(1e12) }],
        ..NodeOptions::default()
    };
    let mut node = Node::new(options).unwrap();
    let network = eventually("network", |now| {
        node.tick(now);
        node.load(now).network
    });
    assert!(network.value.get() <= 1.0);
}

/// A group of this machine with a fifth of a core, and a process in it that wants a whole one. Gone at the end.
struct Busy {
    directories: Vec<PathBuf>,
    process: Option<Child>,
}

impl Busy {
    /// `None` where this process may not make one, with the reason.
    fn start(on: &Hierarchies, name: &str) -> Result<Self, String> {
        let mut roots = match &on.cpu {
            CpuHierarchy::V1 { quota, usage } => vec![quota.clone(), usage.clone()],
            CpuHierarchy::V2(root) => vec![root.clone()],
        };
        let (MemoryHierarchy::V1(root) | MemoryHierarchy::V2(root)) = &on.memory;
        roots.push(root.clone());
        let mut directories: Vec<_> = roots.iter().map(|root| root.join(name)).collect();
        directories.dedup();
        let mut busy = Self { directories: Vec::new(), process: None };
        for directory in directories {
            // cpu and cpuacct are often one hierarchy under two names.
            if !directory.exists() {
                fs::create_dir(&directory).map_err(|cause| format!("cannot make {}: {cause}", directory.display()))?;
            }
            busy.directories.push(directory);
        }
        let (file, quota) = match &on.cpu {
            CpuHierarchy::V1 { .. } => ("cpu.cfs_quota_us", "20000"),
            CpuHierarchy::V2(_) => ("cpu.max", "20000 100000"),
        };
        let file = busy.directories[0].join(file);
        fs::write(&file, quota).map_err(|cause| format!("cannot write {}: {cause}", file.display()))?;
        let process =
            Command::new("sh").args(["-c", "while :; do :; done"]).spawn().map_err(|cause| cause.to_string())?;
        let id = process.id().to_string();
        busy.process = Some(process);
        for directory in &busy.directories {
            fs::write(directory.join("cgroup.procs"), &id).map_err(|cause| cause.to_string())?;
        }
        Ok(busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            process.kill().ok();
            process.wait().ok();
        }
        for directory in &self.directories {
            // The last task leaves a moment after it was waited for.
            let deadline = Instant::now() + LIMIT;
            while directory.exists() && fs::remove_dir(directory).is_err() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

#[test]
fn a_busy_group_of_this_machine_is_at_its_quota_and_missing_when_it_is_gone() {
    let what = "a group of this machine";
    let on = match Hierarchies::find(Path::new(CGROUPS)) {
        Ok(on) => on,
        Err(failure) => return eprintln!("SKIPPED: {what}: {failure}"),
    };
    let name = format!("weir-{}-signals", std::process::id());
    let busy = match Busy::start(&on, &name) {
        Ok(busy) => busy,
        Err(reason) => return eprintln!("SKIPPED: {what}: {reason}; run it with sudo"),
    };
    let group = Path::new(&name);
    let mut cpu = Gauge::new(on.cpu(group));
    let used = eventually("a group at its quota", |now| {
        cpu.tick(now);
        cpu.sample(now).map(|sample| sample.value).filter(|used| used.share.is_some_and(|share| share.get() > 0.8))
    });
    assert!((used.limit.unwrap() - 0.2).abs() < 1e-9);
    assert_eq!(cpu.counts().failures(FailureKind::Lie), 0, "{:?}", cpu.problem());
    let memory = on.memory(group).read(Instant::now()).unwrap().unwrap();
    assert_eq!((memory.limit, memory.share), (None, None));

    drop(busy);
    cpu.tick(Instant::now());
    assert_eq!(cpu.problem().map(Failure::kind), Some(FailureKind::Missing));
    assert!(cpu.sample(Instant::now()).is_some(), "the last sample grows old first");
}
