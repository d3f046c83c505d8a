//! The proxies under test, two of each kind for each number of services: agents of this tree, and real kube-proxies. All
//! are there all the time; those that have no turn are stopped, for what they do by themselves is not the others' load.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use weir_abi as abi;
use weir_datapath::{PinDir, View};
use weir_testbed::apiserver::User;
use weir_testbed::kube_proxy::Mode;
use weir_testbed::process::Process;
use weir_testbed::{Cgroup, KubeProxy, Node, address, wait};

use super::bed::Bed;
use super::plan;
use super::way::{Proxy, Way};
use crate::guard::Stop;
use crate::{guard, health, mesh_key};

/// Patience with an agent that starts.
const SOON: Duration = Duration::from_secs(60);
/// Patience with kube-proxy's first rules: of thousands of services they take minutes on a small machine.
const FIRST_RULES: Duration = Duration::from_secs(900);
/// Who runs again after a pause does at once what he should have done meanwhile: kube-proxy looks at all its rules, of thousands of
/// services for seconds, unless that is not due before the end.
const SYNC_PERIOD: Duration = Duration::from_secs(24 * 3600);
/// Patience with the first answer through a proxy that says that it serves.
const ANSWER: Duration = Duration::from_secs(60);

/// All of them.
pub(super) struct Proxies(Vec<Pair>);

/// Those of the two nodes of one proxy.
struct Pair {
    services: u32,
    proxy: Proxy,
    running: [Running; 2],
    /// What has to be there before connections come: see [`Wrapped`].
    wrapped: Option<Wrapped>,
}

/// The first node of a pair whose agents wrap clients' packets for each other, and the second one's pod. An agent that was stopped
/// was silent, and is sent nothing wrapped until it is heard again.
struct Wrapped {
    view: View,
    pod: address::Pair,
}

/// One on a node. Its rules go with the node.
enum Running {
    Agent { process: Process, _cgroup: Cgroup, _pins: Pins },
    KubeProxy(KubeProxy),
}

/// An agent's maps and programs, gone on drop: the next repetition has a node of the same number.
struct Pins(PinDir);

impl Drop for Pins {
    fn drop(&mut self) {
        let Self(pins) = self;
        if let Err(error) = pins.remove_all(false) {
            eprintln!("cannot remove {}: {error}", pins.root().display());
        }
    }
}

impl Proxies {
    /// Starts all, waits until each of them serves, and stops them.
    ///
    /// # Errors
    /// When one does not serve in time, or not as it should; the error quotes its log.
    pub(super) fn start(services: &[u32], agent: &Path, bed: &Bed, logs: &Path, stop: &Stop) -> Result<Self> {
        let mut all = Vec::new();
        let fewest = services.first().copied().unwrap_or_default();
        let proxies = services.iter().flat_map(|services| Proxy::ALL.map(|proxy| (*services, proxy)));
        for (services, proxy) in proxies.filter(|(services, proxy)| proxy.serves(*services, fewest)) {
            let start = |node: &Node| {
                stop.check()?;
                start_one(services, proxy, node, agent, bed, logs)
            };
            let [first, second] = bed.nodes(services, proxy);
            let running = [start(first)?, start(second)?];
            let wrapped = (proxy == Proxy::Dsr).then(|| Wrapped::of([first, second])).transpose()?;
            let pair = Pair { services, proxy, running, wrapped };
            for way in plan::ways(&[services]).into_iter().filter(|way| way.proxy == proxy) {
                for (backend, family) in plan::pods() {
                    bed.await_answer(way, backend, family, ANSWER)?;
                }
            }
            pair.pause()?;
            all.push(pair);
        }
        Ok(Self(all))
    }

    /// Does `work` while the proxies of a way run, if it has some.
    ///
    /// # Errors
    /// As `work`, and when a proxy is gone.
    pub(super) fn in_turn<T>(&self, way: Way, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let Self(all) = self;
        let pair = all.iter().find(|pair| (pair.services, pair.proxy) == (way.services, way.proxy));
        pair.map_or(Ok(()), Pair::resume)?;
        let done = work();
        pair.map_or(Ok(()), Pair::pause)?;
        done
    }
}

impl Pair {
    fn pause(&self) -> Result<()> {
        self.running.iter().try_for_each(|running| match running {
            Running::Agent { process, .. } => Ok(process.pause()?),
            Running::KubeProxy(proxy) => Ok(proxy.pause()?),
        })
    }

    fn resume(&self) -> Result<()> {
        for running in &self.running {
            match running {
                Running::Agent { process, .. } => process.resume()?,
                Running::KubeProxy(proxy) => proxy.resume()?,
            }
        }
        self.wrapped.as_ref().map_or(Ok(()), Wrapped::wait)
    }
}

impl Wrapped {
    fn of([first, second]: [&Node; 2]) -> Result<Self> {
        Ok(Self { view: View::open(guard::pin_dir(first.number()))?, pod: second.pod(1).address() })
    }

    /// Waits until clients' packets to the pod are wrapped, in both families.
    fn wait(&self) -> Result<()> {
        wait::until_some("that the second node takes wrapped packets", SOON, || {
            let mut direct = Vec::new();
            let look = |_: u32, backend: &abi::Backend, _: &abi::BackendCounters| {
                if self.pod.both().contains(&backend.addr.ip()) {
                    direct.push(backend.flags & abi::BACKEND_DIRECT != 0);
                }
            };
            self.view.visit_endpoints(look).map_err(|error| error.to_string())?;
            let all = !direct.is_empty() && direct.iter().all(|direct| *direct);
            if all { Ok(()) } else { Err(format!("{direct:?}")) }
        })?;
        Ok(())
    }
}

fn start_one(services: u32, proxy: Proxy, node: &Node, agent: &Path, bed: &Bed, logs: &Path) -> Result<Running> {
    let (api, url) = bed.api(services);
    let kube_proxy =
        |mode| Ok(Running::KubeProxy(KubeProxy::start_within(FIRST_RULES, SYNC_PERIOD, mode, api, &url, node)?));
    match proxy {
        Proxy::None => bail!("without a service there is no proxy"),
        Proxy::Iptables => kube_proxy(Mode::Iptables),
        Proxy::Nftables => kube_proxy(Mode::Nftables),
        Proxy::Weir | Proxy::Bypass | Proxy::Dsr => {
            let name = node.name();
            // One machine has one tree of groups: whatever runs outside these nodes is none of the agents' business.
            let cgroup = Cgroup::create(&format!("world-{name}"))?;
            let mut command = node.netns().command(agent);
            command.arg("--kubeconfig").arg(api.kubeconfig(User::Admin, &url)?);
            command.args(["--node-name", &name]);
            let pins = Pins(guard::pin_dir(node.number()));
            command.arg("--pin-dir").arg(pins.0.root());
            command.arg("--cgroup").arg(cgroup.path());
            match proxy {
                Proxy::Bypass => _ = command.arg("--host-bypass"),
                Proxy::Dsr => {
                    let key = logs.join("mesh.key");
                    mesh_key::write(&key)?;
                    command.arg("--external-mode=dsr").arg("--mesh-key-file").arg(key);
                }
                Proxy::None | Proxy::Weir | Proxy::Iptables | Proxy::Nftables => {}
            }
            let mut process = Process::start(command, "weir-agent", &logs.join(format!("weir-agent-{name}.log")))?;
            health::await_ready(node, &mut process, SOON)?;
            Ok(Running::Agent { process, _cgroup: cgroup, _pins: pins })
        }
    }
}
