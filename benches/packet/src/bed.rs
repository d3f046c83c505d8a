//! Programs and maps of one measurement.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use aya::maps::{Array, HashMap, Map, MapData, ProgramArray};
use aya::programs::{ProgramFd, Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader, Pod, TestRun as _, TestRunAttrs, TestRunOptions, include_bytes_aligned};
use aya_obj::programs::xdp::XdpAttachType;
use weir_abi as abi;
use weir_core::model::{Family, ObjectName, Protocol};
use weir_core::ops::{Capacity, FrontendKey};
use weir_core::plan::{BackendPlan, PlanKey, Selector, ServicePlan, Shares, TierPlan};
use weir_core::tables::Tables;
use weir_datapath::{Datapath, GoingFilter, MapStore, PinDir, View};
use weir_testbed::prog_run::{Context, Run, prog_run};

static WRAPPER: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/wrapper.bpf.o"));

/// Pin directories are called so, followed by the process id and a number.
pub(crate) const PIN_PREFIX: &str = "weir-bench-";
/// Endpoints of each service, all on this node.
const ENDPOINTS: u32 = 2;
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;

/// Live frames at a time: what the kernel takes unless told otherwise.
const BATCH: u32 = 64;

/// The node's addresses. No service's ends in the same word, which costs a packet one more lookup.
pub(crate) const NODE: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::new(172, 30, 0, 11), Ipv6Addr::new(0xfd00, 0x30, 0, 0, 0, 0, 1, 0x11));

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
    /// Sends each packet back where it came from, untouched.
    Null,
    /// Drops each packet.
    Drop,
}

/// Where the endpoints of all services are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Endpoints {
    /// On this node: packets are translated and passed up.
    Here,
    /// On another one, beyond the device that the packets came from: they are translated in both directions and sent back.
    Elsewhere,
}

/// What is to be measured on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) family: Family,
    pub(crate) services: u32,
    /// Flows that the tables have room for.
    pub(crate) room: u32,
    /// The same of flows that begin.
    pub(crate) openings: u32,
    pub(crate) endpoints: Endpoints,
    /// The device that packets come from, in the thread's namespace; 0: its loopback.
    pub(crate) device: u32,
}

/// See the module's description. Pins go when it is dropped.
pub(crate) struct Bed {
    pins: PinDir,
    setting: Setting,
    _datapath: Datapath,
    wrapper: Ebpf,
    plan: Array<MapData, Plan>,
    target: ProgramArray<MapData>,
    weir: ProgramFd,
    null: ProgramFd,
    drop: ProgramFd,
    arrived: Array<MapData, u64>,
}

