//! Loading: pinned maps are adopted where their layout is ours, and programs where they are the same on the same maps.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use aya::programs::ProgramFd;
use tracing::{info, warn};
use weir_abi as abi;
use weir_core::ops::{Capacity, FrontendKey};
use weir_core::source_ports::PortSet;

use crate::attach::{basic_programs, is_headerless};
use crate::capabilities;
use crate::constants::Constants;
use crate::error::{Error, Result};
use crate::filter;
use crate::flows::Flows;
use crate::going::GoingFilter;
use crate::in_use;
use crate::kept;
use crate::layout::{Fit, MAPS, MapSpec, spec};
use crate::map::{Mapped, Table};
use crate::objects::{self, SOCK, TC, XDP};
use crate::pins::{PinDir, PinLock, READ_ONLY};
use crate::replaced;
use crate::resize::{self, Moment};
use crate::shortcuts::Shortcuts;
use crate::source_ports::SourcePorts;
use crate::store::KernelStore;
use crate::switch;
use crate::sys;
use crate::variables::ConfigNow;

/// The programs and maps of one node, open for writing. Everything in it that is pinned outlives it.
#[derive(Debug)]
pub struct Datapath {
    pub(crate) pins: PinDir,
    pub(crate) programs: BTreeMap<String, OwnedFd>,
    /// Directory of the same.
    pub(crate) kept: PathBuf,
    pub(crate) config: Mapped<abi::Config>,
    pub(crate) devices: Table<u32, abi::Device>,
    pub(crate) nics: Table<u32, u32>,
    pub(crate) other_nodes: Table<abi::Addr, abi::OtherNode>,
    source_ports: SourcePorts,
    shortcuts: Shortcuts,
    pub(crate) store: KernelStore,
    adopted: bool,
    capacity: Capacity,
    pub(crate) lacks_tcx: bool,
    /// Maps that others of another size replace, until no link runs programs on them.
    pub(crate) resized: Vec<(MapSpec, OwnedFd)>,
    /// Whether an agent before has begun to give the links the programs of the new ones.
    pub(crate) half_switched: bool,
    _lock: PinLock,
}

impl Datapath {
    /// Loads the programs, on the maps that are pinned or on new ones. Nothing is attached and no traffic changes yet. Where an agent
    /// with the same programs has kept them on the same maps, they are those.
    ///
    /// A pinned map of another size is replaced by a larger or smaller copy, but by none that has no room for slots in use; one of another layout is
    /// left behind. What is replaced serves until [`Datapath::finish_switch`], and the next agent finds it if this one ends before that.
    ///
    /// # Errors
    /// No bpffs, another agent, a missing capability, an object that the verifier refuses.
    pub fn open(pins: PinDir, capacity: &Capacity) -> Result<Self> {
        // The loader finds other ways without some of them, and fails with words that do not say so.
        let missing = capabilities::missing();
        if !missing.is_empty() {
            return Err(Error::Capability { action: format!("cannot load programs without {missing}") });
        }
        pins.create()?;
        let lock = pins.lock()?;
        replaced::put_back(&pins)?;
        pins.forget_stale_maps()?;
        let capacity = &in_use::at_least(&pins, capacity);
        let mut resized = switch::unfinished(&pins, capacity)?;
        let half_switched = !resized.is_empty();
        let (mut adopted, mut maps) = (true, Vec::new());
        for spec in MAPS {
            match existing(&pins, &spec, capacity)? {
                Existing::Fits(id) => maps.push(id),
                Existing::Missing => adopted = false,
                Existing::Resized(fd) => resized.push((spec, fd)),
            }
        }
        let mut kept = pins.programs(kept::made_of(&maps));
        let mut programs = kept::open(&kept).unwrap_or_else(|cause| {
            warn!(%cause, "programs that were kept cannot be used; loading them anew");
            BTreeMap::new()
        });
        let is_new = maps.len() < MAPS.len() || !basic_programs().all(|name| programs.contains_key(&name));
        if is_new {
            let moment = if half_switched { Moment::BehindLinks } else { Moment::Loaded };
            kept = load_all(&pins, capacity, (&resized, moment)).inspect_err(|_| {
                // A size that the kernel refuses must not cost the flows and slots in the maps of the old one.
                if let Err(cause) = replaced::put_back(&pins) {
                    warn!(%cause, "maps of the old size are not back in their places; the next start tries again");
                }
            })?;
            programs = kept::open(&kept)?;
        }
        if let Err(cause) = kept::forget_others(&pins, &kept) {
            warn!(%cause, "programs that nobody uses stay");
        }
        let mut store = KernelStore::open(&pins, 0)?;
        store.former_flows = former_flows(&resized)?;
        store.rebuild_locals()?;
        let config = pins.mapped("config", 0)?;
        let devices = pins.table("devices", 0)?;
        let (nics, other_nodes) = (pins.table("nics", 0)?, pins.table("other_nodes", 0)?);
        let source_ports = SourcePorts::open(&pins, 0)?;
        let shortcuts = Shortcuts::open(&pins, 0)?;
        let datapath = Self {
            pins,
            programs,
            kept,
            config,
            devices,
            nics,
            other_nodes,
            source_ports,
            shortcuts,
            store,
            adopted,
            capacity: *capacity,
            lacks_tcx: false,
            resized,
            half_switched,
            _lock: lock,
        };
        if !adopted || is_new {
            // A new filter beside old frontends would hide them, and other programs may look for them at other places of it.
            datapath.rebuild_filter()?;
        }
        Ok(datapath)
    }

