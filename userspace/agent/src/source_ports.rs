//! Ports that the host uses or may come to use: looked for now and then, so that connections to other nodes leave from
//! others. And whoever can do something about it is told when those run out. See
//! docs/adr/0024-source-ports-that-the-host-does-not-use.md.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::warn;
use weir_abi as abi;
use weir_core::conntrack::masquerade_port;
use weir_core::source_ports::{HostPorts, PortSet, leaves_few, local_port_range, reserved_ports};
use weir_datapath::Counters;
use weir_kube_watch::events::{Events, Regarding};

use crate::channel::publish;
use crate::sockets::diag::Diag;
use crate::stage::CurrentStage;

/// From one look to the next. Nobody tells of bound ports, and until the next look only a process suffers that speaks to an
/// endpoint from the port that it has just bound. A look takes two small files and four listings of a host's few sockets; of its connections,
/// too, only where new flows share ports with these.
const LOOK: Duration = Duration::from_secs(5);
/// Most of a core that looks may take, once one takes long: beside another proxy all connections that the kernel tracks are listed, for each
/// page of which older kernels search the table from its beginning (`ct_seq_start()`).
const EFFORT: f64 = 0.05;
/// The longest time between two looks, whatever one takes.
const LONGEST: Duration = Duration::from_secs(120);
/// How often it is told that ports have run out, while they do.
const REPEAT: Duration = Duration::from_secs(60);
/// Linux' own `net.ipv4.ip_local_port_range`.
const USUAL_EPHEMERAL: RangeInclusive<u16> = 32_768..=60_999;
/// Connections that the kernel tracks in our network namespace.
const CONNTRACK: &str = "/proc/self/net/nf_conntrack";
/// More than the kernel prints of any set of ports: each other one, with a comma. It prints to a first read only.
const SYSCTL_MOST: usize = 256 << 10;

/// What the host uses, each kind as it was last seen.
#[derive(Clone, Debug)]
struct Seen {
    ephemeral: RangeInclusive<u16>,
    reserved: PortSet,
    /// Of sockets.
    bound: PortSet,
    /// That another proxy beside us has masqueraded to.
    masqueraded: PortSet,
}

impl Default for Seen {
    /// As usual.
    fn default() -> Self {
        let none = PortSet::default();
        Self { ephemeral: USUAL_EPHEMERAL, reserved: none.clone(), bound: none.clone(), masqueraded: none }
    }
}

impl Seen {
    fn ports(&self) -> HostPorts {
        let mut used = self.reserved.clone();
        [&self.bound, &self.masqueraded].into_iter().for_each(|ports| used.add(ports));
        HostPorts { ephemeral: self.ephemeral.clone(), used }
    }
}

/// What a look at the host found.
#[derive(Debug)]
struct Look {
    seen: Seen,
    /// What could not be seen, and why.
    troubles: Vec<String>,
}

impl Look {
    /// Reads files of /proc and asks for sockets, all of our network namespace. What cannot be seen is taken to be as before: who has a
    /// port of ours keeps it, so that a set which shrinks for one look is in the way for as long as connections last.
    fn now(before: Seen, wanted: &RangeInclusive<u16>, beside: bool) -> Self {
        let mut seen = before;
        let settings = [update(&mut seen.ephemeral, ephemeral()), update(&mut seen.reserved, reserved())];
        let connections = leaves_few(wanted, &seen.ports());
        let sockets = [
            update(&mut seen.bound, bound(connections)),
            update(&mut seen.masqueraded, if beside { masqueraded() } else { Ok(PortSet::default()) }),
        ];
        let troubles = settings.into_iter().chain(sockets);
        Self { seen, troubles: troubles.flatten().collect() }
    }
}

/// Takes over what was seen. Returns why nothing was.
fn update<T>(ports: &mut T, seen: Result<T>) -> Option<String> {
    match seen {
        Ok(seen) => {
            *ports = seen;
            None
        }
        Err(cause) => Some(format!("{cause:#}")),
    }
}

fn ephemeral() -> Result<RangeInclusive<u16>> {
    let (name, text) = ("net.ipv4.ip_local_port_range", sysctl("net/ipv4/ip_local_port_range")?);
    local_port_range(&text).ok_or_else(|| anyhow!("{name} is {text:?}, and not two ports"))
}

