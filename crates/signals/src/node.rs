//! The load of this node, gauge by gauge.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use weir_core::load::{NodeLoad, Sample};

use crate::cgroup::{GroupCpu, GroupMemory, Hierarchies};
use crate::cpu::{CpuUse, MachineCpu};
use crate::gauge::Gauge;
use crate::memory::MachineMemory;
use crate::network::{Link, Network};
use crate::pressure::Pressure;
use crate::source::{Counts, Failure, Source};

/// What the node is.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// The machine's /proc.
    pub proc: PathBuf,
    /// The machine's /sys.
    pub sys: PathBuf,
    /// The group that is the node, where it may not use all of its machine: a path below the root of cgroups. Its CPU
    /// quota must be set. Other load of the machine is not the node's then.
    pub group: Option<PathBuf>,
    /// Links to watch; empty: those with hardware below them.
    pub links: Vec<Link>,
}

impl Default for NodeOptions {
    /// A whole machine.
    fn default() -> Self {
        Self { proc: "/proc".into(), sys: "/sys".into(), group: None, links: Vec::new() }
    }
}

/// How busy this node is.
#[derive(Debug)]
pub struct Node {
    cpu: Gauge<NodeCpu>,
    memory: Gauge<NodeMemory>,
    network: Gauge<Network>,
    /// None where the kernel does not tell the group's.
    pressure: Option<Gauge<Pressure>>,
}

impl Node {
    /// A node that was not read yet.
    ///
    /// # Errors
    /// Only if the node is a group and the machine has no cgroups.
    pub fn new(options: NodeOptions) -> Result<Self, Failure> {
        let NodeOptions { proc, sys, group, links } = options;
        let group = group.map(|group| Hierarchies::find(&sys.join("fs/cgroup")).map(|found| (found, group)));
        let (cpu, memory, pressure) = match group.transpose()? {
            Some((found, group)) => {
                let memory = NodeMemory::Group(found.memory(&group), MachineMemory::new(&proc));
                (NodeCpu::Group(found.cpu(&group), group.clone()), memory, found.pressure(&group))
            }
            None => whole_machine(&proc),
        };
        let network = Network::new(&proc, &sys, links);
        Ok(Self {
            cpu: Gauge::new(cpu),
            memory: Gauge::new(memory),
            network: Gauge::new(network),
            pressure: pressure.map(|path| Gauge::new(Pressure::new(path))),
        })
    }

    /// Reads everything.
    pub fn tick(&mut self, now: Instant) {
        let Self { cpu, memory, network, pressure } = self;
        cpu.tick(now);
        memory.tick(now);
        network.tick(now);
        if let Some(pressure) = pressure {
            pressure.tick(now);
        }
    }

    /// [Forgets](Gauge::forget) everything.
    pub fn forget(&mut self) {
        let Self { cpu, memory, network, pressure } = self;
        cpu.forget();
        memory.forget();
        network.forget();
        if let Some(pressure) = pressure {
            pressure.forget();
        }
    }

    /// The load, as far as it is known.
    #[must_use]
    pub fn load(&self, now: Instant) -> NodeLoad {
        let Self { cpu, memory, network, pressure } = self;
        let cpu = cpu.sample(now);
        NodeLoad {
            cpu: cpu.map(|Sample { value, age }| Sample { value: value.share, age }),
            memory: memory.sample(now),
            network: network.sample(now),
            pressure: pressure.as_ref().and_then(|pressure| pressure.sample(now)),
            capacity: cpu.map_or(0.0, |cpu| cpu.value.capacity),
            bandwidth: network.source().rate(),
        }
    }

    /// How long ago each source said something last, [forgotten](crate::FORGET_AFTER) or not; of those that ever did.
    pub fn ages(&self, now: Instant) -> impl Iterator<Item = (&'static str, Duration)> {
        let Self { cpu, memory, network, pressure } = self;
        let pressure = pressure.as_ref().map(|gauge| (gauge.name(), gauge.age(now)));
        let all = [(cpu.name(), cpu.age(now)), (memory.name(), memory.age(now)), (network.name(), network.age(now))];
        all.into_iter().chain(pressure).filter_map(|(name, age)| Some((name, age?)))
    }

    /// Each source with how it fared, and what is wrong with it now.
    pub fn sources(&self) -> impl Iterator<Item = (&'static str, Counts, Option<&Failure>)> {
        fn row<S: Source>(gauge: &Gauge<S>) -> (&'static str, Counts, Option<&Failure>) {
            (gauge.name(), gauge.counts(), gauge.problem())
        }
        let Self { cpu, memory, network, pressure } = self;
        [row(cpu), row(memory), row(network)].into_iter().chain(pressure.as_ref().map(row))
    }
}

fn whole_machine(proc: &Path) -> (NodeCpu, NodeMemory, Option<PathBuf>) {
    let memory = NodeMemory::Machine(MachineMemory::new(proc));
    (NodeCpu::Machine(MachineCpu::new(proc)), memory, Some(proc.join("pressure/cpu")))
}

/// CPU of the node.
#[derive(Debug)]
enum NodeCpu {
    Machine(MachineCpu),
    Group(GroupCpu, PathBuf),
}

impl Source for NodeCpu {
    type Value = CpuUse;

    fn name(&self) -> &'static str {
        "cpu"
    }

    fn read(&mut self, now: Instant) -> Result<Option<CpuUse>, Failure> {
        let (group, path) = match self {
            Self::Machine(machine) => return machine.read(now),
            Self::Group(group, path) => (group, path),
        };
        let Some(used) = group.read(now)? else { return Ok(None) };
        let (Some(share), Some(capacity)) = (used.share, used.limit) else {
            let object = format!("cgroup {}", path.display());
            return Err(Failure::Malformed {
                object,
                what: "CPU quota, so that it is no node (set one, or name none)",
            });
        };
        Ok(Some(CpuUse { share, capacity }))
    }
}

/// Memory of the node: of its group only if that has a limit, for quotas of CPU often come alone.
#[derive(Debug)]
enum NodeMemory {
    Machine(MachineMemory),
    Group(GroupMemory, MachineMemory),
}

impl Source for NodeMemory {
    type Value = weir_core::load::Share;

    fn name(&self) -> &'static str {
        "memory"
    }

    fn read(&mut self, now: Instant) -> Result<Option<Self::Value>, Failure> {
        match self {
            Self::Machine(machine) => machine.read(now),
            Self::Group(group, machine) => match group.read(now)?.and_then(|used| used.share) {
                Some(share) => Ok(Some(share)),
                None => machine.read(now),
            },
        }
    }
}