    /// Whether all maps were there already, with whatever an earlier agent wrote into them.
    #[must_use]
    pub const fn adopted(&self) -> bool {
        self.adopted
    }

    /// The sizes of the maps.
    #[must_use]
    pub const fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// The pin directory.
    #[must_use]
    pub const fn pins(&self) -> &PinDir {
        &self.pins
    }

    /// The maps that the control plane writes.
    pub const fn store(&mut self) -> &mut KernelStore {
        &mut self.store
    }

    /// The node's configuration as the programs see it.
    ///
    /// # Errors
    /// Never in practice; the slot exists.
    pub fn config(&self) -> Result<abi::Config> {
        self.config.get(0)
    }

    /// Tells the programs about the node. Between [`Datapath::begin_switch`] and [`Datapath::finish_switch`] new flows stay held back.
    ///
    /// # Errors
    /// Never in practice; the slot exists.
    pub fn configure(&self, config: &abi::Config) -> Result<()> {
        let known = self.config.get(0)?;
        let mut next = *config;
        if !self.resized.is_empty() {
            (next.flags, next.held_until) = (next.flags | known.flags & abi::CONFIG_HOLD, known.held_until);
        }
        // A packet in between would be in a network whose mask is not there yet: they count when all are.
        if known.service_network != next.service_network {
            self.config.set(0, &abi::Config { service_networks: 0, ..next })?;
        }
        self.config.set(0, &next)
    }

    /// Lets new flows to other nodes take these ports as their source and no others. Flows keep theirs, and get their
    /// answers.
    ///
    /// # Errors
    /// Never in practice; the slots exist.
    pub fn set_source_ports(&self, usable: &PortSet) -> Result<()> {
        self.source_ports.set(usable, &PortSet::default())
    }

    /// The same, where the host may come to use the ports of `shared` among them: what begins there with a packet from outside may be its own.
    ///
    /// # Errors
    /// Never in practice; the slots exist.
    pub fn share_source_ports(&self, usable: &PortSet, shared: &PortSet) -> Result<()> {
        self.source_ports.set(usable, shared)
    }

    /// The ports that new flows to other nodes may take as their source.
    ///
    /// # Errors
    /// Never in practice; the slots exist.
    pub fn source_ports(&self) -> Result<PortSet> {
        self.source_ports.usable()
    }

    /// Lets packets take these interfaces past the host's stack and no others, by index; they do so with
    /// [`abi::CONFIG_HOST_BYPASS`].
    ///
    /// # Errors
    /// When a map cannot be read or written.
    pub fn set_shortcuts(&self, wanted: &BTreeMap<u32, abi::Shortcut>) -> Result<()> {
        self.shortcuts.replace(wanted)
    }

    /// Makes the filter of frontends anew, of the frontends and of what flows still go to. While agents run it only ever
    /// gains bits; this is the time to forget those of frontends that nobody knows any more.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn rebuild_filter(&self) -> Result<()> {
        let frontends = self.store.frontends.entries()?.into_iter();
        let mut known: HashSet<FrontendKey> =
            frontends.filter(|(_, frontend)| filter::concerns(frontend)).map(|(key, _)| key).collect();
        self.store.flows.visit(|_, ends, _| {
            known.insert(ends.frontend());
        })?;
        filter::rebuild(&self.store.filter, &known)
    }

    /// A loaded program, for test runs.
    #[must_use]
    pub fn program(&self, name: &str) -> Option<BorrowedFd<'_>> {
        self.programs.get(name).map(AsFd::as_fd)
    }

    /// Its pin.
    #[must_use]
    pub fn program_pin(&self, name: &str) -> PathBuf {
        self.kept.join(name)
    }

    /// Loads the programs of interfaces without link headers, and keeps them: on a node that has no such interface the verifier would walk a third more for
    /// nothing.
    ///
    /// # Errors
    /// When the kernel refuses one, or it cannot be kept.
    pub(crate) fn load_headerless(&mut self) -> Result<()> {
        kept::add(&self.kept, &load(&self.pins, &self.capacity, is_headerless)?)?;
        self.programs = kept::open(&self.kept)?;
        Ok(())
    }
}

