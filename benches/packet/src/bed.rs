//! Programs and maps of one measurement.

use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, ensure};
use aya::maps::{Array, HashMap, Map, MapData, ProgramArray};
use aya::programs::{ProgramFd, Xdp};
use aya::{Ebpf, EbpfLoader, Pod, include_bytes_aligned};
use weir_abi as abi;
use weir_core::model::{Family, ObjectName, Protocol};
use weir_core::ops::{Capacity, FrontendKey};
use weir_core::plan::{BackendPlan, PlanKey, Selector, ServicePlan, Shares, TierPlan};
use weir_core::tables::Tables;
use weir_datapath::{Datapath, MapStore, PinDir};
use weir_testbed::prog_run::{Context, Run, prog_run};

static WRAPPER: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/wrapper.bpf.o"));

/// Pin directories are called so, followed by the process id and a number.
pub(crate) const PIN_PREFIX: &str = "weir-bench-";
/// Endpoints of each service, all on this node.
const ENDPOINTS: u32 = 2;
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;

/// Last word of the first service's address.
pub(crate) fn first_service(family: Family) -> u32 {
    match family {
        Family::V4 => u32::from(Ipv4Addr::new(10, 96, 0, 1)),
        Family::V6 => 1,
    }
}

/// Last word of an address that no service has.
pub(crate) const fn first_stranger() -> u32 {
    0x0b00_0001
}

/// Address of service `n` in IPv6.
pub(crate) fn service_address6(n: u32) -> Ipv6Addr {
    Ipv6Addr::from((0xfd00_0096_u128 << 96) + u128::from(n + 1))
}

fn service_address(family: Family, n: u32) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::from(first_service(family) + n).into(),
        Family::V6 => service_address6(n).into(),
    }
}

/// `struct plan` of the wrapper.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    template: [u64; 10],
    next: u32,
    flows: u32,
    services: u32,
    first_service: u32,
    v6: u32,
    pad: u32,
}

impl Plan {
    /// The same with flows that begin at this number and never repeat.
    pub(crate) const fn from(self, next: u32) -> Self {
        Self { next, flows: 0, ..self }
    }
}

// SAFETY: integers without padding.
unsafe impl Pod for Plan {}

/// What the wrapper calls.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Program {
    Weir,
    Null,
}

/// See the module's description. Pins go when it is dropped.
pub(crate) struct Bed {
    pins: PinDir,
    family: Family,
    _datapath: Datapath,
    wrapper: Ebpf,
    plan: Array<MapData, Plan>,
    target: ProgramArray<MapData>,
    weir: ProgramFd,
    null: ProgramFd,
}