fn reserved() -> Result<PortSet> {
    let (name, text) = ("net.ipv4.ip_local_reserved_ports", sysctl("net/ipv4/ip_local_reserved_ports")?);
    reserved_ports(&text).ok_or_else(|| anyhow!("{name} is {text:?}, and not a list of ports"))
}

/// Of sockets; of connections only where asked for.
fn bound(connections: bool) -> Result<PortSet> {
    let diag = Diag::open().context("cannot open a sock_diag socket")?;
    Ok(diag.bound_ports(connections).context("cannot list the ports of sockets")?.into_iter().collect())
}

/// Of connections that another proxy has begun; ours are not tracked at ports of ours.
fn masqueraded() -> Result<PortSet> {
    // Line by line: a full table is tens of megabytes.
    let lines = |file| BufReader::new(file).lines().map(|line| line.map(|line| masquerade_port(&line)));
    match File::open(CONNTRACK).and_then(|file| lines(file).filter_map(Result::transpose).collect()) {
        Ok(ports) => Ok(ports),
        // Nothing on this node asks for tracking, so nothing is masqueraded; or CONFIG_NF_CONNTRACK_PROCFS is missing.
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(PortSet::default()),
        Err(cause) => Err(cause).with_context(|| format!("cannot read {CONNTRACK}")),
    }
}

/// How long it is at the least to the next look, after one that took so long.
fn pause(took: Duration) -> Duration {
    took.div_f64(EFFORT).min(LONGEST)
}

fn sysctl(name: &str) -> Result<String> {
    let path = format!("/proc/sys/{name}");
    let read = || {
        let mut text = vec![0; SYSCTL_MOST];
        let length = File::open(&path)?.read(&mut text)?;
        text.truncate(length);
        String::from_utf8(text).map_err(std::io::Error::other)
    };
    read().with_context(|| format!("cannot read {path}"))
}

/// When it was last told that ports ran out.
#[derive(Debug, Default)]
struct Shortage {
    /// Packets dropped until then.
    counted: u64,
    told: Option<Instant>,
}

impl Shortage {
    /// How many packets were dropped since it was last told, if it is to be told now. `counted` are all so far.
    fn due(&mut self, counted: u64, now: Instant) -> Option<u64> {
        let new = counted.checked_sub(self.counted).filter(|new| *new > 0)?;
        if self.told.is_some_and(|told| now.duration_since(told) < REPEAT) {
            return None;
        }
        (self.counted, self.told) = (counted, Some(now));
        Some(new)
    }
}

/// Looks at the host until it is stopped.
#[derive(Debug)]
pub(crate) struct PortWatch {
    used: watch::Sender<HostPorts>,
    /// What new flows may take at most.
    wanted: RangeInclusive<u16>,
    seen: Seen,
    /// Told already.
    troubles: Vec<String>,
    counters: Counters,
    shortage: Shortage,
    events: Events,
    node: String,
    stage: CurrentStage,
}

impl PortWatch {
    /// With a first look, and a receiver of what the host uses from then on. Complaints go to the log, and to `events` about
    /// `node`.
    pub(crate) fn begin(
        counters: Counters,
        events: Events,
        node: &str,
        wanted: RangeInclusive<u16>,
        stage: CurrentStage,
    ) -> (Self, watch::Receiver<HostPorts>) {
        let Look { seen, troubles } = Look::now(Seen::default(), &wanted, stage.is_beside());
        let (used, receiver) = watch::channel(seen.ports());
        let shortage = Shortage { counted: dropped(&counters), told: None };
        let mut watch =
            Self { used, wanted, seen, troubles: Vec::new(), counters, shortage, events, node: node.to_owned(), stage };
        watch.tell(troubles);
        (watch, receiver)
    }