impl Bed {
    /// Loads the programs and fills the maps.
    pub(crate) fn new(setting: Setting) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let pins = PinDir::new(format!("/sys/fs/bpf/{PIN_PREFIX}{}-{number}", std::process::id()));
        let capacity = Capacity { flows: setting.room, openings: setting.openings, ..Capacity::DEFAULT };
        let mut datapath = Datapath::open(pins.clone(), &capacity)?;
        fill(&mut datapath, capacity, setting)?;
        let mut wrapper = EbpfLoader::new().btf(None).load(WRAPPER).context("cannot load the wrapper")?;
        let plan = Array::try_from(wrapper.take_map("plan").context("no map plan")?)?;
        let target = ProgramArray::try_from(wrapper.take_map("target").context("no map target")?)?;
        let arrived = Array::try_from(wrapper.take_map("arrived").context("no map arrived")?)?;
        let null = load(&mut wrapper, "bench_null")?;
        let drop = load(&mut wrapper, "bench_drop")?;
        load(&mut wrapper, "bench_sink")?;
        load(&mut wrapper, "bench_wrapper")?;
        let weir = Xdp::from_pin(datapath.program_pin("weir_xdp"), XdpAttachType::Interface)?.fd()?.try_clone()?;
        Ok(Self { pins, setting, _datapath: datapath, wrapper, plan, target, weir, null, drop, arrived })
    }

    /// What a run is to do.
    pub(crate) fn plan(&self, frame: &[u8], flows: u32, services: u32, first_service: u32) -> Plan {
        let mut template = [0; 10];
        for (word, bytes) in template.iter_mut().zip(frame.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        }
        let v6 = u32::from(self.setting.family == Family::V6);
        Plan { template, next: 0, flows, services, first_service, v6, pad: 0 }
    }

    /// As if every flow that begins had been answered and its client had gone on: moves them, and says how many there were.
    pub(crate) fn let_go_on(&self) -> Result<usize> {
        const FLOW4: usize = size_of::<abi::Flow>();
        const FLOW6: usize = size_of::<abi::Flow6>();
        const REPLY: usize = size_of::<abi::Reply>();
        const KEY4: usize = size_of::<abi::FlowKey4>();
        const KEY6: usize = size_of::<abi::FlowKey6>();
        let (flow, reply) = (offset_of!(abi::Flow, flags), offset_of!(abi::Reply, flags));
        let map =
            |name: &str| MapData::from_pin(self.pins.map(name)).with_context(|| format!("cannot open the map {name}"));
        // What goes on without an entry for its answers would ask for it.
        match self.setting.family {
            Family::V4 => {
                move_all::<KEY4, REPLY, { size_of::<abi::AwaitedSet4>() }>(map("awaited4")?, map("replies4")?, reply)?;
                move_all::<KEY4, FLOW4, { size_of::<abi::OpeningSet4>() }>(map("openings4")?, map("flows4")?, flow)
            }
            Family::V6 => {
                move_all::<KEY6, REPLY, { size_of::<abi::AwaitedSet6>() }>(map("awaited6")?, map("replies6")?, reply)?;
                move_all::<KEY6, FLOW6, { size_of::<abi::OpeningSet6>() }>(map("openings6")?, map("flows6")?, flow)
            }
        }
    }

    /// What the agent does now and then, for the filter of what goes on.
    pub(crate) fn find_what_goes_on(&self) -> Result<()> {
        Ok(GoingFilter::open(&self.pins)?.rebuild()?)
    }

    /// Runs a program in the wrapper, that many rounds.
    pub(crate) fn run(&mut self, program: Program, plan: &Plan, frame: &[u8], rounds: u32) -> Result<Run> {
        let verdict = match (program, self.setting.endpoints) {
            (Program::Weir, Endpoints::Here) => XDP_PASS,
            (Program::Weir, Endpoints::Elsewhere) | (Program::Null, _) => XDP_TX,
            (Program::Drop, _) => XDP_DROP,
        };
        let context = Context::Xdp { ifindex: self.setting.device };
        let run = prog_run(self.prepare(program, plan)?.fd()?.as_fd(), frame, Some(context), rounds)?;
        ensure!(run.retval == verdict, "{program:?} returned {} in place of {verdict}", run.retval);
        Ok(run)
    }

    /// The same with frames that the kernel treats as if the device had received them; returns the mean time of one.
    pub(crate) fn run_live(&mut self, program: Program, plan: &Plan, frame: &[u8], rounds: u32) -> Result<Duration> {
        let [length, device] = [u32::try_from(frame.len())?, self.setting.device];
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
        let context: Vec<u8> = [0, length, 0, device, 0, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
        let options = TestRunOptions {
            data_in: Some(frame),
            ctx_in: Some(&context),
            repeat: rounds,
            attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
            ..TestRunOptions::new()
        };
        let ran = self.prepare(program, plan)?.test_run(options).with_context(|| format!("cannot run {program:?}"))?;
        Ok(ran.duration)
    }

    /// Lets a device's frames be counted and dropped, for as long as this lives.
    pub(crate) fn attach_sink(&mut self, device: &str) -> Result<()> {
        let sink: &mut Xdp = self.wrapper.program_mut("bench_sink").context("no program bench_sink")?.try_into()?;
        sink.attach(device, XdpMode::Driver).with_context(|| format!("cannot attach a program to {device}"))?;
        Ok(())
    }

    /// Packets that were translated so far, to whom they were to go.
    pub(crate) fn translated(&self) -> Result<u64> {
        let reason = match self.setting.endpoints {
            Endpoints::Here => abi::REASON_TO_LOCAL,
            Endpoints::Elsewhere => abi::REASON_TO_REMOTE,
        };
        Ok(self.view()?.counters().counter(abi::HOOK_XDP as usize, reason as usize)?.packets)
    }

    /// Flows that are known, and entries for answers to them; at any stage.
    pub(crate) fn known(&self) -> Result<[usize; 2]> {
        let view = self.view()?;
        let mut flows = 0;
        view.visit_flows(|_, _| flows += 1)?;
        let replies = match self.setting.family {
            Family::V4 => view.replies4()?.len(),
            Family::V6 => view.replies6()?.len(),
        };
        Ok([flows, replies])
    }

    fn view(&self) -> Result<View> {
        Ok(View::open(self.pins.clone())?)
    }

    /// Frames that the sink has counted so far.
    pub(crate) fn arrived(&self) -> Result<u64> {
        Ok(self.arrived.get(&0, 0)?)
    }

    /// The wrapper, which calls the program from now on.
    fn prepare(&mut self, program: Program, plan: &Plan) -> Result<&Xdp> {
        let fd = match program {
            Program::Weir => &self.weir,
            Program::Null => &self.null,
            Program::Drop => &self.drop,
        };
        self.target.set(0, fd, 0)?;
        self.plan.set(0, plan, 0)?;
        Ok(self.wrapper.program("bench_wrapper").context("no program bench_wrapper")?.try_into()?)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Err(error) = self.pins.remove_all(false) {
            eprintln!("{error}");
        }
    }
}