enum Existing {
    Missing,
    /// With the kernel's number of the map.
    Fits(u32),
    Resized(OwnedFd),
}

/// Looks at a pin, and takes it out of the way unless the loader may use it as it is.
fn existing(pins: &PinDir, spec: &MapSpec, capacity: &Capacity) -> Result<Existing> {
    let path = pins.map(spec.name);
    let fd = match sys::obj_get(&path, 0) {
        Ok(fd) => fd,
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(Existing::Missing),
        Err(e) => return Err(Error::io(format!("cannot open {}", path.display()), e)),
    };
    let found = MapSpec::info(fd.as_fd(), &path)?;
    match spec.fit(&found, Some(capacity)) {
        Fit::Same => Ok(Existing::Fits(found.id)),
        Fit::Resized => {
            info!(map = spec.name, from = found.max_entries, to = spec.entries(capacity), "resizing map");
            replaced::move_aside(pins, spec)?;
            Ok(Existing::Resized(fd))
        }
        Fit::Foreign => {
            let error = spec.require(&found, &path).err().map(|e| e.to_string());
            warn!(map = spec.name, error, "starting with a new map");
            fs::remove_file(&path).map_err(|e| Error::io(format!("cannot remove {}", path.display()), e))?;
            Ok(Existing::Missing)
        }
    }
}

/// Loads the programs, keeps them, and fills the maps of another size from those that they replace, at a moment. Returns where they are kept.
fn load_all(pins: &PinDir, capacity: &Capacity, (resized, moment): (&[(MapSpec, OwnedFd)], Moment)) -> Result<PathBuf> {
    // Where an agent has needed them before they are there again before the first link changes.
    let headerless = kept::has(pins, is_headerless)?;
    let programs = load(pins, capacity, |name| headerless || !is_headerless(name))?;
    if !resized.is_empty() {
        let seed = pins.mapped::<abi::Config>("config", READ_ONLY)?.get(0)?.hash_seed;
        for (spec, old) in resized {
            resize::copy(pins, spec, old.as_fd(), moment, seed)?;
        }
    }
    // Other programs, which noted nothing of what they wrote there, or other tables may have been here. Whoever finds these programs kept
    // takes the filter as it is.
    GoingFilter::forget(pins)?;
    kept::keep(pins, &programs)
}

/// Loads those programs that are wanted, on the maps that are pinned or on new ones.
fn load(pins: &PinDir, capacity: &Capacity, wanted: impl Fn(&str) -> bool) -> Result<BTreeMap<String, ProgramFd>> {
    let [sets, flows] = ["openings4", "flows4"].map(|name| spec(name).entries(capacity).unwrap_or_default());
    let constants = Constants::new(sets, flows)?;
    let mut loader = objects::loader();
    constants.set(&mut loader);
    for spec in MAPS {
        loader.map_pin_path(spec.name, pins.map(spec.name));
        if let Some(entries) = spec.entries(capacity) {
            loader.map_max_entries(spec.name, entries);
        }
    }
    // The maps are there before variables become two of them; of this object's variables others were made, which go with it.
    drop(SOCK.load(&mut loader)?);
    let config = ConfigNow::read(pins)?;
    config.share(&mut loader, pins);
    let (mut tc, mut xdp, mut sock) = (TC.load(&mut loader)?, XDP.load(&mut loader)?, SOCK.load(&mut loader)?);
    // Those that take longest come first.
    let objects = [(TC.name, &mut tc), (XDP.name, &mut xdp), (SOCK.name, &mut sock)];
    let all = objects.into_iter().flat_map(|(object, ebpf)| ebpf.programs_mut().map(move |named| (object, named)));
    objects::load_programs(all.filter(|(_, (name, _))| wanted(name)).collect())
}

/// Those tables of flows that are replaced.
fn former_flows(resized: &[(MapSpec, OwnedFd)]) -> Result<Flows> {
    let descriptor = |name| {
        let former = resized.iter().find(|(spec, _)| spec.name == name).map(|(_, fd)| fd.try_clone());
        former.transpose().map_err(|e| Error::io(format!("cannot keep the former {name}"), e))
    };
    Flows::open(descriptor, true)
}