    /// Works until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let work = async {
            let mut tick = tokio::time::interval_at(Instant::now() + LOOK, LOOK);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut next = Instant::now();
            loop {
                let has_changed = tokio::select! {
                    _ = tick.tick() => false,
                    () = self.stage.changed() => true,
                };
                if let Some(packets) = self.shortage.due(dropped(&self.counters), Instant::now()) {
                    self.complain(packets);
                }
                let begin = Instant::now();
                if begin < next && !has_changed {
                    continue;
                }
                let (before, wanted, beside) = (self.seen.clone(), self.wanted.clone(), self.stage.is_beside());
                if let Ok(Look { seen, troubles }) =
                    tokio::task::spawn_blocking(move || Look::now(before, &wanted, beside)).await
                {
                    self.tell(troubles);
                    publish(&self.used, seen.ports());
                    self.seen = seen;
                }
                next = Instant::now() + pause(begin.elapsed());
            }
        };
        stop.run_until_cancelled(work).await;
    }

    fn tell(&mut self, troubles: Vec<String>) {
        for cause in troubles.iter().filter(|cause| !self.troubles.contains(cause)) {
            warn!(%cause, "the ports that the host uses are not all known: connections to other nodes may take some of them");
        }
        self.troubles = troubles;
    }

    fn complain(&self, packets: u64) {
        const REMEDY: &str = "give Services more endpoints, widen --snat-ports, or narrow net.ipv4.ip_local_port_range";
        warn!(packets, "dropped for want of source ports towards an endpoint on another node: {REMEDY}");
        let note =
            format!("connections to an endpoint on another node were dropped for want of source ports: {REMEDY}");
        self.events.warn(Regarding::node(&self.node), "SourcePortsExhausted", note);
    }
}

/// Packets dropped for want of a source port so far.
fn dropped(counters: &Counters) -> u64 {
    let of_hook =
        |hook| counters.counter(hook, abi::REASON_SNAT_EXHAUSTED as usize).map_or(0, |counter| counter.packets);
    (0..abi::HOOK_COUNT).map(of_hook).sum()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn a_port_is_used_as_long_as_a_socket_of_any_kind_is_bound_to_it() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (tcp, udp) = (TcpListener::bind(address).unwrap(), UdpSocket::bind(address).unwrap());
            let connected = UdpSocket::bind(address).unwrap();
            connected.connect(udp.local_addr().unwrap()).unwrap();
            let addresses = [tcp.local_addr(), udp.local_addr(), connected.local_addr()];
            let bound = bound(false).unwrap();
            assert!(addresses.into_iter().all(|address| bound.contains(address.unwrap().port())), "{bound}");
        }
    }

    #[test]
    fn looks_that_take_long_are_few_but_never_too_few() {
        let seconds = |took| pause(Duration::from_secs_f64(took)).as_secs();
        assert_eq!([0.001, 0.25, 1.0, 60.0].map(seconds), [0, 5, 20, 120]);
    }

    #[test]
    fn so_is_that_of_a_connection_where_ports_are_shared_with_these() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connection = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let port = connection.local_addr().unwrap().port();
        assert_eq!([false, true].map(|connections| bound(connections).unwrap().contains(port)), [false, true]);
    }

    #[test]
    fn what_the_kernel_hands_out_by_itself_is_used() {
        let Look { seen, troubles } = Look::now(Seen::default(), &(1024..=u16::MAX), true);
        assert_eq!(troubles, Vec::<String>::new());
        let (ephemeral, port) =
            (seen.ports().ephemeral, UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port());
        assert!(ephemeral.contains(&port), "{port} in {ephemeral:?}");
    }

    #[test]
    fn what_cannot_be_seen_is_as_it_was_seen_before() {
        let [before, now] = [1000, 2000].map(|port| PortSet::from_iter([port]));
        let mut ports = before.clone();
        assert_eq!(update(&mut ports, Err(anyhow!("no memory"))).as_deref(), Some("no memory"));
        assert_eq!(ports, before);
        assert_eq!(update(&mut ports, Ok(now.clone())), None);
        assert_eq!(ports, now);
    }

    #[test]
    fn a_shortage_is_told_once_a_minute_with_all_that_it_cost_since() {
        let mut shortage = Shortage { counted: 5, told: None };
        let start = Instant::now();
        let later = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(shortage.due(5, start), None, "what was dropped before is old news");
        assert_eq!(shortage.due(7, start), Some(2));
        assert_eq!([shortage.due(8, later(1)), shortage.due(9, later(59))], [None, None]);
        assert_eq!(shortage.due(9, later(60)), Some(2));
        assert_eq!(shortage.due(9, later(600)), None, "nothing was dropped since");
        assert_eq!(shortage.due(10, later(601)), Some(1));
    }
}