impl Bed {
    /// Loads the programs with so many services in the maps, and room for so many flows that begin.
    pub(crate) fn new(family: Family, services: u32, openings: u32) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let pins = PinDir::new(format!("/sys/fs/bpf/{PIN_PREFIX}{}-{number}", std::process::id()));
        let capacity = Capacity { flows: 1 << 18, openings, ..Capacity::DEFAULT };
        let mut datapath = Datapath::open(pins.clone(), &capacity)?;
        fill(&mut datapath, capacity, family, services)?;
        let mut wrapper = EbpfLoader::new().btf(None).load(WRAPPER).context("cannot load the wrapper")?;
        let plan = Array::try_from(wrapper.take_map("plan").context("no map plan")?)?;
        let target = ProgramArray::try_from(wrapper.take_map("target").context("no map target")?)?;
        let null = load(&mut wrapper, "bench_null")?;
        load(&mut wrapper, "bench_wrapper")?;
        let weir = datapath.program_fd("weir_xdp").context("no program weir_xdp")?;
        Ok(Self { pins, family, _datapath: datapath, wrapper, plan, target, weir, null })
    }

    /// What a run is to do.
    pub(crate) fn plan(&self, frame: &[u8], flows: u32, services: u32, first_service: u32) -> Plan {
        let mut template = [0; 10];
        for (word, bytes) in template.iter_mut().zip(frame.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        }
        let v6 = u32::from(self.family == Family::V6);
        Plan { template, next: 0, flows, services, first_service, v6, pad: 0 }
    }

    /// As if the backend had answered every flow that nobody has answered so far: the next packet of each moves it to those
    /// that go on.
    pub(crate) fn answer(&self) -> Result<()> {
        const SIZE: usize = size_of::<abi::Reply>();
        const FLAGS: std::ops::Range<usize> = offset_of!(abi::Reply, flags)..offset_of!(abi::Reply, flags) + 2;
        fn answered<const KEY: usize>(map: MapData) -> Result<()> {
            let mut replies: HashMap<MapData, [u8; KEY], [u8; SIZE]> = HashMap::try_from(Map::LruHashMap(map))?;
            let all = replies.iter().collect::<Result<Vec<_>, _>>()?;
            for (key, mut reply) in all {
                let [a, b] = [reply[FLAGS.start], reply[FLAGS.start + 1]];
                let flags = u16::from_ne_bytes([a, b]) | abi::FLOW_REPLIED;
                reply[FLAGS].copy_from_slice(&flags.to_ne_bytes());
                replies.insert(key, reply, 0)?;
            }
            Ok(())
        }
        let map = |name| MapData::from_pin(self.pins.map(name)).with_context(|| format!("cannot open {name}"));
        match self.family {
            Family::V4 => answered::<{ size_of::<abi::FlowKey4>() }>(map("awaited4")?),
            Family::V6 => answered::<{ size_of::<abi::FlowKey6>() }>(map("awaited6")?),
        }
    }

    /// Runs a program in the wrapper, that many rounds.
    pub(crate) fn run(&mut self, program: Program, plan: &Plan, frame: &[u8], rounds: u32) -> Result<Run> {
        let (fd, verdict) = match program {
            Program::Weir => (&self.weir, XDP_PASS),
            Program::Null => (&self.null, XDP_TX),
        };
        self.target.set(0, fd, 0)?;
        self.plan.set(0, plan, 0)?;
        let wrapper: &Xdp = self.wrapper.program("bench_wrapper").context("no program bench_wrapper")?.try_into()?;
        let run = prog_run(wrapper.fd()?.as_fd(), frame, Some(Context::Xdp { ifindex: 0 }), rounds)?;
        ensure!(run.retval == verdict, "{program:?} returned {} in place of {verdict}", run.retval);
        Ok(run)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Err(error) = self.pins.remove_all(false) {
            eprintln!("{error}");
        }
    }
}

fn load(wrapper: &mut Ebpf, name: &str) -> Result<ProgramFd> {
    let program: &mut Xdp = wrapper.program_mut(name).with_context(|| format!("no program {name}"))?.try_into()?;
    program.load().with_context(|| format!("cannot load {name}"))?;
    Ok(program.fd()?.try_clone()?)
}

fn fill(datapath: &mut Datapath, capacity: Capacity, family: Family, services: u32) -> Result<()> {
    let mut tables = Tables::new(capacity);
    for n in 0..services {
        let service = ObjectName::new("bench", format!("service-{n}"));
        let backends = (0..ENDPOINTS).map(|i| BackendPlan {
            address: crate::backend(family, 1 + n * ENDPOINTS + i),
            port: 8080,
            node: None,
            zone: "".into(),
            local: true,
            host_network: false,
            pod: None,
        });
        let tier = TierPlan { spill: 0, local: (0..ENDPOINTS as usize).map(|i| (i, 1)).collect(), remote: Vec::new() };
        let key = FrontendKey { address: service_address(family, n), port: 80, protocol: Protocol::Tcp.number() };
        let plan = ServicePlan {
            key: PlanKey { service: service.clone(), port_name: "".into(), protocol: Protocol::Tcp, family },
            port: 80,
            frontends: vec![(key, abi::KIND_CLUSTER_IP)],
            backends: backends.collect(),
            tiers: [tier.clone(), tier.clone(), tier],
            shares: Shares::Planned,
            selector: Selector::Weights,
            endpoints: ENDPOINTS,
            affinity: 0,
            external_local: false,
            source_ranges: Vec::new(),
        };
        let update = tables.replace(&service, &[plan], 0)?;
        datapath.store().apply(&update.ops)?;
    }
    datapath.configure(&abi::Config {
        netns_cookie: 0,
        hash_seed: 0x5eed,
        node4: Ipv4Addr::new(172, 30, 0, 11).into(),
        node6: Ipv6Addr::LOCALHOST.into(),
        flags: abi::CONFIG_RESET_STALE,
        udp_idle: 112,
        tcp_idle: 7000,
        abi_version: abi::ABI_VERSION,
        fragment_idle: 30,
        service_networks: 0,
        flood: u32::MAX,
        pad: 0,
        service_network: [abi::Network::UNSET; abi::SERVICE_NETWORKS],
    })?;
    // What a host with the usual settings does not use.
    datapath.set_source_ports(&(1024..=29_999).chain(61_000..=65_535).collect())?;
    Ok(())
}