/// Moves the entries of sets to a table of flows that go on, which then has them in another order than they come in: sets that follow each
/// other are those of flows that do. `flags`: where their flags are. Returns how many there were.
fn move_all<const KEY: usize, const VALUE: usize, const SET: usize>(
    sets: MapData,
    going: MapData,
    flags: usize,
) -> Result<usize> {
    const HEAD: usize = size_of::<abi::OpeningHead>();
    let mut sets: Array<_, [u8; SET]> = Array::try_from(Map::Array(sets))?;
    let mut going: HashMap<_, [u8; KEY], [u8; VALUE]> = HashMap::try_from(Map::LruHashMap(going))?;
    let mut moved = 0;
    let mut order: Vec<_> = (0..sets.len()).collect();
    order.sort_by_cached_key(|index| BuildHasherDefault::<DefaultHasher>::new().hash_one(index));
    for index in order {
        let set = sets.get(&index, 0)?;
        let (head, rest) = set.split_at(HEAD);
        let (keys, values) = rest.split_at(KEY * abi::OPENING_WAYS);
        for way in 0..abi::OPENING_WAYS {
            if head[way * 4..][..4] == abi::OPENING_FREE.to_ne_bytes() {
                continue;
            }
            let key: [u8; KEY] = keys[way * KEY..][..KEY].try_into()?;
            let mut value: [u8; VALUE] = values[way * VALUE..][..VALUE].try_into()?;
            let were = u16::from_ne_bytes([value[flags], value[flags + 1]]);
            let are = (were | abi::FLOW_REPLIED) & !abi::FLOW_OPENING;
            value[flags..flags + 2].copy_from_slice(&are.to_ne_bytes());
            going.insert(key, value, 0)?;
            moved += 1;
        }
        sets.set(index, [0; SET], 0)?;
    }
    Ok(moved)
}

fn load(wrapper: &mut Ebpf, name: &str) -> Result<ProgramFd> {
    let program: &mut Xdp = wrapper.program_mut(name).with_context(|| format!("no program {name}"))?.try_into()?;
    program.load().with_context(|| format!("cannot load {name}"))?;
    Ok(program.fd()?.try_clone()?)
}

fn fill(datapath: &mut Datapath, capacity: Capacity, setting: Setting) -> Result<()> {
    let Setting { family, services, room: _, openings: _, endpoints, device: _ } = setting;
    let all: Vec<(usize, u32)> = (0..ENDPOINTS as usize).map(|i| (i, 1)).collect();
    let tier = match endpoints {
        Endpoints::Here => TierPlan { spill: 0, local: all, remote: Vec::new() },
        Endpoints::Elsewhere => TierPlan { spill: 0, local: Vec::new(), remote: all },
    };
    let mut tables = Tables::new(capacity);
    for n in 0..services {
        let service = ObjectName::new("bench", format!("service-{n}"));
        let backends = (0..ENDPOINTS).map(|i| BackendPlan {
            address: crate::backend(family, 1 + n * ENDPOINTS + i),
            port: 8080,
            node: None,
            zone: "".into(),
            local: endpoints == Endpoints::Here,
            host_network: false,
            pod: None,
        });
        let key = FrontendKey { address: service_address(family, n), port: 80, protocol: Protocol::Tcp.number() };
        let plan = ServicePlan {
            key: PlanKey { service: service.clone(), port_name: "".into(), protocol: Protocol::Tcp, family },
            port: 80,
            frontends: vec![(key, abi::KIND_CLUSTER_IP)],
            backends: backends.collect(),
            tiers: [tier.clone(), tier.clone(), tier.clone()],
            shares: Shares::Planned,
            selector: Selector::Weights,
            endpoints: ENDPOINTS,
            affinity: 0,
            last_resort: false,
            external_local: false,
            source_ranges: Vec::new(),
        };
        let update = tables.replace(&service, &[plan], 0)?;
        datapath.store().apply(&update.ops)?;
    }
    datapath.configure(&abi::Config {
        hash_seed: 0x5eed,
        node4: NODE.0.into(),
        node6: NODE.1.into(),
        flags: abi::CONFIG_RESET_STALE,
        udp_idle: 112,
        tcp_idle: 7000,
        ..abi::Config::PLAIN
    })?;
    // What a host with the usual settings does not use.
    datapath.set_source_ports(&(1024..=29_999).chain(61_000..=65_535).collect())?;
    Ok(())
}
